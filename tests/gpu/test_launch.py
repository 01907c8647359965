"""Launching on a GPU: graphs, streams, threads, profilers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import neptune
from neptune.ops.attention import prefill_causal

pytestmark = pytest.mark.gpu


TRITON, ASYNCHRONOUS = "triton", "asynchronous"
HOPPER = (9, 0)


@pytest.fixture(params=[TRITON, ASYNCHRONOUS])
def form(request: pytest.FixtureRequest, gpu: None) -> str:
    """Both forms: by default the faster one runs, and they round differently."""
    if request.param == ASYNCHRONOUS and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("the form is of sm_90")
    return str(request.param)


def attention(form: str = TRITON) -> neptune.Kernel:
    return neptune.compile(prefill_causal(depth=64, lse=True), "flash_attention", target="cuda", form=form)


def inputs(seed: int, s_q: int = 200, s_kv: int = 300) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(2, 4, n, 64, device="cuda").half() for n in (s_q, s_kv, s_kv)]


def fresh(given: list[torch.Tensor], form: str) -> tuple[torch.Tensor, ...]:
    """What a kernel without plans computes."""
    found = attention(form)(*given)
    assert isinstance(found, tuple)
    return found


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_call_is_captured_and_replayed(warm: bool, form: str) -> None:
    """A shape that has not been called before is captured in the Triton form."""
    kernel, given, other = attention(form), inputs(0), inputs(1)
    if warm:
        kernel(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(*given)
    of = form if warm else TRITON
    expected, theirs = fresh(given, of), fresh(other, of)
    for ours, there in ((given, expected), (other, theirs), (given, expected)):
        for t, new in zip(given, [x.clone() for x in ours], strict=True):
            t.copy_(new)
        for t in out:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if ours is other:
            assert same(out, there)
    assert not same(expected, theirs)


def test_a_replayed_call_runs_on_the_current_stream(form: str) -> None:
    kernel, given = attention(form), inputs(0)
    expected = fresh(given, form)
    kernel(*given)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = [torch.zeros_like(t) for t in given]
        torch.cuda._sleep(50_000_000)
        for t, source in zip(late, given, strict=True):
            t.copy_(source)
        out = kernel(*late)
    stream.synchronize()
    assert same(out, expected)


def test_threads_share_a_kernel(form: str) -> None:
    kernel = attention(form)
    cases = [inputs(k, 64 + k, 100 + k) for k in range(6)]
    expected = [fresh(given, form) for given in cases]
    failed: list[str] = []

    def work(k: int) -> None:
        try:
            for turn in range(40):
                n = (k + turn) % len(cases)
                if not same(kernel(*cases[n]), expected[n]):
                    failed.append(f"thread {k}, case {n}")
        except Exception as error:
            failed.append(f"thread {k}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    assert not failed


def test_lengths_do_not_compile_again() -> None:
    kernel = attention()
    for n in range(1, 60):
        kernel(*inputs(n, n, 2 * n))
    assert len(kernel.specialisations) == 1


def test_replays_equal_first_calls(form: str) -> None:
    kernel, given = attention(form), inputs(0)
    first = kernel(*given)
    for _ in range(3):
        assert same(kernel(*given), first)
    moved = [torch.cat([t, t])[2:] for t in given]
    assert same(kernel(*moved), first)
