"""The protocol of roles, read from text: the hand-written attention is in step, and each way to break it has a name."""

import re
from collections.abc import Iterable

import numpy as np
import pytest

from bench.baselines.flash_attention_gluon import Form
from neptune.hopper.emulate import Descriptor, Tensor
from neptune.hopper.protocol import causal, explore, trace
from neptune.hopper.protocol.check import Report, Trial, check
from tests.examples.gluon_attention import SMALL, Launch, text

TWO, THREE = Form(2, 64, 2, True), Form(3, 64, 3, False)


def checked(source: str, launches: Iterable[Launch], **how: int) -> Report:
    return check(source, [Trial(x.call) for x in launches], **how)


@pytest.mark.parametrize("form", [TWO, THREE, Form(2, 64, 1, False), Form(2, 128, 3, True), Form(3, 128, 2, True)])
def test_the_hand_written_attention_is_in_step(form: Form) -> None:
    lengths = [1, 64, 65, 200, 450, 1000]
    report = checked(text(), [Launch(form, n, causal) for n in lengths for causal in (False, True)])
    assert report.ok, report
    assert report.programs == 24 and report.actions > 5000


@pytest.mark.parametrize("launch", [*SMALL[1:], Launch(TWO, 130, programs=1, heads=1)])
def test_all_interleavings_are_in_step(launch: Launch) -> None:
    found = explore(trace(text(), launch.kernel, launch.grid, launch.args()))
    assert found.finding is None and found.states > 500


def test_states_are_bounded() -> None:
    found = explore(trace(text(), "attention_kernel", 1, SMALL[1].args()), most=100)
    assert not found.whole and found.states > 100


