"""8-bit floats as Triton text: casts by bits, and products; of int8, too.

    x.astype("float8_e5m2")   →   _to_float8_e5m2(x)
    dot(a, b), of 8 bits      →   _dot_float8(a, b, acc)

Triton's own casts to them differ from GPU to GPU: before sm_90 they cut a float32 to float16 first, and from then on a
float8_e5m2 does not become infinite. So `neptune.ir.float8.BITS` is written out, step by step. Its casts from them, to
float16 and float32, are exact on every GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from neptune.codegen.triton_text import ATOM, HELPERS, TL_DTYPES, Text, call
from neptune.ir.dtypes import FLOAT8
from neptune.ir.float8 import BITS, INFINITE, NAN

DOT, INT8_DOT = "_dot_float8", "_dot_int8"
DOTS = {**dict.fromkeys(FLOAT8, DOT), "int8": INT8_DOT}
"""The functions that multiply matrices of 8 bits, by the dtype of the operands."""
TOGETHER = 32
"""How many products Hopper's unit sums before they are added in float32; also the least depth of a product.

A running sum that an Ada GPU's unit is given is cut to some 14 bits at every step, so that one never gets there. Triton
does not put the addition back into the product, as it would with `max_num_imprecise_acc` left out.
"""


def encode_name(dtype: str) -> str:
    """The function that casts to an 8-bit float."""
    return f"_to_{dtype}"


def cast8(x: Text, source: str, dtype: str, helper: Callable[[str], None]) -> Text | None:
    """A cast to or from an 8-bit float, of a scalar or a tile; None for any other."""
    if dtype in FLOAT8:
        helper(name := encode_name(dtype))
        return call(name, x)
    if source not in FLOAT8:
        return None
    wide = Text(f"{x.at(ATOM)}.to({TL_DTYPES['float16' if dtype == 'float16' else 'float32']})")
    return wide if dtype != "bfloat16" else Text(f"{wide}.to(tl.bfloat16)")


def _encode(dtype: str) -> str:
    b = BITS[dtype]
    magic = 2.0 ** ((b.magic >> 23) - 127)
    return f"""\
@triton.jit
def {encode_name(dtype)}(x):
    # To the nearest, ties to even, by bits: Triton's own cast is another one on each GPU.
    bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    tiny = (size.to(tl.float32, bitcast=True) + {magic}).to(tl.uint32, bitcast=True) - 0x{b.magic:X}
    code = ((size + 0x{(1 << b.shift - 1) - 1:X} + ((size >> {b.shift}) & 1)) >> {b.shift}) - 0x{b.rebias:X}
    code = tl.where(size < 0x{b.normal:X}, tiny, code)
    code = tl.where(code > 0x{b.most:X}, 0x{b.most:X}, code)
    code = tl.where(size > 0x{INFINITE:X}, 0x{NAN:X}, code) | ((bits >> 24) & 0x80)
    return code.to(tl.uint8).to({TL_DTYPES[dtype]}, bitcast=True)
"""


HELPERS |= {encode_name(dtype): _encode(dtype) for dtype in FLOAT8}
HELPERS[DOT] = f"""\
@triton.jit
def {DOT}(a, b, acc):
    # NVIDIA's units sum 8-bit products with fewer bits than float32 has. Of Hopper's, every {TOGETHER} are added in
    # float32 where that is asked for; with others each call starts anew, and its sum is added in float32.
    if a.shape[1] < {TOGETHER}:  # too short a depth for a unit; float16 has all numbers of a and b
        return tl.dot(a.to(tl.float16), b.to(tl.float16), acc)
    elif tl.target_info.cuda_capability_geq(8, 9) and (
        tl.target_info.cuda_capability_geq(10, 0) or not tl.target_info.cuda_capability_geq(9, 0)
    ):
        return acc + tl.dot(a, b, max_num_imprecise_acc={TOGETHER})
    else:
        return tl.dot(a, b, acc, max_num_imprecise_acc={TOGETHER})
"""
HELPERS[INT8_DOT] = f"""\
@triton.jit
def {INT8_DOT}(a, b, acc):
    if a.shape[1] < {TOGETHER}:  # too short a depth for a unit; float32 has all sums of so few products
        return acc + tl.dot(a.to(tl.float16), b.to(tl.float16)).to(tl.int32)
    else:
        return tl.dot(a, b, acc, out_dtype=tl.int32)
"""
