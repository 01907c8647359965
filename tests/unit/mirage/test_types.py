"""The types of values, and graphs that are not valid."""

from dataclasses import replace

import pytest

from neptune.errors import ExpressionError
from neptune.mirage.ir import SPLIT, WHOLE, Kernel, Load, Node, Save
from neptune.mirage.types import graph_types, kernel_types
from tests.unit.mirage import verified
from tests.unit.mirage.graphs import K, rms_norm_linear

GRAPH = rms_norm_linear()
KERNEL = GRAPH.kernels[0]


def test_values_say_where_they_vary() -> None:
    tensors = {t.name: dict.fromkeys(t.axes, WHOLE) for t in GRAPH.inputs}
    found = kernel_types(KERNEL, tensors)
    assert found["x"].type == {"i": frozenset({"grid", "tile"}), "k": frozenset({"loop", "tile"})}
    assert found["x"].body and not found["x"].behind
    assert found["xw"].type["k"] == {"loop"}
    assert found["product"].behind and not found["product"].body
    assert set(found["squares"].type) == {"i"}
    assert graph_types(GRAPH)["Y"] == {"i": WHOLE, "j": WHOLE}


def test_a_split_leaves_one_element_a_program() -> None:
    split = replace(KERNEL, grid=("i", "j", "k"), body=KERNEL.body[:2], saves=(Save("P", "product"),))
    summed = Node("Y", "sum", ("P",), axis="k", parts=SPLIT)
    assert graph_types(GRAPH.with_steps(split, summed))["P"] == {"i": WHOLE, "j": WHOLE, "k": SPLIT}
    with pytest.raises(ExpressionError, match="it takes the tile part"):
        graph_types(GRAPH.with_steps(split, replace(summed, parts=WHOLE)))


def test_the_body_reads_the_maximum_so_far() -> None:
    kernel = verified.ATTENTION_SAFE.kernels[0]
    found = kernel_types(kernel, {t.name: dict.fromkeys(t.axes, WHOLE) for t in verified.ATTENTION.inputs})
    assert found["m"].behind and found["shifted"].body and not found["shifted"].behind
    # Of a sum there is no such value.
    summed = tuple(replace(n, op="acc") if n.name == "m" else n for n in kernel.nodes)
    with pytest.raises(ExpressionError, match="it needs an accumulator"):
        graph_types(verified.ATTENTION_SAFE.with_steps(replace(kernel, body=summed)))


def changed(**fields: object) -> Kernel:
    return replace(KERNEL, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        (changed(saves=(Save("Y", "xw"),)), "no accumulator is on its way"),
        (changed(saves=(Save("Y", "root"),)), "would all write the same elements"),
        (changed(body=(*KERNEL.body, Node("z", "mul", ("y", "x")))), "it needs an accumulator"),
        (changed(body=(*KERNEL.body[:1], Node("z", "sum", ("xw",), axis="k"))), "has its loop part"),
        (changed(loads=(Load("x", "X", whole=("k",)), Load("w", "W"))), "different parts of axis `k`"),
        (changed(loads=(Load("x", "X"), Load("w", "V"))), "no tensor `V`"),
        (changed(body=(Node("z", "acc", ("x",), axis="i"),)), "accumulates over axis `i`"),
        (changed(grid=("i", "j", "i")), "an axis twice"),
        (changed(body=(Node("t", "opaque", ("x",), function="foo"),)), "`foo` is none"),
        (changed(body=(Node("t", "opaque", ("x",), function="lt"),)), "`lt` is none"),
        (changed(body=(Node("t", "opaque", ("x", "x"), function="tanh"),)), "`tanh` takes 1 values, and 2 are given"),
        (changed(body=(Node("t", "sum", ("x",), axis="k", parts=frozenset()),)), "no part of axis `k`"),
        (changed(loop="q"), "no axis `q`"),
        (
            changed(body=(*KERNEL.body[:2], Node("z", "acc_rescaled", ("xw", "product"), axis="k", constant=K))),
            "`product` is no running maximum",
        ),
    ],
)
def test_graphs_that_are_not_valid(kernel: Kernel, wrong: str) -> None:
    with pytest.raises(ExpressionError, match=wrong):
        graph_types(GRAPH.with_steps(kernel))


def test_what_an_accumulator_leaves_of_an_axis_can_only_be_folded() -> None:
    left = Node("left", "acc", ("xx",), axis="k")
    whole = Load("x_all", "X", whole=("k",))

    def behind(*more: Node, saves: tuple[Save, ...] = KERNEL.saves) -> Kernel:
        return changed(loads=(*KERNEL.loads, whole), body=(*KERNEL.body, left, *more), saves=saves)

    summed = kernel_types(behind(Node("s", "sum", ("left",), axis="k")), graph_types(GRAPH.with_steps(*GRAPH.steps)))
    assert summed["left"].left and not summed["s"].left and "k" not in summed["s"].type
    for kernel, wrong in (
        (behind(saves=(Save("Y", "left"),)), "has left of axis `k`"),
        (behind(Node("z", "mul", ("left", "x_all"))), "one operand holds all of axis `k`"),
    ):
        with pytest.raises(ExpressionError, match=wrong):
            graph_types(GRAPH.with_steps(kernel))
