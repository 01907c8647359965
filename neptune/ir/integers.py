"""Sizes as numbers: what shapes and loop bounds come to once the scalars and tunables are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from neptune.errors import InternalError
from neptune.ir.expr import Cast, Const, Expr, Op, Select, Var
from neptune.ir.printer import print_expr


def evaluate_size(e: Expr, env: Mapping[str, int | float]) -> int:
    """The value of a size: integer arithmetic on scalars and tunables.

    >>> evaluate_size(Op("floordiv", (Var("n"), Const(2, "int32")), "int32"), {"n": 7})
    3
    """
    match e:
        case Const(value, _):
            return int(value)
        case Var(name, _) if name in env:
            return int(env[name])
        case Cast(arg, _):
            return evaluate_size(arg, env)
        case Select(p, a, b):
            return evaluate_size(a if evaluate_size(p, env) else b, env)
        case Op(name, args, _) if name in _SIZE_OPS and len(args) == 2:
            return int(_SIZE_OPS[name](evaluate_size(args[0], env), evaluate_size(args[1], env)))
        case _:
            raise InternalError(f"the size {print_expr(e)} cannot be computed before the launch")


_SIZE_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def known_size(e: Expr, values: Mapping[str, int]) -> int:
    """The extent of a tile axis for these values of tunables; of one that covers a size, at least 1."""
    return int(e.value) if isinstance(e, Const) else values.get(e.name, 1) if isinstance(e, Var) else 1


def constant_length(e: Expr) -> float:
    """The extent of an axis as a number; a size or a tunable counts as long."""
    return float(e.value) if isinstance(e, Const) else inf
