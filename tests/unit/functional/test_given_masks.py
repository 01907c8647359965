"""`attn_mask`: what broadcasts to [batch, heads, s_q, s_kv], as torch's, beside Neptune's own options."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as of_torch

from neptune.functional import kernels, scaled_dot_product_attention
from neptune.functional.attention import attention

pytestmark = pytest.mark.compared
B, H, S_Q, S_KV = 2, 3, 7, 19
SHAPES = [(S_Q, S_KV), (B, 1, 1, S_KV), (1, H, S_Q, S_KV), (B, H, S_Q, 1)]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def draw(s_q: int = S_Q, s_kv: int = S_KV) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    return [torch.randn(B, H, n, 16, generator=g) for n in (s_q, s_kv, s_kv)]


def masks(shape: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(6)
    shown = torch.rand(shape, generator=g) < 0.6
    # A row without any key is 0 here, and NaN or a mean in torch.
    shown[..., 0] = True
    return [shown, torch.randn(shape, generator=g).masked_fill(~shown, float("-inf"))]


@pytest.mark.parametrize("shape", SHAPES, ids=["a matrix", "of keys", "of heads", "of rows"])
def test_masks_broadcast_as_torch_does(shape) -> None:
    q, k, v = draw()
    for mask in masks(shape):
        wide = mask if mask.dtype == torch.bool else mask.double()
        wanted = of_torch(q.double(), k.double(), v.double(), attn_mask=wide)
        for found in (scaled_dot_product_attention(q, k, v, attn_mask=mask), attention(q, k, v, attn_mask=mask)):
            torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=2e-6)


def test_a_mask_meets_options_and_a_row_without_keys_is_0() -> None:
    q, k, v = draw(S_KV, S_KV)
    keep = torch.ones(B, 1, 1, S_KV, dtype=torch.bool)
    keep[1, ..., :4] = False
    found = attention(q, k, v, causal=True, window=9, attn_mask=keep)
    i, j = torch.arange(S_KV)[:, None], torch.arange(S_KV)[None]
    seen = (j <= i) & (i - j < 9) & keep
    wanted = of_torch(q.double(), k.double(), v.double(), attn_mask=seen)
    wanted = torch.where(seen.any(-1, keepdim=True), wanted, 0.0)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=2e-6)
    assert not found[1, :, :4].any() and found[1, :, 4:].any()


def test_what_is_read_is_what_the_mask_has() -> None:
    """A mask of keys alone is read as a row: its structure is not that of a matrix, and one serves all lengths."""
    q, k, v = draw()
    for mask in (torch.ones(B, 1, 1, S_KV).bool(), torch.ones(S_Q, S_KV).bool()):
        attention(q, k, v, attn_mask=mask)
    before = len(kernels.compiled())
    for n in (2, 31):
        q, k, v = draw(n, n + 3)
        attention(q, k, v, attn_mask=torch.ones(B, 1, 1, n + 3).bool())
    assert len(kernels.compiled()) == before
    texts = [str(s.options) for s, _ in kernels.compiled() if s.operator == "attention"]
    assert any("0, 0" in t or "[b, 0, 0" in t for t in texts)


def test_compiled_without_a_break() -> None:
    def net(q, k, v, keep):
        return attention(q, k, v, causal=True, attn_mask=(keep > 0)[:, None, None, :])

    q, k, v = draw(S_KV, S_KV)
    keep = torch.ones(B, S_KV)
    keep[0, 3] = 0
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, keep), net(q, k, v, keep))
