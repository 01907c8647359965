"""FlexAttention's zoo of mods through `neptune.functional.attention`: `python -m bench.zoo [--json FILE] [names…]`.

One line for each row and dtype: the error ‖o - o₆₄‖ / ‖o₆₄‖ beside that of torch's own flex_attention at the same
dtype (both against flex_attention in float64), the tiles of 16 × 16 that the kernel's loops visit of all there are and
of those in which the mask is true somewhere, and the kernels. The exit status is 1 where an error is beyond the limit
of docs/numerics.md, or a tile outside of a mask is visited.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import and_masks, create_mask, flex_attention, or_masks

import neptune
from bench.masks import pieces_of
from neptune.functional.flex import mods_of
from neptune.functional.kernels import structure
from neptune.functional.softmax_attention import program
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.templates.flash_attention import flash_attention
from neptune.verify.evaluate import evaluate

Tensor = torch.Tensor
BATCH, HEADS, DEPTH, TILE = 2, 4, 16, 16
LIMITS = {"float32": 10.0, "float16": 1.1, "bfloat16": 1.1}
"""How many times torch's own error an error may be (docs/numerics.md)."""


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


@dataclass(frozen=True)
class Line:
    """One result; tiles are those of one batch row and head, on average."""

    name: str
    dtype: str
    s_q: int
    s_kv: int
    error: float
    torchs: float
    tiles: int
    visited: float
    needed: float
    kernels: int

    @property
    def good(self) -> bool:
        """Within the limit; one ulp of the dtype at the least."""
        return self.error <= max(LIMITS[self.dtype] * self.torchs, torch.finfo(getattr(torch, self.dtype)).eps)

    def __str__(self) -> str:
        tiles = f"tiles {self.visited:g} of {self.tiles}, {self.needed:g} needed"
        errors = f"error {self.error:.1e}, torch {self.torchs:.1e}"
        verdict = "" if self.good else "  TOO LARGE"
        kernels = f"kernels {self.kernels}{verdict}"
        return f"{self.name:28} {self.dtype:9} {self.s_q} × {self.s_kv}  {errors}  {tiles}  {kernels}"


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


def measure(name: str, dtype: str, s_q: int, s_kv: int) -> Line:
    """Run one row at one size."""
    mods = ZOO[name](s_q, s_kv)
    q, k, v = inputs(s_q, s_kv, dtype)
    exact = of_torch(mods, q.double(), k.double(), v.double())
    ours = neptune.functional.attention(q, k, v, score_mod=mods.score_mod, mask_mod=mods.mask_mod)
    assert isinstance(ours, Tensor)

    def error(o: Tensor) -> float:
        return float(torch.linalg.vector_norm(o.double() - exact) / torch.linalg.vector_norm(exact))

    kernel = next(reversed(list(neptune.functional.kernels.compiled().values())))
    tiles = -(-s_q // TILE) * -(-s_kv // TILE)
    return Line(
        name,
        dtype,
        s_q,
        s_kv,
        error(ours),
        error(of_torch(mods, q, k, v)),
        tiles,
        visited(mods, s_q, s_kv),
        needed(mods, s_q, s_kv),
        len(kernel.facts.kernels),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.zoo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*ZOO, []], default=[])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float16"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    lines = []
    for name in given.names or ZOO:
        for dtype in given.dtypes:
            line = measure(name, dtype, 50, 64)
            lines.append(line)
            print(line, flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(x) for x in lines], indent=1))
    wrong = [x for x in lines if not x.good or x.visited > x.needed]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
