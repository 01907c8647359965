"""Temporaries of a chain of kernels share the memory of a workspace where their lives allow."""

from itertools import combinations

import pytest

import neptune
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, var
from neptune.frontend.builder import sum as fold
from neptune.ir.expr import Const
from neptune.ir.program import Buffer
from neptune.runtime.calls.workspace import ALIGNMENT, places, size


def buffers(**lengths: int) -> list[Buffer]:
    return [Buffer(n, (Const(k, "int32"),), "float32") for n, k in lengths.items()]


def test_a_temporary_takes_the_place_of_one_that_is_not_read_any_more() -> None:
    chain = buffers(a=1000, b=1000, c=1000)
    found = places(chain, {}, [("a",), ("a", "b"), ("b", "c"), ("c",)])
    assert [p.offset for p in found] in ([0, 4096, 0], [4096, 0, 4096])
    assert size(found) == 4096 + 4000
    together = places(chain, {}, [("a", "b", "c")])
    assert sorted(p.offset for p in together) == [0, 4096, 8192]


def test_what_no_launch_names_is_shared_with_nobody() -> None:
    found = places(buffers(a=10, b=10, c=10), {}, [("a",), ("b",)])
    by_name = {p.name: p.offset for p in found}
    assert by_name["a"] == by_name["b"] and abs(by_name["c"] - by_name["a"]) == ALIGNMENT
    assert size([]) == 0


@pytest.fixture(scope="module")
def kernel() -> neptune.Kernel:
    """Sums along different axes in a row, each kept between kernels."""
    n = var("n")
    x = placeholder((n, n, n), "float32", "x")
    k, j, i = (reduce_axis((0, n), name) for name in "kji")
    a = compute((n, n), lambda p, q: fold(x[p, q, k], axis=k), "a")
    b = compute((n,), lambda p: fold(a[j, p], axis=j), "b")
    c = compute((1,), lambda p: fold(b[i], axis=i), "c")
    out = compute((n,), lambda p: c[0] * x[p, 0, 0], "out")
    return neptune.compile(build(out), "stagewise", target="interpret")


def test_temporaries_of_one_launch_never_overlap(kernel: neptune.Kernel) -> None:
    found = {p.name: p for p in kernel.executable._places({"n": 40})}
    launches = [k.temporaries for k in kernel.executable.artifact.facts.kernels]
    lives = {n: [k for k, names in enumerate(launches) if n in names] for n in found}
    assert len(found) == 3 and all(lives.values())
    for p, q in combinations(found.values(), 2):
        meet = lives[p.name][0] <= lives[q.name][-1] and lives[q.name][0] <= lives[p.name][-1]
        apart = p.offset + p.bytes <= q.offset or q.offset + q.bytes <= p.offset
        assert apart or not meet
    # `c` lies where `a` was, which no launch reads any more.
    assert kernel.workspace(n=40) == found["a"].bytes + found["b"].bytes < sum(p.bytes for p in found.values())
