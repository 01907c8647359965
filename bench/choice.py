"""Is the default as fast as what a search would find? `compile(expr)` beside candidates and torch on a GPU.

    python -m bench.choice [--json choice.json] [--candidates 8] [--only decode] [--seconds 400]

Each row is one operator at one size, float16 but for softmax: the default (nothing given: one kernel of an operator for
all its sizes, whose variant the launch picks), the same with the sizes given as `shapes=`, then of every template that
applies the candidates that the cost model puts first, and others spread over its order, so that what it believes to be
slow is measured too. Every call is captured as a CUDA graph; medians of `triton.testing.do_bench`, which
clears the L2 cache before each replay. The best one is the fastest of the default and all candidates. Predicted times
stand beside measured ones. Rows are written as they come; where the seconds are over, the rest is left out, and said.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton.testing
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import neptune
from bench import record
from bench.cases import environment
from bench.speed_operators import graphed
from neptune.driver.device import machine_for
from neptune.errors import NeptuneError
from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.ops.softmax import softmax
from neptune.runtime.launch import parse_target
from neptune.tune.choose import AUTOMATIC, lowered
from neptune.tune.rank import Ranked, ranked
from neptune.variants import Variant

Shape = tuple[int, ...]
PREFILL = (
    *((depth, causal, 4, 16, 4096) for depth in (128, 64) for causal in (False, True)),
    *((128, True, *shape) for shape in ((1, 16, 512), (16, 16, 1024), (1, 16, 16384), (1, 4, 2048))),
)
DECODE = tuple((b, n) for b, n in ((1, 1024), (1, 8192), (1, 131072), (4, 4096), (16, 1024), (16, 8192), (64, 8192)))
PRODUCTS = (
    (4096, 4096, 4096), (16, 6144, 4096), (512, 4096, 4096), (8192, 8192, 8192), (1024, 1024, 1024), (1, 4096, 4096),
    (64, 14336, 4096), (16384, 1024, 4096), (256, 256, 16384),
)  # fmt: skip
CHAINS = ((16, 6144, 4096), (1024, 4096, 4096), (4096, 4096, 4096))
ROWS = ((4096, 16384), (65536, 1024), (256, 131072), (262144, 128), (8192, 8192), (128, 512))
FULLY = 2
"""Templates of which more than one candidate is measured."""


@dataclass(frozen=True)
class Setup:
    """One operator at one size; `peer` is torch, `shapes` are those of the inputs in order."""

    name: str
    program: Callable[[], Program]
    sizes: Mapping[str, int]
    shapes: tuple[Shape, ...]
    peer: Callable[..., torch.Tensor]
    dtype: torch.dtype = torch.float16


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """cuDNN's attention; query heads may be more than key heads."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def normed(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm → linear in eager torch."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-6) @ w


