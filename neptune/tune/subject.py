"""What is known of a kernel when it is judged: its programs, its parameters, and sizes to look at.

Everything follows from what an Artifact holds as text and numbers, so that kernels of a cache or a folder, and kernels
with other parameters, are judged as those that were just compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from neptune.ir.expr import Const, Expr, Var, loads, variables, walk
from neptune.ir.integers import known_size
from neptune.ir.program import For, Program, Stage, for_loops, paths
from neptune.ir.text.parser import parse_program
from neptune.runtime.artifact import AT, Artifact
from neptune.runtime.modules import covers
from neptune.tile.ir import Assign, LoadTile, Local, Scalar, StoreTile, TExpr, TileProgram, stmt_exprs, walk_stmts
from neptune.tile.parser import parse_tiles
from neptune.tune.model.columns import Points
from neptune.tune.model.machine import Machine
from neptune.tune.model.prediction import Prediction
from neptune.tune.points import LADDER, reference, sizes_of
from neptune.tune.rank import model_of, predictions


def tiles_of(artifact: Artifact) -> TileProgram:
    """The tile program of a kernel, from its text."""
    return parse_tiles(artifact.programs["tile"], parse_program(artifact.declarations))


def subject_of(artifact: Artifact, machine: Machine) -> Subject:
    """A kernel that is there as text, at the sizes that it speaks of."""
    loops = parse_program(artifact.programs["loops"])
    sizes, given = looked_at(loops, artifact.shapes, artifact.bounds, artifact.explanation.get(AT))
    return Subject(loops, tiles_of(artifact), artifact.params, sizes, given, artifact.bounds, machine)


def looked_at(
    loops: Program, typical: Mapping[str, int], bounds: Mapping[str, int], others: Mapping[str, int] | None = None
) -> tuple[dict[str, int], bool]:
    """The sizes at which a kernel is judged, and whether its caller has named all: those named; where some are missing,
    `others`, or usual ones."""
    sizes = dict(others) if others else reference(loops, typical, bounds)
    return sizes, set(typical) >= set(sizes_of(loops))


@dataclass(frozen=True)
class Subject:
    """A kernel to be judged. `loops` is the expression as imported, `sizes` has a value for every size, of which the
    caller has named all where `given`; `bounds` are the largest ones."""

    loops: Program
    tiles: TileProgram
    params: Mapping[str, int]
    sizes: Mapping[str, int]
    given: bool
    bounds: Mapping[str, int]
    machine: Machine

    @cached_property
    def nests(self) -> tuple[tuple[tuple[For, ...], Stage], ...]:
        """Every stage of the expression with the loops around it."""
        return tuple((for_loops(path), stage) for path, stage in paths(self.loops.body))

    @cached_property
    def prediction(self) -> Prediction | None:
        """What the cost model says at these sizes; None where it says nothing."""
        return self.predicted(self.sizes)

    def predicted(self, sizes: Mapping[str, int]) -> Prediction | None:
        """What the cost model says at some sizes; None where it says nothing."""
        predicted = predictions(model_of(self.tiles), Points.at([self.params], sizes), self.machine)
        return predicted.at(0) if isfinite(float(predicted.us[0])) else None

    @cached_property
    def largest(self) -> Mapping[str, int]:
        """The largest sizes that are looked at."""
        known = {s.name: s for s in self.loops.scalars}
        limits = {n: (self.bounds.get(n), known[n].hi, LADDER[-1]) for n in sizes_of(self.loops)}
        return {n: min(x for x in options if x is not None) for n, options in limits.items()}

    def length(self, loop: For) -> float:
        """The length of a loop of the expression, as far as it is known; inf where a caller has named no size."""
        if isinstance(loop.hi, Const):
            return float(loop.hi.value)
        if self.given and isinstance(loop.hi, Var) and loop.hi.name in self.sizes:
            return float(self.sizes[loop.hi.name])
        return float("inf")

    @cached_property
    def values(self) -> Mapping[str, int]:
        """Sizes and parameters by name, with tiles that cover a size."""
        known = {**self.sizes, **self.params}
        with suppress(ZeroDivisionError):
            known |= covers(self.tiles, known)
        return known

    def extent(self, e: Expr) -> int:
        """The extent of a tile axis."""
        return int(known_size(e, self.values))

    # --- which inputs a value is computed from -----------------------------------------------------

    @cached_property
    def sources(self) -> Mapping[str, frozenset[str]]:
        """The inputs that each buffer of the expression is computed from."""
        sources = {b.name: frozenset([b.name]) for b in self.loops.inputs}
        for _, stage in self.nests:
            read = frozenset[str]().union(*(self.inputs_of(v, sources) for v in stage.action.values))
            for buffer in stage.action.buffers:
                sources[buffer] = sources.get(buffer, frozenset()) | read
        return sources

    @staticmethod
    def inputs_of(e: Expr, sources: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """The inputs that an expression is computed from."""
        return frozenset[str]().union(*(sources.get(x.buffer, frozenset()) for x in loads(e)))

    @cached_property
    def tile_sources(self) -> Mapping[str, frozenset[str]]:
        """The inputs behind each buffer, and behind each local (`kernel:local`), of the tile program."""
        sources = {b.name: frozenset([b.name]) for b in self.tiles.inputs}
        before: dict[str, frozenset[str]] = {}
        while sources != before:
            before = dict(sources)
            for kernel in self.tiles.kernels:
                for s in walk_stmts(kernel.body):
                    if isinstance(s, Assign | StoreTile):
                        name = s.buffer if isinstance(s, StoreTile) else f"{kernel.name}:{s.name}"
                        read = (self._behind(e, kernel.name, sources) for e in stmt_exprs(s))
                        sources[name] = sources.get(name, frozenset()).union(*read)
        return sources

    def behind(self, e: TExpr, kernel: str) -> frozenset[str]:
        """The inputs that a tile expression of a kernel is computed from."""
        return self._behind(e, kernel, self.tile_sources)

    @staticmethod
    def _behind(e: TExpr, kernel: str, sources: Mapping[str, frozenset[str]]) -> frozenset[str]:
        return frozenset[str]().union(*(sources.get(n, frozenset()) for n in _names(e, kernel)))


def _names(e: TExpr, kernel: str) -> Iterator[str]:
    for x in walk(e):
        if isinstance(x, Local):
            yield f"{kernel}:{x.name}"
        elif isinstance(x, LoadTile):
            yield x.buffer
        elif isinstance(x, Scalar):
            yield from (n.buffer for n in loads(x.expr))


def around(loops: tuple[For, ...], stage: Stage) -> tuple[list[For], list[For]]:
    """The loops of a stage that its result runs over, and those that it folds."""
    kept = frozenset[str]().union(*map(variables, stage.action.index))
    return [f for f in loops if f.var in kept], [f for f in loops if f.var not in kept]
