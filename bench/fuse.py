"""What neptune.fuse makes of plain torch functions: kernels and their facts, what is left and why, and errors.

    python -m bench.fuse [--json FILE] [--only WORD] [--dtype float16]

Functions are those of `bench.fuse_functions` and the first ten with a reduction of transformers' Llama, Gemma 2,
Mixtral and GPT-OSS (`bench.fuse_transformers` says how they are found). Each is run twice on the CPU through LLVM:
with the regions that the prediction takes (on the default GPU of the cost model, at the sizes of the call), and with
all that have a kernel, whose results are compared with float64 beside eager torch's. Failures are rows as well.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import neptune
from bench.fuse_functions import OWN, Function
from bench.fuse_transformers import first

COUNT = 10


def error(found: Any, exact: Any) -> float:
    """The relative error in the norm of the results of a float dtype."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, exact)), strict=True)
    parts = [(f.double(), e.double()) for f, e in pairs if f is not None and f.is_floating_point()]
    above = sum(float((f - e).norm() ** 2) for f, e in parts)
    return float((above / max(sum(float(e.norm() ** 2) for _, e in parts), 1e-300)) ** 0.5)


def run(f: Function, dtype: torch.dtype) -> dict[str, Any]:
    """A row: the regions, errors beside eager torch's, or how it failed."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    row: dict[str, Any] = {"name": f.name, "source": f.source, "dtype": str(dtype).removeprefix("torch.")}
    try:
        args = f.make(dtype)
        wide = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
        with torch.no_grad():
            exact, eager = f.call(*wide), f.call(*args)
            every = neptune.fuse(f.call, target="llvm", take="all")
            found = every(*args)
            row |= {"error": error(found, exact), "eager": error(eager, exact)}
            torch._dynamo.reset()
            predicted = neptune.fuse(f.call, target="llvm")
            predicted(*args)
        row["graphs"] = [r.json() for r in predicted.reports]
        row["kernels_of_all"] = [c for r in every.reports for c in r.json()["regions"]]
    except Exception as failure:
        row["failed"] = f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
    return row


def lines(row: dict[str, Any]) -> Iterator[str]:
    """A row as text."""
    yield f"{row['name']}  ({row['source']}, {row['dtype']})"
    if "failed" in row:
        yield f"  FAILED: {row['failed']}"
        return
    yield f"  error {row['error']:.1e}, eager {row['eager']:.1e} (against float64, every region taken)"
    for k, graph in enumerate(row["graphs"]):
        if graph["whole"]:
            yield f"  graph {k}: {graph['whole']}"
        for r in graph["regions"]:
            made = f"{r['template']}, {r['kernels']} kernels" if r["template"] else "no kernel"
            us = "-" if r["predicted_us"] is None else f"{r['predicted_us']:.1f}"
            bound = "-" if r["bound_us"] is None else f"{r['bound_us']:.1f}"
            who = "Neptune" if r["taken"] else "Inductor"
            yield f"  graph {k}: {r['name']}: {who}; {us} µs against {bound} µs at least; {made}: {r['why']}"
        for why, count in Counter(graph["left"].values()).most_common():
            yield f"  graph {k}: {count} nodes left: {why}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="float16")
    options = parser.parse_args(argv)
    given = [*OWN, *(f for _, f in first(COUNT))]
    rows = []
    for f in given:
        if options.only in f.name:
            rows.append(run(f, getattr(torch, options.dtype)))
            print("\n".join(lines(rows[-1])), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    regions = [r for row in rows for g in row.get("graphs", ()) for r in g["regions"]]
    print(f"\n{len(rows)} functions, {sum('failed' in r for r in rows)} failed; regions by what became of them:")
    for why, count in Counter(r["why"].partition(":")[0] for r in regions).most_common():
        print(f"  {count:3} {why}")


if __name__ == "__main__":
    main()
