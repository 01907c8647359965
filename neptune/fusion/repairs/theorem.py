"""Theorem 4.3 by SymPy's own solver, where structure shows nothing: the last of the solvers, for maxima and minima.

g has an inverse in one of its c, and h(t, r, r') = g(r', g_c⁻¹(r, t)) reads no c: then what is folded at any fixed r
tells what it would be at another.  So g is folded at a number for r, and finished at the final r::

    max over j of log(w[i, j] / l[i]) + u[i, j]
    h = t + log(r / r')         fold log(w[i, j]) + u[i, j]       finish T - log(l[i])

SymPy's solver may take for ever: it runs in a process that is killed after a second.  What it answers is proved as any
other solver's answer is; nothing of it is trusted.

`inverse` shows the h of Theorem 4.3, h(t, r, r') = g(r', g_c⁻¹(r, t)), of sums and products: there it adds nothing to
separation, and says why.

    g = 0.5*exp(c1 - r1 - c2)/r2      g_c⁻¹ = log(t*r2/0.5) + c2 + r1      h = t*(r2/r2')*exp(r1 - r1')

The inverse is peeled off g by its structure, from the root to one c; SymPy simplifies and proves, and is never asked
to solve.  A repair that was found has this h as what it would be if nothing waited for the end of the loop; where
none was found, this h says what fails: it changes g(r, c) into g(r', c), but does not commute with ⊕.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from neptune.fusion.prove import as_sympy, same, sign
from neptune.fusion.repairs.degrees import own_parts
from neptune.fusion.repairs.monotone import Ordered, hole, masked_by
from neptune.fusion.repairs.roles import ORDERED, ObligationRecord, Problem, Query, Repair
from neptune.fusion.repairs.strategies import waiting
from neptune.fusion.repairs.symbols import pretty, symbols_of
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, Var, as_expr, binary, cast, children, op, rebuild, rewrite, walk
from neptune.ir.ops import EXPONENTIALS, OPS

SIMPLIFIED = 64
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

    >>> from neptune.fusion.repairs.roles import Predecessor
    >>> from neptune.ir.expr import Load
    >>> s, m = Load("s", (Var("j"),), "float32"), Load("m", (), "float32")
    >>> inverse(Query("l", "sum", "float32", op("exp", s - m), (Predecessor(m, "max", s),), frozenset({"j"}))).h
    "h = t*exp(r - r')"
    """
    small = sum(1 for _ in walk(query.value)) <= SIMPLIFIED
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


# --- solved by SymPy --------------------------------------------------------------------------------

SECONDS = 1.0
"""Of processor time, for one question: a busy machine must not decide what is found."""
PATIENCE = 30.0
"""Seconds after which a process is given up that gets no processor."""
LARGEST = 32
"""Nodes of an expression that SymPy is asked to solve."""


def by_inverse(query: Query, problems: list[Problem]) -> Repair | None:
    """A repair of a maximum or minimum of several values that vary, which structure does not gather; not proved yet."""
    if query.reducer not in ORDERED or DTYPES[query.dtype].bits < 32:
        return None
    rising = masked_by(lambda e: _separated(e, query), query, problems)
    if rising is None:
        return None
    own = own_parts(query)
    new = [x for x in walk(rising.psi) if isinstance(x, Op) and x not in own]
    if any(x.name in EXPONENTIALS or x.name == "pow" for x in new):
        return None  # exp(c) for exp(c - r): it may leave every range
    # The logarithm of a number is never small: it is 0, or at least the precision of its dtype.
    return waiting(query, rising, problems, [x for x in new if x.name != "log"])


def _separated(e: Expr, query: Query) -> Ordered | None:
    """g at a number for r, and what makes g of it at any r."""
    roles, symbols = query.roles, symbols_of(e, query.roles)
    kinds = [name[0] for _, name in symbols.names]
    casts = [x for x in walk(e) if isinstance(x, Cast) and roles.reads(x) and DTYPES[x.dtype].bits < 32]
    if kinds.count("r") != 1 or kinds.count("c") < 2 or casts or sum(1 for _ in walk(e)) > LARGEST:
        return None
    named = {name: x for x, name in symbols.names}
    (load,) = (x for name, x in named.items() if name[0] == "r")
    signs = tuple((name, sign(x, roles)) for name, x in named.items())
    g, values = as_sympy(symbols.apply(e), signs), tuple(n for n in named if n[0] == "c")
    text = None if _opaque(g) else answer(_text(g), values)
    if text is None:
        return None
    place = 1 if dict(signs)["r"] == "+" else 0
    psi = _at(e, load, float(place))
    table = {name: cast(x, e.dtype) for name, x in named.items() if name[0] == "p"}
    table |= {"t": hole(psi.dtype), "r'": cast(load, e.dtype)}
    f = _expression(_logs_apart(_parsed(text).subs(_parsed(_text_of(g, "r")), place)), table, e.dtype)
    return None if f is None else Ordered(psi, f, strict=False)


