"""What a program holds on chip."""

from dataclasses import replace

from neptune.mirage.ir import WHOLE
from neptune.mirage.memory import on_chip
from neptune.mirage.order import lives
from neptune.mirage.threads import with_threads
from tests.unit.mirage.graphs import rms_norm_linear

GRAPH = rms_norm_linear()
KERNEL = GRAPH.kernels[0]
TENSORS = {t.name: dict.fromkeys(t.axes, WHOLE) for t in GRAPH.inputs}
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
