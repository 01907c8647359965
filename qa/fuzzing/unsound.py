"""Requests that must be refused: reductions that no repair exists for, fused under what they read.

`UNSOUND` has one row a reason: the reducer and the value of a target that reads `r`, a reduction over the same axis,
and a cell `c`. A sum of values that do not separate has no repair of any finite size; and whatever rounds, compares
or indexes with `r` sees every value that it passes through.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from qa.fuzzing.draw import Drawing, trimmed
from qa.fuzzing.programs import Doc, Expr, pruned

ROW: Expr = ["read", "r0", "i"]
MEAN: Expr = ["div", ROW, ["cast", "float32", ["size", "n"]]]
INT: Expr = ["cast", "int32", ROW]


def _squares(c: Expr) -> Expr:
    return ["add", ["add", ["mul", c, c], ["mul", ROW, ROW]], 1.0]


Make = Callable[[Expr], Expr]
UNSOUND: Mapping[str, tuple[str, Make]] = {
    "absolute": ("sum", lambda c: ["abs", ["sub", c, MEAN]]),
    "sine": ("sum", lambda c: ["sin", ["mul", c, ROW]]),
    "tanh": ("sum", lambda c: ["tanh", ["sub", c, ROW]]),
    "sigmoid": ("sum", lambda c: ["sigmoid", ["mul", c, ROW]]),
    "erf": ("sum", lambda c: ["erf", ["sub", c, ROW]]),
    "exponent": ("sum", lambda c: ["exp", ["mul", c, ROW]]),
    "logarithm": ("sum", lambda c: ["log", _squares(c)]),
    "inverse": ("sum", lambda c: ["div", 1.0, _squares(c)]),
    "root": ("sum", lambda c: ["sqrt", _squares(c)]),
    "power": ("sum", lambda c: ["pow", ["add", ["abs", c], 0.5], ROW]),
    "largest": ("sum", lambda c: ["max", c, MEAN]),
    "unknown sign": ("max", lambda c: ["mul", c, ROW]),
    "floor": ("sum", lambda c: ["floor", ["mul", c, ROW]]),
    "integer": ("sum", lambda c: ["cast", "float32", ["cast", "int32", ["mul", c, ROW]]]),
    "comparison": ("sum", lambda c: ["select", ["gt", c, MEAN], c, 0.0]),
    "index": ("sum", lambda c: ["mul", c, ["read", "y", ["mod", INT, ["size", "n"]]]]),
    "other row": ("sum", lambda c: ["mul", c, ["read", "r0", ["mod", ["add", "i", ["int", 1]], ["size", "m"]]]]),
    "moving row": ("sum", lambda c: ["mul", c, ["read", "r0", ["mod", "j", ["size", "m"]]]]),
    "product of sums": ("prod", lambda c: ["add", ["mul", c, 0.25], ROW]),
    "two places": ("sum", lambda c: ["mul", ROW, ["mul", c, ["read", "r0", ["int", 0]]]]),
    "init": ("sum", lambda c: ["mul", c, ROW]),
    "integer sum": ("sum", lambda c: ["cast", "int32", ["mul", c, ROW]]),
}


def draw(seed: int, name: str | None = None) -> Doc:
    """A case with a request, as `refuse`, that must not be granted; other requests stand around it.

    `name` is a row of `UNSOUND`; by chance if None.
    """
    rng = random.Random(seed)
    d = Drawing(rng)
    d.lead = "i"
    d.anchor = d.base()
    cell = d.maybe_map(d.cell(rng.choice((0, 0, 1))))
    name = rng.choice(sorted(UNSOUND)) if name is None else name
    reducer, make = UNSOUND[name]
    value = make(cell.e)
    if name == "index":
        d.input("y", "j")
    shared = {"sizes": {n: [rng.randint(2, 6), True] for n in ("b", "m", "n", "d", "e")}}
    stages = [*d.stages, {"name": "r0", "at": "i", "fold": "sum", "over": "j", "value": cell.e}]
    if rng.random() < 0.4:
        stages.append({"name": "u0", "at": "ij", "value": value})
        value = ["read", "u0", "i", "j"]
    target: dict[str, Any] = {"name": "r1", "at": "i", "fold": reducer, "over": "j", "value": value}
    if name == "init":
        target["init"] = 1.0
    outputs = ["r1", "r0"] if rng.random() < 0.3 else ["r1"]
    program = trimmed(
        pruned({**shared, "inputs": list(d.inputs.values()), "stages": [*stages, target], "outputs": outputs})
    )
    loop = "j"
    steps: list[Any] = []
    if rng.random() < 0.7:
        steps.append(["split", {"stage": "r0", "loop": "j"}, rng.choice((2, 3))])
        loop = "j0"
        # With the fused loop outermost, all rows are complete where a deferred factor is applied.
        if rng.random() < 0.5 and name not in ("other row", "two places"):
            steps.append(["reorder", {"stage": "r0", "loop": "j0"}, {"stage": "r0", "loop": "i0"}])
    request = ["rolling_update", "r1", {"stage": "r0", "loop": loop}]
    after = rng.choice((["fuse_at", *request[1:]], ["partition", request[2]], None))
    steps += [request, *([after] if after else [])]
    return {"program": program, "steps": steps, "data": seed, "refuse": request, "why": name}