def _at(e: Expr, load: Expr, value: float) -> Expr:
    """`e` at a number for r, without factors 1 and terms 0."""
    if e == load:
        return Const(value, e.dtype)
    fresh = rebuild(e, tuple(_at(x, load, value) for x in children(e))) if children(e) else e
    if isinstance(fresh, Op) and len(fresh.args) == 2:
        a, b = fresh.args
        neutral = {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0}.get(fresh.name)
        if isinstance(b, Const) and b.value == neutral:
            return a
        if isinstance(a, Const) and a.value == neutral and fresh.name in ("mul", "add"):
            return b
    return fresh


# --- SymPy's expressions -----------------------------------------------------------------------


def _opaque(g: Any) -> bool:
    """True for what holds operators that SymPy knows nothing of."""
    import sympy as sp

    return bool(g.atoms(sp.core.function.AppliedUndef))


def _text(g: Any) -> str:
    import sympy as sp

    return str(sp.srepr(g))


def _parsed(text: str) -> Any:
    import sympy as sp

    return sp.sympify(text)


def _logs_apart(h: Any) -> Any:
    import sympy as sp

    return sp.expand_log(h)


def _text_of(g: Any, name: str) -> str:
    return next(_text(x) for x in g.free_symbols if x.name == name)


def _expression(e: Any, table: Mapping[str, Expr], dtype: str) -> Expr | None:
    """An expression of SymPy's as one of ours; None where it holds something else than these operators."""
    if e.is_Symbol:
        return table.get(e.name)
    if e.is_Number:
        return Const(float(e), dtype) if e.is_finite else None
    if e.is_Add:
        return _folded(sorted(e.args, key=lambda x: "t" not in {s.name for s in x.free_symbols}), table, dtype)
    top, bottom = e.as_numer_denom()
    if bottom != 1:
        return _both("div", _expression(top, table, dtype), _expression(bottom, table, dtype))
    parts = [_expression(x, table, dtype) for x in e.args]
    if e.is_Mul and len(parts) == 2:
        return _both("mul", *parts)
    if len(parts) == 1 and parts[0] is not None and (name := str(e.func)) in ("exp", "log"):
        return op(name, parts[0])
    return None


def _folded(terms: list[Any], table: Mapping[str, Expr], dtype: str) -> Expr | None:
    total = _expression(terms[0], table, dtype)
    for x in terms[1:]:
        less = x.could_extract_minus_sign()
        total = _both("sub" if less else "add", total, _expression(-x if less else x, table, dtype))
    return total


def _both(name: str, a: Expr | None, b: Expr | None) -> Expr | None:
    return None if a is None or b is None else binary(name, a, b)


# --- the process -------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def answer(g: str, names: tuple[str, ...], seconds: float = SECONDS) -> str | None:
    """h, where SymPy finds one in time; the texts are those of `srepr`."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps([g, names, seconds]),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": path},
        )
    except (OSError, TypeError, subprocess.TimeoutExpired):  # TypeError: an embedded Python has no executable
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def solutions(g: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Every h of Theorem 4.3 that reads none of the c, which have these names."""
    import sympy as sp

    symbols = {x.name: x for x in g.free_symbols}
    t, primed = sp.Symbol("t", real=True), sp.Symbol("r'", **symbols["r"].assumptions0)
    for c in (symbols[n] for n in names):
        inverses = sp.solve(g - t, c)
        if len(inverses) != 1:
            continue
        h = sp.simplify(sp.expand_log(sp.simplify(g.subs(symbols["r"], primed).subs(c, inverses[0]))))
        if not {x.name for x in h.free_symbols} & set(names):
            yield h


def main() -> None:
    """Answer one question; killed by its timer, if it takes longer."""
    import sympy as sp

    x = sp.Symbol("x", positive=True)
    sp.simplify(sp.solve(sp.log(x) - 1, x)[0])  # what is imported on the way does not count
    g, names, seconds = json.loads(sys.stdin.read())
    signal.setitimer(signal.ITIMER_PROF, seconds)
    h = next(solutions(_parsed(g), tuple(names)), None)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print("" if h is None else _text(h))


if __name__ == "__main__":
    main()
