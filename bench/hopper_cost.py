"""How well is the time of an asynchronous form predicted? Judged on what was measured.

    python -m bench.hopper_cost [--fit NAMES]

Times of attention on an H200, 16384 tokens and 2048 columns of heads, float16: `results/h200-hopper.json` by depth,
length and mask; `results/h200-hopper-levers.json`, its forms beside each other in another run, with kernels on tiles
of that run. Two runs of one kernel differ by up to 8 %. The hand-written table puts the longest groups first wherever
their keys lie, those of the levers keep heads together. Products are generated ones. Reported: the error of the time,
|log(predicted / measured)|; of pairs of one setup that differ by 5 % or more, those in the right order; and the choice
between both forms. No GPU is needed.

`--fit` fits the named constants, on all points of attention, on full masks alone (judged on causal ones), on levers
alone, and on products alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.flash_attention_gluon import form as best_form
from bench.cost import APART, MACHINE, modelled
from neptune.hopper.choice.predict import HOPPER, Overlap, Predictor
from neptune.hopper.ir import Levers
from neptune.ops.attention import attention
from neptune.ops.linear import matmul
from neptune.tune.model.constants import FITTED
from neptune.tune.model.cost import Model

ROWS = Path(__file__).parent / "results" / "h200-hopper.json"
LEVERS = ROWS.with_name("h200-hopper-levers.json")
TOKENS, COLUMNS = 16384, 2048
AT = ((4096, False), (4096, True), (16384, False), (16384, True))
"""Length and mask of the rates of "levers" and "tiles"."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
"""Lengths of the rates of "ahead"."""


@cache
def measured() -> Any:
    """Rows by kind, rates in TFLOP/s. "levers": depth; consumers, stages, how groups come to programs, keys of a tile;
    rates. "short": depth, length, causal; the same; a rate. "ahead": depth, causal; consumers, stages, keys, whether
    queries come ahead; rates. "tiles": depth; rows, keys, warps, stages; rates of Triton's form. "products": m, n, k;
    consumers, stages, how groups come to programs, columns and depth of a tile; microseconds of a call."""
    return json.loads(LEVERS.read_text())


@dataclass(frozen=True)
class Product:
    """A measured product."""

    setup: tuple[int, int, int]
    levers: Levers
    us: float


@dataclass(frozen=True)
class Point:
    """Measured attention; `near`: its table keeps heads together. `run` tells which points were measured together."""

    run: str
    depth: int
    length: int
    causal: bool
    levers: Levers
    rate: float
    near: bool

    @property
    def setup(self) -> tuple[str, int, int, bool]:
        return self.run, self.depth, self.length, self.causal

    @property
    def us(self) -> float:
        return flops(self.length, self.causal) / self.rate


def flops(length: int, causal: bool) -> float:
    """Millions of a call, so that TFLOP/s give microseconds."""
    return 4e-6 * TOKENS * length * COLUMNS / (2 if causal else 1)


def _levers(depth: int, of: tuple[int, int, str, int]) -> Levers:
    consumers, stages, persistent, keys = of
    return Levers(consumers, stages, persistent, own_out=depth < 256, tiles={"BLOCK_N": keys})


def by_hand() -> list[Point]:
    """The hand-written form at its own parameters."""
    found = []
    for name, row in json.loads(ROWS.read_text()).items():
        kind, *of = name.split()
        if kind != "rate":
            continue
        depth, length, causal = int(of[0]), int(of[1]), of[2] == "causal"
        f = best_form(depth, length)
        levers = Levers(f.consumers, f.stages, "table", f.own_o, tiles={"BLOCK_N": f.block_n})
        rate = row.get("gluon", row.get("by hand"))
        found.append(Point("rows", depth, length, causal, levers, rate, near=False))
    return found


def of_levers() -> list[Point]:
    """The forms beside each other."""
    found = [
        Point("levers", depth, length, causal, _levers(depth, of), rate, near=True)
        for depth, of, rates in measured()["levers"]
        for (length, causal), rate in zip(AT, rates, strict=True)
        if rate is not None
    ]
    short = measured()["short"]
    return found + [Point("levers", d, n, c, _levers(d, of), rate, near=True) for d, n, c, of, rate in short]


def of_ahead() -> list[Point]:
    """The generated forms beside each other, with queries of the next group that come ahead and without."""
    found = []
    for depth, causal, (consumers, stages, keys, ahead), rates in measured()["ahead"]:
        levers = Levers(consumers, stages, "table" if causal else "stride", tiles={"BLOCK_N": keys}, ahead=ahead)
        pairs = zip(LENGTHS, rates, strict=True)
        found += [Point("ahead", depth, n, causal, levers, rate, near=True) for n, rate in pairs if rate is not None]
    return found


def of_products() -> list[Product]:
    """The generated products."""
    return [
        Product(tuple(sizes), Levers(w, n, how, tiles={"BLOCK_N": cols, "BLOCK_K": depth}), us)
        for sizes, (w, n, how, cols, depth), us in measured()["products"]
    ]


@cache
def product_model() -> Model:
    """The kernel of a product on tiles."""
    return modelled(matmul(), "matmul")


