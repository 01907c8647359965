"""pieces: the loops that stand side by side over one range, as a walk over its tiles.

for j0 in [0, clean): …   for j0 in [clean, end): …        →  Run("j0", [0, clean) and [clean, end))
for j0 in [0, n // B): …  if n // B < cdiv(n, B): …        →  Run("j0", [0, n // B) and [n // B, cdiv(n, B)))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from neptune.codegen.triton.expr import ceiling
from neptune.errors import Unsupported, answered
from neptune.ir.analysis.facts import slope
from neptune.ir.expr import Expr, Op, Var, args_of, binary, conjuncts, substitute, variables
from neptune.ir.ops import SIGNS
from neptune.tile.ir import Assign, Branch, Loop, TStmt, walk_stmts
from neptune.tile.passes.util import Block, assigns
from neptune.tile.scalars import in_block as changed
from neptune.tile.scalars import is_less, reads_itself, replaced, var


@dataclass(frozen=True)
class Piece:
    """The tiles [lo, hi) of a walk: what is done on tile `var`. Tiles of a piece with `facts` need fewer masks, and a
    piece that is done `once` has a single tile at most."""

    lo: Expr
    hi: Expr
    body: Block
    facts: tuple[Expr, ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Run:
    """Pieces that follow one another over `var`, and the statements that they were."""

    var: str
    pieces: tuple[Piece, ...]
    statements: Block

    @property
    def lo(self) -> Expr:
        return self.pieces[0].lo

    @property
    def hi(self) -> Expr:
        return self.pieces[-1].hi


def runs(body: Block) -> list[Run | TStmt]:
    """A block with its loops as runs, as long as they can be. What stands between two pieces and has nothing to do
    with the first, such as a length that the mask of the second reads, comes before both."""
    out: list[Run | TStmt] = []
    between: list[TStmt] = []
    for s in body:
        last = out[-1] if out else None
        piece = _follows(last, s) if isinstance(last, Run) else None
        if piece is not None and isinstance(last, Run):
            out[-1:] = [*between, Run(last.var, (*last.pieces, piece), (*last.statements, s))]
            between = []
        elif isinstance(last, Run) and isinstance(s, Assign) and _apart(last, s):
            between.append(s)
        else:
            out += [*between, Run(s.var, (Piece(s.lo, s.hi, s.body, s.facts),), (s,)) if isinstance(s, Loop) else s]
            between = []
    return out + between


def _apart(run: Run, s: Assign) -> bool:
    """True if a statement behind a run may as well stand before it."""
    assigned = {n for x in run.statements for n in assigns(x)}
    used = {n for x in walk_stmts(run.statements) for n in reads_itself(x)}
    return s.name not in assigned | used and not reads_itself(s) & assigned


def _follows(run: Run, s: TStmt) -> Piece | None:
    """The statement as the next piece of a run."""
    if isinstance(s, Loop) and s.var == run.var and s.lo == run.hi:
        return Piece(s.lo, s.hi, s.body, s.facts)
    if isinstance(s, Branch) and (rest := _rest(run, s.pred)) is not None:
        tile, end = rest
        return Piece(run.hi, end, changed(s.body, replaced(tile, var(run.var))), once=True)
    return None


def _rest(run: Run, pred: Expr) -> tuple[Expr, Expr] | None:
    """(tile, end) of the condition for the one tile that may be left over: `tile < end`, and `begin <= tile` where the
    loops before may have ended earlier, which is by what ends this as well. Where tile is n // B, the end is at most
    n / B rounded up."""
    parts = [is_less(c) for c in conjuncts(pred) if c != Op("le", (run.lo, _last(c)), "bool")]
    if len(parts) != 1 or parts[0] is None:
        return None
    tile, end = parts[0]
    before, limits = _ends(run.hi), _ends(end)
    once = isinstance(tile, Op) and tile.name == "floordiv" and any(ceiling(x) == tile.args for x in limits)
    return (tile, end) if once and tile in before and before - {tile} <= limits else None


def _last(c: Expr) -> Expr:
    return c.args[-1] if isinstance(c, Op) else c


def _ends(e: Expr) -> set[Expr]:
    """The expressions that an end is the minimum of."""
    parts = args_of(e, "min")
    return {x for p in parts for x in _ends(p)} if parts else {e}


def direction(e: Expr, name: str, positive: frozenset[str]) -> int | None:
    """+1, -1 or 0 as an integer expression rises, falls or stays with a variable; None if that is not known.

    >>> from neptune.ir.expr import Var
    >>> direction((Var("n") - Var("i") * 64) // 128, "i", frozenset())
    -1
    """
    way = answered(slope, e, name, lambda x: SIGNS["+"] if isinstance(x, Var) and x.name in positive else None)
    return None if isinstance(way, Unsupported) else 0 if way == "0" else -1 if "-" in way else 1


@dataclass(frozen=True)
class Group:
    """`consumers` neighbours along the grid variable `rows`: those of `group` are group * consumers + w.

    `positive` are the names of tunables, `sizes` of what else is never negative.
    """

    rows: str
    group: str
    consumers: int
    positive: frozenset[str]
    sizes: frozenset[str]

    def is_size(self, name: str) -> bool:
        """True for a variable that is never negative."""
        return name in self.positive | self.sizes

    def extreme(self, e: Expr, *, largest: bool) -> Expr:
        """The largest or smallest value that an expression has for the consumers of a group."""
        if self.rows not in variables(e):
            return e
        start = binary("mul", var(self.group), self.consumers)
        each = [substitute(e, {self.rows: binary("add", start, w)}) for w in range(self.consumers)]
        way = direction(e, self.rows, self.positive)
        if way is not None:
            return each[-1] if (way > 0) == largest else each[0]
        return reduce(lambda a, b: binary("max" if largest else "min", a, b), each)

    def of_consumer(self, e: Expr) -> Expr:
        """An expression of the group as a consumer has it."""
        return substitute(e, {self.group: binary("floordiv", var(self.rows), self.consumers)})
