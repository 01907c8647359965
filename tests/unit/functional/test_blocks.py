"""A BlockMask whose blocks say no more than its mask_mod is that mask_mod; any other is looked up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

import neptune.functional as F
from neptune.errors import ExpressionError
from neptune.functional import blocks as implied
from neptune.functional.blocks import with_block_mask

B, H, S = 2, 3, 24
DOCUMENTS = torch.arange(S, dtype=torch.int32) // 7
PACKED = torch.stack([DOCUMENTS, torch.arange(S, dtype=torch.int32) // 5])
SLOPES = torch.tensor([0, 3, 9])
MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 5),
    "documents": lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j),
    "packed": lambda b, h, i, j: PACKED[b, i] == PACKED[b, j],
    "of heads": lambda b, h, i, j: i - j <= SLOPES[h],
    "none": lambda b, h, i, j: i < 0,
    "all": lambda b, h, i, j: i >= 0,
}


def tensors(s: int = S) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, s, 16) for _ in range(3))
    return q, k, v


def blocks_of(mask: Any, b: int | None = B, h: int | None = H, size: int | tuple[int, int] = 4) -> BlockMask:
    return create_block_mask(mask, b, h, S, S, device="cpu", BLOCK_SIZE=size)


def is_implied(blocks: BlockMask, s: int = S) -> bool:
    q, k, _ = tensors(s)
    return with_block_mask("attention", None, blocks, q, k) is blocks.mask_mod


def expected(seen: Tensor) -> Tensor:
    q, k, v = (t.double() for t in tensors())
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~seen, -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [4, 7, (2, 8)])
def test_what_create_block_mask_makes_is_its_mask_mod(name: str, size: Any) -> None:
    mask = MASKS[name]
    blocks = blocks_of(mask, size=size)
    assert is_implied(blocks)
    seen = create_mask(mask, B, H, S, S, device="cpu")
    q, k, v = tensors()
    torch.testing.assert_close(F.flex_attention(q, k, v, block_mask=blocks).double(), expected(seen), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["causal", "window", "documents"])
def test_one_list_serves_all_batches_and_heads_of_a_mask_that_does_not_tell_them_apart(name: str) -> None:
    assert is_implied(blocks_of(MASKS[name], None, None))


@pytest.mark.parametrize("name", ["packed", "of heads"])
def test_it_is_not_implied_where_one_list_stands_for_batches_that_differ(name: str) -> None:
    assert not is_implied(blocks_of(MASKS[name], None, None))


def changed(blocks: BlockMask, which: str, row: int, by: int) -> BlockMask:
    getattr(blocks, which)[..., row] += by
    return blocks


def test_a_block_less_or_more_and_a_full_one_that_is_not_are_looked_up() -> None:
    causal = MASKS["causal"]
    assert not is_implied(changed(blocks_of(causal), "kv_num_blocks", 2, -1))
    assert not is_implied(changed(blocks_of(causal), "full_kv_num_blocks", 2, -1))
    # One that nothing is seen in may be listed, but not as a full one.
    assert is_implied(changed(blocks_of(causal), "kv_num_blocks", 2, 1))
    assert not is_implied(changed(blocks_of(causal), "full_kv_num_blocks", 2, 1))


def test_it_is_evaluated_once_and_again_where_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, evaluated = DOCUMENTS.clone(), []
    true = implied._holds
    monkeypatch.setattr(implied, "_holds", lambda *args: (evaluated.append(1), true(*args))[1])
    blocks = blocks_of(lambda b, h, i, j: documents[i] == documents[j])
    assert [is_implied(blocks) for _ in range(3)] == [True] * 3 and len(evaluated) == 1
    documents[0] = 99
    assert not is_implied(blocks) and len(evaluated) == 2
    documents[0] = 0
    assert is_implied(blocks) and len(evaluated) == 3
    blocks.kv_num_blocks.fill_(0)
    assert not is_implied(blocks)
    # Another tensor where the former one was.
    other = blocks_of(lambda b, h, i, j: documents[i] == documents[j])
    assert is_implied(other)
    other.kv_num_blocks = torch.zeros_like(other.kv_num_blocks)
    assert not is_implied(other)


def test_a_change_that_torch_does_not_count_is_seen_on_a_cpu() -> None:
    array = np.arange(S, dtype=np.int32) // 7
    documents = torch.from_numpy(array)
    changes: dict[str, Any] = {
        "numpy": lambda: array.fill(0),
        "data": lambda: documents.data.fill_(0),
        "dlpack": lambda: torch.from_dlpack(documents).fill_(0),
    }
    for change in changes.values():
        documents.copy_(DOCUMENTS)
        blocks = blocks_of(lambda b, h, i, j: documents[i] == documents[j])
        assert is_implied(blocks)
        before = documents._version
        change()
        assert documents._version == before and not is_implied(blocks)
    blocks = blocks_of(MASKS["causal"])
    assert is_implied(blocks)
    blocks.kv_num_blocks.data.fill_(0)
    assert not is_implied(blocks)


def test_on_a_gpu_contents_are_compared_where_calls_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.zeros(3, device="meta")
    assert implied.Seen.now(DOCUMENTS).content is not None and implied.Seen.now(there).content is None
    monkeypatch.setenv("NEPTUNE_CHECK", "1")
    assert implied.Seen.now(there).content is not None


def test_layers_of_other_heads_share_a_block_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated, true = [], implied._holds
    monkeypatch.setattr(implied, "_holds", lambda *args: (evaluated.append(1), true(*args))[1])
    blocks = blocks_of(MASKS["causal"], None, None)
    for _ in range(3):
        for heads in (1, 2, 5):
            q = torch.randn(B, heads, S, 16)
            assert with_block_mask("attention", None, blocks, q, q) is blocks.mask_mod
    assert len(evaluated) == 3
    for s in range(40):
        q = torch.randn(1, 1, S, 16).expand(s + 1, 1, S, 16)
        with_block_mask("attention", None, blocks, q, q)
    assert len(implied._KNOWN[blocks]) <= implied.REMEMBERED


def test_a_tensor_without_dimensions_is_read() -> None:
    offset = torch.tensor(2)
    assert is_implied(blocks_of(lambda b, h, i, j: i + offset >= j))


def listed(mask: Any) -> BlockMask:
    """All blocks of 4, as partial ones."""
    index = torch.arange(S // 4, dtype=torch.int32).expand(1, 1, S // 4, S // 4).contiguous()
    return BlockMask.from_kv_blocks(
        torch.full((1, 1, S // 4), S // 4, dtype=torch.int32), index, BLOCK_SIZE=4, mask_mod=mask
    )


def test_what_has_no_value_in_torchs_batches_is_looked_up() -> None:
    zeros = torch.arange(S)
    q, k, v = tensors()
    for mask in (lambda b, h, i, j: True, lambda b, h, i, j: i // zeros[j] < 3, lambda b, h, i, j: i % zeros[j] < 3):
        blocks = listed(mask)
        assert not is_implied(blocks)
        assert "no value at all positions" in implied.why_not_implied(blocks, q, k, lambda b=blocks: _made(b))
        assert F.flex_attention(q, k, v, block_mask=blocks).shape == q.shape


def test_a_mask_of_a_member_of_a_batch_is_refused_in_words() -> None:
    q, k, v = tensors()

    def member(documents: Tensor) -> Tensor:
        return F.flex_attention(q, k, v, block_mask=listed(lambda b, h, i, j: documents[i] == documents[j]))

    with pytest.raises(ExpressionError, match=r"torch\.vmap goes over"):
        torch.vmap(member)(torch.zeros(3, S, dtype=torch.int32))


def test_another_global_or_cell_is_another_mask() -> None:
    width = 5
    blocks = blocks_of(lambda b, h, i, j: (i >= j) & (i - j < width))
    assert is_implied(blocks)
    width = 9
    assert not is_implied(blocks)


class Holder:
    width = 4


def test_what_cannot_be_told_is_looked_up() -> None:
    holder, q_k = Holder(), tensors()[:2]
    with torch.inference_mode():
        made_there = DOCUMENTS.clone()
    short = torch.zeros(S // 2, dtype=torch.int32)
    masks = {
        "nothing is known": lambda b, h, i, j: i - j < holder.width,
        "not counted": lambda b, h, i, j: made_there[i] == made_there[j],
        "other indices": lambda b, h, i, j: short[i // 2] == short[j // 2],
    }
    for why, mask in masks.items():
        blocks = blocks_of(mask)
        assert not is_implied(blocks)
        assert why in implied.why_not_implied(blocks, *q_k, lambda b=blocks: _made(b))


def _made(blocks: BlockMask) -> implied.Blocks:
    from neptune.functional.blocks import _table

    lengths = dict(zip(implied.INDICES, (B, H, S, S), strict=True))
    return implied.Blocks(_table(blocks, -(-S // 4)), 4, 4, lengths)


def test_positions_beyond_what_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(implied.MOST, "cpu", S * S - 1)
    assert not is_implied(blocks_of(MASKS["causal"], None, None))


def test_pieces_of_rows_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implied, "CHUNK", 5 * S)
    assert is_implied(blocks_of(MASKS["causal"], None, None))
    for row in range(6):
        assert not is_implied(changed(blocks_of(MASKS["causal"], None, None), "kv_num_blocks", row, -1))


def test_an_index_that_a_tensor_does_not_have_is_never_evaluated() -> None:
    documents = torch.arange(S)
    blocks = blocks_of(lambda b, h, i, j: documents[i] >= documents[j])
    assert is_implied(blocks)
    longer = blocks._adjust(S, S)
    longer.mask_mod.__closure__[0].cell_contents = documents[: S // 2]  # type: ignore[index]
    q, k, _ = tensors()
    assert "other indices" in implied.why_not_implied(longer, q, k, lambda: _made(longer))


def test_masks_are_forgotten_with_their_owners() -> None:
    blocks = blocks_of(MASKS["causal"])
    assert is_implied(blocks) and blocks in implied._KNOWN
    before = len(implied._KNOWN)
    del blocks
    assert len(implied._KNOWN) == before - 1
