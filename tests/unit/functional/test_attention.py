"""`neptune.functional.attention` on tensors: against torch, eager, compiled, exported and in inference mode."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask

import neptune
from neptune.errors import ExpressionError, ShapeError
from neptune.functional import kernels
from neptune.functional.attention import attention
from qa.zoo import Mods, causal, of_torch, sliding

pytestmark = pytest.mark.compared
HEADS, DEPTH = 2, 16
BIAS = torch.randn(HEADS, 64, generator=torch.Generator().manual_seed(3))
NUMBERS = torch.arange(200) // 7


def biased(score, b, h, i, j):
    return score + BIAS[h, i]


def same_document(b, h, i, j):
    return NUMBERS[i] == NUMBERS[j]


def tensors(s_q: int, s_kv: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(s_q)
    return [torch.randn(2, HEADS, n, DEPTH, generator=draw).to(dtype) for n in (s_q, s_kv, s_kv)]


def bottom_right(q, k, v, **options) -> torch.Tensor:
    """torch's attention, in float64, with the causal line at the lower right corner."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
    wide = (t.double() for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask, **options).to(q.dtype)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def count() -> int:
    return len(kernels.compiled())


def test_plain_options_for_a_hundred_lengths_of_one_kernel() -> None:
    before = None
    for n in range(1, 101):
        q, k, v = tensors(n, n + n % 7)
        torch.testing.assert_close(attention(q, k, v, causal=True), bottom_right(q, k, v), atol=1e-5, rtol=1e-5)
        before = before or count()
    assert count() == before


def test_layouts_and_leading_dimensions() -> None:
    q, k, v = tensors(9, 12)
    wanted = attention(q, k, v, causal=True)
    swapped = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    torch.testing.assert_close(attention(*swapped, causal=True), wanted)
    strided = [torch.stack([t, t], -1)[..., 0] for t in (q, k, v)]
    torch.testing.assert_close(attention(*strided, causal=True), wanted)
    torch.testing.assert_close(attention(q[0], k[0], v[0], causal=True), wanted[0])
    deep = [torch.stack([t, t]) for t in (q, k, v)]
    torch.testing.assert_close(attention(*deep, causal=True)[1], wanted)
    torch.testing.assert_close(attention(q, k[:1], v[:1], causal=True)[0], wanted[0])


def test_sizes_of_zero() -> None:
    q, k, v = tensors(3, 5)
    assert attention(q[:, :, :0], k, v, causal=True).shape == (2, HEADS, 0, DEPTH)
    assert attention(q[:0], k[:0], v[:0], causal=True).shape == (0, HEADS, 3, DEPTH)
    assert attention(q, k[:, :, :0], v[:, :, :0], causal=True).abs().sum() == 0


