"""How accesses reach memory: what `tile/passes/addresses.py` adds to a kernel, and printers write down.

    address  := Pointers | Box                  in global memory
    Pointers := base…, gather…, rows…, offsets
    base     := scope, part…                    scalars, added to the pointer where their variables are known
    offsets  := scope, part…                    a tile of small offsets along axes
    rows     := axis, offsets                   offsets along one axis, by more than factors: those of packed rows
    gather   := part                            a tile of offsets that may be anywhere
    part     := dim, term…, bits, cast          (Σ terms) · stride of `dim`, which is 1 for the last one

Semantics.
- The element at a point of the access's dims is the pointer plus all parts. An index is the sum of the terms of its
  dimension.
- `scope` counts outwards in: first those of `Addressed.scopes`, the last of which has the grid variables, then one for
  each loop or branch. What is in a scope is computed once there; a loop advances by what its own scope has.
- The product of a part with its stride has `bits`. With `cast` the sum of scalars, or the tile, is made int64 before.
- A variable in `wide` is int64 from the start: nothing but scalar parts of addresses reads it.
- Under a mask only elements where it holds are touched. A `Box` has none: outside of its buffer it reads 0, and stores
  nothing. `fenced` stores are read back by the kernel: barriers stand around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from neptune.ir.expr import Const, Load
from neptune.ir.integers import Span
from neptune.ir.text.printer import print_expr
from neptune.tile.boxes import Box
from neptune.tile.index import Term
from neptune.tile.ir import Assign, Branch, Iota, LoadTile, Loop, StoreTile, TExpr, TileKernel, TileProgram, TStmt
from neptune.tile.printer import print_texpr

ONCE, GROUPS = ("program",), ("launch", "program")
"""Scopes around the body: a program has one group of rows, or goes through several."""


@dataclass(frozen=True, slots=True)
class Part:
    """Σ terms, times the stride of a dimension; `strided` is False for the last one."""

    dim: int
    strided: bool
    terms: tuple[Term, ...]
    bits: int
    cast: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """Parts that are added up in one scope."""

    scope: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Pointers:
    """A tile of pointers."""

    bases: tuple[Sum, ...] = ()
    gathers: tuple[Part, ...] = ()
    rows: tuple[tuple[str, Sum], ...] = ()
    offsets: Sum | None = None
    fenced: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part."""
        sums = [*self.bases, *(s for _, s in self.rows), *([] if self.offsets is None else [self.offsets])]
        return (*self.gathers, *(p for s in sums for p in s.parts))

    def covers(self, dims: tuple[str, ...]) -> bool:
        """True where the address varies along every named dim, so that its tile has the full shape."""
        axes = {axis for axis, _ in self.rows}
        axes |= {d for p in self.parts for t in p.terms if t.tile is not None for d in t.tile.dims}
        return all(d == "1" or d in axes for d in dims)


Address: TypeAlias = Pointers | Box
Found: TypeAlias = tuple[LoadTile | StoreTile, tuple[str, ...]]
"""An access, and the names of the scopes around it."""


@dataclass(frozen=True)
class Addressed:
    """A kernel of `program` whose every access has its address. `reads` are those of the scalars it reads from memory;
    `int64` says that no tile of offsets may rely on int32."""

    program: TileProgram
    kernel: TileKernel
    wide: frozenset[str]
    reads: Mapping[Load, tuple[Part, ...]]
    int64: bool = False
    scopes: tuple[str, ...] = ONCE

    @property
    def accesses(self) -> tuple[Found, ...]:
        """Every access to a tile, in the order of the text, with the names of the scopes around it."""
        return tuple(_in_body(self.kernel.body, self.scopes))

    @property
    def spans(self) -> tuple[Span, ...]:
        """What int32 offsets add up, so that a caller can tell whether his strides let them."""
        extents = dict(self.kernel.axes)
        spans = []
        for access, _ in self.accesses:
            offsets = access.at.offsets if isinstance(access.at, Pointers) else None
            if offsets is not None and not self.int64 and not bare_axis(offsets):
                terms = [(p.dim, t, factor(t)) for p in offsets.parts for t in p.terms]
                axes = [(d, extents[t.tile.axis], abs(f)) for d, t, f in terms if isinstance(t.tile, Iota) and f]
                spans.append(Span(access.buffer, tuple(axes)))
        return tuple(dict.fromkeys(spans))

    def __str__(self) -> str:
        wide = f"  int64({', '.join(sorted(self.wide))})" if self.wide else ""
        reads = [f"  {print_expr(r)}: {_sum(r.buffer, parts)}" for r, parts in self.reads.items()]
        lines = [line for access in self.accesses for line in _lines(*access)]
        return "\n".join([f"kernel {self.kernel.name}{wide}", *reads, *lines]) + "\n"


