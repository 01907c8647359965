"""FlashAttention forward, written by hand in plain Triton for Hopper: the baseline that generated kernels are held to.

It is what a careful person writes without leaving Triton's ordinary language (no Gluon, no warp specialisation, no
software skewing by hand), so a difference to it is a difference in scheduling, not in carelessness:

- host `TensorDescriptor` arguments: loads are TMA, tails zero-fill, the store clips, and no loop holds an address;
- `exp2` with scale * log2(e) folded into the one multiply-add that also subtracts the maximum;
- unmasked key tiles run in a loop that holds no comparison, the others in a second loop;
- q is loaded once and each row is divided once, by a reciprocal after the loops;
- lengths are runtime arguments; a causal mask is aligned to the bottom right (query i sees keys up to i + s_kv - s_q).

A row that sees no key is 0 with a log-sum-exp of -inf. Key heads may be fewer than query heads (GQA).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from bench.sass import Request, compile_kernel

# Triton reads globals of a kernel only when they are `constexpr`.
LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2.0))
# The running maximum starts finite: exp2(-inf - LOWEST) is 0, where exp2(-inf - -inf) would be NaN.
LOWEST = tl.constexpr(-3.4e38)


class Tile(NamedTuple):
    """One launch configuration."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# Tiles that neither spill nor serialise their matrix instructions on sm_90, the expected best first.
