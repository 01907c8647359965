"""Cases of a program that an instance exercises, from its integers alone: exact checks choose sizes by them.

A mistake shows only where its case occurs: a rescale in the last piece of a loop needs an earlier piece that is not
empty, a mask that is off by one needs an index on its edge. The *cases* of a program at given sizes are

- how often each loop runs (never, once, twice, more), together with the loops and conditions that follow it;
- for each part of a condition (guard, mask, choice): that it alone decides, and the edges of its comparison;
- where in the loops around it that is: in the only iteration, the first, the second, or a later one.

What depends on data (conditions on floats, bounds that are loaded) has no cases here, except for lengths that bounds
are compared with: these are taken to be longer than everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from neptune.ir.decompose import decompose
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.expressions import Evaluator, both
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.loops import Axis, Lanes, Loops
from neptune.ir.evaluate.memory import Memory
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import OPS, Const, Expr, Op, Select, conjuncts, loads, variables, walk
from neptune.ir.program import Alloc, For, If, Program, Seq, Stage, Stmt, sub_stmts, with_stmts
from neptune.ir.program import walk as walk_stmt
from neptune.tile.ir import (
    Branch,
    LoadTile,
    Local,
    Loop,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.ir import Scalar as TileScalar
from neptune.verify.conditions import MANY, Ample, Conditions, divisions, place_of
from neptune.verify.tiles import Tiles, Traits

AnyProgram = Program | TileProgram
LANES = 1 << 19
"""Nests of more iterations are left out."""
TOGETHER = 64
"""Sizes up to this one are explored together, as one more axis of lanes; larger ones each alone."""
DIGITS = 24
"""Of the statements of one sequence, so many are told apart."""
Key: TypeAlias = "tuple[tuple[str, Any], ...]"
STEPS = 4096
"""So many iterations of a kernel's loops are walked through for the cases they hold."""
COMPARED = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


class Cases:
    """The cases of one program, by sizes."""

    def __init__(self, program: AnyProgram, lengths: frozenset[str] = frozenset()) -> None:
        self.lengths = lengths
        # Cases are known by the identity of statements: one form serves all sizes.
        self.program = (
            program.with_body(_skeleton(decompose(program).body)) if isinstance(program, Program) else program
        )
        self._traits = Traits()
        self._known: dict[Key, frozenset[Hashable]] = {}
        self._work: dict[Key, int] = {}

    def work(self, sizes: Mapping[str, Any]) -> int:
        """Return the number of statements a TileProgram runs at these sizes; 0 for a Program, which runs many lanes."""
        self.explore([sizes])
        return self._work[_key(sizes)]

    def at(self, sizes: Mapping[str, Any]) -> frozenset[Hashable]:
        """The cases that occur at these sizes."""
        self.explore([sizes])
        return self._known[_key(sizes)]

    def explore(self, many: Sequence[Mapping[str, Any]]) -> None:
        """Find the cases at all of these sizes, of Programs at once."""
        fresh = {key: dict(x) for x in many if (key := _key(x)) not in self._known}
        small = [
            k for k in fresh if isinstance(self.program, Program) and max((v for _, v in k), default=0) <= TOGETHER
        ]
        with np.errstate(all="ignore"):
            for keys in [small] * bool(small) + [[k] for k in fresh if k not in small]:
                self._explore(keys, [fresh[k] for k in keys])

    def _explore(self, keys: list[Key], sizes: list[dict[str, Any]]) -> None:
        memory = Memory(Float64())
        evaluator = Ample(memory, self.lengths)
        walk = (
            _LoopCases(memory, evaluator)
            if isinstance(self.program, Program)
            else _TileCases(memory, evaluator, self._traits)
        )
        walk.explore(self.program, sizes)
        for n, key in enumerate(keys):
            self._known[key] = frozenset(case for case, where in walk.found.items() if where[n])
            self._work[key] = walk.work if isinstance(walk, _TileCases) else 0


def _key(sizes: Mapping[str, Any]) -> Key:
    return tuple(sorted((n, v) for n, v in sizes.items() if isinstance(v, int)))


def _integral(e: Expr) -> bool:
    """A comparison whose value is known without data."""
    return not loads(e) and not any(isinstance(x, Op) and x.args and is_float(x.args[0].dtype) for x in walk(e))


