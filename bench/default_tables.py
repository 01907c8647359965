"""What the pages say of `bench.default`'s results: tables, one sentence, every loss, and the README's picture.

    python -m bench.default_tables [--dry-run]

FILES are read in order; where two have a row, the later one counts. Pages have each block between `<!-- made NAME -->`
and `<!-- end -->`; what is there is made anew. `--dry-run` writes nothing, and says what would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import mode
from typing import Any

from bench.default import COMPILE, LOST, OURS, ROUNDS, SAMPLES, beside, rates, rounds, speeds
from bench.default_rows import ROWS

ROOT = Path(__file__).parents[1]
FILES = tuple(ROOT / "bench" / "results" / f"{of}.json" for of in ("h100-default", "h100-default-rows", "h200-default"))
PAGES = tuple(ROOT / page for page in ("README.md", "docs/index.md", "docs/performance.md"))
MARKED = re.compile(r"(<!-- made (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS.values()))
NONE = "–"
APART = 1.05
"""Medians of a column's rounds that differ by more have drifted."""
Row = Mapping[str, Any]
Rows = Mapping[str, Row]
Lines = Sequence[Sequence[str]]


def results(files: Sequence[Path] = FILES) -> Rows:
    """By name, in the order of `bench.default_rows`; each with the environment that it was measured in."""
    found: dict[str, Row] = {}
    for content in (json.loads(file.read_text()) for file in files):
        found |= {r["name"]: r | {"environment": content["environment"]} for r in content["rows"] if r.get("us")}
    return {name: found[name] for name in ROWS if name in found}


# --- figures -----------------------------------------------------------------------------------------------------


def ratios(rows: Rows, group: str, mine: str) -> dict[str, float]:
    """By row of a group, the speed of one of our calls over that of the fastest of the others."""
    return dict(beside(mine, list(of_group(rows, group).values())))


def of_group(rows: Rows, group: str) -> Rows:
    """The rows of a group."""
    return {name: row for name, row in rows.items() if name.startswith(f"{group}: ")}


def mean(of: Mapping[str, float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, of.values())) / len(of))


def gpu(row: Row) -> str:
    """The GPU of a row, without its maker's name."""
    return str(row["environment"]["gpu"]).removeprefix("NVIDIA ")


def usual(rows: Rows) -> str:
    """The GPU of most rows."""
    return mode(map(gpu, rows.values()))


def days(rows: Rows) -> str:
    """The first and the last day of measurements."""
    every = sorted({r["date"] for r in rows.values()})
    return every[0] if len(every) == 1 else f"{every[0]} to {every[-1]}"


def drift(row: Row) -> float:
    """The largest ratio of two medians of rounds, of one column."""
    return max(max(of) / min(of) for of in (rounds(us) for us in row["us"].values() if us))


def shown(rate: float | None) -> str:
    """A rate in few digits.

    >>> shown(707.4), shown(1.551), shown(None)
    ('707', '1.55', '–')
    """
    return NONE if rate is None else f"{rate:.0f}" if rate >= 10 else f"{rate:.2f}"


def marked(ratio: float | None) -> str:
    """A ratio, in bold where it is a loss.

    >>> marked(1.124), marked(0.96)
    ('1.12', '**0.96**')
    """
    text = NONE if ratio is None else f"{ratio:.2f}"
    return f"**{text}**" if ratio is not None and ratio < LOST else text


# --- blocks ------------------------------------------------------------------------------------------------------


def group(name: str, rows: Rows) -> str:
    """The rates of a group's rows, and our speed over each of the others'."""
    of = of_group(rows, name)
    columns = dict.fromkeys(c for row in of.values() for c in rates(row))
    others = [c for c in columns if c not in (OURS, COMPILE)]
    compiled = [f"`{COMPILE}`", "× the fastest"] if COMPILE in columns else []
    units = sorted({row["unit"] for row in of.values()})
    lines = [[", ".join(units), f"`{OURS}`", *(f"× {c}" for c in others), *compiled]]
    best = ratios(rows, name, COMPILE)
    for full, row in of.items():
        rate, found = rates(row), speeds(OURS, row)
        cells = [shown(rate.get(OURS)), *(marked(found.get(c)) for c in others)]
        cells += [shown(rate.get(COMPILE)), marked(best.get(full))] if compiled else []
        where = "" if gpu(row) == usual(rows) else f" ({gpu(row)})"
        lines.append([full.partition(": ")[2] + where, *cells])
    return table(lines)


