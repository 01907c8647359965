"""Numbers that each launch chooses: how many parts an axis is folded in (`neptune.fusion.split_k`).

Such a number is a scalar of the program with an upper limit (`Scalar.upto`), no argument of a call and no constant of a
kernel: one binary serves them all.  By default it fills the GPU: as few parts as keep its processors about as busy as
any number of parts would. A caller may give it, by `params=` of `neptune.compile` or of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any

import torch

from neptune.codegen.llvm import evaluate_size
from neptune.errors import ShapeError
from neptune.ir.expr import Expr, variables
from neptune.ir.parser import parameter_names, parse_expr
from neptune.ir.program import Program, Scalar

MOST = 128
"""The most parts that are chosen by default: their combination takes time, too."""
BUSY = 0.85
"""How busy the processors must be, as a share of what the best number of parts makes of them."""
PROCESSORS = 8
"""What a target without a GPU is taken for."""
LARGE = 132
"""The processors of a large GPU, for which templates are chosen."""


@dataclass(frozen=True)
class Chosen:
    """The numbers that launches of a kernel choose.

    `declared` holds its parameters, `grids` the launch dimensions of its kernels as text, `bounds` the largest sizes
    (with which all launches have one shape), `given` values for all calls.
    """

    declared: Program
    grids: Sequence[Mapping[str, str]]
    bounds: Mapping[str, int]
    given: Mapping[str, int]

    @cached_property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(s for s in self.declared.scalars if s.upto is not None)

    def numbers(
        self, sizes: Mapping[str, int | float], device: torch.device, asked: Mapping[str, Any] | None = None
    ) -> dict[str, int]:
        """The value of each for a call with these sizes and tiles; `asked` are those of this call alone.

        Raises ShapeError for a name that is none of them, and for a value that is no positive integer.
        """
        asked = {} if asked is None else asked
        self._check(asked)
        largest = {**sizes, **{n: v for n, v in self.bounds.items() if n in sizes}}
        found: dict[str, int] = {}
        for s in self.scalars:
            value = asked.get(s.name, self.given.get(s.name))
            found[s.name] = self._default(s, largest, device) if value is None else int(value)
        return found

    def typical(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """What a launch with these sizes and tiles would choose on a large GPU; KeyError for a size that is missing."""
        for e in (e for s in self.scalars for g in self._extents(s.name) for e in (*g, s.upto) if e is not None):
            for name in sorted(variables(e) - {s.name for s in self.scalars} - set(sizes)):
                raise KeyError(name)
        return {
            s.name: parts(self._most(s, sizes), evaluate_size(s.upto, sizes), LARGE)
            for s in self.scalars
            if s.upto is not None
        }

    def _check(self, asked: Mapping[str, Any]) -> None:
        names = [s.name for s in self.scalars]
        if not isinstance(asked, Mapping):
            request, legal = f"call of kernel `{self.declared.name}` with params={asked!r:.40}", ('{"NUM_SPLITS": 8}',)
            raise ShapeError(request, "it is no mapping of names to numbers", legal=legal)
        for name, value in asked.items():
            request = f"call of kernel `{self.declared.name}` with params={{{name!r}: {value!r}}}"
            if name not in names:
                wrong = "it is no number that a call chooses"
                raise ShapeError(request, wrong, legal=names, hint="params= of neptune.compile, for tile sizes")
            if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= LARGEST:
                raise ShapeError(request, "this is no number of parts", legal=(f"1 to {LARGEST}",))

    def _default(self, s: Scalar, sizes: Mapping[str, int | float], device: torch.device) -> int:
        assert s.upto is not None
        return parts(self._most(s, sizes), evaluate_size(s.upto, sizes), processors(device))

    def _most(self, s: Scalar, sizes: Mapping[str, int | float]) -> int:
        """The programs that one part takes."""
        return max((self._programs(g, s.name, sizes) for g in self._extents(s.name)), default=1)

    def _extents(self, name: str) -> list[tuple[Expr, ...]]:
        """The launch dimensions of the kernels that are spread over the parts."""
        env = parameter_names(self.declared.scalars, self.declared.tunables)
        grids = [tuple(parse_expr(text, env) for text in g.values()) for g in self.grids if name in str(g)]
        return grids

    @staticmethod
    def _programs(grid: Sequence[Expr], name: str, sizes: Mapping[str, int | float]) -> int:
        total = 1
        for e in grid:
            total *= evaluate_size(e, {**sizes, name: 1})
        return total


LARGEST = 1 << 15
"""The most parts that may be asked for."""


@lru_cache(maxsize=1024)
def parts(programs: int, steps: int, processors: int) -> int:
    """In how many parts an axis of so many steps (tiles) is folded, where each would be `programs` programs.

    None of them is empty.

    >>> parts(4, 1000, 132), parts(4, 8, 132), parts(200, 1000, 132), parts(66, 3, 132)
    (33, 8, 1, 2)
    """
    if programs >= BUSY * processors:
        return 1
    most = max(1, min(steps, MOST))
    waves = [programs * n / processors for n in range(1, most + 1)]
    busy = [w / -(-w // 1) for w in waves]
    wanted = next(n for n, b in enumerate(busy, 1) if b >= BUSY * max(busy))
    return -(-steps // -(-steps // wanted))


def processors(device: torch.device) -> int:
    """How many programs a device runs at once, roughly."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
