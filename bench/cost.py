"""How well does the cost model predict, and choose? Judged on measured kernels, with constants held out.

    python -m bench.cost [--fit] [--held-out] [--worst 10]

Points are the kernels of `results/h200-{speed,operators,general,choice,mirage-sweep}.json`: one time of one program
with some parameters at some sizes; the points of one program and size are a setup. Reported, each setup with equal
weight:

- pairs: of the pairs of a setup that differ by 5 % or more, those in the right order;
- regret: by how much the model's first choice is slower than the best, and the best of its first four, mean and worst;
- error: of the time, |log(predicted / measured)|, median and 95 %.

No GPU is needed. `--fit` fits the constants anew, `--held-out` fits each family without its own points.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import neptune
from bench.mirage_programs import BENCHMARKS
from bench.setups import OTHERWISE, setups
from neptune.driver.pipeline import as_program
from neptune.frontend import builder as nt
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.lower import lowered as graph_lowered
from neptune.mirage.reference import reference
from neptune.ops.attention import OPERATORS, operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.modules import covers
from neptune.tune.choose import lowered
from neptune.tune.model.constants import FITTED, Constants
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import DEVICES
from neptune.tune.parts import parts_of

RESULTS = Path(__file__).parent / "results"
MACHINE = DEVICES["H200"]
APART = 1.05
"""Two readings of one kernel differ by up to 4 %: closer pairs have no order."""
Values = dict[str, int]


@dataclass(frozen=True)
class Point:
    """One measured kernel: `us` microseconds, launches included."""

    setup: str
    family: str
    model: Model
    params: Values
    sizes: Values
    us: float


# --- points ------------------------------------------------------------------------------------


@cache
def _attention(name: str, depth: int, template: str) -> Model:
    options = {"heads": None} if template == "flash_attention" and "kv_heads" not in OPERATORS[name] else {}
    return modelled(operator(name, depth=depth, **options), template)


def modelled(program: Any, template: Any) -> Model:
    """The model of what a template makes of a program."""
    return Model(lowered(template, as_program(program)).tiles)


def points() -> list[Point]:
    """Every measured kernel."""
    return [p for p in (*_speed(), *_operators(), *_general(), *_choice(), *_graphs()) if math.isfinite(p.us)]


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"h200-{name}.json").read_text())


def _times(variants: Mapping[str, Any], unit: float) -> Iterator[tuple[str, float]]:
    """The variants that ran, in microseconds."""
    yield from ((name, t * unit) for name, t in variants.items() if isinstance(t, float))


def _tile(text: str) -> Values:
    """Parameters of "128×64 w8 s3", and of "BLOCK_M=128 num_warps=8"."""
    if "=" in text:
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", text)}
    m, n, w, s = map(int, re.findall(r"\d+", text)[:4])
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": w, "num_stages": s}


def _speed() -> Iterator[Point]:
    for r in _read("speed")["results"]:
        batch, heads, length, depth = r["shape"]
        name = "prefill_causal" if r["causal"] else "prefill_global"
        model = _attention(name, depth, "flash_attention")
        sizes = {"batch": batch, "heads": heads, "s_q": length, "s_kv": length}
        for candidate in ("neptune", "neptune default"):
            for text, us in _times(r.get(candidate, {}).get("variants", {}), 1e3):
                yield Point(f"{name} d{depth} {length}", "prefill", model, _tile(text), sizes, us)


def _operators() -> Iterator[Point]:
    for r in _read("operators")["results"]:
        name, length = r["operator"], r["length"]
        if name.startswith("decode"):
            continue  # with another combine than is made now
        model = _attention(name, 128, "flash_attention")
        sizes = {"batch": 1, "heads": OPERATORS[name]["heads"], "s_kv": length, "s_q": length}
        for text, us in _times(r["neptune"]["variants"], 1e3):
            yield Point(f"{name} {length}", "prefill", model, _tile(text), sizes, us)


def _general() -> Iterator[Point]:
    products = {"matmul": modelled(matmul(), "matmul")}
    products["gelu(a·b + bias)"] = modelled(matmul(bias=True, activation="gelu"), "matmul")
    rows = {"softmax": modelled(softmax(), "softmax_row"), "argmax": modelled(best_of_rows(0), by_tiles)}
    rows |= {f"top-{k}": modelled(best_of_rows(k), by_tiles) for k in (2, 8)}
    for r in _read("general")["us"]:
        name, _, shape = r["name"].rpartition(" ")
        numbers = [int(x) for x in shape.split("×")]
        family = "products" if name in products else "rows"
        model = (products | rows)[name]
        names = [s.name for s in model.program.scalars if s.upto is None]
        order = ("m", "n", "k") if family == "products" else ("rows", "cols") if name == "softmax" else ("m", "n")
        sizes = dict(zip(order, numbers, strict=True))
        assert set(sizes) >= set(names), (names, sizes)
        cover = {t.name: 1 << (sizes["cols"] - 1).bit_length() for t in model.program.tunables if t.covers is not None}
        for text, us in _times(r["variants"], 1.0):
            values = _following(model, {"num_stages": 2} | cover | _tile(text), sizes)
            yield Point(r["name"], family, model, values, sizes, us)


def best_of_rows(k: int) -> Any:
    """argmax (k = 0) or the k largest of each row."""
    m, n = nt.var("m"), nt.var("n")
    x, j = nt.placeholder((m, n), "float32", "x"), nt.reduce_axis((0, n), "j")
    if k == 0:
        return list(nt.compute((m,), lambda i: nt.argmax(x[i, j], axis=j), "best"))
    parts = nt.compute((m,), lambda i: nt.top_k(x[i, j], k, axis=j), "best")
    return [nt.stack(parts[:k], "values"), nt.stack(parts[k:], "indices")]


def by_tiles(sch: neptune.Schedule) -> None:
    """Tiles of rows, a loop over tiles of columns."""
    i, j = sch.loops("best")
    i0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [1024])])
    sch.bind(i0, "grid.x")
    for stage in sch.stages:
        if stage != "best":
            sch.fuse_at(stage, i0)


FAMILIES = {
    "prefill": "prefill", "decode": "decode", "matmul": "products", "softmax": "rows", "rms_norm": "chains",
    "gated": "chains",
}  # fmt: skip
"""Of setups, by how their names begin."""


def _choice() -> Iterator[Point]:
    """Candidates that this model chose: many close ones, over many sizes."""
    programs = {s.name: s.program for s in setups()}
    runs = ("-first", "-second", "-families", "-products", "-linear", "-third", "-fourth", "-search")
    for run, r in ((name, row) for name in runs for row in _read(f"choice{name}")["us"]):
        name, sizes = r["setup"], r["sizes"]
        family = next(f for begin, f in FAMILIES.items() if name.startswith(begin))
        for c in (r["default"], *r["candidates"]):
            template, *values = c["variant"].split()
            # Earlier ones of these templates have another combine than is made now.
            now = template != "flash_decoding" or (run == "-search" and family == "decode")
            now = now and template not in OTHERWISE
            if isinstance(c["us"], float) and now:
                model = _modelled(str(name.rpartition(" ")[0]), programs[name], template)
                yield Point(
                    f"choice{run} {name}",
                    family,
                    model,
                    _following(model, _tile(" ".join(values)), sizes),
                    sizes,
                    c["us"],
                )


def _graphs() -> Iterator[Point]:
    """A µGraph with few rows: values around those that are the fastest, some of them by hand."""
    of = BENCHMARKS["RMSNorm"]
    program = of.program("float16", **of.sizes(8))
    g = GraphBuilder.like(reference(program))
    with g.kernel("fused", grid="i j", loop="p") as kernel:
        x, w = (kernel.load(t) for t in g.tensors)
        product, squares = x.matmul(w, "p").acc(), x.sqr().acc_sum()
        kernel.save("y", product / (squares / g.size("p")).sqrt())
    made = graph_lowered(g.graph(), program)
    model = modelled(made.definitions, made.template)
    for r in _read("mirage-sweep")["rows"]:
        # What the model says has no room was measured, with fewer bytes than it counts.
        if r["us"] is not None and math.isfinite(model.predict(r["values"], {}, MACHINE).us):
            yield Point("graph RMSNorm 16×6144×4096", "graphs", model, r["values"], {}, r["us"])


@cache
def _of_program(name: str, template: str) -> Model:
    return modelled(_PROGRAMS[name](), template)


_PROGRAMS: dict[str, Any] = {}


def _modelled(name: str, program: Any, template: str) -> Model:
    _PROGRAMS.setdefault(name, program)
    return _of_program(name, template)


def _following(model: Model, params: Values, sizes: Values) -> Values:
    """Parameters with what follows from them and from sizes."""
    values = params | covers(model.program, {**sizes, **params})
    if any(t.name == "GROUP_M" for t in model.program.tunables) and "GROUP_M" not in values:
        # Measured before there were groups: rows were told apart first.
        values["GROUP_M"] = 1 << (-(-sizes["m"] // values["BLOCK_M"]) - 1).bit_length()
    return values | {r.number: r.default({**sizes, **values}, MACHINE.processors) for r in parts_of(model.program)}


# --- figures -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """How good predictions are; see the head of this file."""

    setups: int
    points: int
    pairs: float
    regret: float
    worst: float
    of_four: float
    of_four_worst: float
    error: float
    error95: float

    def __str__(self) -> str:
        return (
            f"{self.setups:3d} setups {self.points:4d} points | pairs {self.pairs:5.1%} | first {self.regret:5.1%} / "
            f"{self.worst:4.0%} | of four {self.of_four:5.1%} / {self.of_four_worst:4.0%} | error {self.error:4.0%} / "
            f"{self.error95:4.0%}"
        )


def predictions(of: Iterable[Point], constants: Constants) -> list[float]:
    rows = list(of)
    times = [0.0] * len(rows)
    alike: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
    for k, p in enumerate(rows):
        alike[id(p.model), tuple(sorted(p.params))].append(k)
    for numbers in alike.values():
        whole = [rows[k].sizes | rows[k].params for k in numbers]
        columns = {n: [row[n] for row in whole] for n in whole[0]}
        made = rows[numbers[0]].model.predict_all(columns, MACHINE, constants).us
        for k, us in zip(numbers, made, strict=True):
            times[k] = float(us)
    return times


def judged(of: Sequence[Point], times: Sequence[float]) -> Figures:
    """The figures of points with the times that were predicted."""
    setups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for p, t in zip(of, times, strict=True):
        setups[p.setup].append((t, p.us))
    orders: list[float] = []
    first: list[float] = []
    four: list[float] = []
    for rows in setups.values():
        apart = [(a, b) for a, b in combinations(rows, 2) if max(a[1], b[1]) / min(a[1], b[1]) >= APART]
        if apart:
            orders.append(sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart) / len(apart))
        rows = sorted(rows)
        best = min(us for _, us in rows)
        first.append(rows[0][1] / best - 1)
        four.append(min(us for _, us in rows[:4]) / best - 1)
    errors = [abs(math.log(t / p.us)) for p, t in zip(of, times, strict=True)]
    return Figures(
        len(setups), len(of), mean(orders), mean(first), max(first), mean(four), max(four),
        float(np.median(errors)), float(np.quantile(errors, 0.95)),
    )  # fmt: skip


def mean(xs: Sequence[float]) -> float:
    return sum(xs) / len(xs) if xs else 1.0


def by_family(of: Sequence[Point], times: Sequence[float]) -> dict[str, Figures]:
    families = dict.fromkeys(p.family for p in of)
    chosen = {f: [i for i, p in enumerate(of) if p.family == f] for f in families}
    return {"all": judged(of, times)} | {
        f: judged([of[i] for i in c], [times[i] for i in c]) for f, c in chosen.items()
    }


# --- fit ---------------------------------------------------------------------------------------


def fitted(of: Sequence[Point], start: Constants = FITTED, keep: Sequence[str] = ()) -> Constants:
    """Constants that predict these points: a soft loss of log errors, equal weight a setup, less beyond 1.5 × the
    best, weak priors at where it starts. Those of `keep` stay as they are."""
    from scipy.optimize import least_squares

    names = [f.name for f in fields(Constants) if f.name not in ("first", "idle", "spilled", "memory", *keep)]
    best: dict[str, float] = {}
    count: dict[str, int] = defaultdict(int)
    for p in of:
        best[p.setup] = min(best.get(p.setup, math.inf), p.us)
        count[p.setup] += 1
    weight = np.array([(1.0 if p.us < 1.5 * best[p.setup] else 0.4) / math.sqrt(count[p.setup]) for p in of])
    origin = np.array([getattr(start, n) for n in names])

    def constants(x: Any) -> Constants:
        return replace(start, **{n: float(o * math.exp(v)) for n, o, v in zip(names, origin, x, strict=True)})

    def loss(x: Any) -> Any:
        log = np.log(np.array(predictions(of, constants(x))) / np.array([p.us for p in of]))
        return np.concatenate([weight * log, 0.03 * np.array(x)])

    found = least_squares(loss, np.zeros(len(names)), loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=12)
    return constants(found.x)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit the constants anew, and print them")
    parser.add_argument("--keep", nargs="+", default=[], metavar="NAME", help="constants that are not fitted")
    parser.add_argument("--held-out", action="store_true", help="judge each family with constants of the others")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="the setups with the largest regret")
    options = parser.parse_args(argv)
    measured = points()
    constants = fitted(measured, keep=options.keep) if options.fit else FITTED
    if options.fit:
        print("\n".join(f"    {k}: float = {v:.4g}" for k, v in asdict(constants).items()))
    times = predictions(measured, constants)
    for family, figures in by_family(measured, times).items():
        print(f"{family:9} {figures}")
    if options.held_out:
        _held_out(measured)
    if options.worst:
        _worst(measured, times, options.worst)
    return 0


def _held_out(measured: Sequence[Point]) -> None:
    for family in dict.fromkeys(p.family for p in measured):
        constants = fitted([p for p in measured if p.family != family])
        own = [p for p in measured if p.family == family]
        print(f"{family:9} {judged(own, predictions(own, constants))}  (held out)")


def _worst(measured: Sequence[Point], times: Sequence[float], count: int) -> None:
    setups: dict[str, list[tuple[float, Point]]] = defaultdict(list)
    for p, t in zip(measured, times, strict=True):
        setups[p.setup].append((t, p))

    def regret(rows: list[tuple[float, Point]]) -> float:
        return min(rows, key=lambda r: r[0])[1].us / min(p.us for _, p in rows)

    for name, rows in sorted(setups.items(), key=lambda kv: -regret(kv[1]))[:count]:
        print(f"{name}: regret {regret(rows) - 1:.0%}")
        for t, p in sorted(rows, key=lambda r: r[1].us):
            k = p.model.predict(p.params, p.sizes, MACHINE).kernels[0]
            print(
                f"   {p.us:9.1f} {t:9.1f} {t / p.us:5.2f}  {p.params} {k.bound} {k.share:.2f} w{k.waves:.1f} "
                f"c{k.resident} r{k.needs.registers:.0f} s{k.needs.shared}"
            )


if __name__ == "__main__":
    sys.exit(main())
