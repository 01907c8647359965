"""What several operators are made of: tensors of rows, and folds and products along them.

Rows are `rows` × `cols`, both symbolic. Nothing here casts but `wide`: sums are in the dtype of what is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from neptune.frontend.builder import Reduction, Tensor, compute, exp, max, minimum, placeholder, reduce_axis, sum, var
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Expr

ROWS, COLS = var("rows"), var("cols")
Cell = Callable[[Expr, Expr], Expr]
"""(i, j) → the value at row i and column j."""
Body = Callable[[Expr, Expr], Expr | Reduction]


def matrix(name: str, rows: Any = ROWS, cols: Any = COLS, dtype: str = "float32") -> Tensor:
    """An input of [rows, cols]."""
    return placeholder((rows, cols), dtype, name)


def vector(name: str, dtype: str = "float32", size: Any = COLS) -> Tensor:
    """An input of [size]."""
    return placeholder((size,), dtype, name)


def wide(x: Expr) -> Expr:
    """x in float32."""
    return x.astype("float32")


def per_row(fold: Callable[..., Reduction], value: Cell, name: str) -> Tensor:
    """name[i] = fold over j of value(i, j)."""
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS,), lambda i: fold(value(i, j), axis=j), name)


def cells(value: Body, name: str) -> Tensor:
    """name[i, j] = value(i, j)."""
    return compute((ROWS, COLS), value, name)


def product(left: Cell, right: Cell, name: str, cols: Any) -> Tensor:
    """name[i, c] = Σ over j of left(i, j) right(j, c)."""
    j = reduce_axis((0, COLS), "j")
    return compute((ROWS, cols), lambda i, c: sum(left(i, j) * right(j, c), axis=j), name)


def exponentials(x: Cell, suffix: str = "", *, infinite: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum m of each row, e = exp(x - m), and the sum l of e over the row.

    `infinite`: an x may be inf. m stays finite beside it, so that its e is inf, and not the NaN of inf - inf.
    """
    largest = DTYPES["float32"].highest
    m = per_row(max, (lambda i, j: minimum(x(i, j), largest)) if infinite else x, f"m{suffix}")
    e = cells(lambda i, j: exp(x(i, j) - m[i]), f"e{suffix}")
    return m, e, per_row(sum, lambda i, j: e[i, j], f"l{suffix}")


def moments(x: Cell) -> tuple[Tensor, Tensor]:
    """The mean and the variance (over n) of each row, as one writes them: the second about the first."""
    n = COLS.astype("float32")
    total = per_row(sum, x, "total")
    mean = compute((ROWS,), lambda i: total[i] / n, "mean")
    squares = per_row(sum, lambda i, j: (x(i, j) - mean[i]) * (x(i, j) - mean[i]), "squares")
    return mean, compute((ROWS,), lambda i: squares[i] / n, "variance")


def points(lead: tuple[Any, ...], shape: tuple[Any, ...], value: Callable[..., Expr | Reduction], name: str) -> Tensor:
    """name[*z, *at] = value(z, *at), over leading dimensions (loops b and h) and those of `shape`, whose loops have the
    names of the parameters of `value`.

    points((2, 3), (n,), lambda z, i: x[(*z, i)], "y")  →  for b in [0, 2): for h in [0, 3): for i in [0, n): …
    """
    n = len(lead)

    def at(*index: Expr) -> Expr | Reduction:
        return value(index[:n], *index[n:])

    names = [*("b", "h")[:n], *list(signature(value).parameters)[1:]]
    at.__signature__ = Signature([Parameter(p, Parameter.POSITIONAL_ONLY) for p in names])  # type: ignore[attr-defined]
    return compute((*lead, *shape), at, name)
