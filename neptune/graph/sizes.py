"""Sizes of torch graphs, Python integers and SymPy expressions over torch's symbols, as sizes of a Program.

    sizes = Sizes()
    sizes.bind(s37)  →  n0            a dimension of an input that is one symbol
    sizes.bind(s37 + s25)  →  n1      any other is a size of its own, unless inputs bind all of its symbols
    sizes.expr(2 * s37)  →  n0 * 2

Names follow the order of the inputs, so that equal parts of a graph are equal Programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeAlias

import sympy
import torch

from neptune.errors import Unsupported
from neptune.ir.expr import Const, Expr, Var, binary

Size: TypeAlias = "int | sympy.Expr"
DRAWS = (3, 5, 7, 11, 13, 17, 19, 23)
"""Values for symbols at which sizes that cannot be compared by form are compared."""


def size_of(n: Any) -> Size:
    """A dimension of a fake tensor: an int, or the expression of a SymInt.

    >>> size_of(3)
    3
    """
    if isinstance(n, torch.SymInt):
        e = n.node.expr
        return int(e) if e.is_number else e
    return int(n)


def same(a: Size, b: Size) -> bool:
    """True where two sizes are equal at all values of their symbols: by form, or at all draws.

    torch writes the same size as (4*s**2)//s and as 4*s. Both are quotients of polynomials, which do not agree at eight
    primes by chance; a call is safe even so, as the kernel's launch compares what its inputs bind.

    >>> s = sympy.Symbol("s", integer=True, positive=True)
    >>> same(s * 4, (s * s * 4) / s), same(s, 8)
    (True, False)
    """
    if a == b:
        return True
    d = sympy.sympify(a) - sympy.sympify(b)
    symbols = sorted(d.free_symbols, key=str)
    if not symbols:
        return bool(d == 0)
    rotated = [dict(zip(symbols, DRAWS[k:] + DRAWS[:k], strict=False)) for k in range(len(DRAWS))]
    return all(d.subs(values) == 0 for values in rotated)


def divided(a: Size, b: Size) -> Size | None:
    """a / b where that is a whole number at all values of their symbols, by form; else None.

    >>> divided(12, 4), divided(12, 5)
    (3, None)
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    q = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    if q.is_number:
        return int(q) if q.is_integer and q > 0 else None
    _, below = q.as_numer_denom()
    return q if below == 1 else None


def hint(n: Any) -> int:
    """The value that a size has in the example: of an int, or of a SymInt."""
    if isinstance(n, torch.SymInt):
        value = n.node.hint
        if value is None:
            raise Unsupported("a size that depends on data")
        return int(value)
    return int(n)


class Sizes:
    """The sizes of one Program: what its inputs bind, and further ones that a call passes as scalars."""

    def __init__(self) -> None:
        self.known: dict[Any, Expr] = {}
        self.passed: dict[str, Size] = {}

    def learn(self, dims: Iterable[Size]) -> None:
        """Bind every dimension that is a plain symbol: to be called with all inputs before any is bound."""
        for d in dims:
            if isinstance(d, sympy.Symbol):
                self.known.setdefault(d, Var(f"n{len(self.known)}"))

    def bind(self, d: Size) -> Expr:
        """The dimension of an input."""
        if isinstance(d, int):
            return Const(d, "int32")
        if d not in self.known and not d.free_symbols <= self.known.keys():
            self.known[d] = Var(f"n{len(self.known)}")
        return self.expr(d)

    def expr(self, d: Size) -> Expr:
        """Any size; a symbol that no input binds is passed by the caller."""
        if isinstance(d, int) or d.is_Integer:
            return Const(int(d), "int32")
        if d in self.known:
            return self.known[d]
        if isinstance(d, sympy.Symbol):
            name = Var(f"n{len(self.known)}")
            self.passed[name.name], self.known[d] = d, name
            return name
        parts = [self.expr(a) for a in d.args]
        if d.is_Add or d.is_Mul:
            return reduce(lambda x, y: binary("add" if d.is_Add else "mul", x, y), parts)
        if d.is_Pow and d.args[1].is_Integer and 0 < int(d.args[1]) < 4:
            return reduce(lambda x, y: binary("mul", x, y), [parts[0]] * int(d.args[1]))
        word = WORDS.get(type(d).__name__)
        if word is None:
            raise Unsupported(f"the size {d}")
        return reduce(lambda x, y: binary(word, x, y), parts)


WORDS = {"FloorDiv": "floordiv", "PythonMod": "mod", "Mod": "mod", "Max": "max", "Min": "min"}
"""Functions of torch's sizes, as operators."""
