"""How fast graphs found by search are on a GPU, beside our templates, eager torch, torch.compile and cuBLAS.

    python -m bench.mirage_speed --save DIR [--only RMSNorm swiglu …] [--batches 1 8 16] [--dtypes float16 bfloat16]
    python -m bench.mirage_speed --run DIR --json FILE [--seconds 560] [--dry-run]

`--save` searches and compiles, and needs no GPU; `--run` needs torch and Triton alone. A row is a benchmark at a batch
and a dtype, or a program of `bench.mirage_wild` at its own sizes. Its columns are timed in interleaved rounds in one
process: each call a CUDA graph, the L2 cache cleared before each, every sample kept. "ours tuned" is the fastest of the
values that the model ranks first. Rows that the file has are not measured anew, so that a run that is cut off goes on
by the same command. `--dry-run` does all but measure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import neptune
from bench import record
from bench.cases import environment
from bench.mirage_eager import EAGER, PRODUCTS, WILD
from neptune.runtime.bench import graph_of
from neptune.verify.numerics import rel_error

MANIFEST = "rows.json"
OURS, TUNED, TEMPLATE, TORCH = "ours", "ours tuned", "template", "eager"
COMPILED, PRODUCT = "torch.compile", "cuBLAS product"
AGAINST = (TEMPLATE, TORCH, COMPILED)
VALUES = 12
"""Values that the model ranks first, of which a run takes the fastest."""
ROUNDS, SAMPLES, TRIALS = 7, 15, 10
"""Rounds of all columns, samples of each in one round, and samples by which values are compared."""
CLEARED = 256 << 20
"""Bytes that are written between calls: more than any L2 cache."""
MOST_ERROR = 2.0
"""Times eager torch's error against float64."""
Call = Callable[[], Any]
EVERY = EAGER | WILD


@dataclass(frozen=True)
class Row:
    """A benchmark at a batch and a dtype: the shapes of its inputs, and values that are worth a trial."""

    benchmark: str
    batch: int
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    values: tuple[Mapping[str, int], ...] = ()

    @property
    def key(self) -> str:
        return f"{self.benchmark}-{self.batch}-{self.dtype}"


def rows_of(folder: Path) -> list[Row]:
    """What a folder of saved kernels holds."""
    said = json.loads((folder / MANIFEST).read_text())
    return [
        Row(r["benchmark"], r["batch"], r["dtype"], tuple(map(tuple, r["shapes"])), tuple(r["values"])) for r in said
    ]


def add_row(folder: Path, row: Row) -> None:
    """Note a row whose kernels are saved; one of the same key is replaced."""
    before = rows_of(folder) if (folder / MANIFEST).exists() else []
    kept = [r for r in before if r.key != row.key] + [row]
    (folder / MANIFEST).write_text(record.as_json([asdict(r) for r in kept]))


def save(folder: Path, row: Row, ours: neptune.Kernel, template: neptune.Kernel) -> None:
    """Write the kernels of a row, and note it."""
    for name, kernel in ((OURS, ours), (TEMPLATE, template)):
        kernel.save(folder / row.key / name)
    add_row(folder, row)


def inputs(row: Row, device: str) -> list[Tensor]:
    """Normal numbers; weights by 1/√depth, so that results stay of one size, and scores small."""
    torch.manual_seed(0)
    made = [torch.randn(s, device=device) for s in row.shapes]
    scaled = [x * (x.shape[-2] ** -0.5 if k and len(row.shapes[k]) > 1 else 1.0) for k, x in enumerate(made)]
    return [x.to(getattr(torch, row.dtype)) for x in scaled]


# --- a row -----------------------------------------------------------------------------------------


class Gpu:
    """The GPU here: calls as graphs, and their times."""

    device = "cuda"

    def __init__(self) -> None:
        self.memory = torch.empty(CLEARED, dtype=torch.uint8, device=self.device)

    def load(self, path: Path) -> neptune.Kernel:
        return neptune.load(path, "cuda")

    def graph(self, call: Call) -> Call:
        """The call as the replay of a CUDA graph."""
        return graph_of(call)

    def times(self, call: Call, count: int) -> list[float]:
        """Microseconds of so many calls, each with a cold L2 cache."""
        event: Any = torch.cuda.Event
        ends = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        for begin, end in ends:
            self.memory.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [1e3 * begin.elapsed_time(end) for begin, end in ends]


