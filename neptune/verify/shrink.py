"""Make the constant dimensions of programs small, so that exact checks stay quick.

A head depth of 128 is a constant in buffer shapes, loop bounds and tile axes.  A constant may be replaced
by another where *every* integer constant of its value stands for that dimension: a whole dimension, loop
bound, tile extent or `covers`, a side of a comparison, a minimum or a maximum, or the numerator of a
division (also one that rounds up).  One that also occurs anywhere else (an offset, a factor) stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from neptune.ir.dtypes import is_int
from neptune.ir.expr import OPS, Const, Expr, Op, ceildiv, children, rewrite
from neptune.ir.program import Alloc, Buffer, For, Program, Stmt, map_exprs, sub_stmts, walk, with_stmts
from neptune.tile.ir import (
    Branch,
    Full,
    Loop,
    Map,
    Scalar,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    map_stmt,
    stmt_exprs,
    tile_children,
    tile_rewrite,
    walk_stmts,
)
from neptune.verify.parallel import statement_exprs

LARGE = 8
AnyProgram = Program | TileProgram


def _number(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) and is_int(e.dtype) else None


def _fixed(e: Expr) -> Iterator[int]:
    """The constants of an expression in a place where they may mean anything."""
    value = _number(e)
    if value is not None:
        yield value
        return
    parts = children(e)
    if isinstance(e, Op) and (OPS[e.name].kind == "compare" or e.name in ("min", "max")):
        parts = tuple(p for p in parts if _number(p) is None)
    elif isinstance(e, Op) and e.name == "floordiv":
        numerator = e.args[0]
        first = numerator.args[0] if isinstance(numerator, Op) and numerator.name == "add" else None
        if _number(numerator) is not None or (
            first is not None and _number(first) is not None and e == ceildiv(first, e.args[1])
        ):
            parts = (e.args[1],)
    for p in parts:
        yield from _fixed(p)


def _fixed_tile(e: TExpr) -> Iterator[int]:
    """Likewise for a tile expression."""
    if isinstance(e, Scalar):
        yield from _fixed(e.expr)
        return
    parts = tile_children(e)
    if isinstance(e, Map) and OPS[e.op].kind == "compare":
        parts = tuple(p for p in parts if _lone(p) is None)
    for p in parts:
        yield from _fixed_tile(p)


def _lone(e: TExpr) -> int | None:
    """The value of an integer constant, as a scalar or as a tile."""
    scalar = e.value if isinstance(e, Full) else e
    return _number(scalar.expr) if isinstance(scalar, Scalar) else None


def _whole(e: Expr) -> tuple[set[int], set[int]]:
    """(constants that stand for an extent, constants that may mean anything) of an extent."""
    value = _number(e)
    return (set(), set(_fixed(e))) if value is None else ({value}, set())


def _extents(program: AnyProgram) -> Iterator[Expr]:
    """Expressions that are an extent as a whole, other than dimensions of buffers."""
    yield from (t.covers for t in program.tunables if t.covers is not None)
    if isinstance(program, Program):
        for s in walk(program.body):
            if isinstance(s, For):
                yield s.lo
                yield s.hi
        return
    for kernel in program.kernels:
        yield from (g.extent for g in kernel.grid)
        yield from (extent for _, extent in kernel.axes)
        for t in walk_stmts(kernel.body):
            if isinstance(t, Loop):
                yield t.lo
                yield t.hi


def _other_constants(program: AnyProgram) -> Iterator[int]:
    """Constants in every expression that is not an extent."""
    if isinstance(program, Program):
        for s in walk(program.body):
            for e in s.facts if isinstance(s, For) else statement_exprs(s):
                yield from _fixed(e)
        return
    for kernel in program.kernels:
        for t in walk_stmts(kernel.body):
            for x in stmt_exprs(t):
                yield from _fixed_tile(x)
            plain = t.facts if isinstance(t, Loop) else (t.pred,) if isinstance(t, Branch) else ()
            for e in plain:
                yield from _fixed(e)


def _buffers(program: AnyProgram) -> list[Buffer]:
    return list(program.buffers.values() if isinstance(program, Program) else program.globals.values())


def shrinkable(program: AnyProgram) -> tuple[set[int], set[int]]:
    """(large constant dimensions of buffers, constants that must stay)."""
    dims: set[int] = set()
    fixed = set(_other_constants(program))
    for buffer in _buffers(program):
        for d in buffer.shape:
            whole, other = _whole(d)
            dims |= {c for c in whole if c > LARGE}
            fixed |= other
    for e in _extents(program):
        fixed |= _whole(e)[1]
    return dims, fixed


def _choices(constants: set[int]) -> dict[int, int]:
    """Powers of two become 2 and 4 (a tile axis must stay one), others 3."""
    powers = sorted(c for c in constants if c & (c - 1) == 0)
    return {c: (2 if k % 2 == 0 else 4) for k, c in enumerate(powers)} | dict.fromkeys(constants - set(powers), 3)


def shrink(*programs: AnyProgram) -> tuple[AnyProgram, ...]:
    """The programs with their large constant dimensions replaced, alike in all of them, where that is safe."""
    found = [shrinkable(p) for p in programs]
    dims = set[int]().union(*(d for d, _ in found)) - set[int]().union(*(f for _, f in found))
    sizes = _choices(dims)
    if not sizes:
        return programs

    def fix(e: Expr) -> Expr:
        def small(x: Expr) -> Expr | None:
            value = _number(x)
            return Const(sizes[value], x.dtype) if value in sizes else None

        return rewrite(e, small)

    return tuple(_map_program(p, fix) for p in programs)


def _map_program(program: AnyProgram, fix: Callable[[Expr], Expr]) -> AnyProgram:
    """Apply `fix` to every expression of a program, shapes included."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, shape=tuple(fix(d) for d in b.shape))

    inputs, outputs, temporaries = (
        tuple(buffer(b) for b in group) for group in (program.inputs, program.outputs, program.temporaries)
    )
    tunables = tuple(replace(t, covers=None if t.covers is None else fix(t.covers)) for t in program.tunables)
    if isinstance(program, TileProgram):
        return replace(
            program,
            inputs=inputs,
            outputs=outputs,
            temporaries=temporaries,
            tunables=tunables,
            kernels=tuple(_map_kernel(k, fix) for k in program.kernels),
        )

    def alloc(s: Stmt) -> Stmt:
        s = with_stmts(s, tuple(alloc(p) for p in sub_stmts(s)))
        return replace(s, buffer=buffer(s.buffer)) if isinstance(s, Alloc) else s

    return replace(
        program,
        inputs=inputs,
        outputs=outputs,
        temporaries=temporaries,
        tunables=tunables,
        body=map_exprs(alloc(program.body), fix),
    )


def _map_kernel(kernel: TileKernel, fix: Callable[[Expr], Expr]) -> TileKernel:
    def tile(e: TExpr) -> TExpr:
        return tile_rewrite(e, lambda x: Scalar(fix(x.expr)) if isinstance(x, Scalar) else None)

    def stmt(s: TStmt) -> TStmt:
        match s:
            case Loop():
                facts = tuple(fix(f) for f in s.facts)
                return replace(s, lo=fix(s.lo), hi=fix(s.hi), facts=facts, body=tuple(stmt(x) for x in s.body))
            case Branch():
                return replace(s, pred=fix(s.pred), body=tuple(stmt(x) for x in s.body))
            case _:
                return map_stmt(s, tile)

    return replace(
        kernel,
        grid=tuple(replace(g, extent=fix(g.extent)) for g in kernel.grid),
        axes=tuple((name, fix(extent)) for name, extent in kernel.axes),
        body=tuple(stmt(s) for s in kernel.body),
    )
