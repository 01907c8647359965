"""Tables of `bench.grid`'s results: rates of the default, and the speeds of others beside it (above 1 is faster)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from bench.comparison.parts import TUNED, TWELVE, parts
from bench.comparison.subjects import BATCHES, FIRST, REST, SHORT, Subject, subjects
from neptune.ops.attention import OPERATORS

FILE = Path(__file__).parents[1] / "results" / "h200-grid.json"
LIBRARIES = ("cuDNN", "FlashAttention-2")
COMPILERS = ("FlexAttention", "torch.compile")
BESIDE = ("tuned", *LIBRARIES, *COMPILERS)
NONE, MISSING = "–", "not measured"
LENGTHS = tuple(sorted((*FIRST, *REST)))
LOSS = 0.97
"""Below that share of another's speed a subject is a loss: two readings differ by up to 3 %."""
Row = Mapping[str, Any]
Lines = Sequence[Sequence[str]]


@cache
def rows() -> Mapping[str, Mapping[str, Mapping[str, Row]]]:
    """By part, subject and column; empty where nothing was measured yet."""
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for r in json.loads(FILE.read_text())["rows"] if FILE.exists() else ():
        found.setdefault(r["part"], {}).setdefault(r["subject"], {})[r["column"]] = r
    return found


def of(part: str, subject: str) -> Mapping[str, Row]:
    """The columns of a subject in one part."""
    return rows().get(part, {}).get(subject, {})


def us(part: str, subject: str, column: str) -> float | None:
    """Microseconds; None where there are none."""
    return of(part, subject).get(column, {}).get("us")


def speed(part: str, subject: str, column: str, beside: str = "default") -> str:
    """How fast a column is beside the default; NONE where it has nothing, MISSING where nobody tried."""
    own, other = (of(part, subject).get(c) for c in (beside, column))
    if own is None or other is None:
        return MISSING
    return f"{own['us'] / other['us']:.2f}" if "us" in own and "us" in other else NONE


def rate(part: str, subject: Subject, column: str = "default") -> str:
    """TFLOP/s or GB/s."""
    found = us(part, subject.name, column)
    return MISSING if found is None else f"{subject.amount / found * 1e6:.0f}"


