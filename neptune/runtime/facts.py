"""Facts of a kernel as plain data: launches, loops, temporaries, passes over the inputs, and what makes it slow.

A fused kernel is one whose facts say so: one kernel, no temporaries, every input traversed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """One loop: the axis it runs along, and its number of iterations as text over sizes and tunables.

    The masked and the clean piece of one range are two loops along one axis.
    """

    axis: str
    trips: str


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One launch. `grid` maps "x", "y", "z" to the number of programs, as text; `temporaries` are the
    global buffers it touches that are written and read back; `products` the dtypes that its products of tiles
    (`tl.dot`) multiply in, one for each; `programs` their number at the sizes of `explain()`, where it predicts one."""

    name: str
    grid: Mapping[str, str]
    loops: tuple[LoopFacts, ...]
    temporaries: tuple[str, ...]
    products: tuple[str, ...] = ()
    programs: int | None = field(default=None, compare=False)

    @property
    def on_matrix_unit(self) -> bool:
        """True if some product is on the matrix unit, which takes every dtype but float32 (and that as tf32)."""
        return any(p != "float32" for p in self.products)


@dataclass(frozen=True, slots=True)
class Facts:
    """A whole TileProgram.

    `traversals` says for each input how many times one program reads each element of its share: 0 never,
    1 a single pass, `math.inf` where a loop reads the same elements again in every iteration. Several
    kernels add up.
    """

    kernels: tuple[KernelFacts, ...]
    temporaries: tuple[str, ...]
    traversals: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that makes a kernel slower than it need be, or its sums coarser.

    `code` names the rule (`neptune.tune.slow.advice`), `stage` the stage or the input that it is about; `message` is
    one sentence, `remedy` what to write instead.
    """

    code: str
    stage: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}; try: {self.remedy}"
