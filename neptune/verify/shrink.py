"""Make the constants of programs small, so that exact checks stay quick and what they decide can be seen.

A constant is replaced where *every* integer constant of its value, in all programs, plays a part that allows it:

- an *extent*: a whole dimension, loop bound, tile extent or `covers`, a side of a comparison, a minimum or a
  maximum, or the numerator of a division (also one that rounds up). A head depth of 128 becomes 2, 3 or 4.
- a *group*: a divisor or a factor, `q[h0 * 4 + h1]`, `k[h // 4]`. Where such an index runs over an extent, that stays
  the same multiple: 32 heads of 8 groups become 4 of 2.
- an *edge*: a term or a side of a comparison that is no extent, a window of 4096 keys. Edges that are close keep
  their distances (4095 beside 4096 becomes 2 beside 3), so that tiles lie on both sides of them.

One that also occurs anywhere else (as an index, say), or both as a term and as an extent, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from neptune.ir.dtypes import DTYPES, is_int
from neptune.ir.expr import OPS, Const, Expr, Load, Op, ceildiv, children, rewrite, variables, walk
from neptune.ir.program import Alloc, Buffer, For, Program, Stage, Stmt, map_exprs, sub_stmts, with_stmts, writes
from neptune.ir.program import walk as walk_stmt
from neptune.tile.ir import (
    Branch,
    Full,
    LoadTile,
    Loop,
    Map,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    map_stmt,
    stmt_exprs,
    tile_children,
    tile_rewrite,
    tile_walk,
    walk_stmts,
)
from neptune.verify.parallel import statement_exprs

LARGE = 8
"""Extents and edges up to this one are small."""
FIRST_EDGE = 3
NOWHERE = int(DTYPES["int32"].highest)
"""What stands for no position (an index that nothing was chosen for) and is next to no size."""
AnyProgram = Program | TileProgram
Part = tuple[str, int]
"""(what part a constant plays: "whole", "side", "edge", "group" or "fixed"; the constant)."""


@dataclass
class Parts:
    """The constants of programs by the parts they play, and (extent, group) pairs of one index."""

    played: dict[str, set[int]] = field(
        default_factory=lambda: {part: set() for part in ("whole", "side", "edge", "group", "fixed")}
    )
    grouped: set[tuple[int, int]] = field(default_factory=set)

    def see(self, parts: Iterator[Part]) -> None:
        for part, value in parts:
            self.played[part].add(value)


def _number(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) and is_int(e.dtype) else None


def _parts(e: Expr, here: str) -> Iterator[Part]:
    """The parts of the constants in an expression; `here` is that of a constant in its place."""
    value = _number(e)
    if value is not None:
        yield here, abs(value)
        return
    if not isinstance(e, Op):
        for c in children(e):
            yield from _parts(c, "fixed")
    elif e.name in ("floordiv", "mod"):
        numerator, divisor = e.args
        first = numerator.args[0] if isinstance(numerator, Op) and numerator.name == "add" else None
        if e.name == "floordiv" and first is not None and _number(first) is not None and e == ceildiv(first, divisor):
            yield from _parts(first, "side")
        else:
            yield from _parts(numerator, "side" if e.name == "floordiv" else "fixed")
        yield from _parts(divisor, "group")
    else:
        kind = "side" if OPS[e.name].kind == "compare" or e.name in ("min", "max") else _INSIDE.get(e.name, "fixed")
        for c in e.args:
            yield from _parts(c, kind)


_INSIDE = {"add": "edge", "sub": "edge", "neg": "edge", "mul": "group"}


def _tile_parts(e: TExpr, here: str) -> Iterator[Part]:
    """Likewise for a tile expression."""
    if isinstance(e, Scalar):
        yield from _parts(e.expr, here)
        return
    if isinstance(e, Map):
        compares = OPS[e.op].kind == "compare" or e.op in ("min", "max")
        kind = "side" if compares else _INSIDE.get(e.op, "fixed")
        if e.op in ("floordiv", "mod"):
            yield from _tile_parts(e.args[0], "side" if e.op == "floordiv" else "fixed")
            yield from _tile_parts(e.args[1], "group")
            return
        for a in e.args:
            yield from _tile_parts(a, kind)
    else:
        # What is spread over a tile plays the part of the tile.
        kind = here if isinstance(e, Full | Rearrange) else "fixed"
        for c in tile_children(e):
            yield from _tile_parts(c, kind)


def _buffers(program: AnyProgram) -> list[Buffer]:
    return list(program.buffers.values() if isinstance(program, Program) else program.globals.values())


def _see(program: AnyProgram, found: Parts) -> None:
    """Collect the parts of all constants of a program."""
    for b in _buffers(program):
        for d in b.shape:
            found.see(_parts(d, "whole"))
    for t in program.tunables:
        if t.covers is not None:
            found.see(_parts(t.covers, "whole"))
    if isinstance(program, Program):
        _see_statements(program, found)
    else:
        for kernel in program.kernels:
            _see_kernel(kernel, program.globals, found)


def _see_statements(program: Program, found: Parts) -> None:
    ranges: dict[str, set[int]] = {}
    buffers = program.buffers
    for s in walk_stmt(program.body):
        if isinstance(s, For):
            for e in (s.lo, s.hi):
                found.see(_parts(e, "whole"))
            for e in s.facts:
                found.see(_parts(e, "fixed"))
            if (n := _number(s.hi)) is not None:
                ranges.setdefault(s.var, set()).add(n)
            continue
        for e in statement_exprs(s):
            found.see(_parts(e, "fixed"))
        if isinstance(s, Stage):
            for name in writes(s.action):
                _see_index(buffers[name], s.action.index, found)
    for s in walk_stmt(program.body):
        for e in statement_exprs(s):
            _see_groups(e, ranges, buffers, found)


def _see_kernel(kernel: TileKernel, buffers: Mapping[str, Buffer], found: Parts) -> None:
    ranges = {g.var: {n} for g in kernel.grid if (n := _number(g.extent)) is not None}
    for e in (*(g.extent for g in kernel.grid), *(extent for _, extent in kernel.axes)):
        found.see(_parts(e, "whole"))
    for s in walk_stmts(kernel.body):
        plain = (s.lo, s.hi) if isinstance(s, Loop) else (s.pred,) if isinstance(s, Branch) else ()
        for e in plain:
            found.see(_parts(e, "whole" if isinstance(s, Loop) else "fixed"))
            _see_groups(e, ranges, buffers, found)
        for fact in s.facts if isinstance(s, Loop) else ():
            found.see(_parts(fact, "fixed"))
        for t in stmt_exprs(s):
            found.see(_tile_parts(t, "fixed"))
        accesses: list[StoreTile | LoadTile] = [s] if isinstance(s, StoreTile) else []
        for node in (x for t in stmt_exprs(s) for x in tile_walk(t)):
            if isinstance(node, Scalar):
                _see_groups(node.expr, ranges, buffers, found)
            elif isinstance(node, LoadTile):
                accesses.append(node)
        for a in accesses:
            for d, i in zip(buffers[a.buffer].shape, a.index, strict=True):
                scalars = [n.expr for n in tile_walk(i) if isinstance(n, Scalar)]
                _see_dimension(d, scalars, found)


def _see_index(b: Buffer, index: tuple[Expr, ...], found: Parts) -> None:
    for d, i in zip(b.shape, index, strict=True):
        _see_dimension(d, [i], found)


def _see_dimension(d: Expr, index: list[Expr], found: Parts) -> None:
    """An index that multiplies by a group runs over a multiple of it."""
    extent = _number(d)
    for e in (x for i in index for x in walk(i)):
        if extent is not None and isinstance(e, Op) and e.name == "mul":
            found.grouped.update((extent, g) for a in e.args if (g := _number(a)) is not None)


def _see_groups(e: Expr, ranges: Mapping[str, set[int]], buffers: Mapping[str, Buffer], found: Parts) -> None:
    """What a group divides is a multiple of it."""
    for x in walk(e):
        if isinstance(x, Load) and x.buffer in buffers:
            _see_index(buffers[x.buffer], x.index, found)
        if isinstance(x, Op) and x.name in ("floordiv", "mod") and (g := _number(x.args[1])) is not None:
            found.grouped.update((n, g) for v in variables(x.args[0]) for n in ranges.get(v, ()))


def _sizes(found: Parts) -> dict[int, int]:
    """The small values of the constants that may have them."""
    p = found.played
    groups = {(n, g) for n, g in found.grouped if g > 1 and n % g == 0 and n >= g}
    free = p["whole"] - p["fixed"] - p["edge"]
    related = {x for n, g in groups for x in (n, g, n // g)}
    extents = {n for n in free if n > LARGE or (n in related and n > 2)}
    # A group that is no multiple of anything in sight means something else.
    shrunk_groups = {g for _, g in groups if g > 2} - p["fixed"] - p["edge"]
    stay = p["group"] - {g for _, g in groups}
    extents, shrunk_groups = extents - stay, shrunk_groups - stay
    sizes = {g: (2 if g & (g - 1) == 0 else 3) for g in shrunk_groups}
    plain = {n for n in extents if n not in sizes and not any(n == m and n > g for m, g in groups)}
    sizes |= _choices(plain)
    for n in sorted(extents - sizes.keys()):
        g = min(g for m, g in groups if m == n and n > g)
        sizes[n] = sizes.get(g, g) * sizes.get(n // g, n // g)
    return sizes | _edges(p, sizes)


def _choices(constants: set[int]) -> dict[int, int]:
    """Powers of two become 2 and 4 (a tile axis must stay one), others 3."""
    powers = sorted(c for c in constants if c & (c - 1) == 0)
    return {c: (2 if k % 2 == 0 else 4) for k, c in enumerate(powers)} | dict.fromkeys(constants - set(powers), 3)


def _edges(p: Mapping[str, set[int]], sizes: Mapping[int, int]) -> dict[int, int]:
    """Edges by family: those that are close to each other move together."""
    large = sorted(c for c in p["edge"] | p["side"] if LARGE < c < NOWHERE and c not in sizes)
    families: list[list[int]] = []
    for c in large:
        if families and c - families[-1][-1] <= LARGE:
            families[-1].append(c)
        else:
            families.append([c])
    moved: dict[int, int] = {}
    start = FIRST_EDGE
    for family in families:
        if not set(family) & (p["fixed"] | p["whole"] | p["group"]):
            moved |= {c: c - family[0] + start for c in family}
            start += family[-1] - family[0] + 2
    return moved


def edges_of(*programs: AnyProgram) -> tuple[int, ...]:
    """The edges that `shrink` would make small: sizes near them decide about the programs as they are."""
    found = Parts()
    for program in programs:
        _see(program, found)
    return tuple(c for c in _sizes(found) if c not in found.played["whole"] | found.played["group"])


def shrink(*programs: AnyProgram, edges: bool = True) -> tuple[AnyProgram, ...]:
    """The programs with small constants, alike in all of them, where that is safe; without `edges` only extents."""
    found = Parts()
    for program in programs:
        _see(program, found)
    sizes = _sizes(found)
    if not edges:
        sizes = {c: n for c, n in sizes.items() if c in found.played["whole"] | found.played["group"]}
    if not sizes:
        return programs

    def fix(e: Expr) -> Expr:
        def small(x: Expr) -> Expr | None:
            value = _number(x)
            if value is None or abs(value) not in sizes:
                return None
            return Const(sizes[abs(value)] * (1 if value > 0 else -1), x.dtype)

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
