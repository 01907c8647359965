"""Functions of numpy and torch on expressions: `np.exp(x[i, j])` and `torch.exp(x[i, j])` are `exp(x[i, j])`.

Both libraries ask their arguments first (`__array_ufunc__`, `__torch_function__`), so that neither is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neptune.ir.expr import OPS, Expr, binary, bitwise, invert, is_finite, is_inf, is_nan, op, select, sign
from neptune.ir.ops import LIBM

NAMES: Mapping[str, str] = {
    "absolute": "abs",
    "negative": "neg",
    "rint": "round",
    "true_divide": "div",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "power": "pow",
    "float_power": "pow",
    "maximum": "max",
    "minimum": "min",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
    "logical_and": "and",
    "logical_or": "or",
    "logical_not": "not",
    "expit": "sigmoid",
    "left_shift": "shl",
    "right_shift": "shr",
    **{f"arc{name[1:]}": name for name in LIBM if name.startswith("a")},
}
COMPOSED: Mapping[str, Callable[..., Expr]] = {
    "where": select,
    "sign": sign,
    "isnan": is_nan,
    "isinf": is_inf,
    "isfinite": is_finite,
    "invert": invert,
    "bitwise_and": lambda a, b: bitwise("and", a, b),
    "bitwise_or": lambda a, b: bitwise("or", a, b),
    "bitwise_xor": lambda a, b: bitwise("xor", a, b),
}


def apply(library: str, name: str, args: tuple[Any, ...]) -> Expr:
    """Apply numpy's or torch's function `name` to expressions: `np.exp(x[i])` is `exp(x[i])`.

    Raises TypeError for a function that is none of elements.
    """
    plain = name.strip("_")
    if plain in COMPOSED:
        return COMPOSED[plain](*args)
    known = OPS.get(NAMES.get(plain, plain))
    # numpy's min and max fold, and those of two expressions have other names.
    if known is None or known.kind == "constant" or plain in ("min", "max") or len(args) != known.arity:
        raise TypeError(f"{library}'s `{name}` says nothing of an expression: take it from neptune.frontend.builder")
    return binary(known.name, *args) if known.arity == 2 else op(known.name, *args)
