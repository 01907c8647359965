"""The estimate by which graphs are ranked: bytes, launches, occupancy and matrix work each count."""

from dataclasses import replace

import pytest

from neptune.ir.expr import Const, Var
from neptune.mirage.cost import estimate
from neptune.mirage.ir import SPLIT, Graph, Kernel, Load, Node, Output, Save, Tensor
from neptune.tune.model.constants import FITTED
from neptune.tune.model.machine import BY_ARCH, DEFAULT
from tests.unit.mirage.graphs import gated_mlp, gated_mlp_split, rms_norm_linear

SIZES = {"m": 16, "k": 4096, "n": 6144}
ONE = rms_norm_linear()


def in_steps() -> Graph:
    """The same as operators on whole tensors."""
    return ONE.with_steps(
        Node("xx", "sqr", ("X",)),
        Node("squares", "sum", ("xx",), axis="k"),
        Node("mean", "scale", ("squares",), constant=ONE.kernels[0].body[4].constant),  # type: ignore[union-attr]
        Node("root", "sqrt", ("mean",)),
        Node("normed", "div", ("X", "root")),
        Node("Y", "matmul", ("normed", "W"), axis="k"),
    )


def attention(split: bool) -> Graph:
    """exp(q·k)·v for two heads, its keys in parts or not."""
    kernel = Kernel(
        "fused",
        grid=("h", "i", "j") if split else ("h", "i"),
        loop="j",
        loads=(Load("q", "Q"), Load("k", "K"), Load("v", "V")),
        body=(
            Node("s", "matmul", ("q", "k"), axis="d"),
            Node("e", "exp", ("s",)),
            Node("c", "matmul", ("e", "v"), axis="j"),
            Node("o", "acc", ("c",), axis="j"),
        ),
        saves=(Save("P" if split else "O", "o"),),
    )
    steps = (kernel, Node("O", "sum", ("P",), axis="j", parts=SPLIT)) if split else (kernel,)
    of = {"h": Const(2, "int32"), "i": Const(256, "int32"), "j": Var("keys"), "d": Const(64, "int32")}
    tensors = (("Q", "hid"), ("K", "hdj"), ("V", "hjz"))
    inputs = tuple(Tensor(n, tuple(a), "float16") for n, a in tensors)
    return Graph("attention", of | {"z": of["d"]}, inputs, steps, (Output("O", ("h", "i", "z"), "float16", "O"),))


def test_each_input_is_read_and_each_result_written_once() -> None:
    found = estimate(ONE, SIZES, DEFAULT)
    assert found.bytes == 2 * (16 * 4096 + 4096 * 6144 + 16 * 6144)
    (kernel,) = found.kernels
    assert kernel.held is not None and kernel.held.size >= kernel.held.bound > 0
    # At least what its bytes take through memory, and a launch.
    assert found.us > FITTED.first + found.bytes / (FITTED.memory * DEFAULT.memory * 1e3)


def test_one_kernel_is_better_than_one_an_operator() -> None:
    one, six = (estimate(g, SIZES, DEFAULT) for g in (ONE, in_steps()))
    assert len(six.kernels) == 6 and six.bytes > one.bytes
    assert six.us > one.us + 5 * FITTED.further


def test_matrix_work_and_machines_count() -> None:
    large = SIZES | {"m": 4096}
    found = estimate(ONE, large, DEFAULT)
    assert found.kernels[0].flops >= 2 * 4096 * 4096 * 6144
    assert found.us > 8 * estimate(ONE, SIZES, DEFAULT).us
    assert estimate(ONE, large, BY_ARCH["sm_80"]).us > 1.5 * found.us


def test_short_rows_cost_less_than_a_second_launch() -> None:
    """Measured, RMSNorm of 16 rows: 22.8 µs in 96 programs of 64 columns, 23.0 in 48 of 128; not cut in parts."""
    sizes = {"m": 8, "k": 4096, "n": 4096}
    one, split = (estimate(g, sizes, DEFAULT) for g in (gated_mlp(), gated_mlp_split()))
    assert one.us < split.us < 1.2 * one.us
    assert 32 < one.kernels[0].tiles["j"] <= 128


def test_few_programs_are_slow_and_a_split_helps_them() -> None:
    whole, parts = (estimate(attention(s), {"keys": 65536}, DEFAULT) for s in (False, True))
    assert parts.us < 0.5 * whole.us
    assert parts.kernels[0].programs > whole.kernels[0].programs
    # What the parts leave behind is written and read again.
    extra = parts.bytes - whole.bytes
    count = parts.kernels[0].programs // (whole.kernels[0].programs or 1)
    assert extra > 2 * 4 * 2 * 256 * 64 * min(count, 2)
    # With few keys the second launch costs more than it saves.
    few = [estimate(attention(s), {"keys": 128}, DEFAULT).us for s in (False, True)]
    assert few[0] < few[1]


def test_a_batch_has_one_element_a_program() -> None:
    (kernel,) = estimate(attention(False), {"keys": 4096}, DEFAULT).kernels
    assert kernel.tiles["h"] == 1
    assert kernel.programs == 2 * -(-256 // kernel.tiles["i"])


@pytest.mark.parametrize("length", [1, 17, 4097])
def test_sizes_that_no_tile_divides(length: int) -> None:
    assert 0 < estimate(ONE, {"m": length, "k": length, "n": length}, DEFAULT).us < 1e6
    renamed = replace(ONE, name="other")
    assert estimate(renamed, {"m": length, "k": length, "n": length}, DEFAULT) == estimate(
        ONE, {"m": length, "k": length, "n": length}, DEFAULT
    )
