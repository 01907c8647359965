"""The smallest form beside tiles that there is, to copy: the module of tiles under another name.

A form is an object that says what fits, makes, predicts, validates and explains (`Stub`, a `neptune.forms.Form`), and
plain data that runs what was made (`StubData`, a `neptune.runtime.forms.FormData`). A row of two tables makes it known:
then the pipeline, the choice, the tuner, records, saved kernels and explain() ask it, by its name. Its lever does
nothing here; a form of your own writes another module in `lower`, and refuses in `fits` and `validate` whatever it
cannot vouch for.

python examples/smallest_form.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

import neptune
from neptune.codegen.triton.module import generate
from neptune.errors import Unsupported
from neptune.forms import FORMS, Inspected, Made, Source, Time, Wanted
from neptune.ops.linear import matmul
from neptune.runtime.calls.addressing import Tensors
from neptune.runtime.executable import Executable
from neptune.runtime.forms import FORMS as DATA
from neptune.runtime.forms import FormData
from neptune.runtime.parts import Parts
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.tune.defaults import defaults
from neptune.tune.gains import Asked
from neptune.tune.model.machine import Machine

NAME = "stub"
MARK = "in the form of a stub"
"""What tells its module from that of tiles."""


@dataclass(frozen=True)
class StubData:
    """What runs it: tensors whose rows are dense, in the module's own tiles."""

    name: ClassVar[str] = NAME
    wants: ClassVar[str] = "dense"

    text: str
    architecture: str
    levers: Mapping[str, int | str]
    record: Mapping[str, Any] | None = None
    forced: bool = False
    parts: tuple[Parts, ...] = ()

    @property
    def faults(self) -> tuple[str, ...] | None:
        return None if self.record is None else tuple(self.record["faults"])

    @property
    def timed(self) -> tuple[Mapping[str, int], float] | None:
        return None if self.record is None else self.record.get("timed")

    def runs(self) -> bool:
        return self.faults == ()

    def settings(self) -> tuple[str | None, ...]:
        return ()

    def serves(self, of: Tensors) -> bool:
        return not of.wide and all(t.is_contiguous() for t in of.named.values())

    def values(self, params: Mapping[str, int]) -> dict[str, int]:
        return dict(params)

    def values_of_one(self, of_one: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
        return of_one

    def verdict(self) -> dict[str, Any] | None:
        return None if self.record is None else {"runs": self.runs()}

    def as_json(self) -> dict[str, Any]:
        return {n: v for n, v in asdict(self).items() if n not in ("text", "parts")}

    @classmethod
    def read(cls, j: Mapping[str, Any], text: str, declarations: str) -> StubData:
        return cls(text, j["architecture"], j["levers"], j["record"], j["forced"])


@dataclass
class Point:
    tiles: Mapping[str, int]
    levers: Mapping[str, Any]


@dataclass
class Points:
    """Both values of the lever, the greater of which is twice as fast."""

    every: Sequence[Point]
    close: float = 1.0

    def us(self, point: Point, on_tiles: Mapping[str, int], whole: float) -> float:
        return float(whole / point.levers["speed"])


@dataclass
class Stub:
    """What makes it: `factor` is its time relative to tiles, `verdict` what is found of what was compiled. Programs of
    several kernels have none."""

    factor: float = 0.5
    verdict: tuple[str, ...] | None = ()
    targets: tuple[str, ...] = ("interpret",)
    name: str = NAME
    reason: str = "a stub runs in the interpreter"
    levers: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"speed": (1, 2)})

    def fits(self, of: Source, choice: Wanted) -> Unsupported | None:
        if len(of.tiles.kernels) > 1 or not list(dots(of.tiles.kernels[0])):
            return Unsupported("a stub is one kernel with a product", legal=["matmul"])
        return Unsupported("tiles are faster") if choice.ahead and self.factor > 1 else None

    def lower(self, of: Source, choice: Wanted) -> Made | Unsupported:
        if (wrong := of.differs(of.tiles)) is not None:
            return Unsupported(wrong)
        levers = {"speed": 1, **choice.levers}
        text = generate(of.tiles, defaults(of.tiles), header=MARK)
        return Made(StubData(text, self.targets[0], levers), {"levers": levers}, levers, {})

    def time(self, of: Source, choice: Wanted, at: Sequence[Asked]) -> Sequence[Time]:
        has = self.fits(of, choice) is None
        return [Time(self.factor * a.us if has else float("inf"), has) for a in at]

    def tile_names(self, tiles: TileProgram) -> frozenset[str]:
        return frozenset()

    def space(
        self, tiles: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
    ) -> Points:
        return Points([Point({}, {"speed": n}) for n in self.levers["speed"]])

    def validate(self, kernel: Executable) -> Mapping[str, Any] | None:
        return None if self.verdict is None else {"faults": list(self.verdict)}

    def decided(self, data: FormData) -> bool:
        return self.verdict is not None

    def explain(self, said: Mapping[str, Any]) -> Iterator[str]:
        yield f"stub at speed {said['levers']['speed']}: {said['verdict']}"

    def inspect(self, data: FormData) -> Sequence[Inspected]:
        return [Inspected("stub_kernel", 8, 0, 0, None, (), None, "an assembly")]

    def ready(self) -> None:
        """Nothing takes long."""


def main() -> None:
    """Register the form, compile a product in it, and compare the result with float64."""
    FORMS[NAME], DATA[NAME] = Stub, StubData
    kernel = neptune.compile(matmul(), "matmul", target="interpret", form=NAME, params={"speed": 2})
    a, b = torch.randn(48, 32).half(), torch.randn(32, 40).half()
    out = kernel(a, b)
    assert isinstance(out, torch.Tensor) and MARK in kernel.source
    assert (off := (out.double() - a.double() @ b.double()).abs().max().item()) < 0.05, off
    print(next(line for line in str(kernel.explain()).splitlines() if line.startswith(NAME)))


if __name__ == "__main__":
    main()
