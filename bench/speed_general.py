"""How fast is what is not attention: products with an epilogue, softmax, argmax and top-k of rows, beside torch.

    python -m bench.speed_general [--json general.json]

Each row is one operator at one size: Neptune (the best of the listed tunables), torch eager, torch.compile. Medians of
`triton.testing.do_bench`, which clears the L2 cache before each call, in µs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton.testing

import neptune
from bench import record
from bench.cases import environment
from neptune.frontend import builder as nt
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax

WARPS = (4, 8)


@dataclass(frozen=True)
class Row:
    """One operator at one size; `params` are the values to try of each tunable."""

    name: str
    program: Any
    template: Any
    inputs: tuple[torch.Tensor, ...]
    eager: Callable[..., Any]
    params: Mapping[str, tuple[int, ...]]


def best_of_rows(k: int) -> Any:
    """argmax (k = 0) or the k largest of each row."""
    m, n = nt.var("m"), nt.var("n")
    x, j = nt.placeholder((m, n), "float32", "x"), nt.reduce_axis((0, n), "j")
    if k == 0:
        return list(nt.compute((m,), lambda i: nt.argmax(x[i, j], axis=j), "best"))
    parts = nt.compute((m,), lambda i: nt.top_k(x[i, j], k, axis=j), "best")
    return [nt.stack(parts[:k], "values"), nt.stack(parts[k:], "indices")]


def by_tiles(sch: neptune.Schedule) -> None:
    """Tiles of rows, a loop over tiles of columns."""
    i, j = sch.loops("best")
    i0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [1024])])
    sch.bind(i0, "grid.x")
    for stage in sch.stages:
        if stage != "best":
            sch.fuse_at(stage, i0)


def rows() -> Iterator[Row]:
    tiles = {
        "BLOCK_M": (64, 128),
        "BLOCK_N": (64, 128, 256),
        "BLOCK_K": (64,),
        "num_warps": WARPS,
        "num_stages": (3, 4),
    }
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 1024), (512, 4096, 4096)):
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        bias = torch.randn(n, device="cuda").half()
        yield Row(f"matmul {m}×{n}×{k}", matmul(), "matmul", (a, b), torch.matmul, tiles)
        fused = matmul(bias=True, activation="gelu")

        def eager(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(a @ b + bias)

        yield Row(f"gelu(a·b + bias) {m}×{n}×{k}", fused, "matmul", (a, b, bias), eager, tiles)
    for m, n in ((8192, 1024), (4096, 8192)):
        x = torch.randn(m, n, device="cuda")
        kinds: dict[str, tuple[int, ...]] = {"BLOCK_M": (1, 2, 4), "num_warps": (4, 8, 16)}
        yield Row(f"softmax {m}×{n}", softmax(), "softmax_row", (x,), partial(torch.softmax, dim=-1), kinds)
    x = torch.randn(8192, 4096, device="cuda")
    kinds = {"BLOCK_M": (1, 4, 8), "BLOCK_N": (256, 1024), "num_warps": WARPS}
    yield Row("argmax 8192×4096", best_of_rows(0), by_tiles, (x,), partial(torch.max, dim=-1), kinds)
    x = torch.randn(8192, 128, device="cuda")
    kinds = {"BLOCK_M": (4, 16), "BLOCK_N": (128,), "num_warps": WARPS}
    for k in (2, 8):
        yield Row(f"top-{k} 8192×128", best_of_rows(k), by_tiles, (x,), partial(torch.topk, k=k), kinds)


def time(call: Callable[[], Any]) -> float | str:
    try:
        return float(triton.testing.do_bench(call, warmup=20, rep=60, return_mode="median")) * 1e3
    except Exception as error:  # one that needs too much shared memory, say
        return f"{type(error).__name__}: {str(error)[:120]}"


def measure(row: Row) -> dict[str, Any]:
    variants: dict[str, float | str] = {}
    for values in product(*row.params.values()):
        params = dict(zip(row.params, values, strict=True))
        kernel = neptune.compile(row.program, row.template, target="cuda", params=params)
        given = dict(zip(("a", "b", "bias"), row.inputs, strict=False)) if row.template == "matmul" else {}
        inputs = [given.get(n, row.inputs[min(k, len(row.inputs) - 1)]) for k, n in enumerate(kernel.inputs)]
        variants[" ".join(f"{n}={v}" for n, v in params.items())] = time(partial(kernel, *inputs))
    done = {name: t for name, t in variants.items() if isinstance(t, float)}
    name = min(done, key=lambda n: done[n]) if done else None
    compiled = torch.compile(row.eager)
    return {
        "name": row.name,
        "neptune": done.get(name or ""),
        "variant": name,
        "eager": time(partial(row.eager, *row.inputs)),
        "compiled": time(partial(compiled, *row.inputs)),
        "variants": variants,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.speed_general", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here")
        return 2
    results = []
    for row in rows():
        found = measure(row)
        results.append(found)
        shown = (f"{found[k]:.1f}" if isinstance(found[k], float) else "-" for k in ("neptune", "eager", "compiled"))
        print(
            f"{found['name']:<34} µs: neptune {{}} | eager {{}} | torch.compile {{}}".format(*shown),
            found["variant"],
            flush=True,
        )
        if options.json:
            options.json.write_text(record.as_json({"environment": environment(), "us": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
