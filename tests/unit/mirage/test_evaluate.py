"""Graphs on arrays: parts, tails, accumulators, splits, running maxima; against numpy and against their programs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from neptune.ir.evaluate.domains import Array, EvaluationError
from neptune.mirage.ir import Graph, Save
from neptune.mirage.verifier.evaluate import Evaluator, Reals
from neptune.mirage.verifier.fields import RootField
from neptune.mirage.verifier.witness import FOLDED, Witness, draw_inputs, witness
from tests.unit.mirage import verified as v

RIGHT = {
    "rms": (v.RMS, v.RMS_FUSED),
    "attention": (v.ATTENTION, v.ATTENTION_FUSED),
    "attention, rescaled": (v.ATTENTION, v.ATTENTION_SAFE),
    "attention, split": (v.ATTENTION, v.split_attention(safe=False)),
    "attention, split and shifted": (v.ATTENTION, v.split_attention(safe=True)),
    "lora": (v.LORA, v.LORA_FUSED),
    "gated": (v.GATED, v.GATED_FUSED),
    "qk norm": (v.QK_NORM, v.QK_NORM_FUSED),
}
WRONG = {
    "a rescaling forgotten": (v.ATTENTION, v.FORGOTTEN),
    "the published QKNorm": (v.QK_NORM, v.PUBLISHED),
    "a root forgotten": (v.RMS, v.swapped(v.RMS_FUSED, root=v.n("root", "scale", "mean"))),
    "another mean": (v.RMS, v.swapped(v.RMS_FUSED, mean=v.n("mean", "scale", "squares", constant=v.per("i")))),
}


def on(numbers: Reals | RootField, reference: Graph, *graphs: Graph, free: bool = False) -> list[object]:
    at = witness(reference)
    inputs, scalars = draw_inputs(numbers, reference, at, np.random.default_rng(5))
    evaluator = Evaluator(numbers, at, inputs, scalars, free=free)
    return [evaluator.outputs(g)["out"] for g in (reference, *graphs)]


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_graphs_against_their_programs_in_float64(name: str) -> None:
    expected, got = on(Reals(3), *(RIGHT | WRONG)[name])
    assert (np.abs(expected - got).max() < 1e-12) == (name in RIGHT)  # type: ignore[operator]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_graphs_against_their_programs_in_fields(name: str, free: bool) -> None:
    field = RootField(256, seed=1)
    expected, got = on(field, *(RIGHT | WRONG)[name], free=free)
    both = field.known(expected) & field.known(got)
    assert both.any()
    assert field.differs(expected, got).any() == (name in WRONG)


def test_references_are_what_numpy_says() -> None:
    at = witness(v.RMS)
    inputs, scalars = draw_inputs(Reals(2), v.RMS, at, np.random.default_rng(0))
    x, w = inputs["X"], inputs["W"]
    got = Evaluator(Reals(2), at, inputs, scalars).outputs(v.RMS_FUSED)["out"]
    np.testing.assert_allclose(got, (x / np.sqrt((x * x).mean(-1, keepdims=True))) @ w, rtol=1e-12)
    at = witness(v.ATTENTION)
    inputs, scalars = draw_inputs(Reals(2), v.ATTENTION, at, np.random.default_rng(0))
    p = np.exp(np.einsum("bhid,bhjd->bhij", inputs["Q"], inputs["K"]))
    want = np.einsum("bhij,bhje->bhie", p / p.sum(-1, keepdims=True), inputs["V"])
    for graph in (v.ATTENTION_SAFE, v.split_attention(safe=True)):
        np.testing.assert_allclose(Evaluator(Reals(2), at, inputs, scalars).outputs(graph)["out"], want, rtol=1e-10)


@pytest.mark.parametrize("by", [(), ("grid",), ("loop",), ("grid", "loop")])
@pytest.mark.parametrize("length", [2, *FOLDED, 11])
def test_cuts_hold_every_element_once_and_have_tails(length: int, by: tuple[str, ...]) -> None:
    cut = Witness({"k": length}).cut("k", frozenset(by))
    assert cut.parts == (*by, "tile")
    assert sorted(cut.element[cut.valid].tolist()) == list(range(length))
    assert all(n > 1 for n in cut.element.shape) or length == 2
    if by and length > 2:
        assert not cut.valid.all()
    # Where there is no element the last one of the program stands.
    assert (cut.element < length).all()


FOLDS: dict[str, tuple[Graph, Callable[[Array], Array]]] = {
    "sum": (v.program("i k", "X:ik", "y:i", v.n("e", "exp", "X"), v.n("y", "sum", "e", "k")), lambda x: np.exp(x)),
    "max": (v.program("i k", "X:ik", "y:i", v.n("y", "max", "X", "k")), lambda x: x),
}


@pytest.mark.parametrize(
    ("grid", "loop", "body"),
    [
        ("i", "k", ("e = exp x", "t = sum e k", "y = acc t k")),
        ("i", "k", ("e = exp x", "y = acc_sum e k")),
        ("i", "k", ("e = exp x", "a = acc e k", "y = sum a k")),
        ("i", None, ("e = exp x", "y = sum e k")),
        ("i k", None, ("e = exp x", "y = sum e k")),
        ("i k", "k", ("e = exp x", "y = acc_sum e k")),
        ("i k", "k", ("e = exp x", "a = acc e k", "y = sum a k")),
        ("i k", "k", ("t = max x k", "y = acc_max t k")),
        ("i", "k", ("t = max x k", "y = acc_max t k")),
    ],
)
def test_tails_are_left_out(grid: str, loop: str | None, body: tuple[str, ...]) -> None:
    """Each way to fold an axis, also one that programs share, sums every element once and no other."""
    reference = FOLDS["max" if "max" in body[0] else "sum"][0]
    nodes = []
    for line in body:
        name, _, op, operand, *axis = line.split()
        nodes.append(v.n(name, op, operand, *axis))
    made = v.kernel(grid, loop, "x=X", "y", *nodes)
    after = (v.n("z", nodes[-1].op[-3:], "Y", "k", parts=v.GRID),) if "k" in grid else ()
    after = tuple(replace(a, op="max" if a.op == "max" else "sum") for a in after)
    for numbers in (Reals(2), RootField(8)):
        expected, got = on(numbers, reference, v.one(reference, made, *after))
        for a, b in zip(numbers.parts(expected), numbers.parts(got), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_equal_values_are_evaluated_once_and_forgotten_in_time() -> None:
    numbers = Reals(1)
    at = witness(v.ATTENTION)
    inputs, scalars = draw_inputs(numbers, v.ATTENTION, at, np.random.default_rng(0))
    calls: list[str] = []
    plain = numbers.apply
    numbers.apply = lambda name, args, dtype: (calls.append(name), plain(name, args, dtype))[1]  # type: ignore
    evaluator = Evaluator(numbers, at, inputs, scalars)
    first = evaluator.outputs(v.ATTENTION_FUSED)["out"]
    made = len(calls)
    renamed = v.swapped(v.ATTENTION_FUSED, o=v.n("o", "mul", "a l"))
    evaluator.outputs(renamed)
    assert len(calls) == made + 1
    small = Evaluator(numbers, at, inputs, scalars, memory=1000)
    assert (small.outputs(v.ATTENTION_FUSED)["out"] == first).all() and small._held <= 1000


@pytest.mark.parametrize(
    ("graph", "wrong"),
    [
        (
            v.one(v.RMS, v.kernel("i k", None, "x=X", "a", v.n("a", "sum", "x", "k", parts=v.GRID))),
            "without its programs",
        ),
        (v.one(v.RMS, v.kernel("i j", "k", "x=X w=W", "xw", v.n("xw", "matmul", "x w", "k"))), "changes in the loop"),
        (v.one(v.RMS, v.kernel("i j", "k", "x=X w=W", "a", v.n("a", "acc", "x", "k"))), "no part of a tensor"),
        (v.one(v.RMS, v.kernel("i j", None, "x=X w=W", "a", v.n("a", "acc", "x", "k"))), "its operand has not"),
        (v.one(v.RMS, v.kernel("i j", None, "x=X w=W", "a", v.n("a", "acc_max", "x", "k"))), "does not change"),
    ],
)
def test_what_has_no_meaning(graph: Graph, wrong: str) -> None:
    with pytest.raises(EvaluationError, match=wrong):
        on(Reals(1), v.RMS, graph)


def test_a_whole_operand_beside_a_tile_has_no_meaning() -> None:
    made = v.ATTENTION_FUSED.kernels[0]
    loads = (made.loads[0], replace(made.loads[1], whole=("j",)), made.loads[2])
    with pytest.raises(EvaluationError, match="different parts of axis `j`"):
        on(Reals(1), v.ATTENTION, v.one(v.ATTENTION, replace(made, loads=loads)))


def test_outputs_are_laid_out_as_asked() -> None:
    out = replace(v.LORA.outputs[0], axes=("j", "i"))
    a, b = on(Reals(1), v.LORA, replace(v.LORA, outputs=(out,)))
    assert (np.swapaxes(a, 1, 2) == b).all()  # type: ignore[call-overload]
    kernel = replace(v.LORA_FUSED.kernels[0], saves=(Save("Y", "v"),))
    with pytest.raises(EvaluationError, match="is no output over i, j"):
        on(Reals(1), v.LORA, v.one(v.LORA, kernel))


def test_what_the_reference_does_not_have() -> None:
    other = replace(v.RMS, inputs=(replace(v.RMS.inputs[0], name="X", buffer="Z"), v.RMS.inputs[1]))
    with pytest.raises(EvaluationError, match="input `X`: the reference has no input `Z`"):
        on(Reals(1), v.RMS, other)
    turned = replace(v.RMS, inputs=(replace(v.RMS.inputs[0], axes=("i", "z")), v.RMS.inputs[1]))
    swapped = replace(v.RMS, inputs=(replace(v.RMS.inputs[0], axes=("k", "i")), v.RMS.inputs[1]))
    with pytest.raises(EvaluationError, match="input `X`: the reference has other axes there"):
        on(Reals(1), v.RMS, swapped)
    with pytest.raises(EvaluationError, match="has no axis `z`"):
        on(Reals(1), v.RMS, turned)
    with pytest.raises(EvaluationError, match="is no number that an operator takes"):
        on(Reals(1), v.RMS, v.swapped(v.RMS, mean=v.n("mean", "scale", "sum", constant=v.per("z"))))
    with pytest.raises(EvaluationError, match="float64 has no function `swish`"):
        on(Reals(1), v.RMS, v.swapped(v.RMS, root=v.n("root", "opaque", "mean", function="swish")))
