"""The ten operators as torch has them: the expression as one writes it, FlexAttention's mask and score, and rows of the
exact result.

Masks are aligned bottom-right, as ours: query i stands at i + s_kv - s_q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from bench.references import attention
from neptune.ops.attention import OPERATORS

Tensors: TypeAlias = Sequence[torch.Tensor]
Row: TypeAlias = Mapping[str, Any]
"""The options of an operator, as in `OPERATORS`."""
Mod: TypeAlias = "Callable[..., torch.Tensor] | None"
ROWS = 64
"""Rows of each block that is compared."""


def masked(row: Row) -> bool:
    """Whether there are keys that a query does not see."""
    return bool(row.get("causal")) or row.get("window") is not None


def mods(row: Row, shift: int, slopes: torch.Tensor | None = None) -> tuple[Mod, Mod]:
    """FlexAttention's `score_mod` and `mask_mod` of an operator, None where it has none; `shift` is s_kv - s_q."""
    window, cap = row.get("window"), row.get("softcap")

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s = s if cap is None else cap * torch.tanh(s / cap)
        return s if slopes is None else s + slopes[h] * (j - i - shift)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = j <= i + shift
        return seen if window is None else seen & (i + shift - j < window)

    return score if cap is not None or slopes is not None else None, mask if masked(row) else None


def block_mask(mask: Mod, s_q: int, s_kv: int, device: str) -> Any:
    """FlexAttention's blocks; of all keys where there is no mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mask or (lambda b, h, i, j: j >= 0), None, None, s_q, s_kv, device=device)


def eager(row: Row) -> Callable[..., torch.Tensor]:
    """The operator as one writes it in torch: scores, softmax, product."""
    window, cap = row.get("window"), row.get("softcap")

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *slopes: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        s = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        s = s if cap is None else cap * torch.tanh(s / cap)
        if slopes or masked(row):
            at = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
            behind = torch.arange(k.shape[2], device=q.device) - at
            s = s + slopes[0][:, None, None] * behind if slopes else s
            if masked(row):
                hidden = behind > 0 if window is None else (behind > 0) | (behind <= -window)
                s = s.masked_fill(hidden, float("-inf"))
        return torch.softmax(s, -1).to(q.dtype) @ v

    return run


def blocks(row: Row, args: Tensors, rows: int = ROWS) -> Iterator[tuple[tuple[Any, ...], Tensors, Tensors]]:
    """Where in the result, exact rows in float64, and those of the expression with its own roundings: blocks of queries
    at the start, in the middle and at the end, of the first and the last head.

    A block [a, a + n) is attention of n queries to the keys up to that of its last one, where others are hidden: both
    ends are aligned as in the whole.
    """
    named = {n: row[n] for n in ("causal", "softcap", "alibi", "window") if n in row}
    made = attention(**named)
    q, k, v, *slopes = args
    (batches, heads, s_q), s_kv = q.shape[:3], k.shape[2]
    group, n = heads // k.shape[1], min(rows, q.shape[2])
    starts = sorted({0, (s_q - n) // 2, s_q - n})
    for b, h in sorted({(0, 0), (batches - 1, heads - 1)}):
        for a in starts:
            keys = max(0, min(s_kv, a + n + s_kv - s_q)) if masked(row) else s_kv
            at = (slice(b, b + 1), slice(h, h + 1), slice(a, a + n))
            g = slice(h // group, h // group + 1)
            part = [q[at], k[at[0], g, :keys], v[at[0], g, :keys], *(t[at[1]] for t in slopes)]
            yield at, made.float64(*part), made.unfused(*part)


def scores(row: Row, batch: int, s_q: int, s_kv: int) -> int:
    """The elements of the matrix of scores."""
    return batch * int(row["heads"]) * s_q * s_kv


def row_of(name: str) -> Row:
    """The options of an operator."""
    return OPERATORS[name]
