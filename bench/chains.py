"""Chains of reductions by the automatic choice: what is fused and how, how exact it is, what it needs of a GPU.

    python -m bench.chains [--json chains.json] [--chains rms_norm_linear …] [--targets llvm interpret cuda]
                           [--resources cuda:80 cuda:90 hip:gfx942] [--depth 64]

Two tables. The first says what became of each chain: the template that was chosen, kernels, loops, how often each
input is read, global temporaries, and what was deferred, rolled or refused. The second gives errors against float64
over families of hostile inputs beside those of the unfused expression (criterion of `bench.numerics`: *of limit* is
the largest error as a share of what is allowed), and, with `--resources`, registers, spilled bytes, shared bytes and
the matrix unit of every kernel. The exit status is 1 where an error is above its limit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import neptune
from bench.cases import environment, errors, poisoned, worse
from bench.chain_attention import ATTENTION, OPERATOR_CHAINS
from bench.chain_programs import ROW_CHAINS, Chain
from bench.numerics import TARGETS, present_targets
from neptune.choose import automatic
from neptune.codegen.llvm import compile_llvm, evaluate_size
from neptune.errors import NeptuneError
from neptune.runtime.launch import parse_target
from neptune.verify.numerics import Errors, Tensors, allowance, input_families

CHAINS = (*ROW_CHAINS, *ATTENTION, *OPERATOR_CHAINS)
DEPTH, ROWS, COLS, TILE = 16, 19, 53, 16
OFFLINE = ("cuda:80", "cuda:90", "hip:gfx942")
NO_REPAIR = ("template", "partition", "compute_at", "lowering")
HOW = re.compile(r"h\d* = |deferred: ")
"""The details of a decision that say what the repair is."""
EXACT = Errors(0.0, 0.0)


@dataclass(frozen=True)
class Outcome:
    """What became of a chain. `repairs`: stage → verdict and formula; `refused`: template → reason;
    `traversals`: input → how often a program reads it."""

    template: str
    kernels: tuple[str, ...]
    loops: int
    temporaries: tuple[str, ...]
    traversals: dict[str, Any]
    repairs: dict[str, str]
    refused: dict[str, str]
    checks: dict[str, str]


@dataclass(frozen=True)
class Sample:
    """The errors of one kernel on one family of inputs, beside those of the unfused expression; worst of outputs."""

    target: str
    family: str
    error: Errors
    unfused: Errors
    of_limit: float


def outcome(kernel: neptune.Kernel) -> Outcome:
    """The facts and decisions of a compiled chain."""
    e, facts = kernel.explain(json=True), kernel.facts
    repairs, refused = {}, {}
    for d in e["decisions"]:
        if d["kind"] == "template" and d["verdict"] == "does not apply":
            refused[d["subject"]] = " ".join(x.strip() for x in d["reason"].splitlines()[:2])
        elif d["kind"] not in NO_REPAIR and d["verdict"] != "fused":
            how = [x for x in d["details"] if HOW.match(x)]
            repairs[d["subject"]] = f"{d['verdict']}: {'; '.join(how)}"
    return Outcome(
        e["template"],
        tuple(k.name for k in facts.kernels),
        sum(len(k.loops) for k in facts.kernels),
        facts.temporaries,
        e["traversals"],
        repairs,
        refused,
        {name: c["verdict"] for name, c in e["checks"].items()},
    )


def compiled(program: neptune.Program) -> neptune.Kernel:
    """The automatic choice with tiles so small that every loop has a first, a clean and a last one."""
    _, schedule, _ = automatic(program)
    small = {t.name: TILE for t in schedule.program.tunables if t.covers is None}
    return neptune.compile(program, target="interpret", params=small)


# --- numerics --------------------------------------------------------------------------------------


def families(chain: Chain, program: neptune.Program, rows: int, cols: int) -> Iterator[tuple[str, Tensors]]:
    """Inputs by name, in float64: hostile rows and hostile columns."""
    sizes = {"rows": rows, "cols": cols, "s_q": rows, "s_kv": cols, "batch": 1, "heads": 2}
    shapes = {b.name: tuple(evaluate_size(d, sizes) for d in b.shape) for b in program.inputs}
    rng = np.random.default_rng(0)
    whole = {b.name: b.dtype for b in program.inputs if b.dtype.startswith("int")}
    drawn: Tensors = {}
    for name, dtype in whole.items():
        drawn[name] = rng.integers(-127, 128, shapes[name]) if dtype == "int8" else rng.integers(0, cols, shapes[name])
    floats = {n: s for n, s in shapes.items() if n not in whole}
    if chain.group in ("norm", "sums"):
        # Where squares cancel: a spread of one about a mean of thousands.
        far = {n: rng.standard_normal(s) + (3000.0 if s[0] == rows else 0.0) for n, s in floats.items()}
        yield "far from zero", {**far, **drawn, **{n: far[n] - 2990.0 for n in chain.positive}}
    for axis in (-1, -2):
        for name, arrays in input_families(floats, axis=axis):
            if axis == -2 and not name.startswith(("needle", "zero")):
                continue
            positive = {n: np.abs(arrays[n]) + 0.5 for n in chain.positive}
            yield f"{name} of {'columns' if axis == -1 else 'rows'}", {**arrays, **drawn, **positive}


def samples(
    chain: Chain,
    program: neptune.Program,
    kernels: Mapping[str, Callable[..., Any]],
    rows: int = ROWS,
    cols: int = COLS,
    wanted: Callable[[str], bool] = lambda family: True,
) -> Iterator[Sample]:
    """The errors of kernels by target over the families of inputs."""
    unfused = compile_llvm(program)
    for family, arrays in families(chain, program, rows, cols):
        if not wanted(family):
            continue
        inputs = [torch.from_numpy(np.array(arrays[b.name])).to(getattr(torch, b.dtype)) for b in program.inputs]
        given = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in inputs]
        with np.errstate(all="ignore"):
            exact = [torch.from_numpy(np.array(x, np.float64)) for x in chain.reference(*given)]
        plain = poisoned_like(program, exact)
        unfused(inputs, plain)
        base = _errors(chain, given, plain, exact)
        for target, kernel in kernels.items():
            device = parse_target(target).device
            outs = poisoned_like(program, exact, device)
            kernel(*(x.to(device) for x in inputs), out=outs[0] if len(outs) == 1 else tuple(outs))
            found = _errors(chain, given, [x.cpu() for x in outs], exact)
            dtypes = [b.dtype if b.dtype.startswith(("float", "bfloat")) else "float32" for b in program.outputs]
            shares = [
                e / allowance(dtype, u)
                for dtype, mine, other in zip(dtypes, found, base, strict=True)
                for e, u in zip(mine, other, strict=True)
                if np.isfinite(u)  # else the expression itself overflows
            ]
            yield Sample(target, family, _worst(found), _worst(base), max(shares, default=0.0))


def poisoned_like(program: neptune.Program, exact: list[torch.Tensor], device: str = "cpu") -> list[torch.Tensor]:
    """Outputs that no result looks like."""
    if all(b.dtype.startswith(("float", "bfloat")) for b in program.outputs):
        return poisoned(program, tuple(exact), device)
    return [
        torch.full(t.shape, float("nan") if b.dtype.startswith("float") else 0, dtype=getattr(torch, b.dtype))
        for t, b in zip(exact, program.outputs, strict=True)
    ]


def _errors(chain: Chain, given: list[Any], outs: list[torch.Tensor], exact: list[torch.Tensor]) -> list[Errors]:
    if chain.settle is not None:
        outs = [torch.from_numpy(np.asarray(x)) for x in chain.settle(*given, *(o.numpy() for o in outs))]
    return [errors(o, x) for o, x in zip(outs, exact, strict=True)]


def _worst(found: list[Errors]) -> Errors:
    result = EXACT
    for e in found:
        result = worse(result, e)
    return result


# --- all of one chain ------------------------------------------------------------------------------


def measure(chain: Chain, targets: Sequence[str], offline: Sequence[str] = (), depth: int = DEPTH) -> dict[str, Any]:
    """The row of a chain; `{"refused": reason}` where no template takes it."""
    program = chain.build(DEPTH)
    row: dict[str, Any] = {"chain": chain.name, "group": chain.group}
    try:
        kernel = compiled(program)
    except NeptuneError as error:
        return {**row, "refused": str(error)}
    found = list(samples(chain, program, {t: kernel.for_target(t) for t in targets}))
    row |= {"outcome": asdict(outcome(kernel)), "samples": [asdict(s) for s in found]}
    row["of limit"] = max((s.of_limit for s in found), default=0.0)
    if offline:
        deep = neptune.compile(chain.build(depth), target="interpret")
        row["resources"] = {t: _resources(deep, t) for t in offline}
    return row


def _resources(kernel: neptune.Kernel, target: str) -> Any:
    try:
        return [asdict(r) for r in kernel.resources(target)]
    except NeptuneError as error:
        return str(error).splitlines()[0]


# --- output ----------------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]], offline: Sequence[str]) -> Iterator[Table]:
    facts, figures = Table(title="what was made", box=None), Table(title="how well", box=None)
    for name in ("chain", "template", "kernels", "loops", "passes", "temporaries", "repairs", "refused elsewhere"):
        facts.add_column(name, overflow="fold")
    for name in ("chain", "error", "unfused", "of limit", "worst family", *offline):
        figures.add_column(name, overflow="fold")
    for row in rows:
        if "refused" in row:
            facts.add_row(row["chain"], "refused", *[""] * 5, row["refused"].splitlines()[0])
            continue
        o = row["outcome"]
        passes = " ".join(f"{n}:{t}" for n, t in o["traversals"].items())
        repairs = "\n".join(f"{stage} {how}" for stage, how in o["repairs"].items())
        refused = "\n".join(f"{name}: {why}" for name, why in o["refused"].items())
        shape = (str(len(o["kernels"])), str(o["loops"]), passes, " ".join(o["temporaries"]) or "-")
        facts.add_row(row["chain"], o["template"], *shape, repairs or "-", refused or "-")
        worst = max(row["samples"], key=lambda s: s["of_limit"])
        numbers = [
            f"{worst[kind]['total' if isinstance(worst[kind], dict) else 0]:.1e}" for kind in ("error", "unfused")
        ]
        needs = [_needs(row.get("resources", {}).get(t)) for t in offline]
        figures.add_row(row["chain"], *numbers, f"{worst['of_limit']:.2f}", worst["family"], *needs)
    yield from (facts, figures)


def _needs(resources: Any) -> str:
    if not isinstance(resources, list):
        return str(resources or "-")
    return "\n".join(
        f"{r['registers']} r {r['spill_bytes']} sp {r['shared_bytes']} sh {r['matrix'] or '-'}" for r in resources
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chains", description=(__doc__ or "").splitlines()[0])
    names = [c.name for c in CHAINS]
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and all rows")
    parser.add_argument("--chains", nargs="+", choices=names, default=names, metavar="NAME", help="by default all")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, help="by default all that are here")
    parser.add_argument("--resources", nargs="*", metavar="TARGET", help=f"compile for these, by default {OFFLINE}")
    parser.add_argument("--depth", type=int, default=64, help="of the products that resources are asked for")
    options = parser.parse_args(argv)
    offline = () if options.resources is None else tuple(options.resources) or OFFLINE
    rows = []
    for chain in (c for c in CHAINS if c.name in options.chains):
        rows.append(measure(chain, options.targets or present_targets(), offline, options.depth))
        print(f"{chain.name}: {rows[-1].get('of limit', 'refused')}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    for table in tables(rows, offline):
        Console(width=None if sys.stdout.isatty() else 220).print(table)
    failed = sum(row.get("of limit", 0.0) > 1 for row in rows)
    print(f"{len(rows)} chains, {sum('refused' in r for r in rows)} refused, {failed} above the limit")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
