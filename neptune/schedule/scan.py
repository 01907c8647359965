"""Scan the keys of a loop for those on which a mask of data may be true at all.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neptune.ir.affine import as_nonnegative, linear, poly, to_expr
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
    rewrite,
    select,
    substitute,
    variables,
)
from neptune.ir.extremes import Extremes
from neptune.ir.normal import disjuncts
from neptune.ir.program import ZERO, Alloc, Buffer, For, Made, Stage, Stmt, Store, Update, seq
from neptune.schedule.solve_bounds import Alternative, Bound, Solved, holds

SPAN = 256
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

        found = rewrite(e, numbered)
        return None if self._own & variables(found) else found

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
    # A product of data and an index may leave its dtype, which is not known to be a multiple then.
    if most is None or not data or any(len(atoms) > 1 for atoms in data):
        return TRUE
    found = holds(most, extremes.scope)
    return TRUE if found is None else found


def bounded(names: Sequence[str], keys: Keys) -> Solved:
    """The tiles from the first to the last key that a scan has found, as what `partition` cuts by."""
    # At least 0 it is anyhow; said like this, it can be seen.
    tile, ends = keys.tile.hi, [maximum(ZERO, Load(n, (), "int32")) for n in names]
    first, last = binary("floordiv", ends[0], tile), ceildiv(ends[1], tile)
    bounds = (Bound(False, first, first), Bound(True, last, last))
    return Solved(TRUE, (Alternative(bounds),), True)


def scan(of: Scanned, lo: Expr, hi: Expr, names: Sequence[str], spread: Sequence[str]) -> Stmt:
    """The stages that set `names` to the first key of the tiles [lo, hi) with the condition, and to one behind the
    last; `spread` are those of every SPANth key."""
    tile, var = of.keys.tile.hi, of.keys.loop.var
    step, lane, span = Var(f"{var}_step"), Var(f"{var}_lane"), Const(SPAN, "int32")
    key = binary("add", binary("mul", step, span), lane)
    end = binary("mul", hi, tile)
    never = cast(end, "int32")
    seen, *when = (substitute(e, {of.keys.name: key}) for e in (of.condition, *of.when))
    found = (select(seen, key, never), select(seen, binary("add", key, 1), ZERO))
    there = logical_and(binary("lt", key, end), *when)

    def lanes(body: Stmt) -> For:
        return For(lane.name, ZERO, span, body)

    stages: list[Stmt] = []
    for name, start in zip(spread, (never, ZERO), strict=True):
        stages.append(lanes(Stage(f"{name}_init", Store(name, (lane,), start), None, Made("init", name))))
    folds = [
        Stage(name, Update((name,), (lane,), reducer, (value,), None), there, Made("bound", var))
        for name, reducer, value in zip(spread, ("min", "max"), found, strict=True)
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


def guards(when: Expr | None, keys: Keys, rows: Iterable[str]) -> list[Expr]:
    """What of a stage's guard is said of keys alone."""
    by_key = (keys.of(c) for c in conjuncts(when))
    return [c for c in by_key if c is not None and keys.name in variables(c) and not variables(c) & {*rows}]
