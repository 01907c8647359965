"""Bounds that depend on data: extremes over the rows of a tile, and a scan of the keys.

The extreme of what a tensor holds for the rows of a tile bounds a loop by itself.

`start[i] <= j` bounds a loop over tiles of keys by the least start of the tile's rows, before → after::

    for j0 in […]: …                  alloc start_min: i32[] @tile
                                        start_min_init: start_min[] = 2147483647
                                        for i1 in [0, BM): start_min: start_min[] min= start[i0*BM + i1] when …
                                        for j0 in [start_min[] // BN, …): …

Scan the keys of a loop for those on which a mask of data may be true at all.

`doc[i] == doc[j]` bounds no loop by itself: which keys belong to a row's document is known from the data only. But a
key with a smaller (or larger) number than all rows of a tile is none that any of them sees, and two extremes of the
rows show that. A loop in front, which loads nothing but the numbers of keys, SPAN at a time, finds the first and the
last key that may be seen, before → after, for tiles of BN keys::

    for j0 in [lo, hi): …             alloc j0_first, j0_last: i32[] @tile
                                        alloc firsts, lasts: i32[SPAN] @tile        of every SPANth key
                                          …
                                          for js in [lo*BN // SPAN, cdiv(hi*BN, SPAN)):
                                            for jk in [0, SPAN):                    key = js*SPAN + jk
                                              firsts[jk] min= select(q_doc_min[] <= doc[key] and …, key, hi*BN)
                                              lasts[jk] max= select(…, key + 1, 0)
                                          for jk in [0, SPAN): j0_first[] min= firsts[jk] …
                                        for j0 in [max(lo, j0_first[] // BN), min(hi, cdiv(j0_last[], BN))): …

Sound for any contents; exact for rows and keys that are sorted. Nothing is said of where the mask is true everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neptune.ir.dtypes import is_int
from neptune.ir.expr import (
    TRUE,
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    ceildiv,
    conjuncts,
    loads,
    logical_and,
    logical_or,
    maximum,
    op,
    rewrite,
    select,
    substitute,
    variables,
)
from neptune.ir.indices.affine import Scope, always, as_nonnegative, linear, poly, scope_of, to_expr
from neptune.ir.indices.extremes import Extremes, OverData
from neptune.ir.indices.normal import disjuncts
from neptune.ir.program import ZERO, Alloc, Buffer, For, Made, Program, Stage, Stmt, Store, Update, seq
from neptune.ir.reducers import REDUCERS
from neptune.schedule.solve_bounds import Alternative, Bound, Solved, affine_guards, holds, room
from neptune.schedule.state import fresh_name, names_in_use


@dataclass(frozen=True)
class Extreme:
    """`reducer` (min or max) of `load` over the loop `over`, where `when` holds."""

    load: Load
    over: For
    reducer: str
    when: tuple[Expr, ...]


@dataclass
class DataBounds:
    """The extremes that the bounds of one loop ask for, each once; read as `name[]`.

    `names`: of rows, outside of the loop.
    """

    program: Program
    outer: tuple[For, ...]
    loop: For
    names: dict[Extreme, str] = field(default_factory=dict)

    def within(self, inner: Sequence[For], when: Expr | None, *, key: str = "") -> OverData:
        """Answers for a stage under the loops `inner`, guarded by `when`; where keys are scanned, for each `key`."""
        inputs = {b.name for b in self.program.inputs}
        moving = {self.loop.var, key, *(f.var for f in inner)}

        def over_data(load: Load, name: str, largest: bool) -> Expr | None:
            over = next(f for f in inner if f.var == name)
            own = (variables(load) | variables(over.lo) | variables(over.hi)) & moving
            if own != {name} or any(x.buffer not in inputs for x in loads(load)):
                return None
            guards = [c for c in conjuncts(when) if variables(c) & moving <= own and not loads(c)]
            guards += self.unproved(load, inner, guards)
            # The body of the loop does not matter.
            extreme = Extreme(load, For(over.var, over.lo, over.hi, seq()), "max" if largest else "min", tuple(guards))
            if extreme not in self.names:
                self.names[extreme] = self.fresh(f"{load.buffer}_{extreme.reducer}")
            return Load(self.names[extreme], (), load.dtype)

        return over_data

    def fresh(self, wish: str) -> str:
        """A name that nothing has, as buffer, stage or, with `_init`, as the stage that starts it."""
        names = names_in_use(self.program) | {*self.names.values()}
        return fresh_name(names | {n.removesuffix("_init") for n in names}, wish)

    def unproved(self, load: Load, inner: Sequence[For], guards: Sequence[Expr]) -> list[Expr]:
        """Return conditions for `load` to lie in its buffers that `guards` do not give. No true mask reads outside."""
        facts = [p for g in guards for p in as_nonnegative(g) or []]
        base = scope_of(self.program, (*self.outer, self.loop, *inner))
        scope = Scope(base.ranges, base.at_least, (*base.facts, *facts))
        sides = [
            side
            for x in loads(load)
            for i, n in zip(x.index, self.program.buffers[x.buffer].shape, strict=True)
            for side in (binary("ge", i, 0), binary("lt", i, n))
        ]
        return [c for c in sides if not always(c, scope)]

    def known(self, e: Expr) -> bool:
        """True for a bound that reads inputs and these extremes only, nothing that the kernel itself computes."""
        readable = {b.name for b in self.program.inputs} | {*self.names.values()}
        return all(x.buffer in readable for x in loads(e))

    def of_rows(self, body: Stmt, used: Sequence[Expr]) -> Stmt:
        """`body`, in which the expressions `used` stand, behind the stages that compute what these read of rows."""
        read = {x.buffer for e in used for x in loads(e)}
        needed = [(x, name) for x, name in self.names.items() if name in read]
        return kept_in(
            {name: x.load.dtype for x, name in needed}, seq(*(s for x, name in needed for s in _stages(x, name)), body)
        )


def kept_in(scalars: Mapping[str, str], body: Stmt) -> Stmt:
    """`body` with these scalars (name → dtype) allocated on chip."""
    for name, dtype in reversed(list(scalars.items())):
        body = Alloc(Buffer(name, (), dtype, "tile"), body)
    return body


def _stages(x: Extreme, name: str) -> tuple[Stmt, Stmt]:
    start = REDUCERS[x.reducer].identity(x.load.dtype)[0]
    fold = Update((name,), (), x.reducer, (x.load,), None)
    stage = Stage(name, fold, logical_and(*x.when) if x.when else None, Made("bound", x.load.buffer))
    return Stage(f"{name}_init", Store(name, (), start), None, Made("init", name)), For(
        x.over.var, x.over.lo, x.over.hi, stage
    )


# --- a scan of the keys -----------------------------------------------------------------------------

SPAN = 128
"""Keys of one step: a few for each thread of a warp."""


@dataclass(frozen=True)
class Keys:
    """The elements that a loop over tiles goes through: those of `tile`, a loop in it, one tile after the other."""

    loop: For
    tile: For

    @property
    def name(self) -> str:
        """The variable that stands for one of them."""
        return f"{self.loop.var}_key"

    @property
    def every(self) -> For:
        """All of them as one loop."""
        return For(
            self.name, binary("mul", self.loop.lo, self.tile.hi), binary("mul", self.loop.hi, self.tile.hi), seq()
        )

    def of(self, e: Expr) -> Expr | None:
        """An expression by the number of a key; None where it tells more of it than that.

        j0*BN + j1 + 3 <= n   →   j0_key + 3 <= n
        """

        def numbered(x: Expr) -> Expr | None:
            if not isinstance(x, Var | Op) or not is_int(x.dtype) or not self._own & variables(x):
                return None
            within = linear(poly(x), self.tile.var)
            across = None if within is None else linear(within[1], self.loop.var)
            if within is None or across is None or across[0] != within[0] * poly(self.tile.hi):
                return None
            return to_expr(within[0] * poly(Var(self.name)) + across[1], x.dtype)

        rewritten = rewrite(e, numbered)
        return None if self._own & variables(rewritten) else rewritten

    @property
    def _own(self) -> frozenset[str]:
        return frozenset({self.loop.var, self.tile.var})


@dataclass(frozen=True)
class Scanned:
    """A condition on single keys, and when these are there: what they are known to meet, and loads lie in tensors."""

    keys: Keys
    condition: Expr
    when: tuple[Expr, ...]


def possible(pred: Expr, rows: Sequence[str], extremes: Extremes) -> Expr:
    """A condition without which `pred` is true nowhere while the variables `rows` run; TRUE where there is none."""
    sets = disjuncts(pred)
    if sets is None:
        return TRUE
    return logical_or(*(logical_and(*(_comparison(p, rows, extremes) for p in parts)) for parts in sets))


def _comparison(pred: Expr, rows: Sequence[str], extremes: Extremes) -> Expr:
    parts = as_nonnegative(pred)
    one = parts[0] if parts is not None and len(parts) == 1 else None
    most = None if one is None else extremes.of(one, rows, largest=True)
    data = [] if most is None else [atoms for atoms, _ in most.terms if any(loads(a) for a in atoms)]
    if most is None or not data:
        return TRUE
    bounds, fits = holds(most, extremes.scope), room(pred, rows, extremes)
    if bounds is None or fits is None:
        return TRUE
    # Where arithmetic on data wraps around, nothing follows from how large they are.
    return bounds if fits == TRUE else logical_or(bounds, op("not", fits))


def scanned(pred: Expr, when: Expr | None, inner: Sequence[For], data: DataBounds) -> Scanned | None:
    """What single keys can be scanned for, without which a predicate is true for none of its rows; `inner` are the
    loops in that of tiles around a stage, which runs `when` this holds."""
    for tile in inner:
        keys, rows = Keys(data.loop, tile), tuple(f for f in inner if f is not tile)
        by_key = keys.of(pred) if tile.lo == ZERO else None
        if by_key is None or keys.name not in variables(by_key):
            continue
        held = logical_and(*(w for c in conjuncts(when) if (w := keys.of(c)) is not None))
        scope, names = scope_of(data.program, (*data.outer, keys.every, *rows)), [f.var for f in reversed(rows)]
        extremes = Extremes(scope, affine_guards(held, keys.name), data.within(rows, held, key=keys.name))
        condition = possible(by_key, names, extremes)
        if condition == TRUE or keys.name not in variables(condition):
            continue
        own = [c for c in conjuncts(held) if keys.name in variables(c) and not variables(c) & {*names}]
        inside = [s for x in loads(condition) if x.index for s in data.unproved(x, (keys.every,), own)]
        return Scanned(keys, condition, (*own, *inside))
    return None


def at_once(each: Sequence[Scanned]) -> Scanned | None:
    """One scan for several predicates of the same keys."""
    alike = [s for s in each if s.keys == each[0].keys]
    if not alike:
        return None
    when = tuple(dict.fromkeys(w for s in alike for w in s.when))
    return Scanned(alike[0].keys, logical_and(*(s.condition for s in alike)), when)


def bounded(names: Sequence[str], keys: Keys) -> Solved:
    """The tiles from the first to the last key that a scan has found, as what `partition` cuts by."""
    # At least 0 it is anyhow; said like this, it can be seen.
    tile, ends = keys.tile.hi, [maximum(ZERO, Load(n, (), "int32")) for n in names]
    first, last = binary("floordiv", ends[0], tile), ceildiv(ends[1], tile)
    bounds = (Bound(False, first, first), Bound(True, last, last))
    return Solved(TRUE, (Alternative(bounds),), True)


def scan(scanned: Scanned, lo: Expr, hi: Expr, names: Sequence[str], spread: Sequence[str]) -> Stmt:
    """The stages that set `names` to the first key of the tiles [lo, hi) with the condition, and to one behind the
    last; `spread` are those of every SPANth key."""
    tile, var = scanned.keys.tile.hi, scanned.keys.loop.var
    step, lane, span = Var(f"{var}_step"), Var(f"{var}_lane"), Const(SPAN, "int32")
    key = binary("add", binary("mul", step, span), lane)
    end = binary("mul", hi, tile)
    never = cast(end, "int32")
    seen, *when = (substitute(e, {scanned.keys.name: key}) for e in (scanned.condition, *scanned.when))
    bounds = (select(seen, key, never), select(seen, binary("add", key, 1), ZERO))
    there = logical_and(binary("lt", key, end), *when)

    def lanes(body: Stmt) -> For:
        return For(lane.name, ZERO, span, body)

    stages: list[Stmt] = []
    for name, start in zip(spread, (never, ZERO), strict=True):
        stages.append(lanes(Stage(f"{name}_init", Store(name, (lane,), start), None, Made("init", name))))
    folds = [
        Stage(name, Update((name,), (lane,), reducer, (value,), None), there, Made("bound", var))
        for name, reducer, value in zip(spread, ("min", "max"), bounds, strict=True)
    ]
    begin = binary("floordiv", binary("mul", lo, tile), span)
    stages.append(For(step.name, begin, ceildiv(end, span), lanes(seq(*folds))))
    for name, lane_of, reducer, start in zip(names, spread, ("min", "max"), (never, ZERO), strict=True):
        stages.append(Stage(f"{name}_init", Store(name, (), start), None, Made("init", name)))
        all_lanes = Update((name,), (), reducer, (Load(lane_of, (lane,), "int32"),), None)
        stages.append(lanes(Stage(name, all_lanes, None, Made("bound", var))))
    body = seq(*stages)
    for name in spread:
        body = Alloc(Buffer(name, (span,), "int32", "tile"), body)
    return body
