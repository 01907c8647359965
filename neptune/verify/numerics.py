"""Error norms and hostile inputs for numerical tests, in numpy alone (docs/design/numerics.md, "Numerics")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from neptune.ir.dtypes import DTYPES
from neptune.ir.evaluate.domains import Array

Tensors = dict[str, Array]


class Errors(NamedTuple):
    """Relative errors: of the whole tensor, and the worst of any row (along the last axis)."""

    total: float
    row: float


def rel_error(out: Any, ref64: Any) -> Errors:
    """‖out - ref64‖₂ / ‖ref64‖₂, over the tensor and as the maximum over its rows.

    Equal infinities agree; an infinity or NaN on one side only is an infinite error. Where the reference
    is NaN (undefined) anything goes. A zero reference takes an absolute error.

    >>> rel_error([[3.0, 4.0], [1.0, 0.0]], [[3.0, 4.0], [0.0, 1.0]])  # doctest: +ELLIPSIS
    Errors(total=0.277..., row=1.414...)
    """
    out, ref = np.asarray(out, np.float64), np.asarray(ref64, np.float64)
    if out.shape != ref.shape:
        raise ValueError(f"shapes differ: {out.shape} and {ref.shape}")
    free = np.isnan(ref) | ((out == ref) & np.isinf(ref))
    with np.errstate(invalid="ignore"):
        difference = np.where(free, 0.0, out - ref)
    difference = np.where(np.isfinite(difference), difference, np.inf)
    # An infinity in the reference must not hide the errors of its row.
    ref = np.where(np.isfinite(ref), ref, 0.0)
    rows = _relative(_norm(difference, -1), _norm(ref, -1)) if ref.ndim else np.zeros(0)
    total = _relative(_norm(difference, None), _norm(ref, None))
    return Errors(float(total), float(rows.max()) if rows.size else float(total))


def _norm(x: Array, axis: int | None) -> Array:
    """The 2-norm, scaled so that it does not overflow."""
    if x.size == 0:
        return np.zeros(()) if axis is None else np.zeros(x.shape[:-1])
    scale = np.abs(x).max(axis=axis, keepdims=True)
    safe = np.where((scale == 0) | np.isinf(scale), 1.0, scale)
    with np.errstate(over="ignore"):
        norm = np.sqrt(np.square(x / safe).sum(axis=axis, keepdims=True)) * safe
    return np.asarray(norm.reshape(()) if axis is None else norm.squeeze(axis))


def _relative(error: Array, reference: Array) -> Array:
    return np.asarray(error / np.where(reference == 0, 1.0, reference))


def allowance(dtype: str, unfused: float) -> float:
    """The largest error with which a kernel passes, given that of the unfused expression with the same casts.

    1.1 times it for 16-bit outputs, 10 times for float32, and never less than one unit in the last place.
    """
    row = DTYPES[dtype]
    return max((1.1 if row.bits <= 16 else 10.0) * unfused, 2.0**-row.mantissa)


def nan_padded(array: Any, pad: int = 16) -> tuple[Array, Array]:
    """(a flat buffer of NaN, a view of its middle that holds `array`).

    A kernel that reads outside of the view meets NaN.
    """
    array = np.asarray(array)
    flat = np.full(array.size + 2 * pad, np.nan, array.dtype)
    view = flat[pad : pad + array.size].reshape(array.shape)
    view[...] = array
    return flat, view


def padding_intact(flat: Array, pad: int = 16) -> bool:
    """Return True if nothing was written around the view that `nan_padded` made."""
    return bool(np.isnan(flat[:pad]).all() and np.isnan(flat[flat.size - pad :]).all())


def poison(shape: tuple[int, ...]) -> Array:
    """An output to pass to a kernel: NaN everywhere, so that an unwritten element shows."""
    return np.full(shape, np.nan)


def boundaries(extent: int, tile: int) -> list[int]:
    """The first and last positions of every tile of an axis.

    >>> boundaries(5, 2)
    [0, 1, 2, 3, 4]
    """
    starts = range(0, extent, max(tile, 1))
    return sorted({*starts, *(s - 1 for s in starts if s), extent - 1} & set(range(extent)))


def input_families(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    seed: int = 0,
    tile: int = 16,
    axis: int = -2,
    additive: Collection[str] = (),
) -> Iterator[tuple[str, Tensors]]:
    """Named families of float64 inputs that kernels get wrong.

    `axis` is the one that tiles cut (rows of q, k and v); `additive` names inputs that are added to scores,
    such as a bias, in which -inf is legitimate.

    >>> [name for name, _ in input_families({"x": (4, 2)}, tile=2)][:4]
    ['random', 'x30', 'x1000', 'zeros']
    """
    rng = np.random.default_rng(seed)
    base = {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def scaled(factor: float) -> Tensors:
        return {name: x if name in additive else x * factor for name, x in base.items()}

    def changed(names: Collection[str], where: int | slice, value: float, factor: float = 0.0) -> Tensors:
        """`base` with rows replaced by `value` + `factor` times themselves."""
        result = {name: x.copy() for name, x in base.items()}
        for name in names:
            rows = np.moveaxis(result[name], axis, 0) if result[name].ndim >= abs(axis) else result[name]
            rows[where] = value + factor * rows[where] if factor else value
        return result

    yield "random", scaled(1.0)
    yield "x30", scaled(30.0)
    yield "x1000", scaled(1000.0)
    yield "zeros", scaled(0.0)
    tiled = {name: x for name, x in base.items() if name not in additive and x.ndim >= abs(axis)}
    extent = max((x.shape[axis] for x in tiled.values()), default=0)
    for boundary in boundaries(extent, tile):
        yield (
            f"needle {boundary}",
            changed([n for n, x in tiled.items() if x.shape[axis] > boundary], boundary, 0.0, 100.0),
        )
    for start in range(0, extent, tile):
        names = [n for n, x in tiled.items() if x.shape[axis] > start]
        yield f"zero tile {start}", changed(names, slice(start, start + tile), 0.0)
    if additive:
        rows = max(base[n].shape[axis] for n in additive)
        yield "-inf row", changed(additive, 0, -np.inf)
        yield "-inf last row", changed(additive, rows - 1, -np.inf)
        for start in range(0, rows, tile):
            yield f"-inf tile {start}", changed(additive, slice(start, start + tile), -np.inf)
