"""Chains of reductions by the template that fuses most: what is fused and how, how exact it is, what it needs of a GPU.

    python -m bench.chains [--resources] [--json chains.json] [--only rms_norm_linear …]
                           [--targets llvm interpret cuda] [--no-errors] [--page docs/chains.md]

Four tables: the facts of each chain (template, kernels, loops, how often each input is read, global temporaries);
which factors were deferred or rolled, by which repair, and what other templates were refused; errors against float64
over families of hostile inputs as shares of what is allowed (`bench.chain_errors`); with `--resources`, registers,
spilled bytes, shared bytes and the matrix unit of every kernel with default tiles, for sm_80, sm_90 and gfx942, no GPU
needed. `--only` runs part of it; what is not made anew stays in a `--json` file. On a machine with a GPU and
without TVM, `--targets cuda` measures the errors there. `--page` writes the file as a page. The exit status is 1 where
an error is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import neptune
from bench import record
from bench.cases import environment
from bench.chain_attention import ATTENTION, OPERATOR_CHAINS
from bench.chain_errors import COLS, FAMILIES, ROWS, Sample, kind, samples, unfused
from bench.chain_programs import ROW_CHAINS, Chain
from bench.chain_tables import page
from neptune.errors import NeptuneError
from neptune.tune.choose import lowered, named
from neptune.tune.defaults import fits
from neptune.tune.model.facts import read_facts

TARGETS = ("llvm", "interpret", "cuda")
CHAINS = (*ROW_CHAINS, *ATTENTION, *OPERATOR_CHAINS)
DEPTH, TILE, PARTS = 16, 16, 3
"""Of the kernels that errors are measured of."""
OFFLINE = ("cuda:80", "cuda:90", "hip:gfx942")
REPAIRS = ("rolling_update", "split_k", "privatize")
"""The decisions in which a repair is made."""
HOW = re.compile(r"h\d* = |deferred: ")
"""The details of a decision that say what the repair is."""


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


def outcome(kernel: neptune.Kernel, refused: dict[str, str] | None = None) -> Outcome:
    """The facts and decisions of a compiled chain; `refused` are the templates that do not apply."""
    e, facts = kernel.explain(json=True), kernel.facts
    repairs = {}
    for d in e["decisions"]:
        if d["kind"] in REPAIRS and d["verdict"] != "fused":
            how = [x for x in d["details"] if HOW.match(x)]
            repairs[d["subject"]] = f"{d['verdict']}: {'; '.join(how)}"
    return Outcome(
        e["template"],
        tuple(k.name for k in facts.kernels),
        sum(len(k.loops) for k in facts.kernels),
        facts.temporaries,
        e["traversals"],
        repairs,
        refused or {},
        {name: c["verdict"] for name, c in e["checks"].items()},
    )


def fusing(program: neptune.Program) -> str:
    """The first template that makes one kernel without temporaries whose tiles fit in registers, else the one with
    the fewest: what a launch takes is decided by times instead."""
    return choice(program)[0]


def choice(program: neptune.Program) -> tuple[str, dict[str, str]]:
    """`fusing`, with the templates before it that do not apply or whose tiles are too large."""
    found: list[tuple[tuple[bool, int, int], str]] = []
    refused: dict[str, str] = {}
    for name in ("flash_attention", "softmax_online", "softmax_row", "stagewise"):
        try:
            tiles = lowered(name, program, strict=name != "stagewise").tiles
        except NeptuneError as error:
            refused[name] = " ".join(x.strip() for x in str(error).splitlines()[:2])
            continue
        facts = read_facts(tiles)
        found.append(((not fits(tiles), len(facts.temporaries), len(facts.kernels)), name))
        if found[-1][0] == (False, 0, 1):
            break
        if found[-1][0][0]:
            refused[name] = "they do not fit in registers"
    return min(found, key=lambda x: x[0])[1], refused


def compiled(program: neptune.Program, template: str | None = None) -> neptune.Kernel:
    """By a template, or the one that fuses most, with tiles so small that every loop has a first, a clean and a last
    one, and an axis that is split several parts."""
    template = fusing(program) if template is None else template
    schedule = neptune.Schedule(program)
    named(template)[1](schedule)
    small = {t.name: TILE for t in schedule.program.tunables if t.covers is None}
    small |= {s.name: PARTS for s in schedule.program.scalars if s.upto is not None}
    return neptune.compile(program, template, target="interpret", params=small)


# --- all of one chain ------------------------------------------------------------------------------


def measure(
    chain: Chain, targets: Sequence[str], offline: Sequence[str] = (), depth: int | None = None
) -> dict[str, Any]:
    """The row of a chain; `{"refused": reason}` where no template takes it.

    Errors are those of the same template with small tiles; without targets none are measured."""
    row: dict[str, Any] = {"chain": chain.name, "group": chain.group}
    try:
        program = chain.build(depth or chain.depth)
        template, refused = (chain.template, {}) if chain.template else choice(program)
        whole = neptune.compile(program, template, target="interpret")
    except NeptuneError as error:
        return {**row, "refused": str(error)}
    made = outcome(whole, refused)
    row["outcome"] = asdict(made)
    if targets:
        program = chain.build(DEPTH)
        small = compiled(program, made.template)
        by, plainly = unfused(program, ROWS, COLS)
        found = list(samples(chain, program, {t: small.for_target(t) for t in targets}, plainly=plainly))
        row["errors"] = {"rows": ROWS, "cols": COLS, "targets": [*targets], "unfused by": by, **_errors(found)}
    if offline:
        found_there = {t: resources(whole, t) for t in offline}
        row["resources"] = {"depth": depth or chain.depth, "params": whole.params, "targets": found_there}
    return row


def _errors(found: Sequence[Sample]) -> dict[str, Any]:
    """The worst sample, and that of each kind of inputs."""
    worst = {
        f: max(of, key=lambda s: s.of_limit) for f in FAMILIES if (of := [s for s in found if kind(s.family) == f])
    }
    return {
        "samples": len(found),
        "of limit": max((s.of_limit for s in found), default=0.0),
        "families": {
            f: {"of limit": s.of_limit, "target": s.target, "family": s.family} | _numbers(s) for f, s in worst.items()
        },
    }


def _numbers(s: Sample) -> dict[str, float]:
    """Errors of the whole tensor and of its worst row, beside those of the unfused expression."""
    return {
        f"{whose} {of}": float(e) for whose in ("error", "unfused") for of, e in getattr(s, whose)._asdict().items()
    }


def resources(kernel: neptune.Kernel, target: str) -> Any:
    try:
        return [asdict(r) for r in kernel.resources(target)]
    except NeptuneError as error:
        return str(error).splitlines()[0]


def present_targets() -> list[str]:
    """What can run here: the CPU where TVM is installed, the interpreter, the GPU where there is one."""
    there = {"llvm": environment()["apache-tvm"] is not None, "interpret": True}
    there["cuda"] = torch.cuda.is_available() and not torch.version.hip
    return [t for t in TARGETS if there[t]]


# --- the command -----------------------------------------------------------------------------------


def kept(file: Path | None) -> dict[str, dict[str, Any]]:
    """The rows of a file of results by chain."""
    rows = json.loads(file.read_text())["rows"] if file is not None and file.exists() else []
    return {r["chain"]: r for r in rows}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A row with the parts of it that were made anew."""
    return new if "refused" in {**old, **new} else {**old, **new}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.chains", description=(__doc__ or "").splitlines()[0])
    names = [c.name for c in CHAINS]
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the environment and all rows, as they are made"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the rows of --json as a page, and do no more")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="by default all")
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, help="that errors are of; by default all that are here"
    )
    parser.add_argument("--no-errors", action="store_true", help="facts, and resources if asked for")
    parser.add_argument("--resources", nargs="*", metavar="TARGET", help=f"compile for these, by default {OFFLINE}")
    parser.add_argument("--depth", type=int, help="of the products that resources are asked for; by default 64, or 128")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    # What a check rejects is a failure here.
    os.environ.setdefault("NEPTUNE_STRICT", "1")
    options = _parser().parse_args(argv)
    if options.page:
        options.page.write_text(page(json.loads(options.json.read_text())))
        return 0
    offline = () if options.resources is None else tuple(options.resources) or OFFLINE
    targets = [] if options.no_errors else options.targets or present_targets()
    rows = kept(options.json)
    made = []
    for chain in (c for c in CHAINS if c.name in options.only):
        row = measure(chain, targets, offline, options.depth)
        made.append(row)
        rows[chain.name] = merged(rows.get(chain.name, {}), row)
        said = (
            f"{row['outcome']['template']}, {row.get('errors', {}).get('of limit')}"
            if "outcome" in row
            else row["refused"]
        )
        print(f"{chain.name}: {said}", flush=True)
        if options.json:
            content = {"environment": environment(), "rows": [rows[c.name] for c in CHAINS if c.name in rows]}
            options.json.write_text(record.as_json(content))
    failed = sum(row.get("errors", {}).get("of limit", 0.0) > 1 for row in made)
    print(f"{len(made)} chains, {sum('refused' in r for r in made)} refused, {failed} above the limit")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
