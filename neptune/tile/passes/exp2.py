"""exp2: natural exponentials become powers of two, and scales fold into one multiply-add per score.

    score = s * c                                    score = s
    m_prev = m; m = max(m, reduce(score, max))       m_prev = m; m = max(m, reduce(score, max) * (c*log2e))
    p = exp(score - m)                          →    p = exp2(score * (c*log2e) - m)
    r = exp(m_prev - m)                              r = exp2(m_prev - m)
    lse = where(l > 0, m + log(l), -inf)             lse = where(l > 0, m * ln2 + log(l), -inf)

A maximum that feeds exponentials is kept in units of log₂: max commutes with a positive factor and the
finite start stays the finite start (scaling *it* would overflow).  A positive constant factor of a score
moves out of the tile that holds it, through the mask (-inf·c = -inf), to where it is used.

Only where what the maximum folds cannot lie at the finite extremes itself: a user who masks with the
lowest float, or adds such a mask from memory, gets exp2((x - m) * log2e), which overflows nowhere new.
Elsewhere a maximum is read as where(m > lowest, m * ln2, lowest), so that an untouched start is itself,
unless a positive sum of its exponentials (l > 0) says that it is not untouched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from neptune.ir.analysis.facts import constant_range
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, Select, args_of, children, op, rebuild, rewrite, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    TExpr,
    TileKernel,
    TStmt,
    bare,
    map_stmt,
    read_by,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.sums import Bounds, past_start
from neptune.tile.passes.util import Block, confined, map_blocks, reads, uses


def _positive(e: TExpr) -> Expr | None:
    """The constant above 0 that `e` is, if it is one."""
    if not isinstance(e, Scalar) or e.dtype == "bool":
        return None
    limits = constant_range(e.expr)
    return e.expr if 0 < limits.lo <= limits.hi < inf else None


def _factor(e: TExpr) -> tuple[TExpr, Expr] | None:
    """(y, c) with e = y·c and c a positive constant; through Select(p, ·, -inf)."""
    pair = args_of(e, "mul")
    for k, y in enumerate(pair):
        if (c := _positive(pair[1 - k])) is not None:
            return y, c
    if isinstance(e, Select) and e.other == Scalar(Const(-inf, e.dtype)):
        inner = _factor(e.then)
        if inner is not None:
            return replace(e, then=inner[0]), inner[1]
    return None


def _times(e: TExpr, c: Expr) -> TExpr:
    """e·c, with constant factors gathered."""
    if (pair := args_of(e, "mul")) and (before := _positive(pair[1])) is not None:
        return Op("mul", (pair[0], Scalar(_product(before, c))), e.dtype)
    if isinstance(e, Rearrange):
        return replace(e, arg=_times(e.arg, c))
    if isinstance(e, Scalar):
        return Scalar(_product(e.expr, c))
    return Op("mul", (e, Scalar(c)), e.dtype)


def _product(a: Expr, b: Expr) -> Expr:
    names = [x.name if isinstance(x, Op) else "" for x in (a, b)]
    if names in (["log2e", "ln2"], ["ln2", "log2e"]):
        return Const(1.0, a.dtype)
    return op("mul", a, b)


# --- moving a positive scale out of the tile that holds it --------------------------------------


def _only_scaled_uses(name: str, rest: Iterable[TStmt]) -> bool:
    """True if every use of `name` is an exponent or under a maximum, where a factor costs nothing more."""
    good = 0
    for s in walk_stmts(tuple(rest)):
        for e in stmt_exprs(s):
            covered = sum(_linear_uses(n, name) for n in walk(e))
            if covered != uses(e, name):
                return False
            good += covered
    return good > 0


def _linear_uses(e: TExpr, name: str) -> int:
    """Uses of `name` as a term of this exponent, or as the operand of this maximum."""
    if isinstance(e, Op) and e.name == "exp":
        return _terms(e.args[0]).count(name)
    if isinstance(e, Reduce) and e.reducer == "max" and isinstance(e.arg, Local) and e.arg.name == name:
        return 1
    return 0


def _terms(e: TExpr) -> list[str]:
    """The locals that are terms of a sum or difference."""
    e = bare(e)
    return [e.name] if isinstance(e, Local) else [name for a in args_of(e, "sub", "add") for name in _terms(a)]


def _scale_out(block: Block, folded: frozenset[str]) -> Block:
    """Move factors out of the tiles named in `folded`: those that a maximum in units of log₂ folds."""
    out = list(block)
    for k, s in enumerate(block):
        if not isinstance(s, Assign) or s.name not in folded:
            continue
        split = _factor(s.value)
        later = out[k + 1 :]
        once = sum(1 for x in walk_stmts(tuple(block)) if isinstance(x, Assign) and x.name == s.name) == 1
        if split is None or not once or s.name in {n for x in out[:k] for n in reads(x)}:
            continue
        if not _only_scaled_uses(s.name, later):
            continue
        tile, c = split
        out[k] = replace(s, value=tile)

        def scaled(x: TExpr, name: str = s.name, c: Expr = c) -> TExpr | None:
            return _times(x, c) if isinstance(x, Local) and x.name == name else None

        out[k + 1 :] = [map_stmt(x, lambda e: rewrite(e, scaled)) for x in later]
    return tuple(out)


# --- exponentials ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Log2:
    """Rewrites exponentials, with the running maxima `maxima` (and copies of them) in units of log₂."""

    maxima: frozenset[str]
    bounds: Bounds

    def scaled(self, e: TExpr) -> TExpr:
        """e·log2e, pushed to where it is free."""
        if isinstance(e, Local) and e.name in self.maxima:
            return e
        if self.mentions(e) and all(self.mentions(a) or self.bounds.below(a) for a in e.parts):
            # Each term may be scaled on its own: that overflows nowhere.
            return rebuild(e, tuple(self.scaled(a) for a in e.parts))
        log2e = op("log2e", dtype=e.dtype)
        pair = args_of(e.arg, "mul") if isinstance(e, Reduce) and e.reducer == "max" else ()
        if pair and isinstance(e, Reduce) and (c := _positive(pair[1])) is not None:
            return _times(replace(e, arg=self.expr(pair[0])), _product(c, log2e))
        return _times(self.expr(e), log2e)

    def mentions(self, e: TExpr) -> bool:
        """True if a maximum is a term of `e`."""
        return not self.maxima.isdisjoint(_terms(e))

    def expr(self, e: TExpr, touched: frozenset[str] = frozenset()) -> TExpr:
        """The expression with exp gone and maxima read in natural units; `touched` ones are past their start."""
        match e:
            case Op("exp", (x,), dtype) if DTYPES[dtype].bits < 32:
                # Scaled in a short dtype, the exponent would lose digits that exp keeps.
                wide = _times(Cast(self.expr(x, touched), "float32"), op("log2e"))
                return Cast(replace(e, name="exp2", args=(wide,), dtype="float32"), dtype)
            case Op("exp", (x,), _):
                return replace(e, name="exp2", args=(self.scaled(x),))
            case Local(name, _, _) if name in self.maxima:
                return _natural(e, name in touched)
            case Select():
                past = [(m, *past_start(e, m, self.bounds)) for m in self.maxima]
                here, there = {m for m, then, _ in past if then}, {m for m, _, other in past if other}
                then, other = self.expr(e.then, touched | here), self.expr(e.other, touched | there)
                return rebuild(e, (self.expr(e.pred, touched), then, other))
        inner = children(e)
        fresh = tuple(self.expr(p, touched) for p in inner)
        return e if all(a is b for a, b in zip(inner, fresh, strict=True)) else rebuild(e, fresh)

    def stmt(self, s: TStmt) -> TStmt:
        if isinstance(s, Assign) and s.name in self.maxima:
            return replace(s, value=self.update(s.value))
        if isinstance(s, Assign):
            return replace(s, value=self.expr(s.value))
        if isinstance(s, Loop | Branch):
            return replace(s, body=tuple(self.stmt(x) for x in s.body))
        return map_stmt(s, self.expr)

    def update(self, e: TExpr) -> TExpr:
        """Return the assigned value of a running maximum, scaled: its start, a copy, or max(itself, new)."""
        if isinstance(e, Full | Local):
            return e
        assert isinstance(e, Op) and e.name == "max"
        return replace(e, args=(e.args[0], self.scaled(e.args[1])))


def _natural(m: Local, touched: bool) -> TExpr:
    """A maximum in natural units."""
    value = _times(m, op("ln2", dtype=m.dtype))
    if touched:
        return value
    lowest = Scalar(Const(DTYPES[m.dtype].lowest, m.dtype))
    return Select(Op("gt", (m, lowest), "bool"), value, lowest)


# --- which maxima ------------------------------------------------------------------------------


def _running(bounds: Bounds, name: str, e: TExpr) -> bool:
    """True if `e` starts a maximum at the finite extreme, or folds something moderate into it."""
    if isinstance(e, Full):
        return _is_lowest(e.value)
    if not (isinstance(e, Op) and e.name == "max" and e.dtype == "float32"):
        return False
    state, new = e.args
    itself = isinstance(state, Local) and state.name == name
    return (itself or _is_lowest(state)) and bounds.below(new)


def _folded(bounds: Bounds, maxima: frozenset[str]) -> frozenset[str]:
    """The tiles these maxima fold."""
    new = [e.args[1] for m in maxima for e in bounds.given[m] if isinstance(e, Op)]
    return frozenset().union(*map(read_by, new)) - maxima


def _is_lowest(e: TExpr) -> bool:
    return isinstance(e, Scalar) and isinstance(e.expr, Const) and e.expr.value == DTYPES["float32"].lowest


def _maxima(kernel: TileKernel, bounds: Bounds) -> frozenset[str]:
    """Maxima (and copies of them) that some exponent reads and that units of log₂ are safe for."""
    given = bounds.given
    maxima = {
        n for n, es in given.items() if all(_running(bounds, n, e) for e in es) and any(isinstance(e, Op) for e in es)
    }
    copies = {n for n, es in given.items() if all(isinstance(e, Local) and e.name in maxima for e in es)}
    exponents = [
        n.args[0]
        for s in walk_stmts(kernel.body)
        for e in stmt_exprs(s)
        for n in walk(e)
        if isinstance(n, Op) and n.name == "exp"
    ]
    read = maxima & {name for x in exponents for name in _terms(x)}
    kept = {n for n in copies if all(isinstance(e, Local) and e.name in read for e in given[n])}
    return frozenset(read | kept)


def exp2(kernel: TileKernel) -> TileKernel:
    """See the module's text."""
    bounds = Bounds(kernel)
    maxima = _maxima(kernel, bounds)
    folded = _folded(bounds, frozenset(m for m in maxima if any(isinstance(e, Op) for e in bounds.given[m])))
    folded &= confined(kernel.body)
    kernel = replace(kernel, body=map_blocks(kernel.body, lambda b: _scale_out(b, folded)))
    rewriter = _Log2(maxima, Bounds(kernel))
    return replace(kernel, body=tuple(rewriter.stmt(s) for s in kernel.body))