def compiled(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """By torch.compile with max-autotune; the graph is captured by us, as of all others."""
    torch._dynamo.reset()
    made: Callable[..., Tensor] = torch.compile(call, mode="max-autotune-no-cudagraphs", dynamic=False)
    return made


def columns(row: Row, folder: Path, gpu: Gpu, given: Sequence[Tensor]) -> Iterator[tuple[str, Call]]:
    """The calls of a row by column."""
    eager = EVERY[row.benchmark]
    yield TORCH, lambda: eager(*given)
    ours = gpu.load(folder / row.key / OURS)
    yield OURS, lambda: ours(*given)
    template = gpu.load(folder / row.key / TEMPLATE)
    yield TEMPLATE, lambda: template(*given)
    if row.benchmark in PRODUCTS:
        yield PRODUCT, lambda: PRODUCTS[row.benchmark](*given)
    fast = compiled(eager)
    yield COMPILED, lambda: fast(*given)


def error(found: Tensor | Sequence[Tensor], exact: Tensor) -> float:
    """Relative to float64; several results are one behind the other."""
    found = found if isinstance(found, Tensor) else torch.stack(list(found))
    return float(rel_error(found.double().cpu(), exact.cpu()).total)


def measured(row: Row, folder: Path, gpu: Gpu) -> dict[str, Any]:
    """All samples of a row's columns, with errors against float64; what cannot run says why."""
    given = inputs(row, gpu.device)
    exact = EVERY[row.benchmark](*(x.double() for x in given))
    found: dict[str, Any] = {"key": row.key, "errors": {}, "failed": {}, "us": {}}
    graphs: dict[str, Call] = {}
    for name, call in columns(row, folder, gpu, given):
        try:
            if name != PRODUCT:
                found["errors"][name] = error(call(), exact)
            graphs[name] = gpu.graph(call)
        except Exception as failure:
            found["failed"][name] = f"{type(failure).__name__}: {str(failure)[:300]}"
    wrong = [n for n in (OURS, TEMPLATE) if found["errors"].get(n, 0) > MOST_ERROR * found["errors"].get(TORCH, 1)]
    found["wrong"] = wrong
    if OURS in graphs:
        found["values"], tuned = fastest(row, gpu, gpu.load(folder / row.key / OURS), given, graphs[OURS])
        graphs[TUNED] = tuned
    names = list(graphs)
    found["us"] = {n: [] for n in names}
    for k in range(ROUNDS):
        for n in (*names[k % len(names) :], *names[: k % len(names)]):
            found["us"][n] += gpu.times(graphs[n], SAMPLES)
    return found


def fastest(row: Row, gpu: Gpu, kernel: neptune.Kernel, given: Sequence[Tensor], default: Call) -> tuple[Any, Call]:
    """The fastest of the values that are worth a trial, those of the kernel among them."""
    best, values, chosen = median(gpu.times(default, TRIALS)), dict(kernel.params), default
    for params in row.values:
        try:
            other = kernel.with_params(params)
            graph = gpu.graph(lambda other=other: other(*given))  # type: ignore[misc]
        except Exception as failure:
            print(f"  {dict(params)}: {type(failure).__name__}", file=sys.stderr)
            continue
        us = median(gpu.times(graph, TRIALS))
        if us < best:
            best, values, chosen = us, dict(params), graph
    return values, chosen


# --- the run ---------------------------------------------------------------------------------------


def run(folder: Path, file: Path | None, seconds: float, gpu: Gpu | None) -> int:
    """Measure every row that the file has not; without a GPU (a dry run) look at what would be measured."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    done = {r["key"]: r for r in kept.get("rows", [])}
    begin = time.monotonic()
    todo = [r for r in rows_of(folder) if r.key not in done]
    for row in todo:
        if gpu is None:
            print(f"{row.key}: {looked_at(row, folder)}")
            continue
        if time.monotonic() - begin > seconds:
            print(f"{row.key}: not measured, the time is over")
            continue
        done[row.key] = measured(row, folder, gpu)
        print(line(done[row.key]), flush=True)
        if file is not None:
            content = {"environment": environment(), "unit": "us", "rows": list(done.values())}
            file.write_text(record.as_json(content))
    print("\n".join(summary(list(done.values()))))
    return 0


def looked_at(row: Row, folder: Path) -> str:
    """What a dry run says of a row: its kernels load, and give what eager torch gives for these shapes."""
    given = [torch.empty(s, dtype=getattr(torch, row.dtype), device="meta") for s in row.shapes]
    shape = EVERY[row.benchmark](*given).shape
    texts = []
    for name in (OURS, TEMPLATE):
        kernel = neptune.load(folder / row.key / name, "interpret")
        ((made, _),) = kernel.executable.signature.shapes({})
        if made != tuple(shape):
            raise SystemExit(f"{row.key}: {name} gives {made}, and torch {tuple(shape)}")
        texts.append(f"{name} {len(kernel.facts.kernels)} kernels")
    return f"{', '.join(texts)}, {len(row.values)} values to try"


def line(found: Mapping[str, Any]) -> str:
    """A row for people: medians by column, and what failed or is wrong."""
    cells = [f"{n} {median(us):.1f}" for n, us in found["us"].items()]
    cells += [f"{n}: {why}" for n, why in found["failed"].items()] + [f"{n} IS WRONG" for n in found["wrong"]]
    return f"{found['key']:<24} {' | '.join(cells)}"


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Geometric means of how much faster we are than others, and every loss."""
    for mine in (OURS, TUNED):
        for other in AGAINST:
            both = [r for r in rows if mine in r["us"] and other in r["us"]]
            ratios = {r["key"]: median(r["us"][other]) / median(r["us"][mine]) for r in both}
            if not ratios:
                continue
            mean = exp(sum(map(log, ratios.values())) / len(ratios))
            yield f"{mine} against {other}: {mean:.2f}x over {len(ratios)} rows"
            yield from (f"  loss: {key} {ratio:.2f}x" for key, ratio in ratios.items() if ratio < 1.0)


# --- what is saved -----------------------------------------------------------------------------------


def save_all(
    folder: Path, names: Sequence[str], batches: Sequence[int], dtypes: Sequence[str], target: str, budget: str
) -> int:
    """Search, compile and save every row that the folder does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(n, b, d) for d in dtypes for n in names if n in EAGER for b in batches]
    for name, batch, dtype in [*rows, *((n, 1, "float16") for n in names if n in WILD)]:
        have = {r.key for r in rows_of(folder)} if (folder / MANIFEST).exists() else set()
        begin = time.monotonic()
        if Row(name, batch, dtype, ()).key not in have:
            said = save_row(folder, name, batch, dtype, target, budget)
            print(f"{name} b={batch} {dtype}: {said} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
    return 0


def save_row(folder: Path, name: str, batch: int, dtype: str, target: str, budget: str) -> str:
    """Save one row: the graph's kernel and the template's, with values worth a trial; what was found, for people."""
    # What measures loads nothing that compiles: `bench.default` takes first calls with it.
    from bench.mirage_programs import BENCHMARKS
    from bench.mirage_wild import WILD as PROGRAMS
    from neptune.driver.device import machine_for
    from neptune.ir.integers import evaluate_size
    from neptune.runtime.launching.launch import parse_target
    from neptune.tune.rank import ranked

    asked: dict[str, Any] = {}
    if name in PROGRAMS:
        wild = PROGRAMS[name]
        program, sizes = wild.build(), wild.sizes
        asked = {"max_block_ops": wild.operators, "max_kernels": wild.kernels}
    else:
        program, sizes = BENCHMARKS[name].program(dtype, **BENCHMARKS[name].sizes(batch)), {}
    template = neptune.compile(program, target=target, shapes=sizes)
    ours = neptune.superoptimize(program, target=target, budget=budget, shapes=sizes, **asked)
    shapes = tuple(tuple(evaluate_size(d, sizes) for d in b.shape) for b in template.program.inputs)
    values = tuple(dict(r.params) for r in ranked(ours.build.tiles, sizes, machine_for(parse_target(target)))[:VALUES])
    save(folder, Row(name, batch, dtype, shapes, values), ours, template)
    said = ours.explain(json=True)["search"]
    return f"{said['why']}; {(said['found'] or {}).get('us')} µs, {said['template']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Save kernels here, or measure them where a GPU is."""
    warnings.simplefilter("ignore")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.mirage_speed", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(EVERY), default=list(EAGER), metavar="NAME")
    parser.add_argument("--save", type=Path, metavar="DIR", help="search, compile and save; no GPU is needed")
    parser.add_argument("--run", type=Path, metavar="DIR", help="measure what was saved")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--target", default="cuda:90", help="what is compiled for")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where samples go, and what is done already")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so long")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing")
    options = parser.parse_args(argv)
    if (options.save is None) == (options.run is None):
        parser.error("one of --save DIR and --run DIR")
    if options.run is not None:
        return run(options.run, options.json, options.seconds, None if options.dry_run else Gpu())
    return save_all(options.save, options.only, options.batches, options.dtypes, options.target, options.budget)


if __name__ == "__main__":
    sys.exit(main())
