"""One HTML page of what was measured: tables, pictures and every loss; and the tables of docs/performance.md.

    python -m bench.report [--out report.html] [--dry-run]

All comes from `bench/results/h200-*.json`; nothing is measured. Tables that docs/performance.md has between
`<!-- table NAME -->` and `<!-- end -->` are written into it anew; `--dry-run` builds everything, writes nothing, and
says whether anything would change. Pictures need matplotlib.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.chart import rate
from bench.comparison import tables
from bench.comparison.tuning import Replayed, replayed
from bench.speed_operators import work
from neptune.ops.attention import OPERATORS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
MARKED = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LOSS = 0.97
"""Below that share of another's speed, a setup is listed as a loss: two readings differ by up to 3 %."""
Row = Mapping[str, Any]
Lines = Sequence[Sequence[str]]


@cache
def results(name: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / f"h200-{name}.json").read_text())


# --- tables --------------------------------------------------------------------------------------


def attention() -> Lines:
    """TFLOP/s of bench.speed."""
    names = ("neptune default", "neptune", "hand-written Triton", "FlexAttention", "FlashAttention-2", "cuDNN")
    heads = ("depth, mask, length", "Neptune, default", "best of six tiles", *names[2:4])
    made: list[Sequence[str]] = [(*heads, "FlashAttention-2 (torch)", "cuDNN")]
    for r in results("speed")["results"]:
        mask = "causal" if r["causal"] else "global"
        rates = ("–" if (x := rate(r, n)) is None else f"{x:.0f}" for n in names)
        made.append((f"{r['depth']}, {mask}, {r['shape'][2]}", *rates))
    return made


def operators() -> Lines:
    """TFLOP/s and GB/s of bench.speed_operators."""
    names = ("neptune", "FlexAttention", "cuDNN", "FlashAttention-2")
    made: list[Sequence[str]] = [("operator", "length", "unit", "Neptune", *names[1:])]
    for r in results("operators")["results"]:
        unit, amount = work(dict(OPERATORS[r["operator"]]), r["length"])
        ms = ((r.get(n) or {}).get("ms") for n in names)
        rates = ("–" if x is None else f"{amount / x[1] * 1e3:.0f}" for x in ms)
        made.append((f"`{r['operator']}`", str(r["length"]), unit, *rates))
    return made


def search() -> Lines:
    """The default beside a search and torch, of bench.choice: each relative to the default's speed."""
    made: list[Sequence[str]] = [
        ("setup", "default µs", "sizes given", "best found", "torch", "torch.compile", "tried")
    ]
    for r in results("choice-search")["us"]:
        default = r["default"]["us"]
        others = (r["sizes given"]["us"], r["best"], r["torch"], r.get("torch.compile"))
        shares = (f"{default / x:.2f}" if isinstance(x, float) else "–" for x in others)
        tried = sum(isinstance(c["us"], float) for c in r["candidates"])
        made.append((f"`{r['setup']}`", f"{default:.1f}", *shares, str(tried)))
    return made


def choice() -> Lines:
    """What a plain compile chooses, of bench.choice: times of others over the default's, so that below 1 is faster."""
    heads = ("operator", "default", "µs", "best / default", "best / sizes given", "torch / default", "the variant")
    made: list[Sequence[str]] = [heads]
    for r in results("choice")["us"]:
        own, known = r["default"]["us"], r["sizes given"]["us"]
        shares = (f"{x:.2f}" for x in (r["best"] / own, r["best"] / known, r["torch"] / own))
        made.append(
            (f"`{r['setup']}`", rate_of(r["setup"], own), f"{own:.1f}", *shares, short(r["default"]["variant"]))
        )
    return made


