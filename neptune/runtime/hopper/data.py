"""The plain data of the asynchronous form: which tensors it takes, how it is launched, and whether it may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from neptune.ir.integers import Span
from neptune.ir.text.parser import parse_program
from neptune.runtime.calls.addressing import (
    Json,
    KernelParameters,
    Tensors,
    int32_suffices,
    kernel_json,
    read_kernel,
    read_span,
    span_json,
)
from neptune.runtime.hopper import accepted
from neptune.runtime.parts import Parts, parts_json, read_parts

ASYNCHRONOUS = "asynchronous"
"""The name of the form."""


@dataclass(frozen=True)
class Roles:
    """One asynchronous kernel: the parameters that offline compilation wants, its `levers` as plain numbers and words,
    tile sizes among them, and the registers of a consumer's thread and of the producer's that it asks for."""

    kernel: KernelParameters
    levers: Mapping[str, int | str]
    registers: tuple[int, int]


@dataclass(frozen=True)
class Asynchronous:
    """The module of the form in which a producer warp loads for warpgroups that compute (sm_90), and what it asks
    (`neptune.runtime.forms.FormData`).

    `text` is the module, of tile sizes of its own, which `levers` names with the other choices, as plain numbers and
    words; it runs on `architecture`, "cuda:90". `aligned` are the inputs and outputs that go through descriptors,
    `kernel` the parameters that offline compilation wants, `spans` what its int32 offsets add up. `record` is the
    verdict on what was compiled, None where there is none yet: it runs where it is accepted, and the other forms run
    everywhere. One that is `forced` runs though the Triton form is faster. `others` are further asynchronous kernels of
    the module, behind `kernel`; of kernels that stay on tiles it `takes` the values of these parameters. `parts` is how
    its launches choose numbers, by groups and tiles of its own.
    """

    name: ClassVar[str] = ASYNCHRONOUS
    wants: ClassVar[str] = "dense on 16 bytes"

    text: str
    aligned: tuple[str, ...]
    kernel: KernelParameters
    levers: Mapping[str, int | str]
    architecture: str
    record: Mapping[str, Any] | None = None
    spans: tuple[Span, ...] = ()
    forced: bool = False
    others: tuple[Roles, ...] = ()
    takes: tuple[str, ...] = ()
    parts: tuple[Parts, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of its asynchronous kernels."""
        return (self.kernel.function, *(x.kernel.function for x in self.others))

    @property
    def faults(self) -> tuple[str, ...] | None:
        """Why what was compiled does not run; () where it does, None where there is no verdict on it."""
        found = accepted.of_itself(self)
        if found is None or found.faults == (accepted.NOT_COMPARED,):
            return None
        return found.wrong if self.forced else found.faults

    @property
    def timed(self) -> tuple[Mapping[str, int], float] | None:
        """Sizes at which it was timed beside tiles, and its time relative to theirs."""
        found = accepted.of_itself(self)
        if found is None or found.timed is None:
            return None
        return found.timed.sizes, found.timed.asynchronous[1] / found.timed.triton[1]

    def runs(self) -> bool:
        """True where it has a record of itself with which it is accepted; one that is forced may be slow."""
        return accepted.runs(self)

    @staticmethod
    def settings() -> tuple[str | None, ...]:
        """What else `runs` depends on, and may change while a process runs."""
        return accepted.settings()

    def serves(self, of: Tensors) -> bool:
        """True for tensors that copies in bulk take, within int32 offsets."""
        return not of.wide and of.on_16_bytes(self.aligned) and int32_suffices(self.spans, of.strides, {})

    def values(self, params: Mapping[str, int]) -> dict[str, int]:
        """What its launch function takes: tile sizes of asynchronous kernels are in their text."""
        return {n: v for n, v in params.items() if n in self.takes}

    def values_of_one(self, of_one: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
        """The values of single launches: those of kernels that stay on tiles."""
        return {f: values for f, values in of_one.items() if f not in self.functions}

    def verdict(self) -> Json | None:
        """What explain() says of the record; None where there is none, or one of something else."""
        found = accepted.of_itself(self)
        if found is None:
            return None
        figures = {name: written for name, written in asdict(found).items() if name in ("compared", "timed")}
        return {"runs": self.runs(), "forced": self.forced, "faults": list(found.faults), **figures}

    def as_json(self) -> Json:
        """All but the text, as plain data."""
        return {
            "aligned": list(self.aligned),
            "kernel": kernel_json(self.kernel),
            "levers": dict(self.levers),
            "architecture": self.architecture,
            "record": None if self.record is None else dict(self.record),
            "spans": [span_json(s) for s in self.spans],
            "forced": self.forced,
            "others": [
                {"kernel": kernel_json(x.kernel), "levers": dict(x.levers), "registers": list(x.registers)}
                for x in self.others
            ],
            "takes": list(self.takes),
            "parts": [parts_json(p) for p in self.parts],
        }

    @classmethod
    def read(cls, j: Mapping[str, Any], text: str, declarations: str) -> Asynchronous:
        """The form again; LookupError, TypeError or ValueError for what `as_json` does not give."""
        rules = j.get("parts", ())
        return cls(
            text,
            tuple(j["aligned"]),
            read_kernel(j["kernel"]),
            dict(j["levers"]),
            j["architecture"],
            j.get("record"),
            tuple(read_span(s) for s in j["spans"]),
            bool(j.get("forced", False)),
            # Kernels that were saved before these were have none.
            tuple(_roles(x) for x in j.get("others", ())),
            tuple(j.get("takes", ())),
            read_parts(rules, parse_program(declarations)) if rules else (),
        )


def _roles(j: Mapping[str, Any]) -> Roles:
    most, least = j["registers"]
    return Roles(read_kernel(j["kernel"]), dict(j["levers"]), (most, least))
