"""Python's operators on expressions, and numpy's and torch's functions of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:
    from neptune.ir.expr import Expr, ExprLike


def _made(constructor: str, *args: Any) -> Expr:
    """Call a constructor of the module whose nodes have these operators."""
    node: Expr = getattr(importlib.import_module("neptune.ir.expr"), constructor)(*args)
    return node


def _foreign() -> Any:
    """The module of other libraries' functions, which is made of the constructors."""
    return importlib.import_module("neptune.ir.foreign")


_Infix: TypeAlias = "Callable[[Any, ExprLike], Expr]"


def _infix(name: str) -> tuple[_Infix, _Infix]:
    """The methods of a Python operator: for an expression on its left, and for one on its right."""

    def method(a: ExprLike, b: ExprLike) -> Expr:
        return _made("bitwise" if name in ("and", "or", "xor") else "binary", name, a, b)

    return method, lambda b, a: method(a, b)


class Operators:
    """Python operators on expressions; plain numbers take the dtype of the other side."""

    __slots__ = ()

    __add__, __radd__ = _infix("add")
    __sub__, __rsub__ = _infix("sub")
    __mul__, __rmul__ = _infix("mul")
    __truediv__, __rtruediv__ = _infix("div")
    __floordiv__, __rfloordiv__ = _infix("floordiv")
    __mod__, __rmod__ = _infix("mod")
    __pow__, __rpow__ = _infix("pow")
    __and__, __rand__ = _infix("and")
    __or__, __ror__ = _infix("or")
    __xor__, __rxor__ = _infix("xor")
    __lshift__, __rlshift__ = _infix("shl")
    __rshift__, __rrshift__ = _infix("shr")
    __lt__, __le__, __gt__, __ge__ = (_infix(name)[0] for name in ("lt", "le", "gt", "ge"))

    def __neg__(self) -> Expr:
        return _made("op", "neg", self)

    def __abs__(self) -> Expr:
        return _made("op", "abs", self)

    def __invert__(self) -> Expr:
        return _made("invert", self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a Neptune expression has no truth value while it is being built: use select(), "
            "all_of() and any_of() instead of if, and, or and chained comparisons"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a Neptune expression cannot be iterated: `sum(x[i, j], axis=j)` folds over a reduce axis")

    def __float__(self) -> NoReturn:
        raise TypeError(
            "a Neptune expression has no value while it is being built: "
            "take functions from neptune.frontend.builder, not from math"
        )

    __int__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = __float__

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        return _foreign().apply("numpy", ufunc.__name__ if method == "__call__" and not options else method, args)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return _foreign().apply(
            "torch", function.__name__ if not options else f"{function.__name__} with options", args
        )

    def astype(self, dtype: str) -> Expr:
        """`Cast(self, dtype)`, or self where the dtype is already that."""
        return _made("cast", self, dtype)
