"""The order of a kernel's operators beside all orders by depth."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from neptune.mirage.ir import WHOLE, Kernel, Load, Node, Save
from neptune.mirage.order import Life, elements, lives, on_chip, operands, ordered
from neptune.mirage.threads import with_threads
from neptune.mirage.types import kernel_types
from tests.unit.mirage.graphs import rms_norm_linear

GRAPH = rms_norm_linear()
TENSORS = {t.name: dict.fromkeys(t.axes, WHOLE) for t in GRAPH.inputs}


def peak(kernel: Kernel, tensors: dict[str, dict[str, frozenset[str]]]) -> tuple[int, int]:
    """The most live elements at any operator, and the sum over operators: said once more, from the lives of tiles."""
    size = {n: elements(t.type) for n, t in kernel_types(kernel, tensors).items()}
    plain = {x.name: k for k, x in enumerate(kernel.body)}
    spans = [Life(x.name, plain.get(x.name, x.first), x.last) for x in lives(kernel)]
    at = [sum(size[x.name] for x in spans if x.first <= k <= x.last) for k in range(len(kernel.body))]
    return max(at), sum(at)


def depths(kernel: Kernel, body: Sequence[Node]) -> list[int]:
    found = {x.name: 0 for x in kernel.loads}
    for x in body:
        found[x.name] = 1 + max(found[o] for o in operands(x))
    return [found[x.name] for x in body]


def test_depths_rise_and_what_is_behind_the_loop_stays_there() -> None:
    kernel = GRAPH.kernels[0]
    names = [x.name for x in ordered(kernel, TENSORS).body]
    # The tile of squares is folded before the larger sum needs room.
    assert names == ["xw", "xx", "squares", "product", "mean", "root", "y"]
    kernel_types(ordered(kernel, TENSORS), TENSORS)


def test_one_depth_has_the_fewest_live_tiles_of_all_its_orders() -> None:
    loads = tuple(Load(n, n.upper()) for n in "abcd")
    tensors = {n: {"i": WHOLE} if n in "BD" else {"i": WHOLE, "j": WHOLE} for n in "ABCD"}
    body = (
        Node("r1", "sum", ("a",), axis="j"),
        Node("e", "exp", ("c",)),
        Node("r2", "mul", ("a", "b")),
        Node("r3", "sum", ("c",), axis="j"),
        Node("r4", "neg", ("d",)),
        Node("s1", "add", ("r1", "r3")),
        Node("s2", "mul", ("e", "r2")),
        Node("s3", "mul", ("s2", "s1")),
        Node("s4", "mul", ("s3", "r4")),
    )
    kernel = Kernel("k", ("i",), None, loads, body, (Save("O", "s4"),))
    level = depths(kernel, body).count(1)
    assert level == 5
    every = (replace(kernel, body=(*p, *body[level:])) for p in permutations(body[:level]))
    least = min(peak(k, tensors) for k in every)
    found = ordered(kernel, tensors)
    assert depths(kernel, found.body) == sorted(depths(kernel, found.body))
    assert peak(found, tensors)[0] == least[0]
    assert peak(kernel, tensors) > least


def test_accumulators_live_from_the_start() -> None:
    found = {x.name: x for x in lives(GRAPH.kernels[0])}
    assert found["product"] == Life("product", 0, 6)
    assert found["xx"] == Life("xx", 2, 3)
    assert found["y"] == Life("y", 6, 7)


# --- what a program holds on chip ---

KERNEL = GRAPH.kernels[0]
DTYPES = {t.name: t.dtype for t in GRAPH.inputs}
TILES = {"i": 64, "k": 32, "j": 128}


def test_the_most_that_is_alive_at_one_time() -> None:
    found = on_chip(KERNEL, TENSORS, DTYPES, TILES)
    product, squares = 64 * 128 * 4, 64 * 4
    x, w, xw = 64 * 32 * 2, 32 * 128 * 2, 64 * 128 * 4
    # The first operator reads x and w, and both accumulators are there.
    assert found.bound == product + squares + x + w + xw
    assert found.size == found.bound
    assert len(found.offsets) == len(lives(KERNEL)) == 9


def test_a_pipeline_has_what_the_loop_loads_more_than_once() -> None:
    one, three = (on_chip(KERNEL, TENSORS, DTYPES, TILES, stages=n).bound for n in (1, 3))
    assert three == one + 2 * (64 * 32 * 2 + 32 * 128 * 2)
    invariant = replace(KERNEL, loads=(KERNEL.loads[0], replace(KERNEL.loads[1], whole=("k",))), body=KERNEL.body[2:4])
    invariant = replace(invariant, saves=())
    assert on_chip(invariant, TENSORS, DTYPES, TILES, stages=2).bound < one


def test_values_inside_of_a_thread_graph_take_no_room() -> None:
    fused = with_threads(GRAPH).kernels[0]
    assert "mean" not in {x.name for x in lives(fused)}
    assert on_chip(fused, TENSORS, DTYPES, TILES).bound <= on_chip(KERNEL, TENSORS, DTYPES, TILES).bound