def test_mods_eager_and_compiled_at_several_lengths() -> None:
    mask = and_masks(same_document, causal)
    traces = CompileCounter()
    f = torch.compile(
        lambda q, k, v: attention(q, k, v, score_mod=biased, mask_mod=mask) * 1, fullgraph=True, backend=traces
    )
    made = None
    for s_q, s_kv in ((5, 9), (9, 5), (31, 31), (40, 64), (64, 40)):
        q, k, v = tensors(s_q, s_kv)
        wanted = of_torch(Mods(biased, mask), q, k, v)
        torch.testing.assert_close(attention(q, k, v, score_mod=biased, mask_mod=mask), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(f(q, k, v), wanted, atol=1e-5, rtol=1e-5)
        made = made or count()
    assert count() == made
    assert traces.frame_count <= 2, "one with the first sizes, one with symbols"


def test_nan_passes_through_a_mod_as_torchs_do() -> None:
    """A row of queries for each function: of NaN in a tensor, and of a NaN that the mod writes."""
    q, k, v = tensors(9, 21)
    table = torch.randn(9, 21)
    table[:, 4], table[:, 7] = torch.nan, torch.inf
    functions = (
        torch.relu,
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp_min(-1),
        lambda x: torch.minimum(x, torch.full_like(x, 0.5)),
        lambda x: torch.maximum(torch.full_like(x, -0.5), -x),
        lambda x: torch.where(torch.isnan(x) | torch.isinf(x), -1.0, x),
        lambda x: torch.sign(x),
        lambda x: torch.where(x < 0, x, torch.nan),
    )

    def mod(score, b, h, i, j):
        result = torch.where(j == 20, torch.nan, score)
        for n, f in enumerate(functions):
            result = torch.where(i == n, f(score + table[i, j]), result)
        return result

    found, exact = attention(q, k, v, score_mod=mod), of_torch(Mods(mod), q, k, v)
    seen = exact.isnan().all(-1)[0, 0].tolist()
    assert seen == [True, True, True, True, True, False, False, True, True]
    torch.testing.assert_close(found, exact, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_a_window_beyond_every_length_is_none() -> None:
    q, k, v = tensors(5, 23)
    exact = bottom_right(q, k, v)
    attention(q, k, v, causal=True)
    before = count()
    for window in (2**31 - 1, 2**31, 2**40):
        torch.testing.assert_close(attention(q, k, v, window=window), exact)
    assert count() == before


def test_tensors_of_short_integers_are_read() -> None:
    q, k, v = tensors(5, 23)
    bias, kind = torch.randint(-30000, 30000, (23,)).short(), torch.arange(23).to(torch.uint8) // 4

    def mod(score, b, h, i, j):
        return torch.where(kind[j] == kind[i], score + bias[j] / 1000, -torch.inf)

    torch.testing.assert_close(attention(q, k, v, score_mod=mod), of_torch(Mods(mod), q, k, v), rtol=1e-5, atol=1e-5)


def test_captured_tensors_are_inputs_of_a_compiled_graph() -> None:
    """Another tensor of the same kind is read, without another trace; another number is traced anew."""
    held = {"bias": torch.randn(HEADS)}

    def with_bias(bias: torch.Tensor, w: int):
        return lambda s, b, h, i, j: torch.where(i - j < w, s + bias[h], -float("inf"))

    traces = CompileCounter()
    f = torch.compile(lambda q, k, v, mod: attention(q, k, v, score_mod=mod), fullgraph=True, backend=traces)
    q, k, v = tensors(6, 6)
    for frames, w in ((1, 3), (1, 3), (2, 4)):
        held["bias"] = held["bias"] + 1
        mod = with_bias(held["bias"], w)
        torch.testing.assert_close(f(q, k, v, mod), of_torch(Mods(mod), q, k, v), atol=1e-5, rtol=1e-5)
        assert traces.frame_count == frames


def test_lengths_of_what_a_mod_holds_are_guarded() -> None:
    q, k, v = tensors(5, 5)
    compiled = torch.compile(
        lambda q, k, v, t: attention(q, k, v, score_mod=lambda s, b, h, i, j: s * t.shape[0]), backend="eager"
    )
    for n in (2, 3):
        wanted = of_torch(Mods(lambda s, b, h, i, j, n=n: s * n), q, k, v)
        torch.testing.assert_close(compiled(q, k, v, torch.ones(n)), wanted, atol=1e-5, rtol=1e-5)


def test_it_compiles_with_inference_mode_and_export() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(DEPTH, DEPTH))

        def forward(self, q, k, v):
            return attention(q @ self.weight, k, v, causal=True) + attention(q, k, v, causal=True, return_lse=True)[0]

    model, (q, k, v) = Model(), tensors(6, 9)
    wanted = model(q, k, v)
    s = torch.export.Dim("s")
    made = torch.export.export(model, (q, k, v), dynamic_shapes=({2: s}, {}, {}))
    torch.testing.assert_close(made.module()(q, k, v), wanted)
    assert {"neptune.attention.default", "neptune.attention_with_lse.default"} <= {
        str(n.target) for n in made.graph.nodes
    }
    with torch.inference_mode():
        torch.testing.assert_close(model(q, k, v), wanted)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(q, k, v), wanted)


def test_torch_checks_the_operators() -> None:
    q, k, v = tensors(6, 9)
    torch.library.opcheck(torch.ops.neptune.attention, (q, k, v, True))
    torch.library.opcheck(torch.ops.neptune.attention_with_lse, (q, k, v, True))


def test_keys_outside_of_the_blocks_of_a_row_are_not_visited() -> None:
    """What lies in tiles before a row's first block, and behind its last one, is never read: it may be NaN."""
    q, k, v = (torch.randn(1, 1, 512, 16) for _ in range(3))
    made = create_block_mask(lambda b, h, i, j: i // 128 == j // 128, None, None, 512, 512, device="cpu")
    # Its blocks alone say so: no mask_mod does.
    lists = (made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices)
    blocks = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=128, seq_lengths=(512, 512))
    wanted = attention(q, k, v, block_mask=blocks)
    for t in (k, v):
        t[:, :, 256:] = float("nan")
    found = attention(q, k, v, block_mask=blocks)
    torch.testing.assert_close(found[:, :, :256], wanted[:, :, :256], rtol=0, atol=0)
    *_, kernel = kernels.compiled().values()
    assert "first_in" in kernel.ir("fused") and "mask, skipped where false" in kernel.explain()


