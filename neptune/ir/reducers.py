"""Reducers as data: identity, combine, and the algebra the prover may use.

A reducer of width w folds w-tuples.  `combine` builds the IR expression of `state ⊕ value`; `identity`
gives the start for a dtype.  Float max and min start from the finite extreme, as TE's do, so that
exp(-inf - identity) is 0 and never NaN (design §4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Expr, binary


@dataclass(frozen=True)
class Reducer:
    """One row. `monotone` says which way the state can only move as values are folded in: +1 up, -1 down."""

    name: str
    symbol: str
    width: int
    identity: Callable[[str], tuple[Const, ...]]
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]
    associative: bool = True
    commutative: bool = True
    idempotent: bool = False
    monotone: int = 0


def _number(value: float, dtype: str) -> tuple[Const]:
    return (Const(float(value) if is_float(dtype) else int(value), dtype),)


def _scalar(name: str) -> Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]:
    return lambda state, value: (binary(name, state[0], value[0]),)


_ROWS = (
    Reducer("sum", "+=", 1, lambda d: _number(0, d), _scalar("add")),
    Reducer("prod", "*=", 1, lambda d: _number(1, d), _scalar("mul")),
    Reducer("max", "max=", 1, lambda d: _number(DTYPES[d].lowest, d), _scalar("max"), idempotent=True, monotone=1),
    Reducer("min", "min=", 1, lambda d: _number(DTYPES[d].highest, d), _scalar("min"), idempotent=True, monotone=-1),
)
REDUCERS = {row.name: row for row in _ROWS}
BY_SYMBOL = {row.symbol: row for row in _ROWS}