def _skeleton(s: Stmt) -> Stmt:
    """Return the statements that cases depend on: of nests in a sequence with equal loops and conditions, the first."""
    if isinstance(s, Alloc):
        return _skeleton(s.body)
    parts = tuple(_skeleton(p) for p in sub_stmts(s))
    if isinstance(s, Seq):
        parts = tuple({_header(p): p for p in reversed(parts)}.values())[::-1]
    return with_stmts(s, parts)


def _header(s: Stmt) -> str:
    """The loops and conditions of a statement."""
    own = (
        f"{s.var} {s.lo} {s.hi}"
        if isinstance(s, For)
        else str(_stage_conditions(s) if isinstance(s, Stage) else s.pred if isinstance(s, If) else "")
    )
    return f"({own}{''.join(map(_header, sub_stmts(s)))})"


def _stage_conditions(s: Stage) -> list[list[Expr]]:
    """The parts of a stage's guard and choices that are known without data."""
    chosen = [x.pred for e in statement_exprs(s) for x in walk(e) if isinstance(x, Select)]
    return [[c for c in conjuncts(p) if _integral(c)] for p in (s.when, *chosen)]


def _deciding(body: Stmt) -> frozenset[str]:
    """The variables that bounds and conditions depend on."""
    exprs: list[Expr] = []
    for s in walk_stmt(body):
        if isinstance(s, For):
            exprs += [s.lo, s.hi]
        elif isinstance(s, If):
            exprs.append(s.pred)
        elif isinstance(s, Stage):
            exprs += [c for parts in _stage_conditions(s) for c in parts]
    return frozenset[str]().union(*map(variables, exprs))


