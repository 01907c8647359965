"""How fast are the ten operators of the paper on this GPU, beside FlexAttention, cuDNN and FlashAttention-2?

    python -m bench.speed_operators [--json file] [--operators decode_gqa …] [--lengths 1024 8192 32768]

The heads of Table 1, depth 128, float16, batch 1. Every call is captured as a CUDA graph, so that launching costs
nothing; medians of `triton.testing.do_bench` over replays, which clears the L2 cache before each.
Every candidate of ours is one template with a few tiles; for split-k also with numbers of splits beside the
one that a launch chooses ("default"). cuDNN and FlashAttention-2 have neither ALiBi, softcap nor a window here.
Decode is bound by memory: its rate is the bytes of keys and values over the time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import neptune
from bench import record
from bench.cases import alibi_slopes, environment
from bench.speed import Call, best
from neptune.ops.attention import OPERATORS, operator
from neptune.runtime.bench import graph_of

DEPTH = 128
PREFILL = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)]
DECODE = [(16, 64, 4, 3), (16, 128, 4, 3), (16, 128, 8, 2)]
SPLITS = (None, 4, 8, 16, 32, 64, 128)
Rows = dict[str, Any]


def graphed(calls: Iterator[tuple[str, Call]]) -> Iterator[tuple[str, Call]]:
    """The calls as replays of graphs; one that cannot be captured is left as it is, and says so."""
    for name, call in calls:
        try:
            replay = graph_of(call)
        except Exception as error:
            torch.cuda.synchronize()
            yield f"{name} not captured ({type(error).__name__})".strip(), call
        else:
            yield name, replay


def ours(row: Rows, name: str, inputs: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    program = operator(name)
    decode = "queries" in row
    for m, n, warps, stages in DECODE if decode else PREFILL:
        params = {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}
        tile = f"{m}×{n} w{warps} s{stages}"
        if decode:
            kernel = neptune.compile(program, "flash_decoding", target="cuda", params=params)
            for splits in SPLITS:
                asked = None if splits is None else {"NUM_SPLITS": splits}
                yield f"{tile} splits {splits or 'default'}", partial(kernel, *inputs, params=asked)
        else:
            kernel = neptune.compile(program, "flash_attention", target="cuda", params=params)
            yield tile, partial(kernel, *inputs)


def flex(row: Rows, name: str, inputs: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, *rest = inputs
    s_q, s_kv = q.shape[2], k.shape[2]
    shift, window, cap = s_kv - s_q, row.get("window"), row.get("softcap")

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s = s if cap is None else cap * torch.tanh(s / cap)
        return s + rest[0][h] * (j - i - shift) if rest else s

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = j <= i + shift
        return seen if window is None else seen & (i + shift - j < window)

    masked = row.get("causal") or window is not None
    block_mask = create_block_mask(mask, None, None, s_q, s_kv) if masked else None
    torch._dynamo.reset()  # it stops compiling after eight shapes
    compiled: Any = torch.compile(flex_attention)
    score_mod = score if cap is not None or rest else None
    grouped = q.shape[1] != k.shape[1]
    yield "", lambda: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped)


def sdpa(backend: SDPBackend, row: Rows, name: str, inputs: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    if {"alibi", "softcap", "window"} & set(row):
        return
    q, k, v = inputs
    causal, grouped = bool(row.get("causal")), q.shape[1] != k.shape[1]

    def run() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    yield "", run


CANDIDATES: dict[str, Callable[[Rows, str, list[torch.Tensor]], Iterator[tuple[str, Call]]]] = {
    "neptune": ours,
    "FlexAttention": flex,
    "cuDNN": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
    "FlashAttention-2": partial(sdpa, SDPBackend.FLASH_ATTENTION),
}


def tensors(row: Rows, length: int) -> list[torch.Tensor]:
    heads, kv_heads, queries = row["heads"], row.get("kv_heads", row["heads"]), row.get("queries", length)
    shapes = [(1, heads, queries, DEPTH), *[(1, kv_heads, length, DEPTH)] * 2]
    made = [torch.randn(s, device="cuda").half() for s in shapes]
    return [*made, torch.from_numpy(alibi_slopes(heads)).float().cuda()] if "alibi" in row else made


def work(row: Rows, length: int) -> tuple[str, float]:
    """The unit of a rate, and how much of it a call does."""
    if "queries" in row:
        kv_heads: int = row["kv_heads"] if "kv_heads" in row else row["heads"]
        return "GB/s", 2 * kv_heads * length * DEPTH * 2 / 1e9
    seen = length * length
    if row.get("causal") or "window" in row:
        w = min(int(row.get("window", length)), length)
        seen = w * (w + 1) // 2 + (length - w) * w
    return "TFLOP/s", 4 * row["heads"] * seen * DEPTH / 1e12


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.speed_operators", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    parser.add_argument("--operators", nargs="+", choices=tuple(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768])
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here")
        return 2
    results = []
    for name in options.operators:
        for length in options.lengths:
            row = dict(OPERATORS[name])
            unit, amount = work(row, length)
            found: dict[str, Any] = {"operator": name, "length": length, "unit": unit}
            line = f"{name:<16} {length:>6} {unit:<7}"
            for candidate, calls in CANDIDATES.items():
                torch.manual_seed(0)
                found[candidate] = best(graphed(calls(row, name, tensors(row, length))))
                ms = found[candidate]["ms"]
                rate = f"{amount / ms[1] * 1e3:.0f} ({found[candidate]['variant']})" if ms else "-"
                line += f" | {candidate} {rate}"
            results.append(found)
            print(line, flush=True)
            if options.json:
                options.json.write_text(record.as_json({"environment": environment(), "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
