"""Numbers that each launch chooses: how many parts an axis is folded in (`neptune.fusion.split_k`).

Such a number is a scalar of the program with an upper limit (`Scalar.upto`), no argument of a call and no constant of a
kernel: one binary serves them all. How it follows from sizes is data of the Artifact, which `neptune.tune.parts` makes:
as few parts as keep the processors about as busy as any number of parts would. At sizes at which another number was
measured to be faster (`neptune.autotune`) it is that one. A caller may give it, by `params=` of `neptune.compile`,
`with_params` or of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from numbers import Integral
from typing import Any

import torch

from neptune.errors import ShapeError
from neptune.ir.expr import Expr, variables
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program, parameter_names
from neptune.ir.text.line import parse_expr
from neptune.ir.text.printer import print_expr

PROCESSORS = 8
"""The processors that a target without a GPU is taken to have."""
LARGEST = 1 << 15
"""The most parts that may be asked for."""
FIRST_MOST, FIRST_BUSY = 128, 0.85
"""`most` and `busy` of kernels that were saved without them."""


@dataclass(frozen=True)
class Measured:
    """A number of parts that was measured to be the fastest where sizes and tiles have these values."""

    at: tuple[tuple[str, int], ...]
    count: int


@dataclass(frozen=True)
class Parts:
    """In how many parts a launch folds an axis.

    `number` is the scalar that holds it, `steps` the tiles along the axis, `grids` the launch dimensions of each kernel
    that is spread over the parts. By default there are at most `most` parts, of which the processors must be `busy`, as
    a share of what the best number of parts makes of them. `processors` is how many there are taken to be, where not
    those of the device at hand decide. `measured` are numbers for some values of sizes and tiles, which go first.
    """

    number: str
    steps: Expr
    grids: tuple[tuple[Expr, ...], ...]
    most: int
    busy: float
    processors: int | None = None
    measured: tuple[Measured, ...] = ()

    def default(self, sizes: Mapping[str, int | float], processors: int) -> int:
        """The number for a launch with these sizes and tiles, on a device with so many processors."""
        for row in self.measured:
            if all(sizes.get(n) == v for n, v in row.at):
                return row.count
        one = {**sizes, self.number: 1}
        programs = max((prod(evaluate_size(e, one) for e in grid) for grid in self.grids), default=1)
        there_are = self.processors or processors
        return count_parts(programs, evaluate_size(self.steps, sizes), there_are, self.most, self.busy)

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes and tiles that the number follows from."""
        read = (self.steps, *(e for grid in self.grids for e in grid))
        return frozenset[str]().union(*map(variables, read)) - {self.number}


def parts_json(p: Parts) -> dict[str, Any]:
    """A rule as JSON, with its expressions as text."""
    grids = [[print_expr(e) for e in grid] for grid in p.grids]
    fixed = {} if p.processors is None else {"processors": p.processors}
    rows = {"measured": [{"at": dict(m.at), "count": m.count} for m in p.measured]} if p.measured else {}
    rule = {"number": p.number, "steps": print_expr(p.steps), "grids": grids, "most": p.most, "busy": p.busy}
    return {**rule, **fixed, **rows}


def read_parts(rows: list[Mapping[str, Any]], declared: Program) -> tuple[Parts, ...]:
    """The rules that `parts_json` has written; `declared` has the kernel's parameters."""
    env = parameter_names(declared.scalars, declared.tunables)
    return tuple(
        Parts(
            r["number"],
            parse_expr(r["steps"], env),
            tuple(tuple(parse_expr(text, env) for text in grid) for grid in r["grids"]),
            int(r["most"]),
            float(r["busy"]),
            r.get("processors"),
            tuple(Measured(tuple(m["at"].items()), int(m["count"])) for m in r.get("measured", ())),
        )
        for r in rows
    )


def first_rows(declared: Program, grids: list[Mapping[str, str]]) -> list[Mapping[str, Any]]:
    """The rules of a kernel that was saved before they were, from the launch dimensions of its kernels."""
    numbers = {s.name: s.upto for s in declared.scalars if s.upto is not None}
    rule = {"most": FIRST_MOST, "busy": FIRST_BUSY}
    return [
        {"number": n, "steps": print_expr(e), "grids": [[*g.values()] for g in grids if n in str(g)], **rule}
        for n, e in numbers.items()
    ]


@dataclass(frozen=True)
class Numbers:
    """The numbers that launches of a kernel choose: `bounds` are the largest sizes (with which all launches have one
    shape), `given` values for all calls."""

    kernel: str
    parts: tuple[Parts, ...]
    bounds: Mapping[str, int]
    given: Mapping[str, int]

    def of_call(
        self, sizes: Mapping[str, int | float], device: torch.device, given_here: Mapping[str, Any] | None = None
    ) -> dict[str, int]:
        """The value of each for a call with these sizes and tiles; `asked` are those of this call alone.

        Raises ShapeError for a name that is none of them, and for a value that is no positive integer.
        """
        given_here = {} if given_here is None else given_here
        self._check(given_here)
        largest = {**sizes, **{n: v for n, v in self.bounds.items() if n in sizes}}
        numbers: dict[str, int] = {}
        for p in self.parts:
            value = given_here.get(p.number, self.given.get(p.number))
            numbers[p.number] = p.default(largest, processors(device)) if value is None else int(value)
        return numbers

    def _check(self, given_here: Mapping[str, Any]) -> None:
        names = [p.number for p in self.parts]
        if not isinstance(given_here, Mapping):
            request, legal = f"call of kernel `{self.kernel}` with params={given_here!r:.40}", ('{"NUM_SPLITS": 8}',)
            raise ShapeError(request, "it is no mapping of names to numbers", legal=legal)
        for name, value in given_here.items():
            request = f"call of kernel `{self.kernel}` with params={{{name!r}: {value!r}}}"
            if name not in names:
                wrong = "it is no number that a call chooses"
                raise ShapeError(request, wrong, legal=names, hint="params= of neptune.compile, for tile sizes")
            if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= LARGEST:
                raise ShapeError(request, "this is no number of parts", legal=(f"1 to {LARGEST}",))


@lru_cache(maxsize=1024)
def count_parts(programs: int, steps: int, processors: int, most: int, busy: float) -> int:
    """In how many parts an axis of so many steps (tiles) is folded, where each would be `programs` programs.

    None of them is empty.

    >>> [count_parts(*x, 128, 0.85) for x in ((4, 1000, 132), (4, 8, 132), (200, 1000, 132), (66, 3, 132), (0, 9, 132))]
    [29, 4, 1, 2, 1]
    """
    if not programs or not steps or programs >= busy * processors:
        return 1
    waves = [programs * n / processors for n in range(1, max(1, min(steps, most)) + 1)]
    shares = [w / -(-w // 1) for w in waves]
    parts = next(n for n, share in enumerate(shares, 1) if share >= busy * max(shares))
    return -(-steps // -(-steps // parts))


def processors(device: torch.device) -> int:
    """Return roughly how many programs a device runs at once."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
