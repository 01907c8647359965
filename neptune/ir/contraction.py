"""Recognise a sum of products, for schedules, tiles and packing alike.

    c[h, i, j] += cast(f32, a[h, i, k]) * cast(f32, b[k, j])
    contraction(…)   →   rows (i,), cols (j,), depth (k,), a[h, i, k], b[k, j], float32

An axis that both operands run over and that is kept, h of `c[h, i, j] += a[h, i, k] * b[h, k, j]`, is neither a row
nor a column; one that neither is told apart by, h above, belongs to the operand that it occurs in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce

from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Cast, Expr, Op, binary, variables
from neptune.ir.program import Store, Update
from neptune.ir.text.printer import print_expr

NARROW = ("float16", "bfloat16", *FLOAT8)
"""The dtypes whose products are exact in float32."""
SUMS: Mapping[str, tuple[str, ...]] = {"float32": NARROW, "int32": ("int8",)}
"""The dtypes that a matrix unit sums in, and those of operands whose products are exact there."""


@dataclass(frozen=True)
class Contraction:
    """A sum of products `a * b`, in `dtype`: the axes of one operand alone, those of the other alone, and those that
    are summed over and that both have. The operands stand without a cast that only makes their product exact."""

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    depth: tuple[str, ...]
    a: Expr
    b: Expr
    dtype: str

    @property
    def of_matrices(self) -> bool:
        """True where each operand has an axis of its own, and both have one that is summed over."""
        return bool(self.rows and self.cols and self.depth)

    @property
    def flipped(self) -> Contraction:
        """The product of the transposed operands: rows and columns change places."""
        return replace(self, rows=self.cols, cols=self.rows, a=self.b, b=self.a)


@dataclass(frozen=True)
class NoProduct:
    """The reason why a statement is no product of matrices, a remedy, and forms that are one."""

    wrong: str
    hint: str | None = None
    legal: tuple[str, ...] = ()


NOT_MATRICES = NoProduct(
    "is no product of matrices: each operand needs an axis of its own, and both need the one that is summed over",
    legal=("c[…, i, j] += a[…, i, k] * b[…, k, j], the dimensions in any order",),
)


def contraction(action: Store | Update, axes: Iterable[str]) -> Contraction | None:
    """Return a statement over `axes` as a sum of products; None for anything else. No operand need be a matrix.

    >>> i, k = Var("i"), Var("k")
    >>> value = Load("x", (i, k), "float32") * Load("v", (k,), "float32")
    >>> found = contraction(Update(("y",), (i,), "sum", (value,), None), ("i", "k"))
    >>> found.rows, found.cols, found.depth
    (('i',), (), ('k',))
    """
    match action:
        case Update(_, index, "sum", (Op("mul", (a, b), dtype),)):
            axes = tuple(axes)
            spatial = frozenset[str]().union(*map(variables, index))
            mine, other = variables(a), variables(b)
            return Contraction(
                tuple(x for x in axes if x in spatial & mine - other),
                tuple(x for x in axes if x in spatial & other - mine),
                tuple(x for x in axes if x in (mine & other) - spatial),
                _plain(a),
                _plain(b),
                dtype,
            )
    return None


def product_form(action: Store | Update, axes: Iterable[str]) -> Contraction | None:
    """Return a statement as a sum of products, in whatever dtype it multiplies and sums; None for anything else."""
    if isinstance(action, Store):
        return None
    value, *others = action.values
    return contraction(replace(action, values=(_uncast(value), *others)), axes)


def matrix_product(action: Store | Update, axes: Iterable[str]) -> Contraction | NoProduct:
    """Return a statement as a product that the matrix unit can compute, or why it is none."""
    if isinstance(action, Store):
        return NoProduct("is a map")
    value, product = action.values[0], product_form(action, axes)
    if product is None:
        return NoProduct(f"is no sum of products: {action.reducer} of {print_expr(value)}")
    if product.dtype != value.dtype or product.dtype not in SUMS:
        return NoProduct(
            f"multiplies in {product.dtype} and sums in {value.dtype}: "
            "the matrix unit multiplies exactly and sums in float32",
            hint='cast the operands: a[i, k].astype("float32") * b[k, j].astype("float32")',
        )
    if not product.of_matrices:
        return NOT_MATRICES
    if product.dtype == "int32" and operand_dtype(product.a.dtype, product.b.dtype) != "int8":
        return NoProduct(
            f"multiplies {product.a.dtype} and {product.b.dtype} in int32: the matrix unit takes int8",
            hint='operands of int8: a[i, k].astype("int32") * b[k, j].astype("int32")',
        )
    return product


def operand_dtype(a: str, b: str) -> str:
    """The least dtype that has all numbers of both and that a matrix unit takes, of floats or of int8.

    >>> operand_dtype("float8_e5m2", "bfloat16"), operand_dtype("float8_e5m2", "float8_e4m3fn")
    ('bfloat16', 'float16')
    """
    if a == b and any(a in exact for exact in SUMS.values()):
        return a
    wide = {x for x in (a, b) if x not in FLOAT8} or {"float16"}
    return wide.pop() if len(wide) == 1 and wide < set(NARROW) else "float32"


def factors(e: Expr) -> Iterator[Expr]:
    """The factors of a product, in order; anything else is its own only one."""
    if isinstance(e, Op) and e.name == "mul":
        for x in e.args:
            yield from factors(x)
    else:
        yield e


def grouped(e: Expr, spatial: Iterable[str]) -> Expr | None:
    """A product as one of two operands, told apart by the axes of `spatial` that they run over; None where there are
    not two of them. A factor over no axis of its own goes to the first that is not narrow, else to the first.

        (x[i, k] * w[k, j]) * g[k]   →   (x[i, k] * g[k]) * w[k, j]
    """
    axes = frozenset(spatial)
    by: dict[frozenset[str], list[Expr]] = {}
    for x in factors(e):
        by.setdefault(variables(x) & axes, []).append(x)
    shared = by.pop(frozenset(), [])
    if len(by) != 2 or any(x.dtype != e.dtype for x in factors(e)):
        return None
    sides = list(by.values())
    wide = next((side for side in sides if len(side) > 1 or _plain(side[0]).dtype == e.dtype), sides[0])
    wide += shared
    return binary("mul", *(reduce(partial(binary, "mul"), side) for side in sides))


def _plain(e: Expr) -> Expr:
    return e.arg if isinstance(e, Cast) and e.arg.dtype in SUMS.get(e.dtype, ()) else e


def _uncast(e: Expr) -> Expr:
    return _uncast(e.arg) if isinstance(e, Cast) else e
