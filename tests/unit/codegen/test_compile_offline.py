"""Offline compilation: the fixtures for three GPUs, and the numbers read off the compilers' output."""

from __future__ import annotations

import pytest

from neptune.codegen.compile import Compiled, compile_offline, parse_target
from neptune.errors import TargetError
from neptune.report.resources import resources_of
from neptune.tile.ir import TileProgram
from tests.examples.tile_examples import attention, softmax
from tests.texts import generate


def build(program: TileProgram, target: str, loads: str = "pointer", **params: int) -> Compiled:
    """The only kernel of a program, compiled."""
    (compiled,) = compile_offline(generate(program, loads=loads), program, target, params, loads=loads)
    return compiled


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
@pytest.mark.parametrize("d", [64, 128])
def test_attention_on_hopper_uses_wgmma_and_does_not_spill(d: int, loads: str) -> None:
    c = build(attention(d), "cuda:90", loads, BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
    assert (c.matrix, c.spill_bytes, c.warnings) == ("wgmma", 0, ())
    assert 64 < c.registers < 230
    # One tile of q, three stages of k and v each; descriptors add their barriers.
    tiles = 128 * d * 2 + 2 * 2 * 64 * d * 2
    assert tiles - 1 < c.shared_bytes < tiles + 3 * 64 * d * 2
    assert ("cp.async.bulk.tensor" in c.asm) == (loads == "descriptor")
    if loads == "pointer":
        # Without divisibility and contiguity this is 16 bytes at a time no more.
        assert "cp.async.cg.shared.global" in c.asm


def test_attention_on_ampere() -> None:
    c = build(attention(64), "cuda:80", BLOCK_M=64, BLOCK_N=64, num_warps=4)
    assert (c.matrix, c.spill_bytes) == ("mma", 0)
    assert "cp.async.cg.shared.global" in c.asm and ".target sm_80" in c.asm


def test_attention_on_amd() -> None:
    c = build(attention(64), "hip:gfx942", BLOCK_M=64, BLOCK_N=32, num_warps=4)
    assert (c.matrix, c.spill_bytes) == ("mfma", 0)
    assert c.registers > 32 and c.shared_bytes > 0 and "gfx942" in c.asm


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_softmax(target: str) -> None:
    resources = resources_of(build(softmax(), target, BLOCK_C=512))
    assert resources.name == "softmax_kernel"
    assert (resources.matrix, resources.spill_bytes, resources.warnings) == (None, 0, ())
    assert resources.registers > 8


def test_spills_and_serialised_wgmma_are_seen() -> None:
    c = build(attention(128), "cuda:90", "descriptor", BLOCK_M=128, BLOCK_N=128, num_warps=4, num_stages=2)
    assert c.registers == 255 and 0 < c.spill_bytes < 10000
    assert [w[:5] for w in c.warnings] == ["C7511"]


def test_the_compiler_sees_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from neptune.codegen.compile import WORKER

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    WORKER.close()
    assert build(softmax(), "cuda:80", BLOCK_C=64).registers > 0


def test_refusals_are_target_errors() -> None:
    with pytest.raises(TargetError, match="cuda:90"):
        parse_target("cuda:hopper")
    with pytest.raises(TargetError) as e:
        # tl.arange takes powers of two only.
        build(softmax(), "cuda:80", BLOCK_C=48)
    assert "BLOCK_C" in str(e.value) and "Traceback" not in str(e.value)
    assert build(softmax(), "cuda:80", BLOCK_C=64).spill_bytes == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_running_sum_of_16_bits_compiles(dtype: str) -> None:
    """Triton sums bfloat16 in float32: without a cast the loop's sum would change its type."""
    import neptune
    from neptune.frontend import builder as nt

    n, k = nt.var("n"), nt.var("k")
    x = nt.placeholder((n, k), dtype, "x")
    j1, j2 = nt.reduce_axis((0, k), "j"), nt.reduce_axis((0, k), "j")
    m = nt.compute((n,), lambda i: nt.max(x[i, j1], axis=j1), "m")
    t = nt.compute((n,), lambda i: nt.sum(nt.exp(x[i, j2] - m[i]), axis=j2), "t")
    kernel = neptune.compile(t, "softmax_online", target="llvm")
    assert kernel.resources("cuda:90")[0].registers > 0
