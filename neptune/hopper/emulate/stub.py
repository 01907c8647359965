"""Tiles of a trace: those of floats have no values, those of integers are computed when something asks for them.

Which actions a role takes may depend on integers (the bounds of a loop, by a tile of positions), and hardly ever does:
so a tile of integers is only remembered as what it is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from neptune.errors import Unsupported


class Stub:
    """A tile of a trace. `held`: the product in flight that owns its registers. `make`: its value, if that is known."""

    __slots__ = ("held", "make")

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        self.held: Any = None
        self.make = make

    @staticmethod
    def of(function: Callable[..., Any], *args: Any, **named: Any) -> Stub:
        """The stub that a function makes of tiles."""
        for x in args:
            touched(x)
        if not all(map(_known, args)) or not all(map(_known, named.values())):
            return Stub()
        return Stub(lambda: function(*map(value, args), **{k: value(v) for k, v in named.items()}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub.of(lambda x: getattr(x, name), self)

    def __call__(self, *args: Any, **named: Any) -> Stub:
        return Stub.of(lambda f, *a, **n: f(*a, **n), self, *args, **named)

    def __bool__(self) -> bool:
        return bool(value(self))

    def __index__(self) -> int:
        return operator.index(value(self))

    def __iter__(self) -> Any:
        raise Unsupported("a tile is taken apart")


def touched(x: Any) -> None:
    """Tells the machine where a product in flight owns the registers of a stub."""
    if isinstance(x, Stub) and x.held is not None:
        x.held.touched()


def stubs(x: Any) -> bool:
    """Whether a stub is among these."""
    return isinstance(x, Stub) or (isinstance(x, list | tuple) and any(map(stubs, x)))


def _known(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return all(map(_known, x))
    return not isinstance(x, Stub) or x.make is not None


def value(x: Any) -> Any:
    """The value of a stub (computed once), and of everything else itself."""
    if isinstance(x, list | tuple):
        return type(x)(map(value, x))
    if not isinstance(x, Stub):
        return x
    if x.make is None:
        raise Unsupported("what a role does depends on the values of a tile")
    known = x.make()
    x.make = lambda: known
    return known


def _install() -> None:
    def method(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Stub]:
        return lambda *parts: Stub.of(function, *(reversed(parts) if swapped else parts))

    binary = ["add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"]
    for name in binary:
        plain, function = name.strip("_"), getattr(operator, name)
        setattr(Stub, f"__{plain}__", method(function))
        setattr(Stub, f"__r{plain}__", method(function, swapped=True))
    for name in ["lt", "le", "gt", "ge", "eq", "ne", "neg", "invert", "getitem"]:
        setattr(Stub, f"__{name}__", method(getattr(operator, name)))
    Stub.__hash__ = object.__hash__  # type: ignore[method-assign]


_install()
