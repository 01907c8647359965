"""How fast are generated kernels on this GPU, beside cuDNN, FlashAttention-2, FlexAttention and hand-written Triton?

    python -m bench.speed [--json speed.json] [--depths 64 128] [--lengths 1024 4096 16384] [--quick]

Attention forward, float16, batch × heads chosen so that each call has 16k rows times 16 heads; global and causal
(top-left and bottom-right agree, since there are as many queries as keys). "neptune default" is what a user gets from
`neptune.compile(expr, shapes=…)`, nothing picked by hand; the other Triton candidates are the best of the same tiles.
Medians of `triton.testing.do_bench`, which clears the L2 cache before each call. TFLOP/s counts 4·b·h·s_q·s_kv·d,
halved for causal. Candidates that cannot run say why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton.testing
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import neptune
from bench import record
from bench.baselines.flash_attention_triton import Tile, flash_attention
from bench.cases import environment
from neptune.ops.attention import prefill_causal, prefill_global

TILES = [(128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3)]
"""BLOCK_M, BLOCK_N, num_warps, num_stages."""
ROWS, HEADS = 16384, 16
Call = Callable[[], Any]


def neptune_calls(causal: bool, depth: int, qkv: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    program = (prefill_causal if causal else prefill_global)(depth=depth)
    for m, n, warps, stages in TILES:
        params = {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}
        kernel = neptune.compile(program, "flash_attention", target="cuda", params=params)
        yield f"{m}×{n} w{warps} s{stages}", partial(kernel, *qkv)


def default_calls(causal: bool, depth: int, qkv: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    program = (prefill_causal if causal else prefill_global)(depth=depth)
    batch, heads, length, _ = qkv[0].shape
    sizes = {"batch": batch, "heads": heads, "s_q": length, "s_kv": length}
    kernel = neptune.compile(program, target="cuda", shapes=sizes)
    yield " ".join(f"{k}={v}" for k, v in kernel.params.items()), partial(kernel, *qkv)


def hand_calls(causal: bool, depth: int, qkv: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    q, k, v = qkv
    for m, n, warps, stages in TILES:
        tile = Tile(m, n, warps, stages)
        yield f"{m}×{n} w{warps} s{stages}", partial(flash_attention, q, k, v, causal=causal, tile=tile)


def sdpa_calls(backend: SDPBackend) -> Callable[[bool, int, list[torch.Tensor]], Iterator[tuple[str, Call]]]:
    def calls(causal: bool, depth: int, qkv: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
        q, k, v = qkv

        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal)

        yield "", run

    return calls


def flex_calls(causal: bool, depth: int, qkv: list[torch.Tensor]) -> Iterator[tuple[str, Call]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex: Any = torch.compile(flex_attention)
    s = qkv[0].shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, s, s) if causal else None
    yield "", lambda: flex(*qkv, block_mask=mask)


CANDIDATES = {
    "neptune default": default_calls,
    "neptune": neptune_calls,
    "hand-written Triton": hand_calls,
    "cuDNN": sdpa_calls(SDPBackend.CUDNN_ATTENTION),
    "FlashAttention-2": sdpa_calls(SDPBackend.FLASH_ATTENTION),
    "FlexAttention": flex_calls,
}


def best(calls: Iterator[tuple[str, Call]]) -> dict[str, Any]:
    """The fastest of a candidate's variants: quantiles of ms, and every variant's median."""
    medians: dict[str, float | str] = {}
    found: dict[str, Any] = {"ms": None}
    try:
        for name, call in calls:
            try:
                low, median, high = triton.testing.do_bench(call, warmup=30, rep=80, quantiles=[0.2, 0.5, 0.8])
            except Exception as error:  # one that needs too much shared memory, say
                medians[name] = f"{type(error).__name__}: {str(error)[:120]}"
                continue
            medians[name] = median
            if found["ms"] is None or median < found["ms"][1]:
                found |= {"ms": [low, median, high], "variant": name}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return found | {"variants": medians}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--without", nargs="*", default=[], help="candidates to leave out")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here")
        return 2
    results = []
    for depth in options.depths:
        for causal in (False, True):
            for length in options.lengths:
                shape = (max(1, ROWS // length), HEADS, length, depth)
                qkv = [torch.randn(shape, device="cuda").half() for _ in range(3)]
                flops = 4 * shape[0] * HEADS * length * length * depth / (2 if causal else 1)
                row: dict[str, Any] = {"depth": depth, "causal": causal, "shape": shape}
                line = f"d{depth} {'causal' if causal else 'global'} {length:>6}"
                for name, calls in CANDIDATES.items():
                    if name in options.without:
                        continue
                    row[name] = best(calls(causal, depth, qkv))
                    ms = row[name]["ms"]
                    rate = f"{flops / ms[1] / 1e9:.0f} ({row[name]['variant']})" if ms else "-"
                    line += f" | {name} {rate}"
                results.append(row)
                print(line, flush=True)
                if options.json:
                    content = {"environment": environment(), "TFLOP/s": "4·b·h·s²·d / time", "results": results}
                    options.json.write_text(record.as_json(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
