"""A stand-in for `triton.language`: what kernels on tiles have beside the functions that Gluon has too.

They are the other kernels of a module with asynchronous ones, so that the whole program runs here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from neptune.hopper.emulate.language import language
from neptune.hopper.emulate.memory import Pointer
from neptune.hopper.emulate.values import Tile, is_float, wider

CAPABILITY = (9, 0)


def of_tiles(machine: Any) -> SimpleNamespace:
    """`tl`, for one machine whose tiles have values."""
    return SimpleNamespace(
        **vars(language(machine)),
        dot=_dot,
        trans=lambda x, *order: x.trans(*order),
        broadcast_to=_broadcast_to,
        sigmoid=lambda x: Tile(1.0 / (1.0 + np.exp(-x.data)), x.dtype),
        debug_barrier=lambda: None,
        target_info=SimpleNamespace(cuda_capability_geq=lambda *least: least <= CAPABILITY),
    )


def _dot(a: Tile, b: Tile, acc: Any = None, *, out_dtype: Any = None, **_: Any) -> Tile:
    """A product, added to `acc`; in float64, as all sums of float32 here."""
    dtype = str(out_dtype or (wider("float32", a.dtype) if is_float(a.dtype) else "int32"))
    total = a.data @ b.data
    return Tile(total if acc is None else acc.data + total, dtype)


def _broadcast_to(x: Any, *shape: Any) -> Any:
    dims = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    if isinstance(x, Pointer):
        return Pointer(x.tensor, _broadcast_to(x.offset, dims))
    data, dtype = (x.data, x.dtype) if isinstance(x, Tile) else (x, "float32" if isinstance(x, float) else "int32")
    return Tile(np.broadcast_to(data, dims), dtype)