def replay() -> Lines:
    """The tuner's search on the candidates of bench.choice, by operator."""
    heads = ("operator", "setups", "candidates", "measured", "until within 3 %", "regret, mean / worst")
    found: dict[str, list[Replayed]] = {}
    for r in results("choice-search")["us"]:
        found.setdefault(r["setup"].split()[0], []).append(replayed(r))
    made: list[Sequence[str]] = [heads]
    for name, of in found.items():
        near = [r.to_near for r in of if r.to_near is not None]
        until = f"{median(near):.0f}, at most {max(near)}" if len(near) == len(of) else "not everywhere"
        regret = f"{100 * mean(r.regret for r in of):.1f} / {100 * max(r.regret for r in of):.1f} %"
        counts = (f"{median(n):.0f}" for n in ([r.candidates for r in of], [r.measured for r in of]))
        made.append((f"`{name}`", str(len(of)), *counts, until, regret))
    return made


def rate_of(setup: str, us: float) -> str:
    """TFLOP/s or GB/s of a setup of `bench.setups`, by its name."""
    name, *words, last = setup.split()
    numbers = [int(n) for n in last.split("×")]
    if name == "decode_gqa":
        batch = int(words[0].removeprefix("b"))
        return f"{2 * batch * 8 * numbers[0] * 128 * 2 / us / 1e3:.0f} GB/s"
    if name == "softmax":
        return f"{8 * numbers[0] * numbers[1] / us / 1e3:.0f} GB/s"
    if name.startswith("prefill"):
        batch, heads, length = numbers
        depth = int(words[0].removeprefix("d"))
        flops = 4 * batch * heads * length * length * depth / (2 if name == "prefill_causal" else 1)
    else:
        m, n, k = numbers
        flops = (4 if name == "gated_linear" else 2) * m * n * k
    return f"{flops / us / 1e6:.0f} TFLOP/s"


def short(variant: str) -> str:
    """A variant in few words.

    >>> short("flash_attention BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=2")
    'flash_attention 128×64 w4 s2'
    """
    template, *given = variant.split()
    values = dict(word.split("=") for word in given)
    tile = "×".join(v for n, v in values.items() if n.startswith("BLOCK"))
    more = (f"{mark}{values[n]}" for mark, n in (("w", "num_warps"), ("s", "num_stages")) if n in values)
    group = [f"group {values['GROUP_M']}"] if int(values.get("GROUP_M", 1)) > 1 else []
    return " ".join((template, tile, *more, *group))


def losses() -> Iterator[str]:
    """Every setup of the search at which the default is slower than something else, worst first."""
    found = []
    for r in results("choice-search")["us"]:
        others = {"the best found": r["best"], "torch": r["torch"], "torch.compile": r.get("torch.compile")}
        for name, us in others.items():
            if isinstance(us, float) and us < LOSS * r["default"]["us"]:
                found.append((us / r["default"]["us"], f"{r['setup']}: {us / r['default']['us']:.2f} of {name}"))
    return (text for _, text in sorted(found))


def means() -> str:
    """One line of geometric means."""
    rows = results("choice-search")["us"]

    def geometric(xs: Sequence[float]) -> float:
        return exp(mean(map(log, xs)))

    best, peer = ([r[n] / r["default"]["us"] for r in rows] for n in ("best", "torch"))
    return (
        f"{len(rows)} setups: the best found takes {geometric(best):.3f} of the default's time, {min(best):.2f} at "
        f"worst; torch takes {geometric(peer):.3f}, {min(peer):.2f} to {max(peer):.2f}"
    )


TABLES: Mapping[str, Callable[[], Lines]] = {
    "choice": choice,
    "search": search,
    "replay": replay,
    "attention": attention,
    "operators": operators,
    **tables.TABLES,
}


def markdown(lines: Lines) -> str:
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("| --- ", "|---").replace("|--- |", "|---|")


def updated(page: str) -> str:
    """The page with its marked tables made anew."""
    return MARKED.sub(lambda m: m[1] + markdown(TABLES[m[2]]()) + m[4], page)


# --- the page ------------------------------------------------------------------------------------


