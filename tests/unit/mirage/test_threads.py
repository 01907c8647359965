"""Chains of maps as thread graphs."""

from dataclasses import replace

from neptune.mirage.ir import Kernel, Load, Node, Save, Thread
from neptune.mirage.threads import fused, with_threads, without_threads
from neptune.mirage.types import graph_types
from tests.unit.mirage.graphs import rms_norm_linear

GRAPH = rms_norm_linear()
TENSORS = graph_types(GRAPH)


def test_a_chain_behind_the_loop_is_one_thread_graph_and_a_broadcast_is_not_in_it() -> None:
    made = with_threads(GRAPH)
    kernel = made.kernels[0]
    # `mean` and `root` are rows, `y` is a tile: their elements are other threads'.
    assert [x.name for x in kernel.body] == ["xw", "product", "xx", "squares", "root", "y"]
    assert isinstance(kernel.body[4], Thread) and [n.name for n in kernel.body[4].body] == ["mean", "root"]
    assert graph_types(made) == TENSORS
    assert without_threads(made) == GRAPH


def kernel_of(*body: Node) -> Kernel:
    return Kernel("k", ("i",), None, (Load("x", "X"),), body, (Save("O", body[-1].name),))


def test_what_two_read_or_a_kernel_saves_stays_a_tile() -> None:
    twice = kernel_of(Node("e", "exp", ("x",)), Node("f", "neg", ("e",)), Node("g", "mul", ("e", "f")))
    (e, g) = fused(twice, TENSORS).body
    assert isinstance(e, Node) and isinstance(g, Thread) and [n.name for n in g.body] == ["f", "g"]
    saved = replace(twice, body=twice.body[:2], saves=(Save("O", "f"), Save("P", "e")))
    assert fused(saved, TENSORS).body == saved.body


def test_a_value_read_twice_by_one_map_joins_it() -> None:
    square = kernel_of(Node("e", "exp", ("x",)), Node("g", "mul", ("e", "e")))
    (g,) = fused(square, TENSORS).body
    assert isinstance(g, Thread) and g.name == "g"


def test_folds_and_accumulators_end_a_chain() -> None:
    loop = Kernel(
        "k",
        ("i",),
        "k",
        (Load("x", "X"),),
        (
            Node("e", "exp", ("x",)),
            Node("s", "acc_sum", ("e",), axis="k"),
            Node("n", "neg", ("s",)),
            Node("r", "exp", ("n",)),
        ),
        (Save("O", "r"),),
    )
    body = fused(loop, TENSORS).body
    assert [x.name for x in body] == ["e", "s", "r"] and isinstance(body[2], Thread)
