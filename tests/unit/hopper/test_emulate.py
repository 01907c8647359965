"""The emulator of Gluon's text on the hand-written attention: numbers against float64, under hostile schedules."""

import numpy as np
import pytest

from bench.baselines.flash_attention_gluon import Form
from neptune.hopper.emulate import Descriptor, ProtocolError, Tensor, run
from tests.examples.gluon_attention import Launch, text

FLOAT16, BFLOAT16 = 1.5e-3, 1.2e-2
"""Bounds of the error: weights and results are rounded to the dtype."""


def ran(launch: Launch, **how: object) -> tuple[float, float]:
    run(text(), launch.kernel, launch.grid, launch.args(), **how)  # type: ignore[arg-type]
    return launch.errors()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("form", "length"),
    [
        (Form(2, 64, 2, True), 1),  # one row: a consumer without rows of its own, no iteration of the loop
        (Form(2, 64, 2, True), 200),
        (Form(2, 64, 3, False), 257),
        (Form(3, 128, 2, True), 320),
        (Form(3, 64, 1, False), 130),
    ],
)
@pytest.mark.parametrize("order", ["late", "random", "eager"])
def test_numbers(form: Form, length: int, causal: bool, order: str) -> None:
    # More tiles than programs, and all heads share keys.
    out, sums = ran(Launch(form, length, causal), seed=length, order=order)
    assert out < FLOAT16 and sums < 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_changes_a_bit(seed: int) -> None:
    a, b = (Launch(Form(2, 64, 2, False), 130, programs=1) for _ in range(2))
    ran(a, order="eager")
    ran(b, seed=seed, order=("late", "random")[seed % 2])
    assert np.array_equal(a.out, b.out) and np.array_equal(a.sums, b.sums)


def test_huge_scores_and_bfloat16() -> None:
    assert ran(Launch(Form(2, 64, 2, True), 100, scale_q=300.0))[0] < FLOAT16
    assert ran(Launch(Form(2, 64, 2, True), 100, dtype="bfloat16"))[0] < BFLOAT16


def test_float32_is_rounded_where_asked_for() -> None:
    exact, single = (Launch(Form(2, 64, 2, True), 100, causal=False) for _ in range(2))
    worst = [ran(exact)[1], ran(single, float32=True)[1]]
    assert worst[0] < worst[1] < 1e-5


def broken(old: str, new: str) -> None:
    """Runs the text with a change."""
    assert text().count(old) == 1
    run(text().replace(old, new), "attention_kernel", (2,), Launch(Form(2, 64, 2, True), 300).args())


def test_a_deadlock_names_role_line_and_barrier() -> None:
    release = "            mbarrier.arrive(ve.index(pst), count=1)\n            acc = acc * gl"
    missing = r"ve\[0\] \(0 phases complete, missing 2"
    with pytest.raises(ProtocolError, match=r"deadlock: .*producer waits at line \d+ for parity 0 of " + missing):
        broken(release, "            acc = acc * gl")


def test_a_product_is_not_read_before_its_wait() -> None:
    with pytest.raises(ProtocolError, match=r"line \d+ reads the product of line \d+ before its wait"):
        broken("s = warpgroup_mma_wait(1, deps=[sa])", "s = warpgroup_mma_wait(2, deps=[sa])")


@pytest.mark.parametrize(("factor", "what"), [(4, "deadlock"), (1, "bytes more are copied than")])
def test_bytes_that_are_not_expected(factor: int, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        broken("mbarrier.expect(kf.index(st), BN * D * 2)", f"mbarrier.expect(kf.index(st), BN * D * {factor})")


SCALE = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, fence_async_shared


@gluon.jit
def _copy(x_desc, buffer, full, y, first, n):
    mbarrier.expect(full, 8 * 16 * 2)
    tma.async_copy_global_to_shared(x_desc, [first, 0], full, buffer)
    mbarrier.wait(full, 0)
    x = buffer.load(gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0]))
    rows = (first + gl.arange(0, 8))[:, None]
    gl.store(y + rows * 16 + gl.arange(0, 16)[None, :], x * 2.0, mask=(rows >= 0) & (rows < n))


@gluon.jit
def scale(x_desc, y, n, first):
    buffer = gl.allocate_shared_memory(x_desc.dtype, [8, 16], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()
    gl.warp_specialize([(_copy, (x_desc, buffer, full, y, first + gl.program_id(0) * 8, n))], [4], [])
"""


def test_boxes_are_clipped_and_read_zero_outside() -> None:
    import torch

    x = torch.arange(11 * 16, dtype=torch.float32).reshape(11, 16).to(torch.bfloat16)
    y = torch.full((11, 16), float("nan"), dtype=torch.bfloat16)
    run(SCALE, "scale", 3, [Descriptor.from_tensor(x, [8, 16]), y, 11, -5])
    assert torch.equal(y, x * 2)
    short = np.zeros((11, 16), np.float16)
    with pytest.raises(IndexError, match="element 176 of a tensor of 176"):
        run(SCALE, "scale", 3, [Descriptor(Tensor(short), (8, 16)), short.copy(), 12, -5])


def test_bits_are_kept_by_a_cast_that_says_so() -> None:
    source = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def bits(x, y):
    i = gl.arange(0, 4)
    gl.store(y + i, gl.load(x + i).to(gl.int16, bitcast=True).to(gl.float16, bitcast=True))
"""
    x, y = np.array([1.5, -2.0, 65504.0, 6e-8], np.float16), np.zeros(4, np.float16)
    run(source, "bits", 1, [x, y])
    assert np.array_equal(x, y)


def test_division_truncates_as_on_the_device() -> None:
    source = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def divide(x, q, r, n):
    i = gl.arange(0, 8)
    a = gl.load(x + i)
    gl.store(q + i, a // 3)
    gl.store(r + i, a % 3)
    gl.store(q + 8, n.to(gl.int64) // 3)
    gl.store(r + 8, n % 3)
"""
    x = np.arange(-4, 4, dtype=np.int32)
    q, r = np.zeros(9, np.int32), np.zeros(9, np.int32)
    run(source, "divide", 1, [x, q, r, -7])
    assert q.tolist() == [-1, -1, 0, 0, 0, 0, 0, 1, -2]
    assert r.tolist() == [-1, 0, -2, -1, 0, 1, 2, 0, -1]
