"""Draw random reduction programs (`qa.fuzzing.programs`), and fusion requests that must be refused.

A program has two to five reductions over one axis, each of a cell, of results of earlier ones, or of both, in forms
that repairs exist for, in forms near those, and at random; maps between; masks; gathers; products with a second
operand. Values carry an interval, so that what is computed is mostly defined: `Value.lo` is -inf for masked cells.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qa.fuzzing.programs import AXES, Doc, Expr, pruned, reads, results, stage_exprs, walk

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 9)
LONGEST = max(LENGTHS)
TAME = 300.0
"""Larger values are scaled down before they are used again."""


@dataclass(frozen=True)
class Value:
    """An expression that lies in [lo, hi] where the inputs are mild."""

    e: Expr
    lo: float
    hi: float

    @property
    def tame(self) -> bool:
        return max(abs(self.lo), abs(self.hi)) <= TAME

    @property
    def positive(self) -> bool:
        return self.lo >= 0.05


@dataclass(frozen=True)
class Result:
    """A reduction's result as it is read, what it folded, and how."""

    value: Value
    reducer: str
    of: Value


def _ends(op: Callable[[float, float], float], a: Value, b: Value) -> tuple[float, float]:
    found = [op(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(found), max(found)


def add(a: Value, b: Value) -> Value:
    return Value(["add", a.e, b.e], a.lo + b.lo, a.hi + b.hi)


def sub(a: Value, b: Value) -> Value:
    return Value(["sub", a.e, b.e], a.lo - b.hi, a.hi - b.lo)


def mul(a: Value, b: Value) -> Value:
    return Value(["mul", a.e, b.e], *_ends(lambda x, y: x * y, a, b))


def const(x: float) -> Value:
    return Value(x, x, x)


def scaled(a: Value) -> Value:
    """Of a size that can be used further."""
    return a if a.tame else mul(a, const(2.0 ** -math.ceil(math.log2(max(abs(a.lo), abs(a.hi)) / 4))))


def exp(a: Value) -> Value:
    if a.hi > 4:
        a = Value(["min", a.e, 3.0], min(a.lo, 3.0), 3.0)
    return Value(["exp", a.e], math.exp(max(a.lo, -700)), math.exp(a.hi))


def size(a: Value) -> Value:
    top = max(abs(a.lo), abs(a.hi))
    return Value(["abs", a.e], 0.0 if a.lo <= 0 <= a.hi else min(abs(a.lo), abs(a.hi)), top)


class Drawing:
    """One program in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lead: str = rng.choice(("i", "i", "i", "i", "i", "bi", ""))
        self.inputs: dict[str, Doc] = {}
        self.stages: list[Doc] = []
        self.results: list[Result] = []
        self.bounds: list[tuple[Value, Value, str]] = []  # (cell, its max or min, which)
        self.masked: Value | None = None
        self.wide: list[Result] = []  # with the second operand's axis

    # --- tensors -----------------------------------------------------------------------------------

    def input(self, name: str, at: str, dtype: str = "float32", below: str | None = None) -> Expr:
        """A read of an input; its dimensions may be stored in another order."""
        if name not in self.inputs:
            stored = list(at)
            if self.rng.random() < 0.15:
                self.rng.shuffle(stored)
            self.inputs[name] = {"name": name, "at": "".join(stored), "dtype": dtype}
            if below is not None:
                self.inputs[name]["below"] = below
        return ["read", name, *self.inputs[name]["at"]]

    def floats(self, name: str, at: str) -> Value:
        """A float input, now and then of 16 bits."""
        if name not in self.inputs and self.rng.random() < 0.06:
            self.input(name, at, "float16")
        e = self.input(name, at)
        half = self.inputs[name]["dtype"] == "float16"
        return Value(["cast", "float32", e] if half else e, -2.0, 2.0)

    def stage(self, kind: str, at: str, value: Expr, **more: Any) -> str:
        name = f"{kind}{len(self.stages)}"
        self.stages.append({"name": name, "at": at, "value": value, **more})
        return name

    def map(self, v: Value) -> Value:
        """The value as a map stage of its own."""
        name = self.stage("t", self.lead + "j", v.e)
        return Value(["read", name, *self.lead, "j"], v.lo, v.hi)

    def maybe_map(self, v: Value, chance: float = 0.35) -> Value:
        return self.map(v) if self.rng.random() < chance else v

    # --- cells: what is known for each (row, j) ------------------------------------------------------

    def base(self) -> Value:
        """What most of the program is about."""
        rng, at = self.rng, self.lead + "j"
        kind = rng.choice(("x", "x", "x", "x", "product", "gather", "scaled", "row"))
        if kind == "product":
            q, k = self.floats("q", self.lead + "d"), self.floats("k", "jd")
            name = self.stage("s", at, mul(q, k).e, fold="sum", over="d")
            return scaled(Value(["read", name, *at], -20.0, 20.0))
        if kind == "gather":
            where = self.input("idx", "j", "int32", below="n")
            stored = self.input("x", at)
            return Value(["read", "x", *(where if a == "j" else a for a in stored[2:])], -2.0, 2.0)
        x = self.floats("x", at)
        if kind == "scaled":
            return mul(x, self.floats("w", "j"))
        return add(x, self.floats("p", self.lead)) if kind == "row" else x

    def predicate(self) -> Expr:
        """A mask over (row, j)."""
        rng = self.rng
        causal = ["le", "j", ["add", "i", ["int", rng.randint(-1, 2)]]]
        choices: list[Expr] = [
            ["lt", "j", ["int", rng.randint(1, 6)]],
            ["eq", ["mod", "j", ["int", 2]], ["int", 0]],
            ["lt", "j", self.input("len", self.lead, "int32")],
        ]
        if "i" in self.lead:
            choices += [causal, causal, ["le", "j", ["add", "i", ["sub", ["size", "n"], ["size", "m"]]]]]
            choices += [["and", causal, ["gt", "j", ["sub", "i", ["int", rng.randint(0, 3)]]]]]
        if "x" in self.inputs and self.inputs["x"]["dtype"] == "float32":
            choices.append(["gt", self.input("x", self.lead + "j"), 0.5])
        return rng.choice(choices)

    def cell(self, depth: int = 1) -> Value:
        """An expression without results of reductions."""
        rng, at = self.rng, self.lead + "j"
        if depth == 0 or rng.random() < 0.4:
            v = rng.choice((self.anchor, self.anchor, None))
            return v if v is not None else self.floats(rng.choice(("x", "z")), at)
        a = self.cell(depth - 1)
        kind = rng.choice(("add", "mul", "w", "tanh", "abs", "square", "exp", "mask", "half", "const", "p", "sigmoid"))
        if kind in ("add", "mul"):
            return scaled((add if kind == "add" else mul)(a, self.cell(depth - 1)))
        if kind in ("w", "p"):
            return scaled(mul(a, self.floats(kind, "j" if kind == "w" else self.lead)))
        return self.unary(kind, a)

    def unary(self, kind: str, a: Value) -> Value:
        match kind:
            case "tanh":
                return Value(["tanh", a.e], -1.0, 1.0)
            case "sigmoid":
                return Value(["sigmoid", a.e], 0.0, 1.0)
            case "sin":
                return Value(["sin", a.e], -1.0, 1.0)
            case "abs":
                return size(a)
            case "square":
                top = max(a.lo * a.lo, a.hi * a.hi)
                return scaled(Value(["mul", a.e, a.e], 0.0, top))
            case "exp":
                return exp(a)
            case "mask":
                return Value(["select", self.predicate(), a.e, 0.0], min(a.lo, 0.0), max(a.hi, 0.0))
            case "half":
                return Value(["cast", "float32", ["cast", "float16", a.e]], a.lo, a.hi)
            case "sqrt":
                return Value(["sqrt", self.positive(a).e], 0.2, 20.0)
            case _:
                return scaled(mul(a, const(self.rng.choice((0.5, -1.0, 2.0, 0.125)))))

    def positive(self, a: Value) -> Value:
        if a.positive:
            return a
        if self.rng.random() < 0.5 or not a.tame:
            b = size(a)
            return Value(["add", b.e, 0.5], b.lo + 0.5, b.hi + 0.5)
        b = mul(a, a)
        return Value(["add", b.e, 1.0], 1.0, max(b.hi, 0.0) + 1.0)

    # --- results of reductions -----------------------------------------------------------------------

    def result(self) -> Value | None:
        """A result that may be computed with."""
        tame = [r.value for r in self.results if r.value.tame]
        return self.rng.choice(tame) if tame else None

    def phi(self, r: Value) -> Value:
        """A function of a result alone."""
        kind = self.rng.choice(("r", "r", "inverse", "inverse", "square", "sqrt", "rsqrt", "sigmoid", "exp", "alpha"))
        match kind:
            case "inverse":
                b = self.positive(r)
                return Value(["div", 1.0, b.e], 1 / b.hi, 1 / max(b.lo, 0.05))
            case "rsqrt":
                b = self.positive(r)
                return Value(["rsqrt", b.e], b.hi**-0.5, max(b.lo, 0.05) ** -0.5)
            case "exp":
                return exp(Value(["mul", r.e, 0.125], r.lo / 8, r.hi / 8))
            case "alpha":
                return mul(r, Value(["scalar", "alpha"], 1.5, 1.5))
            case "r":
                return r
            case _:
                return self.unary(kind, r)

    def difference(self) -> Value | None:
        """exp of a cell below its maximum (or above its minimum), in [0, 1]."""
        if not self.bounds:
            return None
        c, r, which = self.rng.choice(self.bounds)
        e: Expr = ["sub", c.e, r.e] if which == "max" else ["sub", r.e, c.e]
        scale = self.rng.random()
        if scale < 0.15:
            e = ["mul", e, self.rng.choice((0.5, 2.0))]
        elif scale < 0.2:
            e = ["mul", e, ["scalar", "alpha"]]
        return Value(["exp", e], 0.0, 1.0)

    # --- reductions ------------------------------------------------------------------------------------

    def reduce(self, kind: str) -> None:
        """One more reduction of this kind, or a plain one where it cannot be."""
        made = getattr(self, f"_{kind}")() if self.results or kind in ("plain", "masked", "choice") else None
        reducer, v = made if made is not None else self._plain()
        if v is not None:
            self.fold(reducer, v)

    def fold(self, reducer: str, v: Value) -> None:
        rng = self.rng
        v = self.maybe_map(v)
        at = self.lead
        value = v
        if reducer == "sum" and rng.random() < 0.2:
            value, at = mul(v, self.floats("v", "je")), self.lead + "e"
        more: dict[str, Any] = {"fold": reducer, "over": "j"}
        extreme = reducer in ("max", "min")
        if rng.random() < 0.06:
            more["where"] = self.predicate()
        if rng.random() < 0.03:
            more["init"] = rng.choice((0.0, 1.0, -2.0))
        name = self.stage("r", at, value.e, **more)
        lo, hi = _folded(reducer, value)
        untame = extreme and ("where" in more or value.lo == -math.inf)
        found = Value(["read", name, *at], -math.inf if untame else lo, hi)
        if at != self.lead:
            self.wide.append(Result(found, reducer, value))
            return
        self.results.append(Result(found, reducer, value))
        if extreme:
            self.bounds.append((v, found, reducer))

    def _plain(self) -> tuple[str, Value]:
        v = self.cell(self.rng.choice((0, 1, 2)))
        return self.reducer(v)

    def reducer(self, v: Value) -> tuple[str, Value]:
        name = self.rng.choice(("sum", "sum", "max", "max", "min", "prod"))
        if name == "prod":
            v = Value(["add", ["sigmoid", v.e], 0.5], 0.5, 1.5)
        return name, v

    def _masked(self) -> tuple[str, Value] | None:
        if self.masked is None:
            c = self.cell(1)
            e = ["select", self.predicate(), c.e, -math.inf]
            self.masked = self.maybe_map(Value(e, -math.inf, c.hi), 0.6)
        return "max", self.masked

    def _softmax(self) -> tuple[str, Value] | None:
        v = self.difference()
        if v is None:
            return None
        if self.rng.random() < 0.4:
            v = mul(v, self.cell(1))
        r = self.result()
        if r is not None and self.rng.random() < 0.25:
            v = Value(["div", v.e, self.positive(r).e], v.lo * 20, v.hi * 20)
        if self.rng.random() < 0.1:
            v = self.unary("half", v)
        if self.rng.random() < 0.1:
            v = self.unary("mask", v)
        return self.rng.choice(("sum", "sum", "sum", "max", "min")), v

    def _scaled(self) -> tuple[str, Value] | None:
        r = self.result()
        if r is None:
            return None
        f, c = self.phi(r), self.cell(1)
        v = scaled(mul(c, f)) if self.rng.random() < 0.6 else self.quotient(c, r)
        return self.reducer_of(v)

    def quotient(self, c: Value, r: Value) -> Value:
        b = self.positive(r)
        return scaled(Value(["div", c.e, b.e], *_ends(lambda x, y: x / y, c, Value(b.e, max(b.lo, 0.05), b.hi))))

    def reducer_of(self, v: Value) -> tuple[str, Value]:
        return self.rng.choice(("sum", "sum", "max", "min")), v

    def _shifted(self) -> tuple[str, Value] | None:
        r = self.result()
        if r is None:
            return None
        c = self.cell(1)
        v = scaled(add(c, r) if self.rng.random() < 0.5 else sub(c, r))
        return self.rng.choice(("max", "min", "sum")), v

    def _moment(self) -> tuple[str, Value] | None:
        """Sums of polynomials in cells and results."""
        r = self.result()
        if r is None:
            return None
        mean = Value(["div", r.e, ["cast", "float32", ["size", "n"]]], r.lo, r.hi)
        m = mean if self.rng.random() < 0.6 else r
        d = sub(self.anchor, m)
        linear = add(mul(self.cell(0), m), self.cell(0))
        return "sum", scaled(self.rng.choice((mul(d, d), mul(d, self.cell(0)), linear, mul(mul(d, d), d))))

    def _absmax(self) -> tuple[str, Value] | None:
        """What quantization divides by."""
        c = self.anchor
        self.fold("max", size(c))
        if self.results and self.results[-1].reducer == "max":
            r = self.results[-1].value
            return "sum", Value(["div", c.e, r.e], -1.0, 1.0)
        return None

    def _logsum(self) -> tuple[str, Value] | None:
        """exp(c - m - log l), as a normalised weight."""
        positive = [r.value for r in self.results if r.value.positive and r.value.tame]
        if not self.bounds or not positive:
            return None
        c, m, which = self.rng.choice(self.bounds)
        e: Expr = ["sub", c.e, m.e] if which == "max" else ["sub", m.e, c.e]
        return "sum", Value(["exp", ["sub", e, ["log", self.rng.choice(positive).e]]], 0.0, 20.0)

    def _random(self) -> tuple[str, Value] | None:
        """Anything with a result in it."""
        r = self.result()
        if r is None:
            return None
        v = self.mixed(r, self.rng.choice((1, 2, 2, 3)))
        return self.reducer(v)

    def mixed(self, r: Value, depth: int) -> Value:
        if depth == 0:
            return r if self.rng.random() < 0.5 else self.phi(r)
        kind = self.rng.choice(("add", "sub", "mul", "mul", "div", "unary", "min", "max"))
        a = self.mixed(r, depth - 1)
        b = self.cell(1)
        match kind:
            case "unary":
                name = self.rng.choice(("tanh", "sigmoid", "abs", "square", "exp", "mask", "half", "sqrt", "sin", "c"))
                return self.unary(name, a)
            case "div":
                return self.quotient(*((a, b) if self.rng.random() < 0.5 else (b, a)))
            case "min" | "max":
                return Value([kind, a.e, b.e], min(a.lo, b.lo), max(a.hi, b.hi))
            case "add" | "mul":
                return scaled((add if kind == "add" else mul)(a, b))
            case _:
                return scaled(sub(a, b) if self.rng.random() < 0.5 else sub(b, a))

    def _choice(self) -> tuple[str, Value] | None:
        """The best of a row, and where it stands; only read by other stages where it is tame."""
        v = self.maybe_map(self.cell(1), 0.2)
        # Compared exactly: what is rounded may choose differently.
        if any(isinstance(n, list) and n[0] not in _EXACT for n in walk(v.e)):
            v = self.floats("x", self.lead + "j")
        reducer = self.rng.choice(("argmax", "argmin", "top2"))
        name = self.stage("r", self.lead, v.e, fold=reducer, over="j")
        if reducer != "top2":
            best = Value(["read", f"{name}_0", *self.lead], v.lo, v.hi)
            self.results.append(Result(best, reducer[3:], v))
            self.bounds.append((v, best, reducer[3:]))
        return "sum", self.cell(1)

    # --- what follows ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Maps behind the reductions: per row, or per cell."""
        rng = self.rng
        r = self.result()
        if self.wide and rng.random() < 0.5 and r is not None:
            w = rng.choice(self.wide).value
            self.stage("y", self.lead + "e", ["div", w.e, self.positive(r).e])
        elif r is not None and rng.random() < 0.35:
            self.stage("y", self.lead, self.phi(r).e)
        elif rng.random() < 0.3:
            v = self.difference() or self.cell(1)
            if r is not None and rng.random() < 0.6:
                v = self.quotient(v, r)
            self.stage("y", self.lead + "j", v.e)

    def doc(self) -> Doc:
        rng = self.rng
        lengths = {n: rng.choice(LENGTHS) for n in ("b", "m", "n", "d", "e")}
        lengths |= {n: min(lengths[n], 4) for n in ("b", "d", "e")}
        sizes = {n: [v, rng.random() < 0.75] for n, v in lengths.items()}
        read = {n for s in self.stages for n in reads(s)}
        kept = []
        for s in self.stages:
            unread = not read & set(results(s))
            if unread or len(results(s)) > 1 or rng.random() < 0.2:
                kept += results(s)
        doc = {"sizes": sizes, "inputs": list(self.inputs.values()), "stages": self.stages, "outputs": kept}
        return trimmed(pruned(doc))

    anchor: Value


_EXACT = {
    *("read", "cast", "add", "mul", "abs", "select", "min", "max", "neg", "int", "size"),
    *("le", "lt", "gt", "eq", "and", "mod"),
}
"""Operators whose results are exact on mild inputs."""
KINDS = (
    *("plain", "plain", "masked", "softmax", "softmax", "softmax", "softmax", "scaled", "scaled", "shifted", "moment"),
    *("moment", "absmax", "logsum", "random", "random", "choice"),
)


def trimmed(doc: Doc) -> Doc:
    """Without the sizes that nothing uses."""
    letters = {a for t in (*doc["inputs"], *doc["stages"]) for a in t["at"] + t.get("over", "")}
    nodes = [n for s in doc["stages"] for e in stage_exprs(s) for n in walk(e) if isinstance(n, list)]
    named = {n[1] for n in nodes if n[0] == "size"}
    below = {t["below"] for t in doc["inputs"] if "below" in t}
    used = {AXES[a] for a in letters} | named | below
    if any(t["dtype"] == "int32" for t in doc["inputs"]):
        used.add("n")
    return {**doc, "sizes": {n: v for n, v in doc["sizes"].items() if n in used}}


def _folded(reducer: str, v: Value) -> tuple[float, float]:
    if reducer == "sum":
        return min(v.lo, v.lo * LONGEST), max(v.hi, v.hi * LONGEST)
    if reducer == "prod":
        return 0.5**LONGEST, 1.5**LONGEST
    return v.lo, v.hi


def draw(seed: int) -> Doc:
    """The program of a seed."""
    rng = random.Random(seed)
    d = Drawing(rng)
    d.anchor = d.base()
    if rng.random() < 0.6:
        d.anchor = d.maybe_map(d.unary(rng.choice(("c", "tanh", "mask", "half", "abs")), d.anchor), 0.7)
    count = rng.choice((2, 2, 3, 3, 4, 5))
    first = rng.choice(("plain", "plain", "masked", "masked", "choice"))
    d.reduce(first)
    while sum("fold" in s and s["name"][0] == "r" for s in d.stages) < count:
        d.reduce(rng.choice(KINDS))
    d.finish()
    return d.doc()
