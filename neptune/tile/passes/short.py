"""short: one instruction in the place of a function, where results have too few bits to tell.

r = rsqrt(exp2(s * (c * (2 * log2e))) + 1)        →        score = tanh_approx(s * c)
score = 1 - r * r * 2

What stands on the left is the form of `neptune.ir.analysis.forms` for tanh. Which stages may take the instruction
follows from the error analysis of the whole expression (`neptune.ir.analysis.forms.short`); the exact check is of the
form on the left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial

from neptune.ir.expr import Const, Op, args_of, op, rewrite, walk
from neptune.tile.ir import (
    Assign,
    Local,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    map_stmt,
    read_by,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block, assigns, map_blocks, reads

INSTRUCTION = "tanh_approx"
_TWICE = op("mul", Const(2.0, "float32"), op("log2e", dtype="float32"))


def shortened(kernel: TileKernel, stages: Collection[str]) -> TileKernel:
    """The kernel whose statements of these stages take the instruction."""
    if not stages:
        return kernel
    body = map_blocks(kernel.body, lambda block: tuple(_shortened(block, stages)))
    read = {n for s in body for n in reads(s)}
    roots = {s.name for s in walk_stmts(kernel.body) if isinstance(s, Assign) and _argument(s.value) is not None}
    dead = roots - read
    return replace(kernel, body=map_blocks(body, lambda block: tuple(s for s in block if not _sets(s, dead))))


def taken_in(kernel: TileKernel) -> list[str]:
    """The stages that take the instruction."""
    candidates = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign | StoreTile)]
    return list(dict.fromkeys(s.stage for s in candidates if any(_is_taken(x) for e in stmt_exprs(s) for x in walk(e))))


def _is_taken(e: TExpr) -> bool:
    return isinstance(e, Op) and e.name == INSTRUCTION


def _sets(s: TStmt, names: Collection[str]) -> bool:
    return isinstance(s, Assign) and s.name in names


def _shortened(block: Block, stages: Collection[str]) -> Iterator[TStmt]:
    """The statements of a block. `known` has the arguments of the roots that are in front of a statement."""
    known: dict[str, TExpr] = {}
    for s in block:
        own = isinstance(s, Assign | StoreTile) and s.stage in stages
        yield map_stmt(s, partial(_with_instructions, known=dict(known))) if own else s
        changed = set(assigns(s))
        for name in [n for n, x in known.items() if n in changed or read_by(x) & changed]:
            del known[name]
        if isinstance(s, Assign) and (x := _argument(s.value)) is not None and s.name not in read_by(x):
            known[s.name] = x


def _with_instructions(e: TExpr, known: Mapping[str, TExpr]) -> TExpr:
    """The expression with the instruction for each 1 - r·r·2."""

    def instruction(x: TExpr) -> TExpr | None:
        match x:
            case Op("sub", (one, Op("mul", (Op("mul", (r, same), _), two), _)), _) if r == same:
                argument = known.get(r.name) if isinstance(r, Local) else _argument(r)
                return (
                    Op(INSTRUCTION, (argument,), x.dtype)
                    if argument is not None and _is(one, 1.0) and _is(two, 2.0)
                    else None
                )
        return None

    return rewrite(e, instruction)


def _argument(r: TExpr) -> TExpr | None:
    """x of rsqrt(exp2(x · 2·log2e) + 1)."""
    match r:
        case Op("rsqrt", (Op("add", (Op("exp2", (Op("mul", (x, Scalar(factor)), _),), _), one), _),), _):
            if not _is(one, 1.0):
                return None
            c, twice = args_of(factor, "mul") or (None, None)
            if c is not None and twice == _TWICE:
                return Op("mul", (x, Scalar(c)), "float32")
            return x if factor == _TWICE else None
    return None


def _is(e: TExpr, value: float) -> bool:
    return e == Scalar(Const(value, "float32"))
