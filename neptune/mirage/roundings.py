"""Operands of products in the dtype of the inputs, so that products stay on the matrix unit.

    c += exp(s - m) * v    →    p_cast = cast(f16, exp(s - m))    c += p_cast * v

What was loaded in that dtype stays as it is. What is computed is rounded where the expression rounds the same number,
or its range allows it: bfloat16 has that of float32. Any other number that may leave float16 stays float32, and the
product leaves the matrix unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Expr, Load, Op, binary, cast, variables, walk
from neptune.ir.program import Program, Stage, Stmt, Store, Update, rewrite_stmt, stages
from neptune.mirage.canonical import actions_of, canonical
from neptune.mirage.definitions import Definitions
from neptune.mirage.operands import core
from neptune.mirage.ranges import range_in
from neptune.mirage.rewriting import inserted
from neptune.schedule.state import Decision

STAYS = "stays float32"
"""What becomes of an operand that may leave the range of the inputs' dtype: its product leaves the matrix unit."""


def rounded(made: Definitions, original: Program) -> Definitions:
    """The definitions with operands of products that are computed rounded to the inputs' dtype.

    `original` is the expression whose roundings are known to do no harm.
    """
    narrow = made.narrow
    if narrow is None:
        return made
    before = _roundings(original, narrow)
    kept: set[str] = set()
    for name in made.products:
        stage = next(s for s in made.stages if s.name == name)
        assert isinstance(stage.action, Update)
        (value,) = stage.action.values
        assert isinstance(value, Op)
        ends: list[Expr] = []
        for k, e in enumerate(value.args):
            made, end = _operand(made, stage, e, k, narrow, before, kept)
            ends.append(end)
        made = _with_value(made, name, binary("mul", *ends))
    for text, stage_name in before.items():
        if text not in kept:
            made = made.note(Decision("rounding", stage_name, "dropped", f"the expression rounds to {narrow} there"))
    return made


def _operand(
    made: Definitions, stage: Stage, e: Expr, number: int, narrow: str, before: Mapping[str, str], kept: set[str]
) -> tuple[Definitions, Expr]:
    """An operand of a product, rounded where that may be. What the expression rounds as well is added to `kept`."""
    if core(e) is not None:
        return made, e
    of = e.buffer if isinstance(e, Load) else f"{stage.name}_{'ab'[number]}"
    most = range_in(made)(e).most
    text = canonical(e, actions_of(made.program))
    known = text in before
    kept |= {text}
    if narrow == "float16" and most > DTYPES[narrow].highest and not known:
        why = f"operand of the product `{stage.name}`: it may leave the range of {narrow}"
        return made.note(Decision("rounding", of, STAYS, why)), e
    home = made.homes[stage.name]
    axes = [a for a in made.order if a in variables(e)]
    load: Load
    made, load = inserted(made, stage.name, f"{of}_cast", axes, lambda name, at: Store(name, at, cast(e, narrow)), home)
    why = f"operand of the product `{stage.name}`: it stays on the matrix unit"
    why += f", and the expression rounds it at `{before[text]}`" if known else ""
    return made.note(Decision("rounding", of, f"to {narrow}", why)), cast(load, e.dtype)


def _roundings(original: Program, narrow: str) -> Mapping[str, str]:
    """The numbers that an expression rounds, but for results, in canonical form, with the stage that does."""
    actions, outputs = actions_of(original), {b.name for b in original.outputs}
    found: dict[str, str] = {}
    for s in stages(original.body):
        for e in s.action.values:
            for x in walk(e):
                if isinstance(x, Cast) and x.dtype == narrow and (x is not e or not outputs & {*s.action.buffers}):
                    found.setdefault(canonical(x.arg, actions), s.name)
    return found


def _with_value(made: Definitions, name: str, value: Expr) -> Definitions:
    def fn(s: Stmt) -> Stmt:
        if isinstance(s, Stage) and s.name == name and isinstance(s.action, Update):
            return replace(s, action=replace(s.action, values=(value,)))
        return s

    body = rewrite_stmt(made.program.body, fn)
    assert body is not None
    return replace(made, program=made.program.with_body(body))