class _LoopCases(Loops, Conditions):
    """The cases of a Program: its statements run without their stores. What depends on data is passed over."""

    evaluator: Ample

    def __init__(self, memory: Memory, evaluator: Ample) -> None:
        Loops.__init__(self, memory, evaluator)
        Conditions.__init__(self)
        self._conditions: dict[int, list[list[Expr]]] = {}
        self._bounds: dict[int, list[tuple[Expr, Expr]]] = {}
        self._used: frozenset[str] = frozenset()

    def explore(self, program: Any, sizes: list[dict[str, Any]]) -> None:
        self.sizes = len(sizes)
        self._used = _deciding(program.body)
        env = {n: np.array([x[n] for x in sizes]) for n, v in sizes[0].items() if isinstance(v, int)}
        self.run(program.body, Lanes(env, (Axis("", len(sizes), False),)))

    def run(self, s: Stmt, lanes: Lanes) -> None:
        if isinstance(s, Seq):
            self._together(s.stmts, lanes)
        elif isinstance(s, For):
            self._together((s,), lanes)
        elif isinstance(s, If):
            self._decisions(id(s), [conjuncts(s.pred)], lanes)
        super().run(s, lanes)

    def _under(self, pred: Expr | None, lanes: Lanes) -> Lanes | None:
        known = [True] if pred is None else self.evaluator.known((pred,), lanes.env, lanes.mask)
        return None if known is None else self._where(known[0], lanes)

    def _loop(self, loop: For, lanes: Lanes) -> None:
        """All iterations at once: nothing is stored, so nothing depends on their order."""
        known = self.evaluator.known((loop.lo, loop.hi), lanes.env, lanes.mask)
        if known is None:
            return
        lo, hi = known
        if loop.var not in self._used:  # one iteration stands for all
            runs = both(lanes.mask, np.asarray(np.less(lo, hi)))
            assert runs is not None
            if np.any(runs):
                self.run(
                    loop.body, replace(lanes, env=lanes.env | {loop.var: lo}, mask=runs if runs.ndim else lanes.mask)
                )
            return
        start, stop = int(np.min(lo)), int(np.max(hi))
        if start < stop and lanes.size * (stop - start) <= LANES:
            inside = lanes.push(Axis(loop.var, stop - start, False), start)
            if not isinstance(loop.hi, Const) and any(isinstance(s, For) for s in walk_stmt(loop.body)):
                inside.env["#" + loop.var] = place_of(inside.env[loop.var] - lo, hi - lo)
            self._iterate(loop, inside, lo, hi)

    def _together(self, stmts: tuple[Stmt, ...], lanes: Lanes) -> None:
        """Record how often the loops and conditions of one sequence run, in the same lanes."""
        runs = [t for s in stmts if (t := self._times(s, lanes)) is not None][:DIGITS]
        if not runs:
            return
        shape = np.broadcast_shapes(
            (self.sizes,), *(np.shape(t) for t in runs), () if lanes.mask is None else lanes.mask.shape
        )
        # How often each runs, and the position of the sizes, as the digits of one number.
        code = np.broadcast_to(np.arange(self.sizes), shape)
        for k, t in enumerate(runs):
            code = code + t * (self.sizes * (MANY + 1) ** k)
        code = code[np.broadcast_to(lanes.mask, shape)] if lanes.mask is not None else code
        for c in set(code.ravel().tolist()):
            row, n = divmod(c, self.sizes)
            self.found.setdefault((id(stmts[0]), row), np.zeros(self.sizes, bool))[n] = True
            for k in range(len(runs)):
                alone = (id(stmts[0]), "alone", k, row // (MANY + 1) ** k % (MANY + 1))
                self.found.setdefault(alone, np.zeros(self.sizes, bool))[n] = True
        for k, t in enumerate(runs):
            self.placed((id(stmts[0]), k), np.minimum(t, 1), _places(lanes), lanes.mask)

    def _times(self, s: Stmt, lanes: Lanes) -> Any:
        if isinstance(s, If):
            holds = self.evaluator.known((s.pred,), lanes.env, lanes.mask)
            return None if holds is None else np.asarray(holds[0]).astype(int)
        if not isinstance(s, For) or not variables(s.lo) | variables(s.hi):
            return None
        bounds = self.evaluator.known((s.lo, s.hi), lanes.env, lanes.mask)
        if bounds is None:
            return None
        for k, division in enumerate(self._divisions(s)):
            parts = self.evaluator.known(division, lanes.env, lanes.mask)
            if parts is None:
                return None
            top, bottom = parts
            self.remainders((id(s), k), top, bottom, lanes.mask)
        return np.clip(np.subtract(bounds[1], bounds[0]), 0, MANY)

    def _divisions(self, s: For) -> list[tuple[Expr, Expr]]:
        if id(s) not in self._bounds:
            self._bounds[id(s)] = divisions(s)
        return self._bounds[id(s)]

    def _stage(self, stage: Stage, lanes: Lanes) -> None:
        conditions = self._conditions.get(id(stage))
        if conditions is None:
            conditions = self._conditions[id(stage)] = _stage_conditions(stage)
        self._decisions(id(stage), conditions, lanes)

    def _decisions(self, key: Hashable, conditions: list[list[Expr]], lanes: Lanes) -> None:
        for n, parts in enumerate(conditions):
            seen = [p for c in parts if (p := self._part(c, lanes)) is not None]
            if seen and len(seen) == len(parts):
                self.parts((key, n), [t for t, _ in seen], [d for _, d in seen], lanes.mask, _places(lanes))

    def _part(self, c: Expr, lanes: Lanes) -> tuple[Any, Any] | None:
        """Return the truth of a condition, and how far the sides of a comparison are apart."""
        if isinstance(c, Op) and OPS[c.name].kind == "compare" and not is_float(c.args[0].dtype):
            sides = self.evaluator.known(c.args, lanes.env, lanes.mask)
            if sides is None:
                return None
            distance = np.subtract(*sides, dtype=np.int64)
            return COMPARED[c.name](distance, 0), distance
        known = self.evaluator.known((c,), lanes.env, lanes.mask)
        return None if known is None else (known[0], None)


def _places(lanes: Lanes) -> dict[str, Any]:
    """Return the places of the lanes in the loops around them."""
    return {name: place for name, place in lanes.env.items() if name.startswith("#")}


class _TileCases(Tiles, Conditions):
    """The cases of a TileProgram, whose tiles are not computed."""

    def __init__(self, memory: Memory, evaluator: Evaluator, traits: Traits) -> None:
        Tiles.__init__(self, memory, evaluator, traits)
        Conditions.__init__(self)
        self.work = 0
        self.places: dict[str, Any] = {}

    def explore(self, program: Any, sizes: list[dict[str, Any]]) -> None:
        for kernel in program.kernels:
            self._explore_kernel(kernel, sizes[0])

    def _explore_kernel(self, kernel: TileKernel, env: dict[str, Any]) -> None:
        self._at = {}
        self.extents = {"1": 1} | {name: int(self.evaluator.run(e, env)) for name, e in kernel.axes}
        self._preds = {id(s): list(_conditions(s)) for s in walk_stmts(kernel.body)}
        self._bounds = {id(s): divisions(s) for s in walk_stmts(kernel.body) if isinstance(s, Loop)}
        self.used, self.steps = _control(kernel, self._preds), STEPS
        extents = [int(self.evaluator.run(g.extent, env)) for g in kernel.grid]
        for g, n in zip(kernel.grid, extents, strict=True):
            self.see((kernel.name, g.var, min(n, MANY)), True)
        grid = [range(n) if g.var in self.used else range(min(n, 1)) for g, n in zip(kernel.grid, extents, strict=True)]
        alike = prod(extents) // max(1, prod(map(len, grid)))
        for point in itertools.product(*grid):
            self.places = {
                g.var: place_of(v, n) for g, v, n in zip(kernel.grid, point, extents, strict=True) if g.var in self.used
            }
            self._explore(kernel.body, env | {g.var: v for g, v in zip(kernel.grid, point, strict=True)}, alike)

    def _explore(self, body: tuple[TStmt, ...], env: dict[str, Any], alike: int) -> None:
        """One run of a body, which stands for so many that are alike."""
        self.work += alike * len(body)
        self.steps -= 1
        if self.steps < 0:
            return
        runs: list[int] = []
        for s in body:
            for n, pred in enumerate(self._preds[id(s)]):
                seen = [self._tile_part(c, env) for c in pred]
                self.parts((id(s), n), [t for t, _ in seen], [d for _, d in seen], None, {})
            try:
                if isinstance(s, Loop):
                    lo, hi = (int(self.evaluator.run(e, env)) for e in (s.lo, s.hi))
                    for k, (a, b) in enumerate(self._bounds[id(s)]):
                        top, bottom = self.evaluator.run(a, env), self.evaluator.run(b, env)
                        self.remainders((id(s), k), top, bottom, None, self.places, int(lo < hi))
                    runs.append(min(max(0, hi - lo), MANY))
                    # Where nothing depends on the iteration, one shows what all do.
                    shown = range(lo, hi if s.var in self.used else min(hi, lo + 1))
                    for v in shown:
                        self._explore(s.body, env | {s.var: v}, alike * ((hi - lo) // len(shown)))
                elif isinstance(s, Branch):
                    taken = bool(self.evaluator.run(s.pred, env))
                    runs.append(int(taken))
                    if taken:
                        self._explore(s.body, env, alike)
            except EvaluationError:
                continue
        if runs:
            self.see((id(body[0]), tuple(runs)), True)
        for k, times in enumerate(runs):
            self.see((id(body[0]), "alone", k, times), True)

    def _tile_part(self, c: TExpr, env: dict[str, Any]) -> tuple[Any, Any]:
        if isinstance(c, Op) and OPS[c.name].kind == "compare":
            a, b = (np.asarray(self._aligned(x, c.dims, env)) for x in c.args)
            distance = np.subtract(a, b, dtype=np.int64)
            return COMPARED[c.name](distance, 0), distance
        return np.asarray(self.value(c, env)), None


def _conditions(s: TStmt) -> Iterator[list[TExpr]]:
    """The masks and choices in a statement that are known without data, in parts of one rank."""
    if isinstance(s, StoreTile) and s.mask is not None:
        yield from _parts_of(s.mask)
    for e in stmt_exprs(s):
        for x in walk(e):
            if isinstance(x, LoadTile) and x.mask is not None:
                yield from _parts_of(x.mask)
            elif isinstance(x, Select):
                yield from _parts_of(x.pred)


def _parts_of(pred: TExpr) -> Iterator[list[TExpr]]:
    parts = [c for c in conjuncts(pred) if _without_data(c)]
    if parts and len({c.dims for c in parts if c.dims}) <= 1:
        yield parts
    else:
        yield from ([c] for c in parts)


def _without_data(e: TExpr) -> bool:
    return not any(
        isinstance(x, Local | LoadTile)
        or (isinstance(x, TileScalar) and not _integral(x.expr))
        or (isinstance(x, Op) and bool(x.args) and is_float(x.args[0].dtype))
        for x in walk(e)
    )


def _control(kernel: TileKernel, preds: dict[int, list[list[TExpr]]]) -> frozenset[str]:
    """The variables that conditions and loop bounds depend on."""
    scalars = [
        x.expr for p in preds.values() for parts in p for c in parts for x in walk(c) if isinstance(x, TileScalar)
    ]
    for s in walk_stmts(kernel.body):
        scalars += [s.lo, s.hi] if isinstance(s, Loop) else [s.pred] if isinstance(s, Branch) else []
    return frozenset[str]().union(*map(variables, scalars))