def means(rows: Rows) -> str:
    """By group, ours over the fastest of the others."""
    lines = [["", f"`{OURS}`: mean", "least", "rows", f"`{COMPILE}`: mean", "least", "rows"]]
    for name in GROUPS:
        found = [ratios(rows, name, mine) for mine in (OURS, COMPILE)]
        cells = ([f"{mean(of):.2f}", marked(min(of.values())), str(len(of))] if of else [NONE] * 3 for of in found)
        lines.append([name, *(c for three in cells for c in three)])
    return table(lines)


def elsewhere(rows: Rows) -> str:
    """The means of every other GPU that a file is of, each from its own rows, which `rows` may hold newer ones of."""
    files_of: dict[str, list[Path]] = {}
    for file in FILES:
        files_of.setdefault(json.loads(file.read_text())["environment"]["gpu"].removeprefix("NVIDIA "), []).append(file)
    others = {name: results(files) for name, files in files_of.items() if name != usual(rows)}
    return "\n".join(f"On an NVIDIA {name}, {days(own)}:\n\n{means(own)}" for name, own in others.items())


def losses(rows: Rows) -> str:
    """Every row at which one of our calls is slower than another's, worst first."""
    found = []
    for mine in (OURS, COMPILE):
        for name, row in rows.items():
            of = speeds(mine, row)
            fastest = min(of, key=lambda c: of[c], default=None)
            if fastest is not None and of[fastest] < LOST:
                found.append((of[fastest], [name, f"`{mine}`", f"{of[fastest]:.3f}", fastest]))
    return table([["lost", "call", "of the speed", "of"], *(line for _, line in sorted(found))])


def machine(rows: Rows) -> str:
    """What was measured where and when, how the medians are taken, and what is missing."""
    places = dict.fromkeys(
        f"{e['gpu']}, torch {e['torch']}, triton {e['triton']}, CUDA {e['cuda']}, Python {e['python']}"
        for e in (r["environment"] for r in rows.values())
    )
    drifts = {name: drift(row) for name, row in rows.items()}
    worst = max(drifts, key=lambda name: drifts[name])
    far = sum(d > APART for d in drifts.values())
    missing = "; ".join(name for name in ROWS if name not in rows)
    return fill(
        f"{'; '.join(places)}; {days(rows)}. Columns of a row take turns in {ROUNDS} rounds of {SAMPLES} samples. "
        "Rates are by the median of all samples; speeds beside another column are the median of the ratios of rounds, "
        f"each of two medians, since clocks move: in {far} of {len(rows)} rows the medians of some column's rounds are "
        f"more than {100 * (APART - 1):.0f} % apart, by {100 * (drifts[worst] - 1):.0f} % at most ({worst})."
        + (f" Not measured: {missing}." if missing else "")
    )


def said(rows: Rows) -> str:
    """One sentence for pages that have no table."""
    of = {name: ratios(rows, name, OURS) for name in GROUPS}
    each = ", ".join(f"{name} {mean(r):.2f} ({min(r.values()):.2f})" for name, r in of.items() if r)
    strange = sum(gpu(r) != usual(rows) for r in rows.values())
    but = f", {strange} rows on another GPU" if strange else ""
    return fill(
        "Plain calls of `neptune.functional` beside the fastest of cuDNN, FlashAttention-2, FlexAttention, eager torch "
        f"and torch.compile on an NVIDIA {usual(rows)}{but}, their speed over the other's, geometric mean "
        f"(least): {each}."
    )


BLOCKS: Mapping[str, Callable[[Rows], str]] = {
    "machine": machine, "means": means, "elsewhere": elsewhere, "losses": losses, "said": said,
    **{name: partial(group, name) for name in GROUPS},
}  # fmt: skip
"""By the names that pages mark them with."""


def table(lines: Lines) -> str:
    """Lines of cells in Markdown; the first column is text, the others are figures."""
    first, *rest = (f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{first}|---|{'--:|' * (len(lines[0]) - 1)}\n{''.join(rest)}"


def fill(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def updated(page: str, rows: Rows) -> str:
    """The page with its marked blocks made anew."""
    return MARKED.sub(lambda m: m[1] + BLOCKS[m[2]](rows) + m[4], page)


def changed(rows: Rows) -> Iterator[tuple[Path, str]]:
    """Pages that say something else than the results, with what they should say."""
    for page in PAGES:
        before = page.read_text()
        after = updated(before, rows)
        if after != before:
            yield page, after


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.default_tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="write nothing, and say what would change")
    options = parser.parse_args(argv)
    rows = results()
    for page, text in changed(rows):
        print(f"{page.relative_to(ROOT)}: {'differs' if options.dry_run else 'made anew'}")
        if not options.dry_run:
            page.write_text(text)
    if not options.dry_run:
        from bench import chart

        chart.draw(rows, chart.PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
