"""What explain() says of products whose sums have fewer bits than float32 on some GPU."""

from __future__ import annotations

from neptune.ir.dtypes import FLOAT8
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots


def short_products(tiles: TileProgram) -> tuple[Decision, ...]:
    """A Decision for each kernel that multiplies matrices of 8-bit floats.

    c += dot(x, w), of float8_e4m3fn   →   scaled_kernel: multiplies float8_e4m3fn (products)
    """
    made = []
    for k in tiles.kernels:
        dtypes = sorted({d.a.dtype for d in dots(k)} & set(FLOAT8))
        if dtypes:
            reason = (
                "NVIDIA's units of sm_89 and sm_90 sum 8-bit products with about 14 bits: 32 of them on sm_90, a tile "
                "on sm_89; these sums are added in float32\nwhere that is too coarse: cast the operands to float16, "
                "then to float32, and float16 is multiplied"
            )
            made.append(Decision("products", k.name, f"multiplies {' and '.join(dtypes)}", reason))
    return tuple(made)
