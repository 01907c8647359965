"""FlexAttention's zoo of mods: as torch has them, as expressions, and the tiles that kernels visit and have to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import and_masks, create_mask, flex_attention, or_masks

from neptune.functional.flex import mods_of
from neptune.functional.kernels import structure
from neptune.functional.softmax_attention import program
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.templates.flash_attention import flash_attention
from neptune.verify.evaluate import evaluate
from qa.masks import pieces_of

Tensor = torch.Tensor
BATCH, HEADS, DEPTH, TILE = 2, 4, 16, 16


@dataclass(frozen=True)
class Mods:
    """Arguments of a call."""

    score_mod: Callable[..., Tensor] | None = None
    mask_mod: Callable[..., Tensor] | None = None


Make = Callable[[int, int], Mods]
"""(s_q, s_kv) → the mods, with the tensors that they hold."""


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


# --- masks ------------------------------------------------------------------------------------------


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def sliding(window: int) -> Callable[..., Tensor]:
    def sliding_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window)

    return sliding_window


def prefix(length: int) -> Callable[..., Tensor]:
    return lambda b, h, q_idx, kv_idx: kv_idx < length


def dilated(window: int, step: int) -> Callable[..., Tensor]:
    def dilated_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        distance = torch.abs(q_idx - kv_idx)
        return (distance <= window) & (distance % step == 0)

    return dilated_window


def documents(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    number = torch.arange(max(s_q, s_kv)) // 19
    return lambda b, h, q_idx, kv_idx: number[q_idx] == number[kv_idx]


def lengths(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx < LENGTHS[b]


LENGTHS = torch.tensor([23, 41], dtype=torch.int32)


def natten(width: int, kernel: int) -> Callable[..., Tensor]:
    """Keys of a square around a query, on a grid `width` wide."""

    def natten_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_x, q_y = q_idx // width, q_idx % width
        kv_x, kv_y = kv_idx // width, kv_idx % width
        middle_x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
        middle_y = q_y.clamp(kernel // 2, (width - 1) - kernel // 2)
        return ((middle_x - kv_x).abs() <= kernel // 2) & ((middle_y - kv_y).abs() <= kernel // 2)

    return natten_mask


def _mask(mask: Callable[..., Tensor]) -> Make:
    return lambda s_q, s_kv: Mods(mask_mod=mask)


# --- scores -----------------------------------------------------------------------------------------


def _score(score: Callable[..., Tensor], mask: Callable[..., Tensor] | None = None) -> Make:
    return lambda s_q, s_kv: Mods(score, mask)


def causal_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def softcap(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return torch.tanh(score / 20) * 20


def alibi(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    slopes = torch.exp2(-(torch.arange(HEADS) + 1) * 8.0 / HEADS)
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def relative(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score + (q_idx - kv_idx) * 0.1


def relative_causal(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return torch.where(q_idx <= kv_idx, score + (q_idx - kv_idx), float("-inf"))


def relative_table(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    table, middle = _random(HEADS, s_q + s_kv), s_kv
    return lambda score, b, h, q_idx, kv_idx: score + table[h][q_idx - kv_idx + middle]


def from_the_end(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    """Negative indices count from the end, as everywhere in torch."""
    table = _random(s_q + s_kv)
    return lambda score, b, h, q_idx, kv_idx: score + table[q_idx - kv_idx]


def head_bias(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    bias = _random(HEADS, s_q, s_kv).half()
    return lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx, kv_idx]


def scaled_head(s_q: int, s_kv: int) -> Callable[..., Tensor]:
    scale, offset = torch.tensor(0.7), _random(BATCH, HEADS)
    return lambda score, b, h, q_idx, kv_idx: score * scale + offset[b, h]


def checkerboard(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
    return torch.where(h == 0, score + 1, score)


def squared(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score * score


def trigonometric(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return torch.sin(torch.cos(score)) + torch.tan(b)


ZOO: Mapping[str, Make] = {
    "causal": _mask(causal),
    "causal as a score": lambda s_q, s_kv: Mods(causal_score),
    "sliding window": _mask(sliding(24)),
    "prefix-LM": _mask(or_masks(prefix(11), causal)),
    "dilated sliding window": _mask(dilated(20, 4)),
    "document": lambda s_q, s_kv: Mods(mask_mod=documents(s_q, s_kv)),
    "document and causal": lambda s_q, s_kv: Mods(mask_mod=and_masks(documents(s_q, s_kv), causal)),
    "lengths": _mask(lengths),
    "blocks": _mask(lambda b, h, q_idx, kv_idx: q_idx // 16 == kv_idx // 16),
    "natten": _mask(natten(8, 3)),
    "softcap": _score(softcap),
    "softcap, sliding window": _score(softcap, sliding(24)),
    "alibi, causal": lambda s_q, s_kv: Mods(alibi(s_q, s_kv), causal),
    "relative position": _score(relative),
    "relative, causal as a score": lambda s_q, s_kv: Mods(relative_causal),
    "relative table": lambda s_q, s_kv: Mods(relative_table(s_q, s_kv)),
    "table from the end": lambda s_q, s_kv: Mods(from_the_end(s_q, s_kv)),
    "head bias": lambda s_q, s_kv: Mods(head_bias(s_q, s_kv)),
    "scaled heads": lambda s_q, s_kv: Mods(scaled_head(s_q, s_kv)),
    "checkerboard": _score(checkerboard),
    "squared": _score(squared),
    "trigonometric": _score(trigonometric),
    "natten with a bias": lambda s_q, s_kv: Mods(head_bias(s_q, s_kv), natten(8, 3)),
}


def inputs(s_q: int, s_kv: int, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, drawn from a fixed seed."""
    draw = torch.Generator().manual_seed(s_q)
    shapes = ((BATCH, HEADS, n, DEPTH) for n in (s_q, s_kv, s_kv))
    q, k, v = (torch.randn(shape, generator=draw).to(getattr(torch, dtype)) for shape in shapes)
    return q, k, v