def pictures() -> Iterator[tuple[str, bytes]]:
    """Titles and PNGs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = results("choice-search")["us"]
    figure, axes = pyplot.subplots(figsize=(6, 5), layout="constrained")
    for family in dict.fromkeys(r["setup"].split()[0] for r in rows):
        own = [
            c for r in rows if r["setup"].split()[0] == family for c in r["candidates"] if isinstance(c["us"], float)
        ]
        axes.scatter([c["us"] for c in own], [c["predicted"] for c in own], s=3, label=family)
    axes.plot([5, 1e5], [5, 1e5], color="black", linewidth=0.5)
    axes.set(xscale="log", yscale="log", xlabel="measured µs", ylabel="predicted µs")
    axes.legend(fontsize=7, frameon=False)
    yield "Predicted and measured: every candidate of the search", _png(figure)
    figure, axes = pyplot.subplots(figsize=(7, 9), layout="constrained")
    names = [r["setup"] for r in rows]
    for key, mark in (("best", "o"), ("torch", "x")):
        axes.plot([r["default"]["us"] / r[key] for r in rows], names, mark, label=f"{key}, speed beside the default's")
    axes.axvline(1, color="black", linewidth=0.5)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.legend(fontsize=7, frameon=False)
    yield "The best found and torch beside the default", _png(figure)
    if not tables.rows():
        return
    figure, axes = pyplot.subplots(2, 5, figsize=(13, 5), layout="constrained", sharex=True)
    for axis, name in zip(axes.flat, OPERATORS, strict=True):
        for column in (*tables.LIBRARIES, *tables.COMPILERS):
            found = [(s, x) for s in tables.LENGTHS for x in tables.beside([f"{name} 1×{s}"], column)]
            axis.plot([s for s, _ in found], [1 / x for _, x in found], marker=".", label=column)
        axis.axhline(1, color="black", linewidth=0.5)
        axis.set(xscale="log", title=name)
        axis.set_ylim(bottom=0)
    axes.flat[0].legend(fontsize=6, frameon=False)
    yield "The ten operators by length, batch 1: speeds beside the default's", _png(figure)


def _png(figure: Any) -> bytes:
    from matplotlib import pyplot

    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    pyplot.close(figure)
    return out.getvalue()


def page() -> str:
    """The HTML, which needs no other file."""
    environment = results("choice-search")["environment"]
    parts = ["<!doctype html><meta charset=utf-8><title>Neptune, measured</title>", f"<style>{STYLE}</style>"]
    parts += ["<h1>Neptune, measured</h1>", _text("p", ", ".join(f"{k} {v}" for k, v in environment.items() if v))]
    parts += [_text("p", means()), "<h2>Every loss of the default</h2><ul>"]
    parts += [*(_text("li", loss) for loss in (*losses(), *tables.losses())), "</ul>"]
    for title, png in pictures():
        parts += [_text("h2", title), f"<img src='data:image/png;base64,{base64.b64encode(png).decode()}'>"]
    for make in TABLES.values():
        first, *rest = make()
        parts += [_text("h2", (make.__doc__ or "").strip()), "<table>"]
        parts += [f"<tr>{''.join(_text('th', c) for c in first)}</tr>"]
        parts += [f"<tr>{''.join(_text('td', c.strip('`')) for c in row)}</tr>" for row in rest]
        parts += ["</table>"]
    for title, lines in (
        ("What could not be measured, and why", tables.failed()),
        ("Not measured", tables.unmeasured()),
    ):
        parts += [_text("h2", f"{title}: {len(lines)}"), "<ul>", *(_text("li", x) for x in lines), "</ul>"]
    return "\n".join(parts)


STYLE = "body{font:14px sans-serif;margin:2em}td,th{padding:1px 8px;text-align:right}td:first-child{text-align:left}"


def _text(tag: str, text: str) -> str:
    return f"<{tag}>{html.escape(text)}</{tag}>"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, and say what would change")
    options = parser.parse_args(argv)
    text, before = page(), PAGE.read_text()
    after = updated(before)
    print(means())
    print(f"{PAGE.name}: its tables are {'as measured' if after == before else 'made anew'}")
    if not options.dry_run:
        options.out.write_text(text)
        PAGE.write_text(after)
        print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
