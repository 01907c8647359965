"""Reading machine code: on listings whose answer is known, and on tiny kernels compiled here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neptune.codegen.compile import launch_types
from neptune.codegen.triton.module import generate
from neptune.fusion.schedule import Schedule
from neptune.ops.attention import prefill_causal
from neptune.templates.flash_attention import flash_attention
from neptune.tile.pipeline import lower
from tests.examples import sass
from tests.examples.listings import listing

Measure = Callable[..., list[sass.LoopStats]]

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        sums += tl.math.exp2(tl.load(x + start + tl.arange(0, BLOCK)))
    tl.store(out, tl.sum(sums, 0))


@triton.jit
def product(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    sums = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(0, n):
        a = tl.load(x + step * BLOCK * BLOCK + at)
        b = tl.load(y + step * BLOCK * BLOCK + at)
        sums = tl.dot(a, b, sums)
    tl.store(out + at, sums)


@triton.jit
def wrong(x, BLOCK: tl.constexpr):
    tl.store(x, undefined)
"""


@pytest.fixture
def loops_of(monkeypatch: pytest.MonkeyPatch) -> Measure:
    def measure(*lines: str) -> list[sass.LoopStats]:
        monkeypatch.setattr(sass, "disassemble", lambda cubin: cubin.decode())
        return sass.analyse(listing(*lines).encode())

    return measure


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.py"
    path.write_text(KERNEL)
    return path


def test_a_jump_back_from_an_out_of_line_wait_is_no_loop(loops_of: Measure) -> None:
    loops = loops_of(
        "MOV R0, RZ",
        ".L_x_0",
        "SYNCS.PHASECHK P0, [UR4]",
        "@!P0 BRA `(.L_x_2)",
        ".L_x_1",
        "FADD R0, R0, R1",
        "@P1 BRA `(.L_x_0)",
        "EXIT",
        ".L_x_2",
        "SYNCS.PHASECHK P0, [UR4]",
        "@!P0 BRA `(.L_x_2)",
        "BRA `(.L_x_1)",
    )
    assert [(loop.start, loop.end, loop.instructions) for loop in loops] == [(0x10, 0x40, 4), (0x60, 0x70, 2)]


@pytest.mark.parametrize(
    ("body", "overlapped"),
    [
        # waited for before the exponentials; one group in flight over the backward branch is no help
        (["HGMMA A, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R0, R0", "HGMMA B, gsb0"], 0),
        # the second product is still in flight when the next iteration's exponentials issue
        (["MUFU.EX2 R0, R0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "HGMMA B, gsb0"], 1),
        # a wait that leaves one of two groups in flight
        (
            [
                "HGMMA A, gsb0",
                "HGMMA B, gsb0",
                "WARPGROUP.DEPBAR.LE gsb0, 0x1",
                "MUFU.EX2 R0, R0",
                "WARPGROUP.DEPBAR.LE gsb0, 0x0",
                "MUFU.EX2 R1, R1",
            ],
            1,
        ),
    ],
)
def test_overlap(loops_of: Measure, body: list[str], overlapped: int) -> None:
    (loop,) = loops_of(".L_x_0", *body, "@P0 BRA `(.L_x_0)", "EXIT")
    assert loop.overlapped == overlapped


def test_the_clean_loop_selects_least(loops_of: Measure) -> None:
    loops = loops_of(
        ".L_x_0",
        "HGMMA A, gsb0",
        "FSEL R0, R0, R1, P0",
        "@P0 BRA `(.L_x_0)",
        ".L_x_1",
        "HGMMA A, gsb0",
        "BRA.U UP0, `(.L_x_1)",
        "EXIT",
    )
    clean = sass.clean_loop(loops)
    assert len(loops) == 2 and clean is loops[1] and clean.selects == 0


@pytest.mark.slow
def test_a_loop_of_exponentials(kernels: Path) -> None:
    report = sass.compile_kernel(
        sass.Request(
            f"{kernels}:total",
            {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            {"BLOCK": 512},
            divisible=("x", "out", "n"),
        )
    )
    assert (report.kernel, report.spill_bytes, report.warnings) == ("total", 0, ())
    assert report.registers > 0
    assert sum(loop.ex2 for loop in report.loops) >= 4  # 512 elements over 128 threads
    assert sass.clean_loop(report.loops) is None


def test_a_loop_of_products(kernels: Path) -> None:
    report = sass.compile_kernel(
        sass.Request(
            f"{kernels}:product",
            {"x": "*fp16", "y": "*fp16", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            {"BLOCK": 64},
            divisible=("x", "y", "out"),
        )
    )
    loop = sass.clean_loop(report.loops)
    assert loop is not None
    assert loop.hgmma == 4  # 64 deep, 16 at a time
    assert loop.ldgsts > 0 and loop.utmaldg == 0 and loop.ex2 == 0
    assert report.shared_bytes >= 2 * 2 * 64 * 64 * 2


BY_HAND = {"clean": 308, "masked": 434}
"""Instructions of an iteration of a FlashAttention written by hand in Triton, of the loop over tiles that need no mask
and of the one over others: depth 64, causal, with log-sum-exp, tiles of 128 × 64."""


@pytest.mark.slow
def test_generated_attention_needs_no_more_than_one_written_by_hand(tmp_path: Path) -> None:
    schedule = Schedule(prefill_causal(depth=64, lse=True))
    flash_attention(schedule)
    program = lower(schedule.program)
    path = tmp_path / "generated.py"
    path.write_text(generate(program, loads="descriptor"))
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    (kernel,) = launch_types(program, tile, loads="descriptor")
    report = sass.compile_kernel(
        sass.Request(
            f"{path}:{kernel.function}",
            kernel.types,
            kernel.constants,
            divisible=kernel.aligned,
            num_warps=tile["num_warps"],
            num_stages=tile["num_stages"],
        )
    )
    assert (report.spill_bytes, report.warnings) == (0, ())
    clean = sass.clean_loop(report.loops)
    (masked,) = (loop for loop in report.loops if loop.hgmma and loop is not clean)
    assert clean is not None and clean.instructions <= 1.02 * BY_HAND["clean"]
    assert masked.instructions <= 1.02 * BY_HAND["masked"]


def test_a_failure_is_one_line(kernels: Path) -> None:
    with pytest.raises(sass.CompileError, match="undefined") as caught:
        sass.compile_kernel(sass.Request(f"{kernels}:wrong", {"x": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 1}))
    assert "\n" not in str(caught.value)