def gated(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """SwiGLU in eager torch."""
    return torch.nn.functional.silu(x @ w) * (x @ u)


def setups() -> Iterator[Setup]:
    """The table of what a user gets by default."""
    for depth, causal, batch, heads, length in PREFILL:
        name = "prefill_causal" if causal else "prefill_global"
        program = partial(operator, name, heads=None, depth=depth)
        sizes = {"batch": batch, "heads": heads, "s_q": length, "s_kv": length}
        shape = (batch, heads, length, depth)
        words = f"{name} d{depth} {batch}×{heads}×{length}"
        yield Setup(words, program, sizes, (shape,) * 3, partial(cudnn, causal=causal))
    decode = partial(operator, "decode_gqa", heads=32, kv_heads=8)
    for batch, length in DECODE:
        keys = (batch, 8, length, 128)
        sizes = {"batch": batch, "s_kv": length}
        yield Setup(f"decode_gqa b{batch} {length}", decode, sizes, ((batch, 32, 1, 128), keys, keys), cudnn)
    for m, n, k in PRODUCTS:
        yield Setup(f"matmul {m}×{n}×{k}", matmul, {"m": m, "n": n, "k": k}, ((m, k), (k, n)), torch.matmul)
    for m, n, k in CHAINS:
        sizes, shapes = {"m": m, "n": n, "k": k}, ((m, k), (k, n), (k, n))
        yield Setup(f"rms_norm_linear {m}×{n}×{k}", rms_norm_linear, sizes, ((m, k), (k,), (k, n)), normed)
        yield Setup(f"gated_linear {m}×{n}×{k}", gated_linear, sizes, shapes, gated)
    for rows, cols in ROWS:
        eager = partial(torch.softmax, dim=-1)
        yield Setup(
            f"softmax {rows}×{cols}", softmax, {"rows": rows, "cols": cols}, ((rows, cols),), eager, torch.float32
        )


def spread(of: Sequence[Ranked], count: int) -> list[Ranked]:
    """The first half of so many from the front, the others spread over the rest."""
    front = list(of[: count // 2])
    rest = of[count // 2 :]
    return front + [
        rest[i * len(rest) // max(1, count - len(front))] for i in range(min(len(rest), count - len(front)))
    ]


def candidates(setup: Setup, count: int) -> list[tuple[str, Ranked]]:
    """(template, values) of those that are measured: `count` of each of the two templates that are predicted to be
    fastest, and the first of the others."""
    machine = machine_for(parse_target("cuda"))
    orders: dict[str, tuple[Ranked, ...]] = {}
    for template in AUTOMATIC:
        with suppress(NeptuneError):
            tiles = lowered(template, setup.program(), strict=template != AUTOMATIC[-1]).lowered.tiles
            if order := ranked(tiles, setup.sizes, machine):
                orders[template] = order
    fastest = sorted(orders, key=lambda t: orders[t][0].prediction.us)
    return [(t, r) for k, t in enumerate(fastest) for r in spread(orders[t], count if k < FULLY else 1)]


def microseconds(call: Callable[[], Any]) -> float | str:
    try:
        ((_, replay),) = graphed(iter([("", call)]))
        return float(triton.testing.do_bench(replay, warmup=15, rep=50, return_mode="median")) * 1e3
    except Exception as error:  # one that needs too much shared memory, say
        return f"{type(error).__name__}: {str(error)[:120]}"


def measured(setup: Setup, count: int) -> dict[str, Any]:
    """One row: microseconds of the default, of torch, and of each candidate, with what was predicted."""
    torch.manual_seed(0)
    inputs = [torch.randn(s, device="cuda").to(setup.dtype) for s in setup.shapes]
    program = setup.program()
    kernel = neptune.compile(program, target="cuda")
    known = neptune.compile(program, target="cuda", shapes=setup.sizes)
    row: dict[str, Any] = {"setup": setup.name, "sizes": dict(setup.sizes)}
    row["default"] = {"us": microseconds(partial(kernel, *inputs)), "variant": shown(kernel.chosen(**setup.sizes))}
    row["sizes given"] = {"us": microseconds(partial(known, *inputs)), "variant": shown(known.variants[0])}
    row["torch"] = microseconds(partial(setup.peer, *inputs))
    tried: list[dict[str, Any]] = []
    for template, r in candidates(setup, count):
        name = f"{template} " + " ".join(f"{k}={v}" for k, v in r.params.items())
        try:
            one = neptune.compile(program, template, target="cuda", params=dict(r.params))
            us = microseconds(partial(one, *inputs))
        except NeptuneError as error:
            us = f"{type(error).__name__}: {str(error)[:120]}"
        tried.append({"variant": name, "us": us, "predicted": r.prediction.us})
    row["candidates"] = tried
    times = [t["us"] for t in (row["default"], row["sizes given"], *tried) if isinstance(t["us"], float)]
    row["best"] = min(times, default=None)
    row["torch again"] = microseconds(partial(setup.peer, *inputs))
    row["default again"] = microseconds(partial(kernel, *inputs))
    return row


def shown(v: Variant) -> str:
    """The template and the values of a variant."""
    return " ".join((v.template, *(f"{n}={value}" for n, value in v.params.items())))


def line(row: Mapping[str, Any]) -> str:
    """One row for people."""
    default, known, best, peer = row["default"]["us"], row["sizes given"]["us"], row["best"], row["torch"]
    if not all(isinstance(x, float) for x in (default, known, best, peer)):
        return f"{row['setup']:<32} {default} | {known} | best {best} | torch {peer}"
    return (
        f"{row['setup']:<32} default {default:8.1f} µs | sizes given {known:8.1f} | best {best:8.1f} "
        f"({best / default:.2f}) | torch {peer:8.1f} ({peer / default:.2f}) | {row['default']['variant']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    parser.add_argument("--candidates", type=int, default=8, metavar="N", help="candidates of each template")
    parser.add_argument("--only", default="", metavar="TEXT", help="setups whose name has this")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after so long")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here")
        return 2
    begin, rows = time.monotonic(), []
    for setup in (s for s in setups() if options.only in s.name):
        if time.monotonic() - begin > options.seconds:
            print(f"{setup.name:<24} left out: no time")
            continue
        rows.append(measured(setup, options.candidates))
        print(line(rows[-1]), flush=True)
        if options.json:
            options.json.write_text(record.as_json({"environment": environment(), "us": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
