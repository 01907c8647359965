"""Dimension-order reconciliation: bring tile expressions to common dimensions with einops patterns.

`align_to(t<c r>, ("r", "c"))` is `rearrange(t, "c r -> r c")`; `align_to(m<r>, ("r", "c"))` is
`rearrange(m, "r -> r 1")`, which broadcasts (paper §5, "dimension order reconciliation").
"""

from __future__ import annotations

from neptune.errors import InternalError
from neptune.tile.ir import Rearrange, Scalar, TExpr


def align_to(tile: TExpr, dims: tuple[str, ...]) -> TExpr:
    """`tile` permuted to the order of `dims`, with "1" where it lacks one; scalars stay scalars."""
    if isinstance(tile, Scalar) or tile.dims == dims or not tile.dims:
        return tile
    own = [d for d in tile.dims if d != "1"]
    if isinstance(tile, Rearrange) and "1" in tile.dims:
        return align_to(tile.arg, dims)
    if not set(own) <= set(dims):
        raise InternalError(f"a tile over {tile.dims} was to be aligned to {dims}")
    target = [d if d in own else "1" for d in dims]
    return Rearrange(tile, f"{' '.join(tile.dims)} -> {' '.join(target)}")
