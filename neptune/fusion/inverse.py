"""The h of Theorem 4.3, h(t, r, r') = g(r', g_c⁻¹(r, t)): for sums it adds nothing to separation, and shows why.

    g = 0.5*exp(c1 - r1 - c2)/r2      g_c⁻¹ = log(t*r2/0.5) + c2 + r1      h = t*(r2/r2')*exp(r1 - r1')

The inverse is peeled off g by its structure, from the root to one c; SymPy simplifies and proves, and is never asked
to solve.  A repair that was found has this h as what it would be if nothing waited for the end of the loop; where
none was found, this h says what fails: it changes g(r, c) into g(r', c), but does not commute with ⊕.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from neptune.fusion.prove import as_sympy, same, sign
from neptune.fusion.roles import ObligationRecord, Query
from neptune.fusion.symbols import pretty, symbols_of
from neptune.ir.expr import Expr, Op, Var, as_expr, op, rewrite, walk
from neptune.ir.ops import OPS

LARGEST = 64
"""Nodes of an expression that SymPy is asked to simplify."""
_T = Var("t", "float32")
_COMBINE = {"sum": "add", "prod": "mul"}


@dataclass(frozen=True)
class Inverse:
    """`h` as text; `update` and `commute` say how equations 4 and 5 were proved, or are None where they were not."""

    g: str
    h: str
    update: ObligationRecord | None
    commute: ObligationRecord | None


@lru_cache(maxsize=256)
def inverse(query: Query) -> Inverse | None:
    """Theorem 4.3 for `query`, a sum or a product; None where g has no inverse in any of its c.

    >>> from neptune.fusion.roles import Predecessor
    >>> from neptune.ir.expr import Load
    >>> s, m = Load("s", (Var("j"),), "float32"), Load("m", (), "float32")
    >>> inverse(Query("l", "sum", "float32", op("exp", s - m), (Predecessor(m, "max", s),), frozenset({"j"}))).h
    "h = t*exp(r - r')"
    """
    small = sum(1 for _ in walk(query.value)) <= LARGEST
    if query.reducer not in _COMBINE or not query.roles.reads(query.value) or not small:
        return None
    symbols = symbols_of(query.value, query.roles)
    g = symbols.apply(query.value)
    signs = (("t", "+"), *((name, sign(e, query.roles)) for e, name in symbols.names))
    for c in (name for _, name in symbols.names if name.startswith("c")):
        if sum(x == Var(c, "float32") for x in walk(g)) != 1:
            continue
        solution = peeled(g, c, _T)
        if solution is not None:
            h = _put(_primed(g), {c: solution})
            return Inverse(f"g = {pretty(g)}", f"h = {_simple(h, signs)}", *_proofs(query.reducer, g, h, signs))
    return None


def peeled(e: Expr, c: str, t: Expr) -> Expr | None:
    """The value of `c` for which e = t; None where an operator on the way has no inverse."""
    if not isinstance(e, Op):
        return t if isinstance(e, Var) and e.name == c else None
    inside = [k for k, a in enumerate(e.args) if Var(c, "float32") in walk(a)]
    if len(inside) != 1:
        return None
    (k,) = inside
    step = _undone(e, k, t)
    return None if step is None else peeled(e.args[k], c, step)


def _undone(e: Op[Expr], k: int, t: Expr) -> Expr | None:
    """Return the argument k for which the operator gives t, None without an inverse."""
    column = OPS[e.name].inverse
    inverse = column[k] if column else None
    return None if inverse is None else as_expr(inverse(op, t, *e.args), t.dtype)


def _put(e: Expr, values: dict[str, Expr]) -> Expr:
    return rewrite(e, lambda x: values.get(x.name) if isinstance(x, Var) else None)


def _primed(e: Expr) -> Expr:
    return rewrite(e, lambda x: Var(x.name + "'", x.dtype) if isinstance(x, Var) and x.name.startswith("r") else None)


def _proofs(
    reducer: str, g: Expr, h: Expr, signs: tuple[tuple[str, str | None], ...]
) -> tuple[ObligationRecord | None, ObligationRecord | None]:
    """Equations 4 and 5, or None where SymPy does not prove them."""
    symbol = {"add": "+", "mul": "*"}[_COMBINE[reducer]]
    x, y = Var("x", "float32"), Var("y", "float32")
    known = (*signs, ("x", "+"), ("y", "+"))
    both = Op(_COMBINE[reducer], (x, y), "float32")
    apart = Op(_COMBINE[reducer], (_put(h, {"t": x}), _put(h, {"t": y})), "float32")
    claims = (
        ("update", "h(g(r, c), r, r') = g(r', c)", _put(h, {"t": g}), _primed(g)),
        ("commute", f"h(x {symbol} y, r, r') = h(x, r, r') {symbol} h(y, r, r')", _put(h, {"t": both}), apart),
    )
    shown = ((name, says, same(left, right, known)) for name, says, left, right in claims)
    update, commute = (None if how is None else ObligationRecord(name, says, how) for name, says, how in shown)
    return update, commute


def _simple(h: Expr, signs: tuple[tuple[str, str | None], ...]) -> str:
    import sympy as sp

    e: Any = sp.powsimp(sp.simplify(as_sympy(h, signs)), combine="exp")
    return str(e)
