"""What no row may see is not used: a factor of 0 does not hide a NaN, so that the other factor is chosen as 0, too.

    score[i, j] = select(j < lens[b], s[i, j], -inf)            score[i, j] = select(j < lens[b], s[i, j], -inf)
    p[i, j] = exp(score[i, j] - m[i])                     →     p[i, j] = exp(score[i, j] - m[i])
    acc[i, e] += p[i, j] * v[j, e]                              acc[i, e] += p[i, j] * select(j < lens[b], v[j, e], 0)

Where a predicate is known to make a factor 0 (by the proofs of `neptune.ir.analysis.absorb`, followed from stage to
stage), the other factor is read under what of the predicate does not depend on the rows that share it: a causal mask,
which does, changes nothing. See docs/numerics.md, "What nobody may see". The pieces of a loop in which a predicate
holds have no mask any more, and no choice either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from neptune.ir.analysis.absorb import ZERO, Known, Same, conjunct_false, known_value
from neptune.ir.dtypes import is_float
from neptune.ir.expr import (
    FALSE,
    TRUE,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    args_of,
    binary,
    cast,
    conjuncts,
    loads,
    logical_and,
    logical_or,
    op,
    rewrite,
    select,
    variables,
    walk,
)
from neptune.ir.indices.affine import as_nonnegative, linear, poly, scope_of, to_expr
from neptune.ir.indices.extremes import Extremes
from neptune.ir.program import (
    ZERO as NOUGHT,
)
from neptune.ir.program import (
    Alloc,
    For,
    If,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    map_action,
    stages,
    sub_stmts,
    values,
    with_stmts,
    written,
)

MOST = 16
"""So many predicates are followed through a stage."""


def without_unseen(program: Program) -> Program:
    """The program with every factor that is multiplied with a masked 0 chosen as 0 there."""
    if not any(_masked(s) for s in stages(program.body)):
        return program
    return program.with_body(_Walk(program).stmt(program.body, ()))


def _masked(stage: Stage) -> list[Expr]:
    """Conjuncts of choices in a stage that are 0 or -inf where these are false."""
    choices = [x for v in values(stage.action) for x in walk(v) if isinstance(x, Select)]
    return [
        c for x in choices if isinstance(x.other, Const) and x.other.value in (0.0, -inf) for c in conjuncts(x.pred)
    ]


@dataclass(frozen=True)
class _Written:
    """What a stage under `loops` stored at `index`: its value where one of the predicates is false."""

    index: tuple[Expr, ...]
    loops: tuple[For, ...]
    known: Mapping[Expr, Known]


@dataclass
class _Walk:
    program: Program
    contents: dict[str, _Written] = field(default_factory=dict)
    inputs: frozenset[str] = field(init=False)
    once: frozenset[str] = field(init=False)
    above: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = frozenset(b.name for b in self.program.inputs)
        by: dict[str, list[Stage]] = {}
        for s in stages(self.program.body):
            for b in s.action.buffers:
                by.setdefault(b, []).append(s)
        self.once = frozenset(b for b, (_, *more) in by.items() if not more)
        # Maxima that start from a finite number are never -inf. Where one that starts from -inf is, a weight beside it
        # is NaN instead of 0, and so is its product with whatever is chosen.
        self.above = frozenset(b for b, found in by.items() if all(map(_of_maximum, found)))

    def stmt(self, s: Stmt, outer: tuple[Stmt, ...]) -> Stmt:
        """The statement, read in order, with what its stages leave noted."""
        if isinstance(s, Stage):
            return self.stage(s, tuple(x for x in outer if isinstance(x, For)), _nest(outer))
        if isinstance(s, For):
            self.forget(written(s))
        elif isinstance(s, Alloc):
            self.forget([s.buffer.name])
        rebuilt = with_stmts(s, tuple(self.stmt(part, (*outer, s)) for part in sub_stmts(s)))
        if isinstance(s, If):
            self.forget(written(s) - self.once)
        return rebuilt

    def forget(self, buffers: Iterable[str]) -> None:
        for b in buffers:
            self.contents.pop(b, None)

    def stage(self, s: Stage, loops: tuple[For, ...], nest: frozenset[str]) -> Stage:
        """The stage with its factors chosen; what it stores is noted."""
        seen = {x.buffer: self.read(x, loops) for v in values(s.action) for x in loads(v)}
        held = conjuncts(s.when)
        preds = dict.fromkeys([*_masked(s), *(p for known in seen.values() for p in known)])
        masks = [p for p in preds if p not in held and all(x.buffer in self.inputs for x in loads(p))][:MOST]
        memory = {p: self.memory(seen, s, p) for p in masks}
        chosen = _Choice(self, memory, nest, held, _extremes(self.program, loops, held))
        # A maximum passes over NaN anyway: a 0 in its place would be one of its elements.
        folded = isinstance(s.action, Update) and s.action.reducer != "sum"
        action = s.action if folded else map_action(s.action, chosen.of)
        self.forget(s.action.buffers)
        if isinstance(action, Store) and all(x.buffer != action.buffer for x in loads(action.value)):
            known = {p: known_value(self.bare(action.value), memory[p], conjunct_false(p)) for p in masks}
            known = {p: k for p, k in known.items() if isinstance(k, str)}
            self.contents[action.buffer] = _Written(action.index, loops, known)
        return replace(s, action=action)

    def memory(self, seen: Mapping[str, Mapping[Expr, Known]], s: Stage, p: Expr) -> dict[str, Known]:
        """What is known of all that a stage reads where `p` is false; of buffers at several places nothing is."""
        places = {x for v in values(s.action) for x in loads(v)}
        single = {b for b in seen if sum(x.buffer == b for x in places) == 1}
        start = {b: Same(b, True) for b in single & self.above}
        return {b: seen[b].get(p, start.get(b)) for b in single}

    def bare(self, e: Expr) -> Expr:
        """An expression with each maximum for what it keeps finite: max(m, -3.4e38) is m but where that is -inf."""

        def fn(x: Expr) -> Expr | None:
            a, b = args_of(x, "max") or (x, x)
            kept = isinstance(a, Load) and a.buffer in self.above and isinstance(b, Const)
            return a if kept else None

        return rewrite(e, fn)

    def read(self, x: Load, loops: tuple[For, ...]) -> Mapping[Expr, Known]:
        """What is known of a read: predicates in terms of the reader."""
        by = self.contents.get(x.buffer)
        if by is None or not by.known:
            return {}
        shared = sum(1 for _ in _common(by.loops, loops))
        own = {f.var: f for f in by.loops[shared:]}
        env: dict[str, Expr] = {}
        places: dict[Expr, Expr] = {}
        for w, r in zip(by.index, x.index, strict=True):
            tried = dict(env)
            if _matches(w, r, own, tried):
                env = tried
            elif variables(w) & {f.var for f in by.loops} <= own.keys() and variables(w) & own.keys():
                places[w] = r
            else:
                return {}
        # Other iterations of a loop around both may have written elements that this one has not.
        again = {f.var for f in by.loops[:shared] if not _of_grid(f)} - {v for e in by.index for v in variables(e)}
        whole = x.buffer in self.once and not again
        if not _distinct(by.index, own) or not (whole or _as_far(own, env, loops[shared:])):
            return {}
        moved = {_moved(p, places, own, env): k for p, k in by.known.items()}
        return {p: k for p, k in moved.items() if p is not None}


def _of_maximum(s: Stage) -> bool:
    if s.folds:
        return s.action.reducer == "max"
    return isinstance(s.action.values[0], Const) and is_float(s.action.values[0].dtype)


def _nest(outer: tuple[Stmt, ...]) -> frozenset[str]:
    """The variables of the loops around a stage that are not of the grid: a tile may hold their elements together."""
    return frozenset(s.var for s in outer if isinstance(s, For) and not _of_grid(s))


def _of_grid(f: For) -> bool:
    return f.kind.startswith("grid")


def _common(a: tuple[For, ...], b: tuple[For, ...]) -> Iterable[For]:
    for x, y in zip(a, b, strict=False):
        if x is not y:
            return
        yield x


# --- which element was written where ---------------------------------------------------------------


def _distinct(index: tuple[Expr, ...], own: Mapping[str, For]) -> bool:
    """True if iterations of the loops `own` that differ in a variable of the index write different elements."""
    for e in index:
        names = sorted(variables(e) & own.keys(), key=list(own).index)
        parts = [linear(poly(e), n) for n in names]
        if any(p is None or not p[0].terms for p in parts) or len(names) > 2:
            return False
        factors = [p[0] for p in parts if p is not None]
        if len(names) == 1 and factors[0].constant is None:
            return False
        if len(names) == 2:
            inner = own[names[1]]
            if factors[1].constant != 1 or inner.lo != NOUGHT or factors[0] != poly(inner.hi):
                return False
    return True


def _matches(written: Expr, read: Expr, own: Mapping[str, For], env: dict[str, Expr]) -> bool:
    """True if the index that was written is the one that is read with `env` for the writer's own variables."""
    if isinstance(written, Var) and written.name in own:
        return env.setdefault(written.name, read) == read
    if not variables(written) & own.keys():
        return written == read
    alike = type(written) is type(read) and len(written.parts) == len(read.parts)
    if not alike or written.with_parts(read.parts) != read:
        return False
    return all(_matches(a, b, own, env) for a, b in zip(written.parts, read.parts, strict=True))


