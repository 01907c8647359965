"""The rows of `bench.chains` as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.chain_errors import FAMILIES

Row = Mapping[str, Any]
Columns = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows of cells."""
SHORT = {"cuda:80": "sm_80", "cuda:90": "sm_90", "hip:gfx942": "gfx942"}
INTRO = """# Chains of reductions

What the template that fuses most makes of each chain of reductions, in attention and beyond. No template and no line
of the compiler is there for any one of them: a chain is an expression, that of a shipped [operator](operators.md)
([rows](../bench/chain_programs.py), [attention](../bench/chain_attention.py)), and its repairs are solved and proved.
Those whose names end in `_split` are scheduled by `flash_decoding`, which splits the fused axis into parts.

```
python -m bench.chains --resources --json bench/results/chains.json       # everything below; no GPU needed
python -m bench.chains --only rms_norm_linear layer_norm --no-errors       # a part of it
python -m bench.chains --targets cuda --json chains-gpu.json               # errors on a GPU; no TVM needed
python -m bench.chains --json bench/results/chains.json --page docs/chains.md   # this page
```
"""
WHAT = {
    "facts": """\
What is made: kernels, loops over tiles, how often each input is read, temporaries in global memory.""",
    "repairs": """\
What waits until its loop is over (*deferred*), and what is carried along in it and corrected whenever what it depends
on changes (*rolled*), by which h: t is what has been folded, r and r' what it depends on before and after, δ by how
much a running mean moves. The proof of each is in `kernel.explain()`.""",
    "refusals": "Templates that were refused, and why.",
    "errors": """\
Errors against float64 by kind of inputs, the larger of that of the whole result and of its worst row, as a share of
what is allowed: 1.1 (float16) or 10 (float32) times the error of the unfused expression, or one unit in the last place.
Above 1 a kernel fails. *error* and *unfused* are those of the worst row, where the share is largest. An H100 gives the
same four above the limit and no others, at most 2.01 (`bench/results/h100-chains.json`).""",
    "resources": """\
Registers of a thread (r), spilled bytes (sp), bytes of shared memory (sh) and matrix unit of each kernel, with default
tiles and a depth of 64 (128 for the ten operators of the paper). Products of float32 have no matrix unit on sm_80 and
sm_90: TF32 would round their operands.""",
}


REMARKS = {
    "errors": """\
Above the limit are these: for one kind of inputs each, and the tests of `tests/numerics`, with more rows, find none. In
float32 the likely cause is that an exponential is 2^(x·log₂ e) on a GPU and in the interpreter, with one more rounding
than the CPU's; in float16 it is the worst row alone, in which the rounding of single weights shows.""",
    "resources": "What spills with default tiles:",
}


def parts(rows: Sequence[Row]) -> Iterator[tuple[str, Columns]]:
    """The name and the cells of each table that there is something in."""
    whole = [r for r in rows if "outcome" in r]
    for name, make in (
        ("facts", _facts),
        ("repairs", _repairs),
        ("refusals", _refusals),
        ("errors", _errors),
        ("resources", _resources),
    ):
        heads, cells = make(rows if name == "refusals" else whole)
        if cells:
            yield name, (heads, cells)


def page(content: Mapping[str, Any]) -> str:
    """A page in Markdown of a file of results."""
    lines = [INTRO]
    for name, (heads, cells) in parts(content["rows"]):
        lines += [f"## {name.capitalize()}", "", WHAT[name], ""]
        lines += [line(heads), "|---" * len(heads) + "|", *map(line, cells), "", *_remark(name, content["rows"])]
    e = content["environment"]
    versions = ", ".join(f"{n} {e[n]}" for n in ("torch", "triton", "apache-tvm", "numpy", "sympy") if e.get(n))
    return "\n".join([*lines, f"Made with {versions}, Python {e['python']}.", ""])


def _remark(name: str, rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, from the rows themselves."""
    found: list[str] = []
    if name == "errors":
        above = [(r["chain"], f, s) for r in rows for f, s in r["errors"]["families"].items() if s["of limit"] > 1]
        found = [
            f"- {chain}, {family} ({s['target']}): {s['error total']:.2e} in all where the unfused expression has "
            f"{s['unfused total']:.2e}, {s['error row']:.2e} in the worst row where it has {s['unfused row']:.2e}"
            for chain, family, s in above
        ]
    if name == "resources":
        spilled = [(r["chain"], t, k) for r in rows for t, of in r["resources"]["targets"].items() for k in of]
        found = [f"- {c}: {k['spill_bytes']} bytes on {SHORT.get(t, t)}" for c, t, k in spilled if k["spill_bytes"]]
    return [f"{REMARKS[name]}", "", *found, ""] if found else []


def line(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(x.replace("|", r"\|") for x in cells) + " |"


# --- cells -----------------------------------------------------------------------------------------


def _facts(rows: Sequence[Row]) -> Columns:
    cells: list[tuple[str, ...]] = []
    for r in rows:
        o = r["outcome"]
        reads = " ".join(f"{n}:{times}" for n, times in o["traversals"].items())
        counts = (str(len(o["kernels"])), str(o["loops"]))
        cells.append((r["chain"], o["template"], *counts, reads, " ".join(o["temporaries"]) or "-"))
    return ("chain", "template", "kernels", "loops", "reads", "temporaries"), cells


def _repairs(rows: Sequence[Row]) -> Columns:
    found = [(r["chain"], stage, how) for r in rows for stage, how in r["outcome"]["repairs"].items()]
    split = [(chain, f"`{stage}`", *how.split(": ", 1)) for chain, stage, how in found]
    return ("chain", "stage", "is", "by"), [(c, s, verdict, f"`{how}`") for c, s, verdict, how in split]


def _refusals(rows: Sequence[Row]) -> Columns:
    cells: list[tuple[str, ...]] = [(r["chain"], "all", r["refused"].splitlines()[0]) for r in rows if "refused" in r]
    cells += [(r["chain"], n, why) for r in rows for n, why in r.get("outcome", {}).get("refused", {}).items()]
    return ("chain", "template", "because"), cells


def _errors(rows: Sequence[Row]) -> Columns:
    cells: list[tuple[str, ...]] = []
    for r in (r for r in rows if "errors" in r):
        shares = r["errors"]["families"]
        worst = max(shares.values(), key=lambda s: s["of limit"])
        numbers = (f"{worst['error row']:.1e}", f"{worst['unfused row']:.1e}")
        cells.append(
            (r["chain"], *(f"{shares[f]['of limit']:.2f}" if f in shares else "-" for f in FAMILIES), *numbers)
        )
    return ("chain", *FAMILIES, "error", "unfused"), cells


def _resources(rows: Sequence[Row]) -> Columns:
    rows = [r for r in rows if "resources" in r]
    targets = list(dict.fromkeys(t for r in rows for t in r["resources"]["targets"]))
    cells: list[tuple[str, ...]] = []
    for r in rows:
        p, found = r["resources"]["params"], r["resources"]["targets"]
        tiles = "×".join(str(v) for n, v in p.items() if n not in ("num_warps", "num_stages", "NUM_SPLITS"))
        cells.append((r["chain"], f"{tiles} w{p['num_warps']}", *(needs(found.get(t)) for t in targets)))
    return ("chain", "tile", *(SHORT.get(t, t) for t in targets)), cells


def needs(resources: Any) -> str:
    """The resources of kernels in a cell."""
    if not isinstance(resources, list):
        return str(resources or "-")
    each = (
        f"{r['registers']} r, {r['spill_bytes']} sp, {r['shared_bytes']} sh, {r['matrix'] or '-'}" for r in resources
    )
    return "; ".join(each)
