"""Verdicts on µGraphs and their lowering: rewritten expressions, expressions with a mistake in their domain or sizes.

    python -m qa.fuzz_mirage --count 1000 [--jobs 2]

An even seed draws an expression over four inputs, rewrites it by identities that keep where it has a value, and then,
for every other one, makes a mistake that no draw of numbers need meet: a factor u/u, √u·√u for u, a difference of equal
quotients, a factor that is 1 at some sizes. An equal graph that is called another function, or a wrong one that is
called equal, is wrong; what is not decided is refused. An odd seed takes a graph that a search found for one of a few
programs, verifies, lowers and compiles it for the interpreter, and compares it with float64.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

import neptune
from bench.mirage_wild import WILD
from neptune.errors import NeptuneError
from neptune.ir.expr import Const, Expr, Var, binary, cast
from neptune.mirage.draw import draw
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.lower import lowered
from neptune.mirage.optimize import Goal, Optimizer
from neptune.mirage.reference import reference
from neptune.mirage.verifier.verdict import verify
from neptune.tune.model.machine import DEFAULT
from neptune.verify.evaluate import evaluate
from qa.harness import Outcome, command
from qa.mirage_axioms import V, W, X, Y, Z, exp, graph, sigmoid, sqr, sqrt, total
from qa.mirage_axioms import _node as node

Tree: TypeAlias = Any
"""A leaf's name, or an operator with its trees."""
LEAVES = {"x": X, "y": Y, "z": Z, "w": W}
BINARY = ("add", "sub", "mul", "div")
SMALL = {"m": 5, "k": 33, "n": 20, "r": 3, "h": 2, "rows": 7, "keys": 19, "d": 16, "b": 3, "t": 21}


def value(t: Tree) -> V:
    """A tree as nodes."""
    if isinstance(t, str):
        return LEAVES[t]
    name, *args = t
    if name in ("shift", "scale"):
        return node(name, value(args[0]), constant=args[1])
    made = [value(a) for a in args]
    unary: dict[str, Callable[[V], V]] = {"exp": exp, "sqr": sqr, "sqrt": sqrt, "sigmoid": sigmoid}
    if name == "sum":
        return total("k", made[0])
    return unary[name](*made) if name in unary else node(name, *made)


def expression(rng: random.Random, depth: int, exps: int = 1) -> Tree:
    """A random tree; one exponential on a path."""
    if not depth:
        return rng.choice("xyzw")
    kind = rng.choice(["sum", "sum", "sqr", "exp", "sigmoid", *BINARY, *BINARY])
    if kind in ("exp", "sigmoid") and not exps:
        kind = "mul"
    exps -= kind in ("exp", "sigmoid")
    args = [expression(rng, depth - 1, exps) for _ in range(2 if kind in BINARY else 1)]
    if kind == "sum" and "k" not in value(args[0]).axes:
        return args[0]
    return (kind, *args)


def rewritten(t: Tree, rng: random.Random) -> Tree:
    """The same function of the same domain, by an identity here or below."""
    if isinstance(t, str):
        return t
    if rng.random() < 0.6:
        match t:
            case ("add" | "mul" as op, a, b) if rng.random() < 0.3:
                return op, b, a
            case ("mul", a, ("add" | "sub" as op, b, c)):
                return op, ("mul", a, b), ("mul", a, c)
            case ("div", ("add" | "sub" as op, a, b), c):
                return op, ("div", a, c), ("div", b, c)
            case ("div", ("div", a, b), c):
                return "div", a, ("mul", b, c)
            case ("mul", a, ("div", b, c)):
                return "div", ("mul", a, b), c
            case ("exp", ("add", a, b)):
                return "mul", ("exp", a), ("exp", b)
            case ("exp", ("sub", a, b)):
                return "div", ("exp", a), ("exp", b)
            case ("sqr", a):
                return "mul", a, a
            case ("sum", ("add" | "sub" as op, a, b)) if all("k" in value(v).axes for v in (a, b)):
                return op, ("sum", a), ("sum", b)
            case ("sum", ("mul" | "div" as op, a, b)) if "k" in value(a).axes and "k" not in value(b).axes:
                return op, ("sum", a), b
    at = rng.randrange(1, len(t))
    return (*t[:at], rewritten(t[at], rng), *t[at + 1 :])


