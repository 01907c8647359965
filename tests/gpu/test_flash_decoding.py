"""flash_decoding on a GPU: numbers, captured graphs, workspaces, and numbers of parts that change."""

from __future__ import annotations

import math

import pytest
import torch

import neptune
from neptune.ops.attention import attention, operator
from tests.unit.templates import test_decode_lengths as with_lengths

pytestmark = pytest.mark.gpu


def decode(**options: object) -> neptune.Kernel:
    program = operator("decode_gqa", depth=64, heads=8, kv_heads=2)
    return neptune.compile(program, "flash_decoding", target="cuda", **options)


def inputs(seed: int, s_kv: int, batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    shapes = ((batch, 8, 1, 64), (batch, 2, s_kv, 64), (batch, 2, s_kv, 64))
    return [torch.randn(*s, device="cuda").half() for s in shapes]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def check(found: object, given: list[torch.Tensor]) -> None:
    assert isinstance(found, torch.Tensor) and not found.isnan().any()
    want = reference(*given)
    assert ((found.double() - want).norm() / want.norm()).item() < 1e-3


def nan_memory(size: int) -> torch.Tensor:
    """Every float in it is a NaN."""
    return torch.full((size,), 255, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("s_kv", [1, 17, 127, 1000, 33333])
def test_numbers(s_kv: int) -> None:
    kernel, given = decode(), inputs(s_kv, s_kv)
    for number in (None, 1, 2, 7, 64):
        check(kernel(*given, params=None if number is None else {"NUM_SPLITS": number}), given)


def test_a_number_of_parts_changes_nothing_that_is_compiled() -> None:
    kernel = decode()
    for n in (1, 2, 3, 5, 8, 16, 31, 100):
        for s_kv in (64, 999, 4096):
            given = inputs(n, s_kv)
            check(kernel(*given, params={"NUM_SPLITS": n}), given)
    assert len(kernel.specialisations) == 2


def test_prefill_with_parts_that_see_no_key() -> None:
    kernel = neptune.compile(attention(depth=64, causal=True, name="causal"), "flash_decoding", target="cuda")
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 4, n, 64, device="cuda").half() for n in (300, 700, 700))
    s = q.double() @ k.double().transpose(-1, -2) / 8
    i, j = torch.arange(300, device="cuda")[:, None], torch.arange(700, device="cuda")
    want = torch.softmax(s.masked_fill(j > i + 400, -math.inf), -1) @ v.double()
    for number in (1, 4, 11):
        found = kernel(q, k, v, params={"NUM_SPLITS": number})
        assert isinstance(found, torch.Tensor)
        assert ((found.double() - want).norm() / want.norm()).item() < 1e-3


@pytest.mark.parametrize("number", [1, 5, None])
def test_a_workspace_is_used_whatever_it_holds(number: int | None) -> None:
    kernel, given = decode(), inputs(0, 3000)
    params = None if number is None else {"NUM_SPLITS": number}
    largest = decode(params={"NUM_SPLITS": 128}).workspace(batch=2, s_kv=3000)
    want = kernel(*given, params=params)
    for _ in range(3):  # the long way, then plans
        assert torch.equal(kernel(*given, params=params, workspace=nan_memory(largest)), want)


@pytest.mark.parametrize("own", [True, False], ids=["caller's memory", "torch's memory"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_call_is_captured_and_replayed(warm: bool, own: bool) -> None:
    kernel = decode(bounds={"s_kv": 8192, "batch": 2})
    given, other = inputs(0, 5000), inputs(1, 5000)
    memory = nan_memory(kernel.workspace()) if own else None
    if warm:
        kernel(*given, workspace=memory)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(*given, workspace=memory)
    assert isinstance(out, torch.Tensor)
    for ours in ([x.clone() for x in given], other):
        for t, new in zip(given, ours, strict=True):
            t.copy_(new)
        out.fill_(float("nan"))
        if memory is not None:
            memory.fill_(255)
        graph.replay()
        torch.cuda.synchronize()
        check(out, given)


@pytest.mark.parametrize("group", [1, 4])
def test_lengths_change_between_replays(group: int) -> None:
    """A graph has the same launches for any lengths, and no call waits for what the tensor of lengths holds."""
    options = {"bounds": {"s_kv": 4096, "batch": 6}, "params": {"BLOCK_N": 64}}
    kernel = neptune.compile(with_lengths.decode(group, 64), "flash_decoding", target="cuda", **options)
    lengths = torch.tensor([0, 1, 63, 64, 3000, 2**31 - 1], dtype=torch.int32, device="cuda")
    given = with_lengths.draw(group, lengths, 3000, 64, 64)
    with_lengths.check(kernel(*given, lengths), given, lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernel(*given, lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(*given, lengths)
    assert isinstance(out, tuple)
    for now in ([1] * 6, [3000] * 6, [0] * 6, [65, 2999, -7, 128, 1, 2000], lengths.tolist()):
        lengths.copy_(torch.tensor(now, dtype=torch.int32))
        for t, new in zip(given, with_lengths.draw(group, lengths, 3000, 64, 64), strict=True):
            t.copy_(new)
        for t in out:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        with_lengths.check(out, given, lengths)


def test_streams_do_not_share_temporaries() -> None:
    kernel = decode()
    cases = [inputs(k, 4096 + k) for k in range(4)]
    for given in cases:
        kernel(*given)
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    found: list[object] = []
    for _ in range(20):
        found = []
        for stream, given in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                found.append(kernel(*given))
    torch.cuda.synchronize()
    for out, given in zip(found, cases, strict=True):
        check(out, given)


def test_bounds_fix_the_number_of_parts() -> None:
    kernel = decode(bounds={"s_kv": 8192, "batch": 2})
    sizes = {kernel.workspace(s_kv=n) for n in (1, 100, 8192)}
    assert len(sizes) == 1
    for n in (1, 100, 8192):
        given = inputs(n, n)
        check(kernel(*given), given)
