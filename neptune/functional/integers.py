"""Integers of mods have torch's widths: indices are int64 there, and what leaves a dtype wraps around.

q_idx * 30000000                      as if int64: exact, in whatever dtype has room (`neptune.ir.widths`)
starts[q_idx] + 2, starts int32       int32: computed in int64 and cut off, of which no proof is made
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from neptune.ir.dtypes import holds, is_int
from neptune.ir.expr import Cast, Const, Expr, Op, cast
from neptune.ir.widths import NEARLY_ALL, Interval, Known, interval, is_data, opaque, widened
from neptune.torch_ops.scalars import as_dtype, wrapped

POSITIONS = (0, NEARLY_ALL)
"""The indices for which a mod is made; calls with more rows are looked at when they are launched."""


def positions(indices: Iterable[Expr]) -> Known:
    """What is known of the indices that a mod is given."""
    places = tuple(indices)

    def known(e: Expr) -> Interval | None:
        return POSITIONS if any(e is i or e == i for i in places) else None

    return known


def carried(dtype: str, name: str, args: Iterable[Any]) -> str:
    """The dtype in which a node of `dtype` is written: int64 of what are no data is int32, which is widened where that
    has no room. A shift drops bits by its dtype."""
    if dtype != "int64" or "shift" in name:
        return dtype
    return "int32" if all(_narrow(a) for a in args) else dtype


def _narrow(x: Any) -> bool:
    if isinstance(x, Const) and is_int(x.dtype):
        return holds("int32", (int(x.value), int(x.value)))
    if hasattr(x, "dtype"):
        return x.dtype in ("int32", "bool") and not is_data(x)
    return not isinstance(x, int) or holds("int32", (x, x))


def rounded(e: Expr, dtype: torch.dtype, known: Known) -> Expr:
    """`wrapped`, but that int64 of what are no data may stay int32."""
    if dtype == torch.int64 and _narrow(e):
        return as_dtype(e, "int32")
    return wrapped(cut(e, str(dtype).removeprefix("torch."), known), dtype)


def cut(x: Any, dtype: str, known: Known) -> Any:
    """An argument that torch casts to `dtype`: indices have been exact so far."""
    if isinstance(x, Const) or not isinstance(x, Op | Cast) or dtype != "int32" or x.dtype != "int32" or is_data(x):
        return x
    return x if holds(dtype, interval(x, known)) else cast(opaque(cast(widened(x, known), "int64")), dtype)