def spoilt(t: Tree, rng: random.Random) -> Tree:
    """The same function nearly everywhere: it has no value at some points, or other values at most sizes."""
    if not isinstance(t, str) and t[0] not in ("shift", "scale") and rng.random() < 0.6:
        at = rng.randrange(1, len(t))
        return (*t[:at], spoilt(t[at], rng), *t[at + 1 :])
    inner = [a for a in "xyzw" if LEAVES[a].axes <= value(t).axes] or ["z"]
    u = ("shift", rng.choice(inner), Const(rng.uniform(0.5, 2), "float32"))
    kinds = ["factor", "difference", "sizes"] + (["roots"] if LEAVES[u[1]].axes == value(t).axes else [])
    match rng.choice(kinds):
        case "factor":
            return "mul", t, ("div", u, u)
        case "difference":
            return "add", t, ("sub", ("div", t, u), ("div", t, u))
        case "roots":
            return "add", ("sub", t, u), ("mul", ("sqrt", u), ("sqrt", u))
    first = rng.randrange(1, 5)
    return "scale", t, one_at(Var(rng.choice("mn")), range(first, first + rng.randrange(1, 6)))


def one_at(size: Expr, roots: range) -> Expr:
    """A number that is 1 at these sizes alone."""
    made: Expr = Const(1.0, "float32")
    for k in roots:
        made = binary("mul", made, binary("sub", cast(size, "float32"), Const(float(k), "float32")))
    return binary("add", Const(1.0, "float32"), made)


def verdicts(seed: int) -> Outcome:
    """An expression beside what it is rewritten to."""
    rng = random.Random(seed)
    first = expression(rng, rng.choice((2, 3, 3, 4)))
    if isinstance(first, str):
        first = ("sum", first) if "k" in LEAVES[first].axes else ("sqr", first)
    other = first
    for _ in range(rng.randrange(4)):
        other = rewritten(other, rng)
    wrong = seed % 4 == 2
    if wrong:
        other = spoilt(other, rng)
    case = f"{first}\n{other}"
    if value(first).axes != value(other).axes:
        return Outcome("refused", "the mistake has other axes", case)
    found = verify(graph(value(other)), graph(value(first)), seed=seed)
    if wrong:
        return Outcome("wrong" if found.equal else "right", "a mistake is called equal" if found.equal else "", case)
    if found.equal:
        return Outcome("right")
    false = found.counterexample is not None
    return Outcome("wrong" if false else "refused", "a false counterexample" if false else found.why[:60], case)


@lru_cache
def graphs(name: str) -> tuple[Any, ...]:
    """What a short search finds for a program."""
    of = WILD[name]
    program = of.build()
    goal = Goal(reference(program), dict(of.sizes), DEFAULT, Bounds(of.operators, of.kernels))
    found = Optimizer(goal, time.process_time() + 4)
    for _ in found:
        pass
    return program, list(found.ranking())


def lowering(seed: int) -> Outcome:
    """A graph that was found, verified, lowered, and run."""
    rng = random.Random(seed)
    name = rng.choice(sorted(WILD))
    program, found = graphs(name)
    if not found:
        return Outcome("refused", f"no graph of {name}")
    chosen = rng.choice(found).graph
    verdict = verify(chosen, program, seed=seed)
    if not verdict.equal:
        return Outcome("refused", f"not equal: {verdict.why[:60]}", draw(chosen))
    try:
        kernel = neptune.compile(program, template=lowered(chosen, program).template, target="interpret")
    except NeptuneError as error:
        return Outcome("refused", f"{error.asked.split('(')[0]}: {error.wrong.splitlines()[0][:50]}", draw(chosen))
    numbers = np.random.default_rng(seed)
    shapes = {b.name: tuple(SMALL[d.name] for d in b.shape) for b in program.inputs}
    given = {n: (numbers.standard_normal(s) * 0.5).astype("float16") for n, s in shapes.items()}
    sizes = {s.name: SMALL[s.name] for s in program.scalars}
    want = evaluate(program, {n: x.astype("float64") for n, x in given.items()}, sizes)
    got = kernel(*map(torch.from_numpy, given.values()))
    for y, (out, exact) in zip(got if isinstance(got, tuple) else (got,), want.items(), strict=True):
        off = np.abs(y.double().numpy() - exact).max() / np.abs(exact).max()
        if not off < 1e-2:
            return Outcome("wrong", f"{name}: {out} is {off:.1e} off", draw(chosen))
    return Outcome("right")


def trial(seed: int) -> Outcome:
    """One case."""
    return lowering(seed) if seed % 2 else verdicts(seed)


if __name__ == "__main__":
    command(trial, __doc__)
