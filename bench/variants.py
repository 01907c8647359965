"""Which variant does each size take, and what does choosing cost? One attention kernel and one linear layer.

    python -m bench.variants [--target cuda:90] [--json variants.json]

Attention from one query and one key to 16k of each, the product from 1 to 16k rows. Printed: the time of
`kernel.chosen(**sizes)` on the host the first time and again (median), the template and values of the variant, and how
many variants all of these sizes need, which is how often launches at them compile. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import neptune
from bench import record
from bench.cases import environment
from neptune.choice import Choice
from neptune.kernel import Kernel
from neptune.ops.attention import operator
from neptune.ops.linear import matmul

LENGTHS = (1, 16, 128, 1024, 4096, 16384)
ROWS = (1, 4, 16, 64, 256, 512, 1024, 4096, 16384)
AGAIN = 200
"""Calls whose median is printed."""


def asked(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, Any]:
    """One row: the variant, and microseconds of choosing it."""
    times = []
    for _ in range(AGAIN):
        begin = time.perf_counter()
        variant = kernel.chosen(**sizes)
        times.append((time.perf_counter() - begin) * 1e6)
    return {
        "sizes": dict(sizes),
        "variant": variant.name,
        "values": str(Choice(variant.template, variant.params)),
        "us": times[0],
        "again": median(times),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.variants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    options = parser.parse_args(argv)
    results = {}
    attention = operator("prefill_causal", heads=None, depth=128)
    square = [{"batch": 1, "heads": 16, "s_q": q, "s_kv": k} for q in LENGTHS for k in LENGTHS if q <= k]
    layer = [{"m": m, "n": 4096, "k": 4096} for m in ROWS]
    for program, points in ((attention, square), (matmul(), layer)):
        begin = time.perf_counter()
        kernel = neptune.compile(program, target=options.target)
        seconds = time.perf_counter() - begin
        rows = [asked(kernel, s) for s in points]
        needed = len({r["variant"] for r in rows})
        results[program.name] = {"seconds": seconds, "variants": len(kernel.variants), "needed": needed, "rows": rows}
        print(f"{program.name}: {len(kernel.variants)} variants, {needed} of them for these sizes; {seconds:.2f} s")
        for r in rows:
            sizes = " ".join(f"{n}={v}" for n, v in r["sizes"].items())
            print(f"  {sizes:<42} {r['us']:6.1f} {r['again']:6.1f} µs  {r['values']}")
    if options.json:
        options.json.write_text(record.as_json({"environment": environment(), "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
