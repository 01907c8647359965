"""The floating-point gate: roundings and overflows that no field sees."""

from dataclasses import replace

import numpy as np
import pytest

from neptune.ir.expr import Const
from neptune.mirage.ir import Graph, Node, Tensor
from neptune.mirage.verifier.gate import Gate, gate
from tests.unit.mirage import verified
from tests.unit.mirage.verified import n, program, swapped


def _kinds(found: Gate) -> dict[str, float]:
    return {f.name: f.error for f in found.families}


@pytest.mark.parametrize(
    ("graph", "expression"),
    [
        (verified.RMS_FUSED, verified.RMS),
        (verified.GATED_FUSED, verified.GATED),
        (verified.LORA_FUSED, verified.LORA),
        (verified.ATTENTION_SAFE, verified.ATTENTION),
        (verified.split_attention(safe=True), verified.ATTENTION),
    ],
)
def test_good_graphs_pass(graph: Graph, expression: Graph) -> None:
    found = gate(graph, expression)
    assert found.passed, str(found)
    errors = _kinds(found)
    assert {"plain", "huge", "zeros", "-inf in the last row of " + graph.inputs[0].name} <= errors.keys()
    # Roundings are there at all: an emulation that rounds nothing would pass everything.
    assert 1e-5 < errors["plain"] < 2e-3


def test_a_matrix_that_is_read_both_ways() -> None:
    """The norm of x before x·x: its axes as rows and as columns are of other witness lengths."""
    x, other = Tensor("x", ("i", "k"), "float16"), Tensor("x_1", ("k", "j"), "float16", "x")
    square = replace(verified.RMS, inputs=(x, other))
    names = {"X": "x", "W": "x_1"}
    nodes = [s for s in verified.RMS.steps if isinstance(s, Node)]
    steps = [replace(s, operands=tuple(names.get(o, o) for o in s.operands)) for s in nodes]
    square = square.with_steps(*steps)
    found = gate(square, square)
    assert found.passed and _kinds(found).keys() >= {"zero at the end of k", "needle at the start of j"}


def test_an_exponential_without_its_maximum_overflows() -> None:
    found = gate(verified.ATTENTION_FUSED, verified.ATTENTION)
    assert not found.passed and np.isinf(_kinds(found)["x8"])
    allowed = gate(verified.ATTENTION_FUSED, verified.ATTENTION, safe=False)
    assert allowed.passed and "x8" in allowed.unsafe and "nor is the expression" in str(allowed)


def _scaled(number: float, *nodes: Node) -> tuple[Node, ...]:
    return (n("t", "scale", "X", constant=Const(number, "float32")), *nodes)


PRODUCT = program("i k j", "X:ik W:kj", "y:ij", n("y", "matmul", "X W", "k"))


def _back(number: float) -> Graph:
    """X·W by way of (c·X)·W / c: the same in the reals."""
    back = n("y", "scale", "p", constant=Const(1 / number, "float32"))
    return PRODUCT.with_steps(*_scaled(number, n("p", "matmul", "t W", "k"), back))


def test_a_rounding_that_leaves_the_range_is_refused() -> None:
    """An operand of a product is rounded to float16: times 2²⁰ it is infinite, and times 2⁻²⁴ subnormal."""
    assert gate(_back(4.0), PRODUCT).passed
    assert "not finite" in gate(_back(2.0**20), PRODUCT).wrong
    lost = gate(_back(2.0**-24), PRODUCT)
    assert not lost.passed and "its error is" in lost.wrong


def test_a_rounding_more_than_the_expression_has_is_refused() -> None:
    """A sum in bfloat16 between, of float16 inputs."""
    rounded = PRODUCT.with_steps(n("p", "matmul", "X W", "k"), n("y", "cast", "p", dtype="bfloat16"))
    assert not gate(rounded, PRODUCT).passed
    assert gate(PRODUCT.with_steps(n("p", "matmul", "X W", "k"), n("y", "cast", "p", dtype="float32")), PRODUCT).passed


def test_cancellation_is_seen() -> None:
    """Σ(x − mean)² as Σx² − (Σx)²/n: equal for all sizes, and of no digits where the mean is large."""
    per = verified.per("k")
    centred = program(
        "i k",
        "X:ik",
        "y:i",
        n("s", "sum", "X", "k"),
        n("m", "scale", "s", constant=per),
        n("d", "sub", "X m"),
        n("dd", "sqr", "d"),
        n("y", "sum", "dd", "k"),
    )
    shift = Const(1000.0, "float32")
    far = (n("x", "shift", "X", constant=shift),)
    expression = centred.with_steps(
        *far, n("s", "sum", "x", "k"), centred.steps[1], n("d", "sub", "x m"), *centred.steps[3:]
    )
    moments = centred.with_steps(
        *far,
        n("s", "sum", "x", "k"),
        n("ss", "sqr", "s"),
        n("m", "scale", "ss", constant=per),
        n("xx", "sqr", "x"),
        n("q", "sum", "xx", "k"),
        n("y", "sub", "q m"),
    )
    single = [replace(g, inputs=(replace(g.inputs[0], dtype="float32"),)) for g in (moments, expression)]
    assert not gate(*single).passed


def test_a_maximum_that_is_not_rescaled_by_the_last_one_is_seen_here_too() -> None:
    wrong = swapped(verified.ATTENTION_SAFE, l=n("l", "acc", "ps", "j"))
    assert not gate(wrong, verified.ATTENTION).passed


def test_the_same_seed_gives_the_same_errors() -> None:
    assert gate(verified.RMS_FUSED, verified.RMS, seed=5) == gate(verified.RMS_FUSED, verified.RMS, seed=5)
    assert gate(verified.RMS_FUSED, verified.RMS, seed=5) != gate(verified.RMS_FUSED, verified.RMS, seed=6)
