"""Scalars of a kernel: expressions replaced wherever they stand, and ways to write new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from neptune.ir.expr import Const, Expr, Load, Op, Var, loads, rewrite, substitute, variables, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Loop,
    Scalar,
    TExpr,
    TileKernel,
    TStmt,
    bound_exprs,
    map_stmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block, reads

Change = Callable[[Expr], Expr]


def in_tile(e: TExpr, fn: Change) -> TExpr:
    """A tile expression with `fn` applied to every scalar expression in it."""

    return rewrite(e, lambda x: Scalar(fn(x.expr)) if isinstance(x, Scalar) else None)


def in_block(body: Block, fn: Change) -> Block:
    """A body with `fn` applied to every scalar expression: in tiles, bounds, conditions and facts."""
    out: list[TStmt] = []
    for s in body:
        match s:
            case Loop(_, lo, hi, inner, facts):
                out.append(
                    replace(s, lo=fn(lo), hi=fn(hi), body=in_block(inner, fn), facts=tuple(fn(x) for x in facts))
                )
            case Branch(pred, inner):
                out.append(replace(s, pred=fn(pred), body=in_block(inner, fn)))
            case _:
                out.append(map_stmt(s, lambda e: in_tile(e, fn)))
    return tuple(out)


def in_kernel(kernel: TileKernel, fn: Change) -> TileKernel:
    """A kernel with `fn` applied to the extents of its grid and axes, and to its body."""
    return replace(
        kernel,
        grid=tuple(replace(g, extent=fn(g.extent)) for g in kernel.grid),
        axes=tuple((name, fn(extent)) for name, extent in kernel.axes),
        body=in_block(kernel.body, fn),
    )


def with_values(kernel: TileKernel, values: Mapping[str, int]) -> TileKernel:
    """A kernel whose tunables are numbers."""
    env: dict[str, Expr] = {name: Const(value, "int32") for name, value in values.items()}
    return in_kernel(kernel, lambda e: substitute(e, env))


def replaced(old: Expr, new: Expr) -> Change:
    """What puts `new` where `old` stands."""
    return lambda e: rewrite(e, lambda x: new if x == old else None)


def put(body: Block, var: str, value: Expr) -> Block:
    """A body with an expression for a variable."""
    return in_block(body, lambda e: substitute(e, {var: value}) if var in variables(e) else e)


def local(name: str) -> Load:
    """The present value of a scalar local, as bounds and indices read it."""
    return Load(name, (), "int32")


def scalars(s: TStmt) -> Iterator[Expr]:
    """Every scalar expression of a statement and of its body: in tiles, bounds, conditions and facts."""
    for x in walk_stmts((s,)):
        yield from (*bound_exprs(x), *(x.facts if isinstance(x, Loop) else ()))
        yield from (part.expr for e in stmt_exprs(x) for part in walk(e) if isinstance(part, Scalar))


def reads_var(s: TStmt, name: str) -> bool:
    """True if a statement, or one in its body, reads a variable in any scalar."""
    return any(name in variables(e) for e in scalars(s))


def is_less(pred: Expr) -> tuple[Expr, Expr] | None:
    """(a, b) of a condition a < b."""
    return (pred.args[0], pred.args[1]) if isinstance(pred, Op) and pred.name == "lt" else None


def reads_itself(s: TStmt) -> set[str]:
    """The locals that a statement reads, in scalars as well, without what is in its body."""
    alone = replace(s, body=()) if isinstance(s, Loop | Branch) else s
    return {*reads(alone), *(x.buffer for e in scalars(alone) for x in loads(e) if not x.index)}


def define(name: str, value: Expr) -> Assign:
    """A scalar local."""
    return Assign(name, Scalar(value))


def var(name: str) -> Var:
    """An int32 variable."""
    return Var(name, "int32")