BROKEN = {
    "deadlock": (
        "            mbarrier.arrive(ve.index(pst), count=1)\n            acc = acc * gl",
        "            acc = acc * gl",
        r"consumer 0, line \d+: .*producer, line \d+ waits for parity 0 of ve\[0\] \(0 phases complete, missing 2 arr",
    ),
    "early release": (
        "            s = warpgroup_mma_wait(1, deps=[sa])\n            mbarrier.arrive(ke.index(st), count=1)",
        "            mbarrier.arrive(ke.index(st), count=1)\n            s = warpgroup_mma_wait(1, deps=[sa])",
        r"consumer 0, line \d+: arrives on ke\[1\] before this has read: consumer 0, line \d+: product of qs\[0\], ks",
    ),
    "read before arrival": (
        "        mbarrier.wait(kf.index(k % ST), (k // ST) & 1)\n        sa",
        "        sa",
        r"consumer 0, line \d+: reads ks\[0\] while this may be on its way: producer, line \d+: copy to ks\[0\]",
    ),
    "buffer in use": (
        "        tma.store_wait(0)\n        barrier()\n        o =",
        "        barrier()\n        o =",
        r"consumer 0, line \d+: reads os\[0\] while this may write to it: consumer 0, line \d+: store os\[0\]",
    ),
    "phase": (
        "            mbarrier.wait(ve.index(st), phase)\n",
        "",
        r"producer, line \d+: arrives on vf\[0\] in phase 2, and may do so before the one before has ended",
    ),
    "bytes": (
        "mbarrier.expect(vf.index(st), BN * D * 2)",
        "mbarrier.expect(vf.index(st), BN * D)",
        r"producer, line \d+: 2048 bytes more are copied than vf\[0\] expects",
    ),
    "arrivals": (
        "        mbarrier.arrive(ke.index(k % ST), count=1)\n        cols",
        "        mbarrier.arrive(ke.index(k % ST), count=3)\n        cols",
        r"consumer 0, line \d+: 3 arrivals on ke\[0\], which awaits 2",
    ),
    "registers in flight": (
        "s = warpgroup_mma_wait(1, deps=[sa])",
        "s = warpgroup_mma_wait(2, deps=[sa])",
        r"consumer 0, line \d+: reads what the product of line \d+ owns, before its wait",
    ),
    "fence": (
        "        fence_async_shared()\n        barrier()",
        "        barrier()",
        r"consumer 0, line \d+: no fence_async_shared since the store of line \d+",
    ),
    "threads": (
        "        fence_async_shared()\n        barrier()",
        "        barrier()\n        fence_async_shared()",
        r"consumer 0, line \d+: no thread_barrier since the store of line \d+",
    ),
    "box": (
        "async_load(v_desc, [key, 0], vf.index(st), vs.index(st))",
        "async_load(v_desc, [key, 0], vf.index(st), vs)",
        r"producer, line \d+: a box \(64, 32\) of float16 is copied to or from vs: \(2, 64, 32\) of float16",
    ),
    "end": (
        "        done += 1  # noqa: SIM113\n    tma.store_wait(0)",
        "        done += 1",
        r"consumer 0, line \d+: a store through shared memory is in flight at the end",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_way_to_break_it_has_a_name(kind: str) -> None:
    old, new, said = BROKEN[kind]
    assert text().count(old) == 1
    report = checked(text().replace(old, new), SMALL)
    found = next(f for f in report.findings if f.kind == kind)
    assert re.search(said, str(found)), found


def test_a_run_is_a_shortest_one() -> None:
    """The causal check's run holds what must come before, in an order that is possible."""
    old, new, _ = BROKEN["read before arrival"]
    made = trace(text().replace(old, new), "attention_kernel", 1, SMALL[1].args())
    (known, *_), seen = causal(made), explore(made).finding
    assert seen is not None and known.line == seen.line
    # Up to the copy, and the product that reads: nothing else has to have happened.
    assert [step.split(": ")[1] for step in known.run if step.startswith("consumer 0")] == [
        "wait for parity 0 of qf",
        "product of qs[0], ks[0]",
    ]
    assert known.run[-1].endswith("copy to ks[0]") or known.run[-1].endswith("product of qs[0], ks[0]")


AROUND = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)


@gluon.jit
def _consumer(v, full, acc, n):
    p = gl.zeros([64, 64], gl.float16)
    mbarrier.wait(full, 0)
    token = acc
    for i in range(n):
        token = warpgroup_mma(p, v, token, is_async=True)
        {inside}
    acc = warpgroup_mma_wait(0, deps=[token])


@gluon.jit
def _producer(v_desc, v, full):
    mbarrier.expect(full, 64 * 64 * 2)
    tma.async_copy_global_to_shared(v_desc, [0, 0], full, v)


@gluon.jit
def around(v_desc, n):
    v = gl.allocate_shared_memory(gl.float16, [64, 64], v_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()
    acc = gl.zeros([64, 64], gl.float32)
    gl.warp_specialize([(_consumer, (v, full, acc, n)), (_producer, (v_desc, v, full))], [1], [24])
"""


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("token = warpgroup_mma_wait(0, deps=[token])", None),
        ("pass", "product around a loop"),
        ("p = p * 2.0", "registers in flight"),
        ("token = token * 2.0", "registers in flight"),
        ("warpgroup_mma_wait(0, deps=[p]); token = token * 2.0", "registers in flight"),
    ],
)
def test_register_operands_of_a_product_in_flight(inside: str, kind: str | None) -> None:
    args = [Descriptor(Tensor(np.zeros((64, 64), np.float16)), (64, 64)), 3]
    report = check(AROUND.replace("{inside}", inside), [Trial(lambda m: m["around"][1](*args))])
    assert [f.kind for f in report.findings][:1] == ([kind] if kind else [])


def test_roles_that_depend_on_a_tile_are_refused() -> None:
    old = "        n = gl.cdiv(end, BN)\n        mine"
    source = text().replace(old, "        n = gl.cdiv(end, BN) + gl.max(gl.max(zs, 1), 0)\n        mine")
    (found,) = checked(source, SMALL).findings
    assert found.kind == "not read" and "values of a tile" in found.text
