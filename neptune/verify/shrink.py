"""Make the constants of programs small, so that exact checks stay quick and what they decide can be seen.

A constant is replaced where *every* integer constant of its value, in all programs, plays a part that allows it:

- an *extent*: a whole dimension, loop bound, tile extent or `covers`, a side of a comparison, a minimum or a
  maximum, or the numerator of a division (also one that rounds up). A head depth of 128 becomes 2, 3 or 4.
- a *group*: a divisor or a factor, `q[h0 * 4 + h1]`, `k[h // 4]`. Where such an index runs over an extent, that stays
  the same multiple: 32 heads of 8 groups become 4 of 2.
- a *tile* of a loop that rounds up, `(n + 127) // 128`: a group whose 127 is no constant of its own, but goes along.
- an *edge*: a term or a side of a comparison that is no extent, a window of 4096 keys. Edges that are close keep
  their distances (4095 beside 4096 becomes 2 beside 3), so that tiles lie on both sides of them.
- a *count*: an extent cast to a float, and a float that is an extent or one less, or the inverse of either. A mean
  over 777 elements divides by 777.0 or 776.0, or multiplies by 1/777: by 3, 2 and 1/3 where the extent becomes 3.

One that also occurs anywhere else (as an index, say), or both as a term and as an extent, stays as it is.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, ceildiv, rewrite, variables, walk
from neptune.ir.program import Alloc, Buffer, For, Program, Stage, Stmt, map_exprs, sub_stmts, with_stmts, writes
from neptune.ir.program import walk as walk_stmt
from neptune.tile.ir import (
    Branch,
    Full,
    LoadTile,
    Loop,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    map_stmt,
    stmt_exprs,
    walk_stmts,
)

LARGE = 8
"""Extents and edges up to this one are small."""
SAME = 1e-6
"""How far a float may lie from what it stands for: 1/777 in float32 is not 1/777."""
FIRST_EDGE = 3
FAR = 1 << 20
"""No size that a check draws is as large."""
NOWHERE = int(DTYPES["int32"].highest)
"""What stands for no position (an index that nothing was chosen for) and is next to no size."""
AnyProgram = Program | TileProgram
Node: TypeAlias = "Expr | TExpr"
Part = tuple[str, int]
"""(what part a constant plays: "whole", "side", "edge", "group", "count" or "fixed"; the constant)."""


@dataclass
class Parts:
    """The constants of programs by the parts they play, (extent, group) pairs of one index, what is compared with a
    constant and what is divided by one, and tiles of loops that round up."""

    played: dict[str, set[int]] = field(
        default_factory=lambda: {part: set() for part in ("whole", "side", "edge", "group", "count", "fixed")}
    )
    grouped: set[tuple[int, int]] = field(default_factory=set)
    below: set[tuple[Node, int]] = field(default_factory=set)
    divided: set[tuple[Node, int]] = field(default_factory=set)
    tiles: set[int] = field(default_factory=set)

    def see(self, parts: Iterator[Part]) -> None:
        for part, value in parts:
            self.played[part].add(value)

    def rows(self) -> set[tuple[int, int]]:
        """(n, g) where `x < n` is beside `x // g`, and n is nothing else: g heads of n / g rows each in one tile."""
        known = {(n, g) for x, n in self.below for y, g in self.divided if x == y and n % g == 0}
        return {(n, g) for n, g in known if not {n} & (self.played["whole"] | self.played["group"])}

    def extent(self, c: int) -> bool:
        return c in self.played["whole"] or c in self.played["group"]


def _number(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) and is_int(e.dtype) else None


def _see_rows(nodes: Iterable[Expr] | Iterable[TExpr], parts: Parts) -> None:
    """Record what is compared with constants, and what is divided by them."""
    for x in nodes:
        if not (isinstance(x, Op) and x.name in ("lt", "floordiv", "mod")):
            continue
        by = x.args[1].expr if isinstance(x.args[1], Scalar) else x.args[1]
        if isinstance(by, Const) and is_int(by.dtype):
            (parts.below if x.name == "lt" else parts.divided).add((x.args[0], int(by.value)))


def _rounded(e: Expr | TExpr) -> tuple[Expr, int] | None:
    """(n, c) of ⌈n / c⌉, where c is a constant and n is none."""
    if not (isinstance(e, Op) and e.name == "floordiv" and isinstance(e.args[0], Op) and e.args[0].name == "add"):
        return None
    n, c = e.args[0].args[0], _number(e.args[1])
    return (n, c) if c is not None and not isinstance(n, Const) and e == ceildiv(n, Const(c, n.dtype)) else None


def _parts(e: Expr | TExpr, here: str) -> Iterator[Part]:
    """The parts of the constants in an expression; `here` is that of a constant in its place."""
    if (tiled := _rounded(e)) is not None:
        yield from _parts(tiled[0], "edge")
        yield "group", tiled[1]
    elif isinstance(e, Scalar):
        yield from _parts(e.expr, here)
    elif isinstance(e, Const) and is_int(e.dtype):
        yield here, abs(int(e.value))
    elif not isinstance(e, Op):
        # What is spread over a tile plays the part of the tile.
        counts = isinstance(e, Cast) and is_float(e.dtype)
        kind = here if isinstance(e, Full | Rearrange) else "count" if counts else "fixed"
        for c in e.parts:
            yield from _parts(c, kind)
    elif e.name in ("floordiv", "mod"):
        numerator, divisor = e.args
        first = numerator.args[0] if isinstance(numerator, Op) and numerator.name == "add" else None
        # A literal stands in scalar expressions only.
        by = typing.cast("Expr", divisor)
        if e.name == "floordiv" and isinstance(first, Const) and is_int(first.dtype) and e == ceildiv(first, by):
            yield from _parts(first, "side")
        else:
            yield from _parts(numerator, "side" if e.name == "floordiv" else "fixed")
        yield from _parts(divisor, "group")
    else:
        kind = "side" if OPS[e.name].kind == "compare" or e.name in ("min", "max") else _INSIDE.get(e.name, "fixed")
        for c in e.args:
            yield from _parts(c, kind)


_INSIDE = {"add": "edge", "sub": "edge", "neg": "edge", "mul": "group"}


def _buffers(program: AnyProgram) -> list[Buffer]:
    return list(program.buffers.values() if isinstance(program, Program) else program.globals.values())


def _see(program: AnyProgram, parts: Parts) -> None:
    """Collect the parts of all constants of a program."""
    for b in _buffers(program):
        for d in b.shape:
            parts.see(_parts(d, "whole"))
    for t in program.tunables:
        if t.covers is not None:
            parts.see(_parts(t.covers, "whole"))
    if isinstance(program, Program):
        _see_statements(program, parts)
    else:
        for kernel in program.kernels:
            _see_kernel(kernel, program.globals, parts)


def _see_statements(program: Program, parts: Parts) -> None:
    ranges: dict[str, set[int]] = {}
    buffers = program.buffers
    for s in walk_stmt(program.body):
        if isinstance(s, For):
            for e in (s.lo, s.hi):
                parts.see(_parts(e, "whole"))
            for e in s.facts:
                parts.see(_parts(e, "fixed"))
            if (n := _number(s.hi)) is not None:
                ranges.setdefault(s.var, set()).add(n)
            continue
        for e in statement_exprs(s):
            parts.see(_parts(e, "fixed"))
        if isinstance(s, Stage):
            for name in writes(s.action):
                _see_index(buffers[name], s.action.index, parts)
    for s in walk_stmt(program.body):
        for e in statement_exprs(s):
            _see_groups(e, ranges, buffers, parts)
            _see_rows(walk(e), parts)


def _see_kernel(kernel: TileKernel, buffers: Mapping[str, Buffer], parts: Parts) -> None:
    ranges = {g.var: {n} for g in kernel.grid if (n := _number(g.extent)) is not None}
    for e in (*(g.extent for g in kernel.grid), *(extent for _, extent in kernel.axes)):
        parts.see(_parts(e, "whole"))
    for s in walk_stmts(kernel.body):
        plain = (s.lo, s.hi) if isinstance(s, Loop) else (s.pred,) if isinstance(s, Branch) else ()
        for e in plain:
            parts.see(_parts(e, "whole" if isinstance(s, Loop) else "fixed"))
            _see_groups(e, ranges, buffers, parts)
        for fact in s.facts if isinstance(s, Loop) else ():
            parts.see(_parts(fact, "fixed"))
        for t in stmt_exprs(s):
            parts.see(_parts(t, "fixed"))
            _see_rows(walk(t), parts)
        accesses: list[StoreTile | LoadTile] = [s] if isinstance(s, StoreTile) else []
        for node in (x for t in stmt_exprs(s) for x in walk(t)):
            if isinstance(node, Scalar):
                _see_groups(node.expr, ranges, buffers, parts)
            elif isinstance(node, LoadTile):
                accesses.append(node)
        for a in accesses:
            for d, i in zip(buffers[a.buffer].shape, a.index, strict=True):
                scalars = [n.expr for n in walk(i) if isinstance(n, Scalar)]
                _see_dimension(d, scalars, parts)


def _see_index(b: Buffer, index: tuple[Expr, ...], parts: Parts) -> None:
    for d, i in zip(b.shape, index, strict=True):
        _see_dimension(d, [i], parts)


def _see_dimension(d: Expr, index: list[Expr], parts: Parts) -> None:
    """An index that multiplies by a group runs over a multiple of it."""
    extent = _number(d)
    for e in (x for i in index for x in walk(i)):
        if extent is not None and isinstance(e, Op) and e.name == "mul":
            parts.grouped.update((extent, g) for a in e.args if (g := _number(a)) is not None)


def _see_groups(e: Expr, ranges: Mapping[str, set[int]], buffers: Mapping[str, Buffer], parts: Parts) -> None:
    """Record that a size which indices divide by a group's length is a multiple of it."""
    for x in walk(e):
        if (tiled := _rounded(x)) is not None:
            parts.tiles.add(tiled[1])
        if isinstance(x, Load) and x.buffer in buffers:
            _see_index(buffers[x.buffer], x.index, parts)
        if isinstance(x, Op) and x.name in ("floordiv", "mod") and (g := _number(x.args[1])) is not None:
            parts.grouped.update((n, g) for v in variables(x.args[0]) for n in ranges.get(v, ()))


