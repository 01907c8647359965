"""Rules for the number of parts in which launches fold an axis: what it follows from, and how busy it must keep a GPU.

A rule is data of a kernel, which `neptune.runtime.parts` applies at each launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.ir.expr import Const, Expr, substitute, variables
from neptune.runtime.parts import Parts
from neptune.tile.ir import TileProgram

MOST = 128
"""The most parts that are chosen by default: their combination takes time, too."""
BUSY = 0.85
"""How busy the processors must be, as a share of what the best number of parts makes of them."""
LARGE = 132
"""The processors of a large GPU, for which templates are chosen."""


def parts_of(program: TileProgram) -> tuple[Parts, ...]:
    """The rule for each number that launches of a TileProgram choose."""
    grids = [tuple(g.extent for g in k.grid) for k in program.kernels]
    return tuple(
        Parts(s.name, s.upto, tuple(g for g in grids if any(s.name in variables(e) for e in g)), MOST, BUSY)
        for s in program.scalars
        if s.upto is not None
    )


def with_grids(
    program: TileProgram, grids: Mapping[str, tuple[Expr, ...]], tiles: Mapping[str, Mapping[str, int]]
) -> tuple[Parts, ...]:
    """The rules of a form in which kernels, by name, have other launch dimensions, and tile sizes that are numbers."""
    rules = []
    for rule in parts_of(program):
        own = [k for k in program.kernels if any(rule.number in variables(g.extent) for g in k.grid)]
        steps = rule.steps
        for values in (tiles[k.name] for k in own if k.name in tiles):
            steps = substitute(steps, {n: Const(v, "int32") for n, v in values.items()})
        own_grids = tuple(grids.get(k.name, tuple(g.extent for g in k.grid)) for k in own)
        rules.append(replace(rule, steps=steps, grids=own_grids))
    return tuple(rules)


def repeatable(rules: tuple[Parts, ...], processors: int) -> tuple[Parts, ...]:
    """The rules for a machine with so many processors, whatever device a launch finds."""
    return tuple(replace(p, processors=processors) for p in rules)


def invariant(rules: tuple[Parts, ...], deciding: frozenset[str], sizes: Mapping[str, int]) -> tuple[Parts, ...]:
    """The rules in which no other sizes than `deciding` count: the others are as in `sizes`."""
    fixed: dict[str, Expr] = {n: Const(v, "int32") for n, v in sizes.items() if n not in deciding}
    return tuple(replace(p, grids=tuple(tuple(substitute(e, fixed) for e in g) for g in p.grids)) for p in rules)
