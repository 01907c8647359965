"""Functions on CUDA tensors: mods, compiled code with Inductor, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import neptune.functional as F
from neptune.driver.pipeline import compile
from neptune.errors import ShapeError
from neptune.ir.text.parser import parse_program
from qa import fuzz_functional
from qa.zoo import Mods, causal, of_torch, sliding
from tests.unit.runtime.test_descriptors import ATTENTION

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def tensors(s_q: int, s_kv: int) -> list[torch.Tensor]:
    return [torch.randn(2, 4, n, 64, device="cuda", dtype=torch.float16) for n in (s_q, s_kv, s_kv)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted.half(), atol=2e-3, rtol=2e-3)


def test_mods_eager_and_by_inductor() -> None:
    bias, document = torch.randn(4, 700, device="cuda"), torch.arange(700, device="cuda") // 37

    def score(s, b, h, i, j):
        return torch.tanh(s / 20) * 20 + bias[h, j]

    def mask(b, h, i, j):
        return (document[i] == document[j]) | (i - j < 9)

    compiled = torch.compile(lambda q, k, v: F.attention(q, k, v, score_mod=score, mask_mod=mask), fullgraph=True)
    for s_q, s_kv in ((300, 300), (257, 640), (1, 500)):
        q, k, v = tensors(s_q, s_kv)
        wanted = of_torch(Mods(score, mask), q.float(), k.float(), v.float())
        close(F.attention(q, k, v, score_mod=score, mask_mod=mask), wanted)
        close(compiled(q, k, v), wanted)


@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"mask_mod": causal}, {"mask_mod": sliding(40)}],
    ids=["an option", "a mod", "a mod that holds a number"],
)
def test_in_a_cuda_graph(options) -> None:
    q, k, v = tensors(200, 200)
    out = F.attention(q, k, v, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = F.rms_norm(F.attention(q, k, v, **options), (64,), eps=1e-6)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, F.rms_norm(F.attention(q, k, v, **options), (64,), eps=1e-6))


def test_rows_and_products() -> None:
    x, w, b = (torch.randn(*s, device="cuda", dtype=torch.float16) for s in ((3, 5, 256), (300, 256), (300,)))
    close(F.softmax(x, 1), torch.softmax(x.float(), 1))
    torch.testing.assert_close(F.linear(x, w, b), torch.nn.functional.linear(x, w, b), atol=3e-2, rtol=1e-2)
    torch.testing.assert_close(F.linear(x, w.t().contiguous().t(), b), F.linear(x, w, b), atol=3e-2, rtol=1e-2)


@pytest.mark.parametrize("seed", [36, 95])
def test_values_of_16_columns_by_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fuzz_functional.DEVICE, "cuda")
    monkeypatch.setenv("NEPTUNE_TIERED", "wait")
    assert fuzz_functional.trial(seed).kind == "right"


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("tiles", [(64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 64, 8), (64, 64, 8), (64, 32, 4)])
def test_values_of_16_columns(tiles: tuple[int, int, int], stages: int) -> None:
    """ptxas 12.8 loses a descriptor where the tile lies in the keys' place (`runtime/machine_code/descriptors.py`)."""
    q, k, v = (torch.randn(2, 300, n, device="cuda", dtype=torch.bfloat16) for n in (64, 64, 16))
    params = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps"), tiles, strict=True)) | {"num_stages": stages}
    kernel = compile(parse_program(ATTENTION), "flash_attention", params=params, form="triton")
    found = kernel(q, k, v)
    wanted = torch.softmax(q.double() @ k.double().mT, -1) @ v.double()
    torch.testing.assert_close(found.double(), wanted, atol=3e-2, rtol=3e-2)


def test_float64_is_refused() -> None:
    q = torch.randn(1, 2, 8, 16, device="cuda", dtype=torch.float64)
    with pytest.raises(ShapeError, match="float64 would be slow"):
        F.attention(q, q, q)
