"""The facts of a kernel, read off its TileProgram."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from neptune.ir.expr import Const, Expr, Op, binary, loads, walk
from neptune.ir.program import ZERO
from neptune.ir.text.printer import print_expr
from neptune.runtime.facts import Facts, KernelFacts, LoopFacts
from neptune.tile.ir import (
    Branch,
    LoadTile,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    is_rest,
    read_by,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import products, scalar_names
from neptune.tile.ranges import Ranges


def read_facts(program: TileProgram) -> Facts:
    """The facts of a TileProgram.

    facts = read_facts(tiles)
    len(facts.kernels), facts.traversals      # (1, {"q": 1, "k": 1, "v": 1})
    """
    written = {s.buffer for k in program.kernels for s in walk_stmts(k.body) if isinstance(s, StoreTile)}
    read = {b for k in program.kernels for b in _read(k)}
    back = tuple(b for b in program.globals if b in written & read)
    kernels = tuple(
        KernelFacts(
            k.name, _grid(k), tuple(_loops(k.body)), tuple(b for b in back if b in _touched(k)), tuple(_products(k))
        )
        for k in program.kernels
    )
    traversals = {b.name: sum(_passes(k, b.name) for k in program.kernels) for b in program.inputs}
    return Facts(kernels, back, traversals)


def sweeps(program: TileProgram) -> dict[str, int | float]:
    """How many passes are made over each input: as `traversals`, but reads of one iteration are one pass, as the three
    of x[i - 1] + x[i] + x[i + 1], which find each other's elements in a cache."""
    return {b.name: sum(_passes(k, b.name, together=True) for k in program.kernels) for b in program.inputs}


def _grid(kernel: TileKernel) -> dict[str, str]:
    """Programs along each launch dimension."""
    programs: dict[str, str] = {}
    for g in kernel.grid:
        text = print_expr(g.extent)
        programs[g.axis] = f"{programs[g.axis]} * ({text})" if g.axis in programs else text
    return {axis: programs[axis] for axis in sorted(programs)}


def _loops(body: tuple[TStmt, ...]) -> Iterator[LoopFacts]:
    for s in walk_stmts(body):
        if isinstance(s, Loop):
            yield LoopFacts(s.var, print_expr(trips(s)))


def _products(kernel: TileKernel) -> Iterator[str]:
    """What each product multiplies in, in order; pieces of one loop have one each."""
    return ("tf32" if dot.allow_tf32 else dot.a.dtype for _, dot in products(kernel.body))


def trips(loop: Loop) -> Expr:
    """The number of iterations (where it is negative there are none)."""
    return loop.hi if loop.lo == ZERO else binary("sub", loop.hi, loop.lo)


def _own_exprs(s: TStmt) -> Iterator[Expr]:
    """The scalar expressions of a statement without its body."""
    if isinstance(s, Loop):
        yield from (s.lo, s.hi)
    if isinstance(s, Branch):
        yield s.pred
    for e in stmt_exprs(s):
        yield from (x.expr for x in walk(e) if isinstance(x, Scalar))


def _read(kernel: TileKernel) -> set[str]:
    buffers: set[str] = set()
    for s in walk_stmts(kernel.body):
        buffers |= {x.buffer for e in stmt_exprs(s) for x in walk(e) if isinstance(x, LoadTile)}
        buffers |= {x.buffer for e in _own_exprs(s) for x in loads(e)}
    return buffers


def _touched(kernel: TileKernel) -> set[str]:
    return _read(kernel) | {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, StoreTile)}


# --- passes over an input ------------------------------------------------------------------------

Index: TypeAlias = tuple[TExpr, ...]


def moves_with(e: TExpr, known: Ranges) -> frozenset[str]:
    """The variables that an index moves with, those behind the locals it reads included."""
    behind = [x for n in known.reached(read_by(e)) for x in known.given.get(n, ())]
    return frozenset().union(*(scalar_names(x) for x in (e, *behind)))


def _passes(kernel: TileKernel, buffer: str, *, together: bool = False) -> int | float:
    return _count(kernel.body, buffer, Ranges(kernel), together)


def _count(body: tuple[TStmt, ...], buffer: str, known: Ranges, together: bool) -> int | float:
    """Return how often a body reads an element: its own reads, and those of its loops, pieces of one range as one.

    Reads under loops are counted where the loop stands: times its trips where their index does not move. `together`:
    own reads are one.
    """
    total: int | float = _distinct(_indices(body, buffer), known)
    total = min(1, total) if together else total
    pieces: list[int | float] = []
    previous: Loop | None = None
    for s in body:
        match s:
            case Branch(_, inner):
                # A branch that ends a loop's range reads what no iteration of the loop has read.
                inside = _count(inner, buffer, known, together)
                if is_rest(previous, s):
                    pieces.append(inside)
                else:
                    total += inside
            case Loop():
                if previous is not None and not (s.var == previous.var and _starts_behind(s.lo, previous.hi)):
                    total += max(pieces)
                    pieces = []
                pieces.append(_count_loop(s, buffer, known, together))
                previous = s
            case _:
                pass
    return total + max(pieces, default=0)


def _starts_behind(lo: Expr, end: Expr) -> bool:
    """Return True if `lo` is visibly at least `end`: for pieces of one range, or ranges that skip earlier ones."""
    return lo == end or (isinstance(lo, Op) and lo.name == "max" and any(_starts_behind(a, end) for a in lo.args))


def _count_loop(loop: Loop, buffer: str, known: Ranges, together: bool) -> int | float:
    """Reads of a loop: once per iteration of new elements, or of the same ones in every iteration."""
    moving = _moving(loop, buffer, known)
    once = _count(loop.body, buffer, known, together)
    if moving or not once:
        return once
    n = trips(loop)
    return once * max(0, int(n.value)) if isinstance(n, Const) else math.inf


def _moving(loop: Loop, buffer: str, known: Ranges) -> bool:
    """Return True if every read of the buffer in a loop moves with the loop."""
    every = [i for s in walk_stmts(loop.body) for i in _statement_indices(s, buffer)]
    return all(any(loop.var in moves_with(e, known) for e in index) for index in every)


def _indices(body: tuple[TStmt, ...], buffer: str) -> list[Index]:
    """Indices of the reads among the statements of a body, bodies of loops and branches apart."""
    return [i for s in body for i in _statement_indices(s, buffer)]


def _statement_indices(s: TStmt, buffer: str) -> list[Index]:
    tiles = [x for e in stmt_exprs(s) for x in walk(e)]
    indices = [x.index for x in tiles if isinstance(x, LoadTile) and x.buffer == buffer]
    scalars = [x for e in _own_exprs(s) for x in loads(e) if x.buffer == buffer]
    return indices + [tuple(Scalar(i) for i in x.index) for x in scalars]


def _distinct(indices: list[Index], known: Ranges) -> int:
    """The most reads of one element among accesses of one iteration: equal ones are one read (the compiler
    keeps the value), ones that are visibly apart in some dimension are of different elements."""
    groups: list[list[Index]] = []
    for index in dict.fromkeys(indices):
        for group in groups:
            if all(_apart(index, other, known) for other in group):
                group.append(index)
                break
        else:
            groups.append([index])
    return len(groups)


def _apart(a: Index, b: Index, known: Ranges) -> bool:
    for x, y in zip(a, b, strict=True):
        first, second = known.of(x), known.of(y)
        if first.hi < second.lo or second.hi < first.lo:
            return True
    return False
