"""Definitions whose temporaries have their dimensions in another order.

    t[i, j] = exp(x[i, j]); s[j] += t[i, j]      {"t": ("j", "i")}  →  t[j, i] = exp(x[i, j]); s[j] += t[j, i]

Which order is best is a question of layouts (`layouts.py`); what is computed does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neptune.ir.expr import Expr, Load, Var, rewrite
from neptune.ir.program import For, Program, Seq, Stage, Stmt, map_exprs
from neptune.mirage.definitions import Definitions
from neptune.schedule.state import Decision

Orders = Mapping[str, Sequence[int]]
"""For each buffer its dimensions in their new order, by number."""


def relaid(made: Definitions, orders: Mapping[str, tuple[str, ...]]) -> Definitions:
    """The definitions with the tensors between kernels laid out as `orders` says: their axes, the innermost last."""
    found: dict[str, list[int]] = {}
    for tensor, axes in orders.items():
        buffer = made.tensors.get(tensor)
        stage = next((s for s in made.stages if buffer in s.action.buffers), None)
        if stage is None or buffer is None:
            continue
        names = [v.name for v in stage.action.index if isinstance(v, Var)]
        wanted = [made.axes[a] for a in axes]
        if sorted(names) == sorted(wanted) and names != wanted:
            found[buffer] = [names.index(n) for n in wanted]
            made = made.note(Decision("layout", buffer, f"stored as [{', '.join(wanted)}]", "for those who read it"))
    return replace(made, program=permuted(made.program, found)) if found else made


def permuted(program: Program, orders: Orders) -> Program:
    """The program with the dimensions of temporaries in another order, where they are declared, written and read."""

    def read(e: Expr) -> Expr:
        def load(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in orders:
                return None
            return replace(x, index=tuple(read(x.index[k]) for k in orders[x.buffer]))

        return rewrite(e, load)

    def written(s: Stmt) -> Stmt:
        match s:
            case For():
                return replace(s, body=written(s.body))
            case Seq(stmts):
                return Seq(tuple(map(written, stmts)))
            case Stage() if s.action.buffers[0] in orders:
                order = orders[s.action.buffers[0]]
                return replace(s, action=replace(s.action, index=tuple(s.action.index[k] for k in order)))
        return s

    temporaries = tuple(
        replace(b, shape=tuple(b.shape[k] for k in orders[b.name])) if b.name in orders else b
        for b in program.temporaries
    )
    return replace(program, temporaries=temporaries, body=written(map_exprs(program.body, read)))
