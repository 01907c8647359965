"""RoleBodies kernels of small programs, and what their roles load."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neptune.errors import Unsupported
from neptune.hopper.bodies.producer import pruned
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.bodies.write import role_bodies
from neptune.hopper.ir import Levers
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.expr import Const
from neptune.ir.program import Program
from neptune.ops.shipped import OPERATORS
from neptune.tile.ir import Assign, Branch, LoadTile, Loop, TileKernel, TileProgram, TStmt
from neptune.tile.pipeline import lower
from neptune.verify.instances import number
from neptune.verify.tiles import Tiles
from tests.examples.lowering import scheduled

Array = npt.NDArray[Any]
Copy = tuple[str, tuple[int, ...]]
"""A copy: the tile's name and the first element of its box."""


@cache
def tiles_of(name: str, template: str, **options: Any) -> tuple[Program, TileProgram]:
    """A shipped operator and its tile program by a template."""
    program = OPERATORS[name](**options)
    arrange = getattr(importlib.import_module(f"neptune.templates.{template}"), template)
    return program, lower(scheduled(program, arrange))


def walked(tiles: TileProgram, levers: Levers | None = None, kernel: int = -1) -> RoleBodies:
    return role_bodies(tiles, tiles.kernels[kernel], levers or Levers())


def refused(tiles: TileProgram, levers: Levers | None = None, kernel: int = -1) -> Unsupported:
    with pytest.raises(Unsupported) as caught:
        role_bodies(tiles, tiles.kernels[kernel], levers or Levers())
    return caught.value


def with_kernel(tiles: TileProgram, kernel: TileKernel, *, numbers: bool = True) -> TileProgram:
    """The tile program with one kernel in the place of that of the same name."""
    kernels = tuple(kernel if k.name == kernel.name else k for k in tiles.kernels)
    return replace(tiles, kernels=kernels, tunables=() if numbers and len(kernels) == 1 else tiles.tunables)


class _Trace(Tiles):
    """Runs what copies depend on, and notes where each of them begins."""

    def __init__(self, staged: frozenset[str], memory: Memory, axes: Mapping[str, int]) -> None:
        super().__init__(memory, Evaluator(memory))
        self.staged, self.copies, self.extents = staged, list[Copy](), {"1": 1, **axes}

    def note(self, body: tuple[TStmt, ...], env: dict[str, Any]) -> None:
        for s in body:
            match s:
                case Assign(name, LoadTile(_, index, _, _, _, _), _) if name in self.staged:
                    first = tuple(int(np.min(np.asarray(self.value(i, env)))) for i in index)
                    self.copies.append((name, first))
                case Assign(name, value, _):
                    self.locals[name] = (value.dims, self._whole(value, env))
                case Loop(var, lo, hi, inner, _):
                    for v in range(int(self._bound(lo, env)), int(self._bound(hi, env))):
                        self.note(inner, env | {var: v})
                case Branch(pred, inner):
                    if self._bound(pred, env):
                        self.note(inner, env)


def copies(w: RoleBodies, body: tuple[TStmt, ...], env: Mapping[str, int], memory: Memory) -> dict[str, list[Any]]:
    """What a body copies in order, by the name of the tile."""
    axes = {name: int(e.value) for name, e in w.kernel.axes if isinstance(e, Const)}
    staged = frozenset(n for n, _ in w.staged)
    trace = _Trace(staged, memory, axes)
    trace.note(pruned(body, staged), dict(env))
    found: dict[str, list[Any]] = {name: [] for name, _ in w.staged}
    for name, at in trace.copies:
        found[name].append(at)
    return found


def roles_agree(
    w: RoleBodies, tiles: TileProgram, sizes: Mapping[str, int], groups: int, inputs: Mapping[str, Array] | None = None
) -> int:
    """Every consumer copies what the producer copies, in its order; returns the number of copies."""
    memory = Memory(Float64())
    for b in tiles.inputs if inputs is not None else ():
        memory.assign(b.name, tuple(number(d, sizes) for d in b.shape), b.dtype, (inputs or {})[b.name])
    total = 0
    outer = {g.var: 0 for g in w.kernel.grid if g.var != w.rows}
    for group in range(groups):
        for k in range(w.consumers):
            env = {**sizes, **outer, w.group: group, w.rows: group * w.consumers + k}
            theirs = copies(w, w.producer, env, memory)
            mine = copies(w, w.kernel.body, {n: v for n, v in env.items() if n != w.group}, memory)
            assert mine == theirs, (env, mine, theirs)
            total += sum(map(len, mine.values()))
    return total
