"""The verdict on what an asynchronous form compiled to: a record that a launch believes, or does not.

What compiles is not yet right (docs/design/forms.md, "The asynchronous form"), so that a form runs where a record says
that its machine code was looked at and its numbers were compared. The record is plain data, in the cache and in saved
kernels, and is made by `neptune.hopper.validate.verdicts`. It is believed for the very text, constants, GPU and
compiler that it was made of, which its key is a digest of; a record that is torn, foreign or of something else is none.
The figures decide: no field says "accepted".
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune.runtime.calls.addressing import KernelParameters
from neptune.versions import versions

if TYPE_CHECKING:
    from neptune.runtime.hopper.data import Asynchronous

FORMAT = 2
"""Of a record: another one is none, and is made anew."""
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
SPARED = 96
"""Bytes a thread that may be spilled where no inner loop touches them. (88 around loops of 64 products: 677 TFLOP/s of
a loss on an H200, where cuBLAS has 713 for the product alone, and the next form, which spills none, 591.)"""
LARGEST_LIMIT = 2.0
"""Of errors relative to the largest element: eight roundings of float8_e5m2."""
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


Quartiles: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Timed:
    """Microseconds of a call in both forms, of rounds in which they took turns: quartiles of each, the median between
    the others; at `sizes`, on the GPU `device`."""

    asynchronous: Quartiles
    triton: Quartiles
    sizes: Mapping[str, int]
    device: str

    @property
    def slower(self) -> bool:
        """True where the asynchronous form is slower beyond the noise: the ranges between quartiles do not overlap."""
        return self.asynchronous[0] > self.triton[2]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the code of an asynchronous kernel is found to be.

    `shared_bytes` are a program's, `spill_bytes` a thread's, `local` the accesses to them in the code, `local_inner`
    those in inner loops with products, which are what costs time; `warnings` are the assembler's (C75xx); `consumers`
    and `producers` the registers of a thread that `setmaxnreg` leaves to each role, `split` those that were asked for;
    `findings` are the linter's. Figures of speed: `products` in the code, groups of them `in_flight`, `exps` of the
    inner loops and those of them `overlapped` with a product.
    """

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

    @property
    def unfit(self) -> tuple[str, ...]:
        """What is wrong with the code."""
        asked, left = self.split
        held = bool(self.consumers) and bool(self.producers)
        held = held and min(self.consumers) >= asked and min(self.producers) > 0 and max(self.producers) <= left
        spilled = self.spill_bytes > (0 if self.local_inner else SPARED)
        where = f", {self.local_inner} accesses to them in inner loops" if self.local_inner else ""
        tests = (
            (self.shared_bytes > SHARED, f"{self.shared_bytes} bytes of shared memory, and there are {SHARED}"),
            (spilled, f"{self.spill_bytes} bytes a thread are spilled{where}"),
            (self.local > 0 and not self.spill_bytes, f"{self.local} accesses to local memory"),
            (bool(self.warnings), "; ".join(self.warnings)),
            (not held, f"registers of the roles are {self.consumers} and {self.producers}, not {self.split}"),
            (bool(self.findings), "; ".join(self.findings[:3])),
        )
        return tuple(why for wrong, why in tests if wrong)


