"""How much work a group of rows is: the iterations of its walk, by which the host balances programs."""

from __future__ import annotations

from collections.abc import Mapping

from neptune.hopper.walked import Walked
from neptune.ir.expr import Const, Expr, Load, loads, maximum, op, rewrite, variables
from neptune.tile.ir import Assign, Branch, LoadTile, Loop, Scalar, walk_stmts
from neptune.tile.passes.util import Block, assigns


def weight_of(walked: Walked) -> Expr | None:
    """The iterations of the producer's loops and one more, an int32 expression over the grid's variables and sizes.

    None where no bound reads a variable of the grid (all groups are equal), or one reads a tensor.
    """
    total = _total(walked)
    grid = {g.var for g in walked.kernel.grid} | {walked.group}
    around = {s.var for s in walk_stmts(walked.producer) if isinstance(s, Loop)}
    known = not loads(total) and not variables(total) & around
    return total if known and variables(total) & grid else None


def by_data(walked: Walked) -> bool:
    """True where a tensor says how much work a group is: the host does not know it."""
    return bool(loads(_total(walked)))


def _total(walked: Walked) -> Expr:
    return op("add", _iterations(walked.producer, {}), 1)


def _iterations(body: Block, known: Mapping[str, Expr]) -> Expr:
    """The iterations of the innermost loops of a block that load something."""
    total: Expr = Const(0, "int32")
    known = dict(known)
    for s in body:
        match s:
            case Loop(_, lo, hi, inner, _) if _loads(inner):
                trips = maximum(op("sub", _inlined(hi, known), _inlined(lo, known)), 0)
                nested = any(isinstance(x, Loop) for x in walk_stmts(inner))
                total = op("add", total, op("mul", trips, _iterations(inner, known)) if nested else trips)
            case Branch(_, inner):
                total = op("add", total, _iterations(inner, known))
            case _:
                pass
        scalar = _inlined(s.value.expr, known) if isinstance(s, Assign) and isinstance(s.value, Scalar) else None
        # From here on, what is assigned in there is something else.
        known = {name: e for name, e in known.items() if name not in assigns(s)}
        if scalar is not None and isinstance(s, Assign):
            known[s.name] = scalar
    return total


def _loads(body: Block) -> bool:
    return any(isinstance(s, Assign) and isinstance(s.value, LoadTile) for s in walk_stmts(body))


def _inlined(e: Expr, known: Mapping[str, Expr]) -> Expr:
    """The expression with the scalar locals that it reads in full."""

    def fn(x: Expr) -> Expr | None:
        return known.get(x.buffer) if isinstance(x, Load) and not x.index else None

    return rewrite(e, fn)
