"""Put one mistake into a fused Program or TileProgram: material for tests of the checks.

Every function returns a rewritten program and raises where it found nothing to change, so that a mutant is never
the original by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from neptune.ir.expr import Const, Expr, Op, conjuncts, logical_and, rewrite
from neptune.ir.program import For, Program, Seq, Stage, Stmt, map_action, rewrite_stmt, walk
from neptune.ir.text.printer import print_expr
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileProgram,
    TStmt,
    map_stmt,
)

Bounds = Callable[[Expr, Expr], tuple[Expr, Expr]]
"""(lo, hi) of a loop → other ones."""
Rewrite = Callable[[Expr], "Expr | None"]
TileRewrite = Callable[[TExpr], "TExpr | None"]


# --- loops ----------------------------------------------------------------------------------------


def _body(program: Program, change: Callable[[Stmt], Stmt | None]) -> Program:
    body = rewrite_stmt(program.body, change)
    assert body is not None and body != program.body, "the mutation found nothing to change"
    return program.with_body(body)


def drop(program: Program, stage: str) -> Program:
    """Without the stage, in every piece."""
    return _body(program, lambda s: None if isinstance(s, Stage) and s.name == stage else s)


def change(program: Program, stage: str, fn: Rewrite) -> Program:
    """The stage's expressions rewritten top-down, in every piece."""

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Stage) and s.name == stage:
            return replace(s, action=map_action(s.action, lambda e: rewrite(e, fn)))
        return s

    return _body(program, visit)


def unguard(program: Program, stages: tuple[str, ...], conjunct: str) -> Program:
    """The stages without one conjunct of their guards, given as it prints."""

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Stage) and s.name in stages and s.when is not None:
            return replace(s, when=logical_and(*(c for c in conjuncts(s.when) if print_expr(c) != conjunct)))
        return s

    return _body(program, visit)


def piece(program: Program, var: str, k: int, bounds: Bounds) -> Program:
    """Other bounds for the k-th loop over `var`."""
    target = [s for s in walk(program.body) if isinstance(s, For) and s.var == var][k]
    lo, hi = bounds(target.lo, target.hi)
    return _body(program, lambda s: replace(target, lo=lo, hi=hi) if s is target else s)


def swap(program: Program, first: str, second: str) -> Program:
    """Two nests that follow each other in the other order, in every piece."""

    def names(s: Stmt) -> set[str]:
        return {x.name for x in walk(s) if isinstance(x, Stage)}

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Seq):
            parts = list(s.stmts)
            for k, (a, b) in enumerate(pairwise(parts)):
                if names(a) == {first} and names(b) == {second}:
                    parts[k : k + 2] = [b, a]
                    return Seq(tuple(parts))
        return s

    return _body(program, visit)


def rename(old: str, new: str) -> Rewrite:
    """An operator becomes another one."""
    return lambda e: Op(new, e.args, e.dtype) if isinstance(e, Op) and e.name == old else None


def reverse(e: Expr) -> Expr | None:
    """a - b becomes b - a."""
    return Op("sub", e.args[::-1], e.dtype) if isinstance(e, Op) and e.name == "sub" else None


def one_more(e: Expr) -> Expr | None:
    """a <= b becomes a <= b + 1."""
    return Op("le", (e.args[0], e.args[1] + 1), "bool") if isinstance(e, Op) and e.name == "le" else None


def put(old: Expr, new: Expr) -> Rewrite:
    """One expression for another."""
    return lambda e: new if e == old else None


# --- tiles ----------------------------------------------------------------------------------------


def _tiles(program: TileProgram, fn: Callable[[TStmt], TStmt | None]) -> TileProgram:
    """Every statement rewritten, the inner ones first; None removes it."""

    def visit(stmts: tuple[TStmt, ...]) -> tuple[TStmt, ...]:
        inner = (replace(s, body=visit(s.body)) if isinstance(s, Loop | Branch) else s for s in stmts)
        return tuple(new for s in inner if (new := fn(s)) is not None)

    kernels = tuple(replace(k, body=visit(k.body)) for k in program.kernels)
    assert kernels != program.kernels, "the mutation found nothing to change"
    return replace(program, kernels=kernels)


def tile_change(program: TileProgram, name: str, fn: TileRewrite) -> TileProgram:
    """What is assigned to a variable, or stored in a buffer, of that name, rewritten bottom-up."""

    def visit(s: TStmt) -> TStmt:
        if isinstance(s, Assign) and s.name == name:
            return map_stmt(s, lambda e: rewrite(e, fn))
        if isinstance(s, StoreTile) and s.buffer == name:
            return replace(s, value=rewrite(s.value, fn))
        return s

    return _tiles(program, visit)


def tile_drop(program: TileProgram, stage: str) -> TileProgram:
    """Without the assignments that come from a stage."""
    return _tiles(program, lambda s: None if isinstance(s, Assign) and s.stage == stage else s)


def tile_piece(program: TileProgram, k: int, bounds: Bounds) -> TileProgram:
    """Other bounds for the k-th loop."""
    seen = iter(range(100))

    def visit(s: TStmt) -> TStmt:
        if isinstance(s, Loop) and next(seen) == k:
            lo, hi = bounds(s.lo, s.hi)
            return replace(s, lo=lo, hi=hi)
        return s

    return _tiles(program, visit)


def start_from(value: float) -> TileRewrite:
    """Another initial value."""
    return lambda e: replace(e, value=Scalar(Const(value, "float32"))) if isinstance(e, Full) else None


def without_factor(name: str) -> TileRewrite:
    """A product loses its factor `name`, broadcast or not."""

    def is_it(e: TExpr) -> bool:
        return (isinstance(e, Local) and e.name == name) or (isinstance(e, Rearrange) and is_it(e.arg))

    return lambda e: e.args[0] if isinstance(e, Op) and e.name == "mul" and is_it(e.args[1]) else None


def tile_rename(old: str, new: str) -> TileRewrite:
    """An elementwise operator becomes another one."""
    return lambda e: replace(e, name=new) if isinstance(e, Op) and e.name == old else None


def tile_reverse(e: TExpr) -> TExpr | None:
    """a - b becomes b - a."""
    return replace(e, args=e.args[::-1]) if isinstance(e, Op) and e.name == "sub" and len(e.dims) == 1 else None


def tile_one_more(e: TExpr) -> TExpr | None:
    """a <= b becomes a < b + 2 (which is a <= b + 1)."""
    if isinstance(e, Op) and e.name == "le":
        two = Scalar(Const(2, "int32"))
        return replace(e, name="lt", args=(e.args[0], Op("add", (e.args[1], two), "int32")))
    return None


def without_mask(e: TExpr) -> TExpr | None:
    """A load reads everything."""
    return replace(e, mask=None) if isinstance(e, LoadTile) else None


def scalars(fn: Rewrite) -> TileRewrite:
    """The scalar expressions in a tile expression rewritten."""

    def visit(e: TExpr) -> TExpr | None:
        return Scalar(rewrite(e.expr, fn)) if isinstance(e, Scalar) else None

    return visit