def of_torch(mods: Mods, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own result, unfused; its masks are given as scores, which need no blocks."""

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if mods.score_mod is None else mods.score_mod(s, b, h, i, j)
        return s if mods.mask_mod is None else torch.where(mods.mask_mod(b, h, i, j), s, -float("inf"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: Tensor = flex_attention(q, k, v, score_mod=score)
    return result


def expression(mods: Mods, dtype: str = "float32", **options: Any) -> Program:
    """The Program of a row."""
    made, _ = mods_of(mods.score_mod, mods.mask_mod)
    plain = {
        "causal": False,
        "window": None,
        "softcap": None,
        "scale": None,
        "sinks": False,
        "alibi": False,
        "lse": False,
    }
    of = structure(
        "attention", dtype=dtype, depth=DEPTH, depth_v=DEPTH, heads=None, mods=made.key, **{**plain, **options}
    )
    return program(of, made)


def visited(mods: Mods, s_q: int, s_kv: int) -> float:
    """Tiles that the loops of the kernel visit, per batch row and head: its own bounds, evaluated."""
    sch = Schedule(expression(mods))
    flash_attention(sch)
    own = pieces_of(sch.program)
    made, held = mods_of(mods.score_mod, mods.mask_mod)
    names = [p.name for m in made.given for p in m.placeholders]
    tensors = dict(zip(names, held, strict=True))
    sizes: dict[str, int] = {"batch": BATCH, "heads": HEADS, "s_q": s_q, "s_kv": s_kv, "BLOCK_M": TILE, "BLOCK_N": TILE}
    sizes |= {f"{n}_{k}": d for n, t in tensors.items() for k, d in enumerate(t.shape)}
    arrays = {b.name: np.zeros([1] * len(b.shape)) for b in own.program.inputs}
    arrays |= {n: np.asarray(t.reshape(1) if t.dim() == 0 else t) for n, t in tensors.items() if n in arrays}
    used = tuple(b for b in own.program.inputs if b.name in tensors)
    reduced = Program(**{**{f: getattr(own.program, f) for f in own.program.__dataclass_fields__}, "inputs": used})
    bounds = np.asarray(evaluate(reduced, {b.name: arrays[b.name] for b in used}, sizes)["bounds"])
    bounds = bounds.reshape(-1, len(own.clean), 2)
    return float(np.maximum(bounds[..., 1] - bounds[..., 0], 0).sum() / (BATCH * HEADS))


def needed(mods: Mods, s_q: int, s_kv: int) -> float:
    """Tiles in which the mask is true of an element, per batch row and head."""
    if mods.mask_mod is None:
        return float(-(-s_q // TILE) * -(-s_kv // TILE))
    seen = create_mask(mods.mask_mod, BATCH, HEADS, s_q, s_kv, device="cpu")
    padded = torch.nn.functional.pad(seen, (0, -s_kv % TILE, 0, -s_q % TILE))
    tiles = padded.view(BATCH, HEADS, -(-s_q // TILE), TILE, -(-s_kv // TILE), TILE).any(5).any(3)
    return float(tiles.sum()) / (BATCH * HEADS)