TILES: dict[int, tuple[Tile, ...]] = {
    64: (Tile(128, 128, 8, 2), Tile(128, 64, 8, 3)),
    128: (Tile(128, 128, 8, 2), Tile(128, 64, 8, 3)),
    256: (Tile(128, 64, 8, 2), Tile(128, 32, 8, 2)),
}


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    q,
    desc_k,
    desc_v,
    batch,
    head_kv,
    lo,
    hi,
    rows,
    s_kv,
    offset,
    qk_scale,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fold the keys [lo, hi), whole tiles, into the accumulators."""
    for start in range(lo, hi, BLOCK_N):
        k = desc_k.load([batch, head_kv, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        s = tl.dot(q, k.T)
        if MASKED:
            cols = start + tl.arange(0, BLOCK_N)
            seen = (cols < s_kv)[None, :]
            if CAUSAL:
                seen = seen & (cols[None, :] <= rows[:, None] + offset)
            s = tl.where(seen, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * qk_scale)
        p = tl.math.exp2(s * qk_scale - new_max[:, None])
        alpha = tl.math.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = desc_v.load([batch, head_kv, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        acc = tl.dot(p.to(v.dtype), v, acc)
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit(do_not_specialize=["s_q", "s_kv", "heads", "group"])
def attention_fwd(
    desc_q,
    desc_k,
    desc_v,
    desc_o,
    lse,
    s_q,
    s_kv,
    heads,
    group,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program attends BLOCK_M queries of one head; the grid is (query tiles, batch * heads)."""
    tile = tl.program_id(0)
    if CAUSAL:
        # The last queries see the most keys: starting them first leaves short programs to even out the end.
        tile = tl.num_programs(0) - 1 - tile
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    head_kv = head // group
    first = tile * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    offset = s_kv - s_q

    # Keys below `clean` are seen by every row of the tile, keys from `end` on by none. Triton's // truncates, so a
    # tile of rows that see nothing (s_q > s_kv) is clamped to 0 before the division.
    clean = s_kv
    end = s_kv
    if CAUSAL:
        clean = tl.minimum(s_kv, tl.maximum(first + offset + 1, 0))
        end = tl.minimum(s_kv, tl.maximum(first + BLOCK_M + offset, 0))
    clean = clean // BLOCK_N * BLOCK_N

    q = desc_q.load([batch, head, first, 0]).reshape(BLOCK_M, HEAD_DIM)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    qk_scale = scale * LOG2E
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, desc_k, desc_v, batch, head_kv,
        0, clean, rows, s_kv, offset, qk_scale, BLOCK_N, HEAD_DIM, False, CAUSAL,
    )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, desc_k, desc_v, batch, head_kv,
        clean, end, rows, s_kv, offset, qk_scale, BLOCK_N, HEAD_DIM, True, CAUSAL,
    )  # fmt: skip

    blind = row_sum == 0.0
    inverse = 1.0 / tl.where(blind, 1.0, row_sum)
    out = (acc * inverse[:, None]).to(desc_o.dtype)
    desc_o.store([batch, head, first, 0], out.reshape(1, 1, BLOCK_M, HEAD_DIM))
    if lse is not None:
        value = tl.where(blind, float("-inf"), row_max * LN2 + tl.log(tl.where(blind, 1.0, row_sum)))
        tl.store(lse + tl.program_id(1).to(tl.int64) * s_q + rows, value, mask=rows < s_q)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Attention of (b, h, s, d) tensors with any strides that TMA takes (the last 1, the others a multiple of 16 B).

    `lse`, a contiguous fp32 tensor (b, h, s_q), receives the natural log-sum-exp where it is given. `scale` must be
    positive: the row maximum is taken before scaling.
    """
    batches, heads, s_q, depth = q.shape
    heads_kv, s_kv = k.shape[1], k.shape[2]
    scale = depth**-0.5 if scale is None else scale
    if scale <= 0 or heads % heads_kv:
        raise ValueError("scale must be positive, and the key heads must divide the query heads")
    tile = TILES[depth][0] if tile is None else tile
    out = torch.empty_like(q) if out is None else out
    block_q, block_kv = [1, 1, tile.block_m, depth], [1, 1, tile.block_n, depth]
    attention_fwd[(triton.cdiv(s_q, tile.block_m), batches * heads)](
        TensorDescriptor.from_tensor(q, block_q),
        TensorDescriptor.from_tensor(k, block_kv),
        TensorDescriptor.from_tensor(v, block_kv),
        TensorDescriptor.from_tensor(out, block_q),
        lse,
        s_q,
        s_kv,
        heads,
        heads // heads_kv,
        scale,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        HEAD_DIM=depth,
        CAUSAL=causal,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def request(depth: int, tile: Tile, *, causal: bool = False, dtype: str = "fp16", lse: bool = True) -> Request:
    """The kernel as `bench.sass` compiles it, where there need be no GPU."""
    query = f"tensordesc<{dtype}[1, 1, {tile.block_m}, {depth}]>"
    key = f"tensordesc<{dtype}[1, 1, {tile.block_n}, {depth}]>"
    types = {"desc_q": query, "desc_k": key, "desc_v": key, "desc_o": query, "lse": "*fp32"}
    types |= {"s_q": "i32", "s_kv": "i32", "heads": "i32", "group": "i32", "scale": "fp32"}
    constants: dict[str, object] = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    constants |= {"HEAD_DIM": depth, "CAUSAL": causal} | ({} if lse else {"lse": None})
    return Request(
        kernel=f"{__spec__.name if __spec__ else __name__}:attention_fwd",
        signature=types | dict.fromkeys(constants, "constexpr"),
        constants=constants,
        divisible=("lse",) if lse else (),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def main() -> None:
    """Print what ptxas makes of every tile, as a Markdown table."""
    columns = "depth, tile, causal, registers, spill B, shared B, clean loop, masked loop, ex2 overlapped, warnings"
    print(f"| {columns.replace(', ', ' | ')} |\n{'|---' * (columns.count(',') + 1)}|")
    for depth, tiles in TILES.items():
        for tile, causal in itertools.product(tiles, (False, True)):
            report = compile_kernel(request(depth, tile, causal=causal))
            clean, masked = (loop for loop in report.loops if loop.hgmma)
            print(
                f"| {depth} | {tile.block_m}x{tile.block_n} w{tile.num_warps} s{tile.num_stages} "
                f"| {'yes' if causal else 'no'} | {report.registers} | {report.spill_bytes} | {report.shared_bytes} "
                f"| {clean.instructions} | {masked.instructions} | {clean.overlapped}/{clean.ex2} "
                f"| {' '.join(report.warnings) or '-'} |"
            )


if __name__ == "__main__":
    main()