def test_a_block_mask_is_its_mask() -> None:
    q, k, v = tensors(40, 40)
    blocks = create_block_mask(sliding(8), 2, HEADS, 40, 40, device="cpu")
    wanted = of_torch(Mods(mask_mod=sliding(8)), q, k, v)
    torch.testing.assert_close(attention(q, k, v, block_mask=blocks), wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ShapeError, match="for 40 queries and 40 keys"):
        attention(q, k[:, :, :39], v[:, :, :39], block_mask=blocks)
    with pytest.raises(ShapeError, match="both mask_mod= and block_mask="):
        attention(q, k, v, block_mask=blocks, mask_mod=causal)
    with pytest.raises(ShapeError, match="a BlockMask of FlexAttention"):
        attention(q, k, v, block_mask=3)


def test_the_log_says_why_a_kernel_is_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that has compiled nothing yet; what is compiled does not matter."""
    first_input = SimpleNamespace(with_params=lambda: lambda q, *_: q)
    monkeypatch.setattr(kernels, "first", lambda *_, **__: first_input)
    for known in ("_KERNELS", "_BY_TEXT"):
        monkeypatch.setattr(kernels, known, {})
    q, k, v = tensors(3, 3)
    with caplog.at_level(logging.INFO, logger="neptune.recompiles"):
        attention(q, k, v, causal=True)
        attention(q.half(), k.half(), v.half(), causal=True)
        attention(q, k, v, causal=True)
    first, again = caplog.messages
    assert first == "attention on cpu: compiled for the first time"
    assert again == "attention on cpu: compiled anew: dtype is float16, was float32"


def test_the_interpreter_serves_where_there_is_no_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    from neptune.runtime.launching import devices

    devices._interpreted.cache_clear()
    monkeypatch.setattr(devices, "has_tvm", lambda: False)
    with pytest.warns(neptune.NeptunePerformanceWarning, match=r"pip install 'apache-tvm>=0.27'") as told:
        assert [devices.target_on("cpu") for _ in range(2)] == ["interpret"] * 2
    assert len(told) == 1
    devices._interpreted.cache_clear()


# --- what does not fit --------------------------------------------------------------------------------------


def test_tensors_that_do_not_fit() -> None:
    q, k, v = tensors(3, 4)
    with pytest.raises(ShapeError, match=r"`q` is torch\.float32, `v` torch\.float16"):
        attention(q, k, v.half())
    with pytest.raises(ShapeError, match=r"q has 2 heads, k and v 1(.|\n)*enable_gqa=True"):
        attention(q, k[:, :1], v[:, :1])
    with pytest.raises(ShapeError, match="the same leading dimensions"):
        attention(*(torch.zeros(*lead, 1, 4, 16) for lead in ((2, 3), (3, 2), (3, 2))))
    with pytest.raises(ShapeError, match="3 heads do not share 2 key heads evenly"):
        attention(torch.cat([q, q[:, :1]], 1), k, v, enable_gqa=True)
    with pytest.raises(ShapeError, match="depths of q and k are 16 and 8"):
        attention(q, k[..., :8], v)
    with pytest.raises(ShapeError, match=r"`k` on meta"):
        attention(q, k.to("meta"), v)
    with pytest.raises(ShapeError, match=r"`alibi_slopes` is \[3\]"):
        attention(q, k, v, alibi_slopes=torch.ones(3))
    with pytest.raises(ShapeError, match=r"reads `BIAS`, \[2, 64\], at q_idx in dimension 1, which reaches 99"):
        attention(torch.randn(2, HEADS, 100, DEPTH), k, v, score_mod=biased)


def test_gradients_are_refused_with_what_to_do() -> None:
    q, k, v = tensors(3, 4)
    q.requires_grad_()
    with torch.enable_grad():
        for options in ({"causal": True}, {"mask_mod": causal}):
            with pytest.raises(ShapeError, match=r"requires a gradient(.|\n)*torch\.no_grad\(\)"):
                attention(q, k, v, **options)
        bias = torch.ones(HEADS, requires_grad=True)
        with pytest.raises(ShapeError, match="requires a gradient"):
            attention(q.detach(), k, v, score_mod=lambda s, b, h, i, j: s + bias[h])


def test_a_captured_tensor_on_another_device() -> None:
    elsewhere = torch.ones(HEADS, device="meta")
    with pytest.raises(ShapeError, match="`captured tensors` on meta"):
        attention(*tensors(3, 4), score_mod=lambda s, b, h, i, j: s + elsewhere[h])


def test_a_branch_in_a_mod_names_its_line() -> None:
    def branching(b, h, i, j):
        return (i > j) and (j > 2)

    with pytest.raises(ExpressionError, match=r"return \(i > j\) and \(j > 2\)"):
        attention(*tensors(3, 4), mask_mod=branching)
