"""The rows of `bench.operators` as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.chain_tables import SHORT, line, needs
from neptune.ops.shipped import OPERATORS

Row = Mapping[str, Any]
INTRO = """# Shipped operators: facts

What a plain `neptune.compile` makes of each shipped operator, with nothing given: see [operators](operators.md) for
what they are. `neptune ops` lists them with their inputs.

```
python -m bench.operators --resources --json bench/results/operators.json   # everything below; no GPU needed
python -m bench.operators --only rms_norm --no-errors                        # a part of it
python -m bench.operators --json bench/results/operators.json --page docs/operators_table.md   # this page
```
"""
FACTS = """*lines*: of the function that writes the expression, helpers apart. *reads*: how often each input is read.
*dots*: products of tiles in the source. The dtype is the operator's default, and the template the one at the model's
reference sizes on an H200."""
ERRORS = """The largest relative error against float64, beside plain torch's on the same inputs in the same dtype:
numbers of one size, large ones, all magnitudes, needles, zeros, and -inf where it may stand. *of limit* is the worst
share of what docs/design/numerics.md allows; above 1 fails."""
RESOURCES = (
    "Registers (r), spilled bytes (sp), shared bytes (sh) and the matrix unit of each kernel, with default tiles."
)


def page(rows: Sequence[Row], environment: Mapping[str, Any]) -> str:
    """A page in Markdown of the rows of a file of results."""
    text = [INTRO]
    for name, said, cells in (("Facts", FACTS, _facts(rows)), ("Errors", ERRORS, _errors(rows))):
        text += [f"## {name}", "", said, "", *_table(cells), "", *_missing(name, rows)]
    if any("resources" in r.get("facts", {}) for r in rows):
        text += ["## Resources", "", RESOURCES, "", *_table(_resources(rows)), ""]
    versions = ", ".join(
        f"{n} {environment[n]}" for n in ("torch", "triton", "apache-tvm", "numpy") if environment.get(n)
    )
    return "\n".join([*text, f"Made with {versions}, Python {environment['python']}.", ""])


def _missing(part: str, rows: Sequence[Row]) -> list[str]:
    """What the file of results does not hold, so that an absent row is no silence."""
    made = {r["operator"] for r in rows if r.get(part.lower())}
    names = [f"`{n}`" for n in OPERATORS if n not in made]
    return [f"Not measured in this file: {', '.join(names)}.", ""] if names else []


def _table(cells: Sequence[tuple[str, ...]]) -> list[str]:
    head, *body = map(line, cells)
    return [head, "|---" * len(cells[0]) + "|", *body]


def _facts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = [
        ("operator", "lines", "template", "kernels", "reads", "temporaries", "dots", "repaired", "warnings")
    ]
    for r in rows:
        f = r.get("facts", {})
        if "template" not in f:
            cells.append((r["operator"], str(r["lines"]), r.get("refused", "-").splitlines()[0], *"------"))
            continue
        reads = " ".join(f"{n}:{t}" for n, t in f["traversals"].items())
        repaired = " ".join(f"{s} ({how.split(':')[0]})" for s, how in f["repairs"].items())
        made = (f["template"], str(len(f["kernels"])), reads, " ".join(f["temporaries"]) or "-", str(f["dots"]))
        cells.append((r["operator"], str(r["lines"]), *made, repaired or "-", " ".join(f["warnings"]) or "-"))
    return cells


def _errors(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = [("operator", "dtype", "error", "torch's", "of limit", "worst for")]
    for r in rows:
        for dtype, e in r.get("errors", {}).items():
            of_torch = "overflows" if e["torch"] is None else f"{e['torch']:.1e}"
            numbers = (f"{e['ours']:.1e}", of_torch, f"{e['of limit']:.2f}")
            cells.append((r["operator"], dtype, *numbers, e["kind"]))
    return cells


def _resources(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    cells: list[tuple[str, ...]] = [("operator", *SHORT.values())]
    for r in rows:
        found = r.get("facts", {}).get("resources", {})
        cells.append((r["operator"], *(needs(found.get(t)) for t in SHORT)))
    return cells