@cache
def model(depth: int, causal: bool) -> Model:
    """The kernel on tiles."""
    return modelled(attention(depth=depth, causal=causal), "flash_attention")


def sizes(depth: int, length: int) -> dict[str, int]:
    """The sizes of a call."""
    return {"batch": TOKENS // length, "heads": COLUMNS // depth, "s_q": length, "s_kv": length}


def predictions(of: Iterable[Point | Product], constants: Overlap = HOPPER) -> list[float]:
    """Microseconds of each."""
    known: dict[object, Predictor] = {}
    found = []
    for p in of:
        key = p.setup, isinstance(p, Product) or p.near
        if key not in known:
            known[key] = predictor(p, constants)
        found.append(FITTED.first + known[key].of(p.levers).us)
    return found


def predictor(p: Point | Product, constants: Overlap = HOPPER) -> Predictor:
    """What predicts a point."""
    if isinstance(p, Product):
        at = dict(zip("mnk", p.setup, strict=True))
        return Predictor(product_model(), at, MACHINE, late=False, carried=True, constants=constants)
    at = sizes(p.depth, p.length)
    return Predictor(model(p.depth, p.causal), at, MACHINE, near=p.near, constants=constants)


def errors(of: Sequence[Point | Product], constants: Overlap = HOPPER) -> list[float]:
    """log(predicted / measured) of each."""
    return [math.log(us / p.us) for p, us in zip(of, predictions(of, constants), strict=True)]


def figures(of: Sequence[Point | Product], constants: Overlap = HOPPER) -> str:
    """The errors of some points, in words."""
    off = np.abs(errors(of, constants))
    shares = ", ".join(f"{q} % {np.quantile(off, q / 100):.1%}" for q in (50, 80, 95))
    return f"{len(of)} points: {shares}, at most {off.max():.1%}"


def pairs() -> tuple[int, int]:
    """Of the pairs of forms of one setup that differ by 5 % or more: those in the right order, and all."""
    rows = of_levers()
    return _ordered([(p.setup, p.us, us) for p, us in zip(rows, predictions(rows), strict=True)])


def against_triton() -> tuple[int, int]:
    """Of the pairs of an asynchronous form and a kernel on tiles that differ by 5 % or more: the same."""
    rows = of_levers()
    ours = [(p.setup, p.us, us, 0) for p, us in zip(rows, predictions(rows), strict=True)]
    theirs = []
    for depth, (m, n, warps, stages), rates in measured()["tiles"]:
        for (length, causal), rate in zip(AT, rates, strict=True):
            if rate is not None:
                params = {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}
                us = model(depth, causal).predict(params, sizes(depth, length), MACHINE).us
                theirs.append((("levers", depth, length, causal), flops(length, causal) / rate, us, 1))
    right = total = 0
    for a in ours:
        for b in theirs:
            if a[0] == b[0]:
                r, t = _ordered([a[:3], b[:3]])
                right, total = right + r, total + t
    return right, total


def _ordered(rows: Sequence[tuple[object, float, float]]) -> tuple[int, int]:
    apart = [(a, b) for a, b in combinations(rows, 2) if a[0] == b[0] and max(a[1], b[1]) / min(a[1], b[1]) >= APART]
    return sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in apart), len(apart)


def fitted(of: Sequence[Point | Product], names: Sequence[str]) -> Overlap:
    """The named constants that predict these points best: a soft loss of log errors, weak priors."""
    from scipy.optimize import least_squares

    def constants(x: Sequence[float]) -> Overlap:
        return replace(HOPPER, **{n: getattr(HOPPER, n) * math.exp(v) for n, v in zip(names, x, strict=True)})

    def loss(x: Sequence[float]) -> list[float]:
        return [*errors(of, constants(x)), *(0.05 * v for v in x)]

    found = least_squares(loss, np.zeros(len(names)), loss="soft_l1", f_scale=0.1, diff_step=0.03, max_nfev=12)
    return constants(found.x.tolist())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", metavar="NAMES", help="matrix,among,beside,step,ends")
    options = parser.parse_args(argv)
    rows, levers, ahead, products = by_hand(), of_levers(), of_ahead(), of_products()
    full, causal = ([p for p in (*rows, *levers) if p.causal == c] for c in (False, True))
    print("by hand:  ", figures(rows))
    print("levers:   ", figures(levers))
    print("ahead:    ", figures(ahead))
    print("products: ", figures(products))
    print("levers in the right order: {} of {} pairs".format(*pairs()))
    print("beside Triton's:           {} of {} pairs".format(*against_triton()))
    if options.fit:
        names = options.fit.split(",")
        sets: dict[str, tuple[Sequence[Point | Product], Sequence[Point]]]
        sets = {
            "all": ([*full, *causal, *ahead], []),
            "full": (full, causal),
            "levers": (levers, rows),
            "products": (products, []),
        }
        for what, (points, held) in sets.items():
            found = fitted(points, names)
            print(what, {n: round(getattr(found, n), 3) for n in names})
            print("   fitted on", figures(points, found))
            if held:
                print("   held out ", figures(held, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