def geometric(found: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(mean(map(log, found)))


def _pair(texts: Sequence[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


# --- attention ------------------------------------------------------------------------------------


def attention() -> Lines:
    """The ten operators by length, batch 1 / batch 8: the default's rate, and the speeds of others beside it."""
    made: list[Sequence[str]] = [("operator", "length", "unit", "default", *BESIDE)]
    for name in OPERATORS:
        for length in LENGTHS:
            names = [f"{name} {b}×{length}" for b in BATCHES]
            own = _pair([rate("grid", subjects()[n]) for n in names])
            others = (_pair([speed("grid", n, c) for n in names]) for c in BESIDE)
            made.append((f"`{name}`", str(length), subjects()[names[0]].unit, own, *others))
    return made


def means() -> Lines:
    """By operator, lengths from 1024 on: the default's speed beside each, geometric mean (worst), of so many cells."""
    made: list[Sequence[str]] = [("operator", *BESIDE, "the best compiler", "and tuned beside it")]
    groups = {f"`{n}`": [n] for n in OPERATORS}
    groups |= {f"all {k}": [n for n in OPERATORS if n.startswith(k)] for k in ("prefill", "decode")}
    for title, operators in groups.items():
        names = [f"{n} {b}×{s}" for n in operators for b in BATCHES for s in LENGTHS if s >= SHORT]
        own = (_mean(list(beside(names, c))) for c in BESIDE)
        made.append((title, *own, _best(names), _best(names, "tuned")))
    return made


def beside(names: Sequence[str], column: str, part: str = "grid") -> Iterator[float]:
    """A column's time over the default's, where both were measured."""
    for n in names:
        own, other = us(part, n, "default"), us(part, n, column)
        if own is not None and other is not None:
            yield other / own


def _best(names: Sequence[str], column: str = "default") -> str:
    """How fast a column is beside the best compiler at each subject."""
    found = []
    for n in names:
        own, others = us("grid", n, column), [us("grid", n, c) for c in COMPILERS]
        known = [t for t in others if t is not None]
        if own is not None and known:
            found.append(min(known) / own)
    return _mean(found)


def _mean(found: Sequence[float]) -> str:
    return f"{geometric(found):.2f} ({min(found):.2f}), {len(found)}" if found else NONE


def host() -> Lines:
    """Below 1024 keys, batch 1: microseconds from a call to its end, the host's part included, by column."""
    columns = ("default", *LIBRARIES, *COMPILERS)
    made: list[Sequence[str]] = [("operator", "length", *columns)]
    for name in OPERATORS:
        for length in (s for s in sorted(REST) if s < SHORT):
            found = of("grid", f"{name} 1×{length}")
            times = (found.get(c) for c in columns)
            cells = (MISSING if r is None else f"{r['host us']:.0f}" if "host us" in r else NONE for r in times)
            made.append((f"`{name}`", str(length), *cells))
    return made


# --- all else -------------------------------------------------------------------------------------


def others() -> Lines:
    """Products, rows and chains: the default, and the speeds of torch beside it."""
    made: list[Sequence[str]] = [("setup", "unit", "default", "µs", "tuned", "torch", "torch.compile")]
    for s in subjects().values():
        if s.group != "attention":
            found = us("grid", s.name, "default")
            shown = MISSING if found is None else f"{found:.1f}"
            cells = (speed("grid", s.name, c) for c in ("tuned", "torch", "torch.compile"))
            made.append((f"`{s.name}`", s.unit, rate("grid", s), shown, *cells))
    return made


def first() -> Lines:
    """A dozen setups: `neptune.compile(expr)`, and tuned."""
    made: list[Sequence[str]] = [("setup", "unit", "default", "µs", "tuned", "the default's variant", "the tuned one")]
    for name in TWELVE:
        own, tuned = (of("first", name).get(c, {}) for c in ("default", "tuned"))
        shown = f"{own['us']:.1f}" if "us" in own else MISSING
        kinds = (r.get("form", NONE) for r in (own, tuned))
        s = subjects()[name]
        made.append((f"`{name}`", s.unit, rate("first", s), shown, speed("first", name, "tuned"), *kinds))
    return made


def best() -> Lines:
    """The dozen beside what takes long to compile: speeds beside the default's."""
    columns = parts()["best"].columns[1:]
    made: list[Sequence[str]] = [("setup", "default µs", *columns)]
    for name in TWELVE:
        found = us("best", name, "default")
        shown = MISSING if found is None else f"{found:.1f}"
        made.append((f"`{name}`", shown, *(_fit(name, c) for c in columns)))
    return made


def _fit(name: str, column: str) -> str:
    asked = any((k.subject, k.column) == (name, column) for k in parts()["best"].measurements())
    return speed("best", name, column) if asked else NONE


def ablation() -> Lines:
    """One idea less: speeds beside the default's."""
    part = parts()["ablation"]
    made: list[Sequence[str]] = [("without", *(f"`{n}`" for n in part.subjects))]
    for column in part.columns[1:]:
        name = column.removeprefix("no ") if column.startswith("no ") else f"({column})"
        made.append((name, *(speed("ablation", n, column) for n in part.subjects)))
    return made


def tuner() -> Lines:
    """The tuner beside an exhaustive search: seconds until within 3 % of the best that either measured, and regret."""
    heads = ("setup", "to within 3 %", "search", "regret", "of the default", "measured", "exhaustive", "candidates")
    made: list[Sequence[str]] = [heads]
    for name in TUNED:
        r = of("tuner", name).get("tuner", {})
        if "us" not in r:
            made.append((f"`{name}`", r.get("failed", MISSING), *[""] * 6))
            continue
        to = "never" if r["seconds to 3 %"] is None else f"{r['seconds to 3 %']:.1f} s"
        default = NONE if r["default regret"] is None else f"{100 * r['default regret']:.1f} %"
        counts = (str(r[k]) for k in ("measured", "exhaustive", "candidates"))
        made.append((f"`{name}`", to, f"{r['seconds']:.1f} s", f"{100 * r['regret']:.1f} %", default, *counts))
    return made


# --- lists ----------------------------------------------------------------------------------------


def losses() -> list[str]:
    """Every subject at which something else is faster than the default, worst first."""
    found = []
    for part in ("grid", "best"):
        for name, columns in rows().get(part, {}).items():
            own = columns.get("default", {}).get("us")
            for column, r in columns.items():
                if own and "us" in r and r["us"] < LOSS * own:
                    found.append((r["us"] / own, f"{name}: {r['us'] / own:.2f} of {column} ({part})"))
    return [text for _, text in sorted(found)]


def failed() -> list[str]:
    """What has no time, with its reason."""
    every = (r for part in rows().values() for columns in part.values() for r in columns.values())
    return [f"{r['part']} | {r['subject']} | {r['column']}: {r['failed']}" for r in every if "failed" in r]


def unmeasured() -> list[str]:
    """What nobody has tried, by part."""
    made: list[str] = []
    for p in parts().values():
        missing = [k for k in p.measurements() if k.column not in of(p.name, k.subject)]
        made += map(str, missing)
    return made


TABLES = {
    "first": first, "means": means, "grid": attention, "host": host, "others": others, "best": best,
    "ablation": ablation, "tuner": tuner,
}  # fmt: skip
"""By the names that docs/performance.md marks them with."""
