"""Draw the bars of a run of `bench.speed`.

    python -m bench.chart bench/results/h200-speed.json docs/attention.svg

TFLOP/s of attention by depth, mask and length; a candidate that could not run has no bar. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "neptune default": "#1b9e77",
    "neptune": "#66c2a5",
    "hand-written Triton": "#8da0cb",
    "FlexAttention": "#e5c494",
    "FlashAttention-2": "#b3b3b3",
    "cuDNN": "#fc8d62",
}
"""Candidates in the order of their bars."""
NAMES = {"neptune default": "Neptune, default", "neptune": "Neptune, best of six tiles"}


def rate(row: Mapping[str, Any], name: str) -> float | None:
    """TFLOP/s of a candidate by its median; None where it did not run.

    >>> row = {"shape": [1, 2, 1000, 50], "causal": False, "cuDNN": {"ms": [0.1, 0.2, 0.3]}}
    >>> rate(row, "cuDNN"), rate(row, "neptune")
    (2.0, None)
    """
    batch, heads, length, depth = row["shape"]
    ms = row.get(name, {}).get("ms")
    flops = 4 * batch * heads * length * length * depth / (2 if row["causal"] else 1)
    return None if ms is None else flops / ms[1] / 1e9


def draw(content: Mapping[str, Any], out: Path) -> None:
    """Write the chart of a run as SVG (or what the name of `out` says)."""
    import matplotlib

    matplotlib.use("Agg")
    # So that the same figures give the same file.
    matplotlib.rcParams |= {"svg.hashsalt": "neptune", "svg.fonttype": "none"}
    from matplotlib import pyplot

    rows = content["results"]
    names = [n for n in COLOURS if any(rate(r, n) for r in rows)]
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    width = 0.85 / len(names)
    for k, name in enumerate(names):
        places = [x + (k - (len(names) - 1) / 2) * width for x in range(len(rows))]
        label = NAMES.get(name, name)
        axes.bar(places, [rate(r, name) or 0 for r in rows], width, color=COLOURS[name], label=label)
    masks = ("full", "causal")
    labels = [f"depth {r['depth']}\n{masks[r['causal']]}\n{r['shape'][2]}" for r in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylabel("TFLOP/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    environment = content["environment"]
    axes.set_title(f"attention forward, float16, {environment.get('gpu', 'GPU')}", fontsize=9, loc="left", pad=36)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else {})
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", type=Path, help="what bench.speed has written")
    parser.add_argument("out", type=Path, help="the picture: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    draw(json.loads(options.json.read_text()), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