def factor(t: Term) -> int | None:
    """The product of a term's factors, None where it is known only at run time."""
    known = [int(f.value) for f in t.factors if isinstance(f, Const)]
    return math.prod(known) if len(known) == len(t.factors) else None


def single(terms: Sequence[Term]) -> bool:
    """True for scalars whose product with a stride is no larger than the stride."""
    values = [None if t.tile is not None else factor(t) for t in terms]
    return None not in values and sum(abs(v or 0) for v in values) <= 1


def bare_axis(offsets: Sum) -> bool:
    """True for one axis as it stands, whose offsets are its positions."""
    first, *more = offsets.parts
    (t,) = first.terms
    return not (more or first.strided or t.factors or t.negative)


# --- traversal ---------------------------------------------------------------------------------


def _in_body(body: tuple[TStmt, ...], scopes: tuple[str, ...]) -> Iterator[Found]:
    for s in body:
        match s:
            case Loop(var, _, _, inner, _):
                yield from _in_body(inner, (*scopes, var))
            case Branch(_, inner):
                yield from _in_body(inner, (*scopes, "branch"))
            case StoreTile():
                yield from ((x, scopes) for e in (s.value, *s.index) for x in _in_expr(e))
                yield s, scopes
                yield from ((x, scopes) for x in _in_expr(s.mask))
            case Assign():
                yield from ((x, scopes) for x in _in_expr(s.value))


def _in_expr(e: TExpr | None) -> Iterator[LoadTile]:
    """The loads of an expression: what an index reads before, what a mask reads behind."""
    if isinstance(e, LoadTile):
        yield from (x for i in e.index for x in _in_expr(i))
        yield e
        yield from _in_expr(e.mask)
    elif e is not None:
        yield from (x for p in e.parts for x in _in_expr(p))


# --- text --------------------------------------------------------------------------------------


def _lines(access: LoadTile | StoreTile, scopes: tuple[str, ...]) -> Iterator[str]:
    """`load q  global<m d>  in j0`, and a line for each sum of its address."""
    address, buffer = access.at, access.buffer
    word = "load" if isinstance(access, LoadTile) else "store"
    fenced = "  fenced" if isinstance(address, Pointers) and address.fenced else ""
    yield f"  {word} {buffer}  global<{' '.join(access.dims)}>  in {scopes[-1]}{fenced}"
    if isinstance(address, Box):
        words = [f"{_terms(s)} .. {a}" if a else _terms(s) for s, a in zip(address.starts, address.axes, strict=True)]
        yield f"    box {', '.join(words)}"
        return
    if address is None:
        yield "    nowhere"
        return
    yield from (f"    base {scopes[b.scope]}: {_sum(buffer, b.parts)}" for b in address.bases)
    yield from (f"    gather {_sum(buffer, (p,))}" for p in address.gathers)
    yield from (f"    rows {axis} {scopes[r.scope]}: {_sum(buffer, r.parts)}" for axis, r in address.rows)
    if address.offsets is not None:
        yield f"    offsets {scopes[address.offsets.scope]}: {_sum(buffer, address.offsets.parts)}"
    if access.mask is not None:
        other = f" else {access.other}" if isinstance(access, LoadTile) else ""
        yield f"    mask {print_texpr(access.mask)}{other}"


def _sum(buffer: str, parts: tuple[Part, ...]) -> str:
    """`q.0 i64 b, q.2 i32 iota(m)`: what is added for which dimension, in which width."""
    return ", ".join(f"{buffer}.{p.dim} i{p.bits} {_cast(p)}" for p in parts)


def _cast(p: Part) -> str:
    text = _terms(p.terms)
    return f"cast({text})" if p.cast else text


def _terms(terms: tuple[Term, ...]) -> str:
    text = " ".join(f"{'-' if t.negative else '+'} {_term(t)}" for t in terms)
    return text.removeprefix("+ ") or "0"


def _term(t: Term) -> str:
    words = [print_expr(f) for f in t.factors] + ([] if t.tile is None else [print_texpr(t.tile)])
    return " * ".join(words) or "1"
