"""The verdict on what an asynchronous form compiled to: a record that a launch believes, or does not.

What compiles is not yet right (docs/design.md, "The asynchronous form"), so that a form runs where a record says that
its machine code was looked at and its numbers were compared. The record is plain data: it lies in the cache, and in
saved kernels, and is made by `neptune.hopper.accept`. It is believed for the very text, constants, GPU and compiler
that it was made of, which its key is a digest of; a record that is torn, foreign or of something else is none. The
figures decide: no field says "accepted".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neptune.runtime.addressing import Asynchronous
from neptune.versions import versions

FORMAT = 1
"""Of a record: another one is none."""
SETTINGS = (
    "DISABLE_PTXAS_OPT",
    "DISABLE_LLVM_OPT",
    "PTXAS_OPTIONS",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
)
"""Variables of the environment with which Triton makes other code of the same text."""
SHARED = 227 << 10
"""Bytes of shared memory that a program may have (sm_90)."""
NOT_COMPARED = "not compared"
CLEAN = "clean"
"""What the protocol's check says of a form without a fault."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Results beside those of the Triton form: random inputs that were tried, the largest difference, relative to the
    largest element, and how large it may be."""

    draws: int
    error: float
    limit: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a compiled asynchronous form.

    `shared_bytes` are a program's, `spill_bytes` a thread's, `local` the accesses to them in the code, `local_inner`
    those in inner loops with products, which are what costs time; `warnings` are the assembler's (C75xx); `consumers`
    and `producers` the registers of a thread that `setmaxnreg` leaves to each role, `split` those that were asked for;
    `findings` are the linter's. `protocol` is "clean", a counterexample, or None where it was not checked; `compared`
    is None where there was no GPU. Figures of speed: `products` in the code, groups of them `in_flight`, `exps` of the
    inner loops and those of them `overlapped` with a product.
    """

    key: str
    shared_bytes: int
    spill_bytes: int
    local: int
    local_inner: int
    warnings: tuple[str, ...]
    split: tuple[int, int]
    consumers: tuple[int, ...]
    producers: tuple[int, ...]
    findings: tuple[str, ...]
    products: int
    in_flight: int
    exps: int
    overlapped: int
    protocol: str | None = None
    compared: Compared | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the form does not run; () for one that does.

        >>> replace(clean, spill_bytes=8, compared=None).faults
        ('8 bytes a thread are spilled', 'not compared')
        """
        asked, left = self.split
        held = bool(self.consumers) and bool(self.producers)
        held = held and min(self.consumers) >= asked and min(self.producers) > 0 and max(self.producers) <= left
        c = self.compared
        where = f", {self.local_inner} accesses to them in inner loops" if self.local_inner else ""
        tests = (
            (self.shared_bytes > SHARED, f"{self.shared_bytes} bytes of shared memory, and there are {SHARED}"),
            (self.spill_bytes > 0, f"{self.spill_bytes} bytes a thread are spilled{where}"),
            (self.local > 0 and not self.spill_bytes, f"{self.local} accesses to local memory"),
            (bool(self.warnings), "; ".join(self.warnings)),
            (not held, f"registers of the roles are {self.consumers} and {self.producers}, not {self.split}"),
            (bool(self.findings), "; ".join(self.findings[:3])),
            (self.protocol is None, "its protocol is not checked"),
            (self.protocol not in (None, CLEAN), f"its protocol: {self.protocol}"),
            (c is None, NOT_COMPARED),
            (c is not None and not c.error <= c.limit, f"its results differ by {c.error if c else 0:.2g}"),
        )
        return tuple(why for wrong, why in tests if wrong)

    @property
    def accepted(self) -> bool:
        """True for a form that may run."""
        return not self.faults


def key_of(of: Asynchronous) -> str:
    """The digest of all that the code depends on: text, parameters, constants, GPU, and what compiles."""
    kernel = [of.kernel.function, dict(of.kernel.types), {n: list(b) for n, b in of.kernel.boxes.items()}]
    parts = [FORMAT, of.text, kernel, list(of.kernel.aligned), dict(of.levers), of.architecture, compiler()]
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def compiler() -> list[Any]:
    """What makes code of a text: the release of Triton, and the settings that change what it does."""
    return [versions()["triton"], *([name, os.environ[name]] for name in SETTINGS if name in os.environ)]


def runs(of: Asynchronous) -> bool:
    """True where the form has a record of itself, with which it is accepted."""
    found = None if of.record is None else read(of.record)
    return found is not None and found.accepted and found.key == key_of(of)


def written(v: Verdict) -> dict[str, Any]:
    """A verdict as plain data."""
    return {"format": FORMAT, **asdict(v)}


def read(data: Any) -> Verdict | None:
    """The verdict that plain data hold; None for anything that `written` does not give."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        return None
    rest = {k: v for k, v in data.items() if k != "format"}
    if rest.keys() != set(Verdict.__dataclass_fields__):
        return None
    compared = rest["compared"]
    if compared is not None:
        compared = _compared(compared)
        if compared is None:
            return None
    texts = [rest["key"], *([] if rest["protocol"] is None else [rest["protocol"]])]
    lists = {n: rest[n] for n in ("warnings", "findings", "split", "consumers", "producers")}
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(x, list | tuple) for x in lists.values()):
        return None
    numbers = [
        rest[n]
        for n in ("shared_bytes", "spill_bytes", "local", "local_inner", "products", "in_flight", "exps", "overlapped")
    ]
    numbers += [*lists["split"], *lists["consumers"], *lists["producers"]]
    words = [*lists["warnings"], *lists["findings"]]
    if not all(type(n) is int and n >= 0 for n in numbers) or not all(isinstance(w, str) for w in words):
        return None
    if len(lists["split"]) != 2:
        return None
    return Verdict(**{**rest, **{n: tuple(x) for n, x in lists.items()}, "compared": compared})


def _compared(data: Any) -> Compared | None:
    if not isinstance(data, Mapping) or data.keys() != set(Compared.__dataclass_fields__):
        return None
    draws, error, limit = data["draws"], data["error"], data["limit"]
    if type(draws) is not int or draws < 1 or not all(isinstance(x, float) for x in (error, limit)):
        return None
    return None if math.isnan(limit) else Compared(draws, error, limit)
