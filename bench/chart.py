"""The README's picture: what plain calls of attention take, as bars.

TFLOP/s of the prefill rows of `bench.default` by depth, mask and length. `python -m bench.default_tables` draws it.
Needs matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.default import rates

PICTURE = Path(__file__).parents[1] / "docs" / "attention.svg"
COLOURS = {"functional": "#1b9e77", "cuDNN": "#fc8d62", "FlashAttention-2": "#b3b3b3"}
"""Columns in the order of their bars."""
NAMED = re.compile(r"prefill: depth (\d+) (\w+) (\d+)")
"""Rows that are drawn: those of as many heads of keys as of queries."""


def draw(rows: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Write the picture of these rows as SVG (or what the name of `out` says)."""
    import matplotlib

    matplotlib.use("Agg")
    # So that the same figures give the same file.
    matplotlib.rcParams |= {"svg.hashsalt": "neptune", "svg.fonttype": "none"}
    from matplotlib import pyplot

    drawn = {m.groups(): row for name, row in rows.items() if (m := NAMED.fullmatch(name))}
    found = [rates(row) for row in drawn.values()]
    figure, axes = pyplot.subplots(figsize=(9, 3.4), layout="constrained")
    width = 0.85 / len(COLOURS)
    for k, (name, colour) in enumerate(COLOURS.items()):
        places = [x + (k - (len(COLOURS) - 1) / 2) * width for x in range(len(drawn))]
        label = "neptune.functional" if name == "functional" else name
        axes.bar(places, [rate.get(name, 0.0) for rate in found], width, color=colour, label=label)
    axes.set_xticks(range(len(drawn)), [f"{d}\n{mask}\n{int(n) // 1024}k" for d, mask, n in drawn], fontsize=7)
    axes.set_ylabel("TFLOP/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    gpu = next(iter(drawn.values()))["environment"]["gpu"]
    axes.set_title(f"attention by depth, mask and length, {gpu}", fontsize=9, loc="left")
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else {})
    pyplot.close(figure)