def _sizes(parts: Parts) -> dict[int, int]:
    """The small values of the constants that may have them."""
    p = parts.played
    groups = {(n, g) for n, g in parts.grouped if g > 1 and n % g == 0 and n >= g}
    # A constant extent that such tiles do not divide has as many tiles as it had.
    groups |= {(c, c) for c in parts.tiles if not any(n % c for n, g in parts.grouped if g == c and n > c)}
    free = p["whole"] - p["fixed"] - p["edge"]
    related = {x for n, g in groups for x in (n, g, n // g)}
    extents = {n for n in free if n > LARGE or (n in related and n > 2)}
    # A group that is no multiple of anything in sight means something else.
    shrunk_groups = {g for _, g in groups if g > 2} - p["fixed"] - p["edge"]
    stay = p["group"] - {g for _, g in groups} | {g for _, g in parts.rows()}
    extents = extents - stay
    # What is a multiple of another group, 32 heads of 2 beside tiles of 32, stays one: its size is their product.
    shrunk_groups -= stay | {n for n, g in groups if n in extents and n > g}
    # An extent (n - 1) * 4 + 1 is written 4 * n - 3.
    steps = {g: g - 1 for g in shrunk_groups if g - 1 in p["edge"]}
    shrunk_groups -= {g for g, c in steps.items() if c in p["fixed"] | p["whole"] | p["group"]}
    sizes = {g: (2 if g & (g - 1) == 0 else 3) for g in shrunk_groups}
    sizes |= {c: sizes[g] - 1 for g, c in steps.items() if g in sizes}
    plain = {n for n in extents if n not in sizes and not any(n == m and n > g for m, g in groups)}
    sizes |= _choices(plain)
    for n in sorted(extents - sizes.keys()):
        g = min(g for m, g in groups if m == n and n > g)
        sizes[n] = sizes.get(g, g) * sizes.get(n // g, n // g)
    return sizes | _edges(p, sizes, {n for n, _ in parts.rows()})


def _choices(constants: set[int]) -> dict[int, int]:
    """Powers of two become 2 and 4 (a tile axis must stay one), others 3; of others that are close, the larger ones
    stay larger, and a power of two still covers what it covers: 96 of the 128 elements of a tile become 3 of 4."""
    powers = sorted(c for c in constants if c & (c - 1) == 0)
    others = _families(sorted(constants - set(powers)))
    moved = {c: c - family[0] + FIRST_EDGE for family in others for c in family}
    covered = {p: max((n for c, n in moved.items() if p < 2 * c < 2 * p), default=0) for p in powers}
    small = {c: (2 if k % 2 == 0 else 4) for k, c in enumerate(powers)}
    return {c: 1 << (n - 1).bit_length() if (n := covered[c]) else small[c] for c in powers} | moved


def _families(constants: list[int]) -> list[list[int]]:
    """Sorted numbers, those together that are close to each other."""
    families: list[list[int]] = []
    for c in constants:
        if families and c - families[-1][-1] <= LARGE:
            families[-1].append(c)
        else:
            families.append([c])
    return families


def _edges(p: Mapping[str, set[int]], sizes: Mapping[int, int], stay: set[int]) -> dict[int, int]:
    """Edges by family: those that are close to each other move together."""
    families = _families(sorted(c for c in p["edge"] | p["side"] if LARGE < c < NOWHERE and c not in sizes))
    moved: dict[int, int] = {}
    start = FIRST_EDGE
    for family in families:
        if not set(family) & (p["fixed"] | p["whole"] | p["group"] | stay):
            moved |= {c: c - family[0] + start for c in family}
            start += family[-1] - family[0] + 2
    return moved


def edges_of(*programs: AnyProgram) -> tuple[int, ...]:
    """The edges and tiles that `shrink` would make small: sizes near them decide about the programs as they are."""
    parts = Parts()
    for program in programs:
        _see(program, parts)
    return tuple(c for c in _sizes(parts) if c < FAR and (c in parts.tiles or not parts.extent(c)))


def shrink(*programs: AnyProgram, edges: bool = True) -> tuple[AnyProgram, ...]:
    """The programs with small constants, alike in all of them, where that is safe; without `edges` only extents."""
    parts = Parts()
    for program in programs:
        _see(program, parts)
    sizes = _sizes(parts)
    if not edges:
        sizes = {c: n for c, n in sizes.items() if parts.extent(c)}
    if not sizes:
        return programs

    counts = _counts({n: m for n, m in sizes.items() if n in parts.played["whole"]})

    def fix(e: Expr) -> Expr:
        def small(x: Expr) -> Expr | None:
            if isinstance(x, Const) and is_float(x.dtype):
                count = next((m for n, m in counts if abs(abs(x.value) - n) <= SAME * n), None)
                return None if count is None else Const(math.copysign(count, x.value), x.dtype)
            if (tiled := _rounded(x)) is not None:
                return ceildiv(fix(tiled[0]), sizes.get(tiled[1], tiled[1]))
            value = _number(x)
            if value is None or abs(value) not in sizes:
                return None
            return Const(sizes[abs(value)] * (1 if value > 0 else -1), x.dtype)

        return rewrite(e, small)

    return tuple(_map_program(p, fix) for p in programs)


def _counts(extents: Mapping[int, int]) -> list[tuple[float, float]]:
    """Return (old, new) of floats that stand for extents: extents first, then those less one, then inverses."""
    counts = [(float(n), float(m)) for n, m in extents.items()]
    counts += [(n - 1, m - 1) for n, m in counts if m > 1]
    return [*counts, *((1 / n, 1 / m) for n, m in counts)]


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
        return rewrite(e, lambda x: Scalar(fix(x.expr)) if isinstance(x, Scalar) else None)

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
