"""8-bit floats as compiled for GPUs: which instruction multiplies them, which GPU has which, and casts by bits."""

from __future__ import annotations

import re
from itertools import product

import pytest

import neptune
from neptune.errors import TargetError
from neptune.ir.dtypes import FLOAT8
from tests.examples.float8_programs import decode, quantised, scaled_matmul
from tests.tiers import sampled

SHORT = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4}


def assembly(program: neptune.Program, target: str, template: str = "matmul", **params: int) -> str:
    """The assembly of all its kernels."""
    kernel = neptune.compile(program, template, target=target, params=params or BLOCKS)
    return "\n".join(kernel.asm().values())


def added(text: str) -> int:
    """How many sums of float32 there are."""
    return len(re.findall(r"\badd(\.rn)?\.f32", text))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_hopper_multiplies_8_bits(dtype: str) -> None:
    text = assembly(scaled_matmul(dtype), "cuda:90")
    of = f"{SHORT[dtype]}.{SHORT[dtype]}"
    assert re.search(rf"wgmma.mma_async.sync.aligned.m64n\d+k32.f32.{of}", text) and ".f16.f16" not in text
    # Every 32 products are added in float32.
    assert added(text) > added(assembly(scaled_matmul(dtype, wide="float16"), "cuda:90"))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_ada_multiplies_8_bits(dtype: str) -> None:
    text, of = assembly(scaled_matmul(dtype), "cuda:89"), f"{SHORT[dtype]}.{SHORT[dtype]}"
    assert f"mma.sync.aligned.m16n8k32.row.col.f32.{of}.f32" in text
    # Its unit would cut the running sum to fewer bits: each tile's sum starts at zero, and is added to it.
    assert added(text) > added(assembly(scaled_matmul(dtype, wide="float16"), "cuda:89"))


def test_a_short_depth_and_other_gpus_multiply_16_bits() -> None:
    short = assembly(scaled_matmul("float8_e4m3fn"), "cuda:90", **(BLOCKS | {"BLOCK_K": 16}))
    assert "e4m3.e4m3" not in short and "f32.f16.f16" in short
    assert "m16n8k16.row.col.f32.f16.f16.f32" in assembly(scaled_matmul("float8_e5m2"), "cuda:80")
    for dtype in FLOAT8:
        assert re.search(r"v_mfma_f32_\w+_f16", assembly(scaled_matmul(dtype, out=dtype), "hip:gfx942"))


@pytest.mark.parametrize(
    ("program", "operands"),
    [
        (scaled_matmul("float8_e4m3fn", "float8_e5m2"), "float16"),
        (scaled_matmul("float16", "float8_e4m3fn"), "float16"),
        (scaled_matmul("bfloat16", "float8_e5m2"), "bfloat16"),
        # Asked for: sums of products of float16 have all bits of float32.
        (scaled_matmul("float8_e4m3fn", wide="float16"), "float16"),
        (scaled_matmul("float8_e4m3fn", wide="bfloat16"), "bfloat16"),
    ],
)
def test_what_is_not_alike_is_widened(program: neptune.Program, operands: str) -> None:
    source = neptune.compile(program, "matmul", target="cuda:90", params=BLOCKS).source
    assert "_dot_float8" not in source and f".to(tl.{operands})" in source and "tl.dot(" in source
    assert ".to(tl.float32)" not in source or operands == "bfloat16"


@pytest.mark.parametrize(("target", "dtype"), sampled(product(("cuda:90", "cuda:89", "hip:gfx942"), FLOAT8), every=4))
def test_decoding_compiles(dtype: str, target: str) -> None:
    assert "mma" in assembly(decode(dtype), target, "flash_decoding", BLOCK_N=64).replace("mfma", "mma")


@pytest.mark.parametrize("dtype", FLOAT8)
def test_casts_are_no_gpus_own(dtype: str) -> None:
    """Whose instructions saturate or round twice."""
    for target in ("cuda:90", "cuda:89", "hip:gfx942"):
        text = assembly(quantised(dtype), target, "stagewise", num_warps=4)
        assert "satfinite" not in text and "v_cvt_pk_fp8" not in text and "v_cvt_pk_bf8" not in text


def test_ampere_has_one_of_the_two() -> None:
    for make in (
        lambda: neptune.compile(scaled_matmul("float8_e4m3fn"), target="cuda:80"),
        lambda: neptune.compile(scaled_matmul("float8_e4m3fn"), "matmul", target="llvm").for_target("cuda:86"),
        lambda: neptune.compile(scaled_matmul("float8_e4m3fn"), "matmul", target="llvm").asm(target="cuda:80"),
    ):
        with pytest.raises(TargetError, match="does not have"):
            make()


def test_explain_says_what_sums_lose() -> None:
    told = neptune.compile(scaled_matmul("float8_e4m3fn"), "matmul", target="llvm").explain()
    assert "multiplies float8_e4m3fn (products)" in told and "14 bits" in told
    assert "14 bits" not in neptune.compile(scaled_matmul("float8_e5m2", wide="float16"), "matmul").explain()