FIGURES = tuple(Figures.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Figures):
    """What is known of a compiled asynchronous form: the figures of its kernel, and of `others` where it has several.

    `protocol` is "clean", a counterexample, or None where it was not checked; `compared` is None where there was no
    GPU, and `ended` says how a comparison ended that did not come to its end: it hung, or its process died. `timed` is
    None where both forms were not timed. All four are of the program.
    """

    key: str
    protocol: str | None = None
    compared: Compared | None = None
    ended: str = ""
    timed: Timed | None = None
    others: tuple[Figures, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the form does not run by itself; () for one that does."""
        return (*self.wrong, *self.slow)

    @property
    def slow(self) -> tuple[str, ...]:
        """That it is slower than the Triton form, where it is: then it runs if it is forced.

        >>> replace(clean, timed=Timed((40.9, 41.2, 41.6), (37.8, 38.0, 38.1), {"n": 512}, "H200")).slow
        ('slower than the Triton form: 41.2 µs, 38.0 µs',)
        """
        t = self.timed
        if t is None or not t.slower:
            return ()
        return (f"slower than the Triton form: {t.asynchronous[1]:.1f} µs, {t.triton[1]:.1f} µs",)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Why the form never runs, even if it is forced.

        >>> replace(clean, spill_bytes=104, compared=None).wrong
        ('104 bytes a thread are spilled', 'not compared')
        """
        c = self.compared
        tests = (
            (self.protocol is None, "its protocol is not checked"),
            (self.protocol not in (None, CLEAN), f"its protocol: {self.protocol}"),
            (bool(self.ended), f"its comparison with the Triton form {self.ended}"),
            (c is None and not self.ended, NOT_COMPARED),
            (c is not None and not c.error <= c.limit, f"its results differ by {c.error if c else 0:.2g}"),
        )
        code = (*self.unfit, *(why for of in self.others for why in of.unfit))
        return (*code, *(why for wrong, why in tests if wrong))

    @property
    def accepted(self) -> bool:
        """True for a form that runs wherever it can."""
        return not self.faults


def key_of(of: Asynchronous) -> str:
    """The digest of all that the code depends on: text, parameters, constants, GPU, and what compiles."""
    own = [_said(of.kernel), list(of.kernel.aligned), dict(of.levers)]
    parts = [FORMAT, of.text, *own, of.architecture, compiler()]
    parts += [[_said(x.kernel), list(x.kernel.aligned), dict(x.levers), list(x.registers)] for x in of.others]
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _said(k: KernelParameters) -> list[Any]:
    return [k.function, dict(k.types), {n: list(b) for n, b in k.boxes.items()}]


def compiler() -> list[Any]:
    """What makes code of a text: the release of Triton, and the settings that change what it does."""
    return [versions()["triton"], *([name, os.environ[name]] for name in SETTINGS if name in os.environ)]


def settings() -> tuple[str | None, ...]:
    """What of `compiler` may change while a process runs."""
    return tuple(map(os.environ.get, SETTINGS))


def runs(of: Asynchronous) -> bool:
    """True where the form has a record of itself with which it is accepted; one that is forced may be slow."""
    found = of_itself(of)
    return found is not None and not (found.wrong if of.forced else found.faults)


def of_itself(of: Asynchronous) -> Verdict | None:
    """The verdict that a form has; None where it has none, or one of something else."""
    found = None if of.record is None else read(of.record)
    return None if found is None or found.key != key_of(of) else found


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
    timed = rest["timed"]
    if timed is not None:
        timed = timed_of(timed)
        if timed is None:
            return None
    texts = [rest["key"], rest["ended"], *([] if rest["protocol"] is None else [rest["protocol"]])]
    if not all(isinstance(t, str) for t in texts) or not isinstance(rest["others"], list | tuple):
        return None
    figures, *others = map(_figures, ({n: rest.pop(n) for n in FIGURES}, *rest["others"]))
    if figures is None or None in others:
        return None
    program = {**rest, "compared": compared, "timed": timed, "others": tuple(others)}
    return Verdict(**asdict(figures), **program)


def _figures(data: Any) -> Figures | None:
    """The figures that plain data hold."""
    if not isinstance(data, Mapping) or data.keys() != set(FIGURES):
        return None
    lists = {n: data[n] for n in ("warnings", "findings", "split", "consumers", "producers")}
    if not all(isinstance(x, list | tuple) for x in lists.values()):
        return None
    numbers = [
        data[n]
        for n in ("shared_bytes", "spill_bytes", "local", "local_inner", "products", "in_flight", "exps", "overlapped")
    ]
    numbers += [*lists["split"], *lists["consumers"], *lists["producers"]]
    words = [*lists["warnings"], *lists["findings"]]
    if not all(type(n) is int and n >= 0 for n in numbers) or not all(isinstance(w, str) for w in words):
        return None
    if len(lists["split"]) != 2:
        return None
    return Figures(**{**data, **{n: tuple(x) for n, x in lists.items()}})


def _compared(data: Any) -> Compared | None:
    if not isinstance(data, Mapping) or data.keys() != set(Compared.__dataclass_fields__):
        return None
    draws, error, limit = data["draws"], data["error"], data["limit"]
    if type(draws) is not int or draws < 1 or not all(isinstance(x, float) for x in (error, limit)):
        return None
    # A NaN is an error of its own; a limit that every result keeps is none.
    return None if error < 0 or not 0 <= limit <= LARGEST_LIMIT else Compared(draws, error, limit)


def timed_of(data: Any) -> Timed | None:
    """The times that plain data hold; None for anything that `asdict` does not give of them."""
    if not isinstance(data, Mapping) or data.keys() != set(Timed.__dataclass_fields__):
        return None
    ranges = [_quartiles(data[form]) for form in ("asynchronous", "triton")]
    sizes, device = data["sizes"], data["device"]
    if None in ranges or not isinstance(sizes, Mapping) or not isinstance(device, str):
        return None
    if not all(isinstance(n, str) and type(v) is int for n, v in sizes.items()):
        return None
    return Timed(ranges[0], ranges[1], dict(sizes), device)  # type: ignore[arg-type]


def _quartiles(data: Any) -> Quartiles | None:
    if not isinstance(data, Sequence) or len(data) != 3 or not all(isinstance(x, float) for x in data):
        return None
    lower, middle, upper = data
    return (lower, middle, upper) if 0 < lower <= middle <= upper < math.inf else None