def _moved(p: Expr, places: Mapping[Expr, Expr], own: Mapping[str, For], env: Mapping[str, Expr]) -> Expr | None:
    """A predicate on what was written as one on what is read; `places`: indices of the one in terms of the other."""
    lost: list[str] = []

    def fn(x: Expr) -> Expr | None:
        if isinstance(x, Var) and x.name in own and x not in places:
            lost.extend([] if x.name in env else [x.name])
            return env.get(x.name)
        return places.get(x)

    moved = rewrite(p, fn)
    return None if lost else moved


def _as_far(own: Mapping[str, For], env: Mapping[str, Expr], loops: tuple[For, ...]) -> bool:
    """True if the writer has come to every element of the reader's: each of its loops is one of the reader's."""
    by_name = {f.var: f for f in loops}
    for f in own.values():
        end = env.get(f.var)
        g = by_name.get(end.name) if isinstance(end, Var) else None
        if g is None or (g.lo, g.hi) != (f.lo, f.hi):
            return False
    return True


def _extremes(program: Program, loops: tuple[For, ...], held: list[Expr]) -> Extremes:
    guards = [p for c in held for p in as_nonnegative(c) or []]
    return Extremes(scope_of(program, loops), guards)


# --- choices ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """Chooses factors. `memory`: of each mask, what buffers hold where it is false; `nest`: the loops whose elements a
    tile of the stage may hold together; `held`: what holds around the stage; `extremes`: those over a tile."""

    walk: _Walk
    memory: Mapping[Expr, Mapping[str, Known]]
    nest: frozenset[str]
    held: list[Expr]
    extremes: Extremes

    def of(self, e: Expr) -> Expr:
        return rewrite(e, self._product)

    def _product(self, e: Expr) -> Expr | None:
        if not isinstance(e, Op) or e.name != "mul" or not is_float(e.dtype):
            return None
        a, b = e.args
        hides = [{p for p in self.memory if self._zero(x, p)} for x in (a, b)]
        left, right = self.of(a), self.of(b)
        return replace(e, args=(self._under(left, hides[1] - hides[0]), self._under(right, hides[0] - hides[1])))

    def _zero(self, e: Expr, p: Expr) -> bool:
        return known_value(self.walk.bare(e), self.memory[p], conjunct_false(p)) == ZERO

    def _under(self, e: Expr, masks: set[Expr]) -> Expr:
        """A factor under what of `masks` it can be read under."""
        if isinstance(e, Cast) and is_float(e.arg.dtype):
            return replace(e, arg=self._under(e.arg, masks))
        read = loads(e)
        of_inputs = any(x.buffer in self.walk.inputs for x in read)
        needed = [c for p in self.memory if p in masks for c in conjuncts(self._necessary(p, variables(e)))]
        kept = [c for c in needed if c not in self.held and (of_inputs or variables(c) & self.nest)]
        return select(logical_and(*dict.fromkeys(kept)), e, Const(0.0, e.dtype)) if read else e

    def _necessary(self, p: Expr, known: frozenset[str]) -> Expr:
        """What must hold for `p` to hold, whatever row of the tile it is of; loops of `known` are no such rows."""

        def weakened(e: Expr, positive: bool) -> Expr:
            rows = (variables(e) & self.nest) - known
            if not rows:
                return e
            if isinstance(e, Op) and e.name in ("and", "or"):
                a, b = (weakened(x, positive) for x in e.args)
                return logical_and(a, b) if e.name == "and" else logical_or(a, b)
            if isinstance(e, Op) and e.name == "not":
                return op("not", weakened(e.args[0], not positive))
            most = self._of_any(e, rows) if positive and loads(e) else None
            return most if most is not None else TRUE if positive else FALSE

        return weakened(p, True)

    def _of_any(self, e: Expr, rows: frozenset[str]) -> Expr | None:
        """What a comparison of columns with a number of their sequence comes to for the row where it holds longest:
        j <= i + n[b] - 8 for the last row. It is computed in int64, as no number that is compared need be as large."""
        if not variables(e) & self.nest - rows or any(variables(x) & self.nest for x in loads(e)):
            return None
        names = [n for n in reversed(list(self.extremes.scope.ranges)) if n in rows]
        parts = as_nonnegative(e) or []
        most = [self.extremes.of(q, names, largest=True) for q in parts]
        if not parts or any(q is None or any(x.dtype == "int64" for x in loads(to_expr(q))) for q in most):
            return None
        return logical_and(*(binary("ge", _wide(to_expr(q)), 0) for q in most if q is not None))


def _wide(e: Expr) -> Expr:
    """Sums and products of an expression in int64."""
    if isinstance(e, Op) and e.name in ("add", "sub", "mul", "neg"):
        return op(e.name, *map(_wide, e.args))
    return cast(e, "int64")
