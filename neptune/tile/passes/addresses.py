"""addresses: the last pass, which says how every access reaches memory (`neptune.tile.address`).

    for j0 in [0, n):                                       base program: b · k.0                (int64)
      k[b, j0 * BLOCK_N + iota(n), iota(d)]        →        base j0:      j0 * BLOCK_N · k.1     (int64)
                                                            offsets launch: n · k.1 + d          (int32)

Scalar parts are int64 where a stride multiplies them, and are computed in the outermost scope that knows their
variables; what reads memory stays where it is first read, as an outer scope may run where the inner one does not.

Offsets within a tile are int32 because int64 takes up to 11 more registers and makes kernels spill that otherwise do
not (attention of depth 256 on sm_90). Strides are known at the launch only: what the offsets add up is left behind as
spans, by which a caller finds out whether int32 is enough, and `int64` is for those for whom it is not.

What the kernel writes itself goes through pointers, between barriers: copies of boxes do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from neptune.ir.expr import Const, Expr, Load, Select, Var, children, loads, rewrite, variables, walk
from neptune.tile.address import ONCE, Address, Addressed, Part, Pointers, Sum, factor, single
from neptune.tile.boxes import Box, box_of, inside
from neptune.tile.index import Term, along, linear, transposed_load
from neptune.tile.ir import (
    Assign,
    Branch,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    bound_exprs,
    map_stmt,
    reread,
    stmt_exprs,
    walk_stmts,
)


def addressed(program: TileProgram, kernel: TileKernel, *, boxes: bool = False, int64: bool = False) -> Addressed:
    """The kernel with an address for every access.

    With `boxes`, accesses that are boxes go through descriptors; `int64` is for tensors with strides so large that a
    tile spans 2**31 elements.
    """
    # Coordinates of boxes are int32.
    wide = frozenset[str]() if boxes else address_only(kernel)
    pass_ = Addresses(program, kernel, wide, boxes=boxes, int64=int64)
    body = pass_.body(kernel.body)
    return Addressed(program, replace(kernel, body=body), wide, pass_.reads(), int64)


class Addresses:
    """The pass over one kernel. `extents` are those of the tile axes."""

    def __init__(
        self,
        program: TileProgram,
        kernel: TileKernel,
        wide: frozenset[str] = frozenset(),
        *,
        boxes: bool = False,
        int64: bool = False,
        scopes: tuple[str, ...] = ONCE,
    ) -> None:
        self.program, self.kernel, self.wide = program, kernel, wide
        self.boxes, self.int64 = boxes, int64
        self.extents: Mapping[str, Expr] = dict(kernel.axes)
        self.reread = frozenset(reread(kernel.body))
        self.steady = _steady(program, kernel)
        self.places = _places(kernel.body)
        self.placing = False
        # By scope: the variables that it binds, and what it has read or computed so far.
        self.vars = [frozenset[str]()] * (len(scopes) - 1) + [frozenset(g.var for g in kernel.grid)]
        self.known = [set[Expr]() for _ in scopes]

    # --- statements ----------------------------------------------------------------------------

    def body(self, body: tuple[TStmt, ...]) -> tuple[TStmt, ...]:
        """The statements of the innermost scope."""
        return tuple(self.stmt(s) for s in body)

    def stmt(self, s: TStmt) -> TStmt:
        """A statement whose accesses have their addresses."""
        self.note(s)
        match s:
            case Loop() | Branch():
                with self.scope(s.var if isinstance(s, Loop) else None):
                    return replace(s, body=self.body(s.body))
            case StoreTile():
                stored = map_stmt(s, self.expr)
                assert isinstance(stored, StoreTile)
                return replace(stored, at=self.stored_at(stored))
            case Assign():
                with self.place(s.name in self.places):
                    return map_stmt(s, self.expr)

    @contextmanager
    def place(self, says: bool) -> Iterator[None]:
        """Inside what says where something is loaded. There nothing is a box: the pipeline of loads that Triton makes
        has no order for a copy that another load waits for."""
        before, self.placing = self.placing, self.placing or says
        yield
        self.placing = before

    @contextmanager
    def scope(self, var: str | None) -> Iterator[None]:
        """Inside a body that binds `var`, if anything."""
        self.vars.append(frozenset() if var is None else frozenset({var}))
        self.known.append(set())
        yield
        self.vars.pop()
        self.known.pop()

    def note(self, s: TStmt) -> None:
        """Remember what a statement reads of scalars, and the bounds that it computes, if nothing changes them."""
        exprs = [x.expr for e in stmt_exprs(s) for x in walk(e) if isinstance(x, Scalar)]
        for bound in bound_exprs(s):
            exprs.append(bound)
            if isinstance(s, Loop) and children(bound) and {x.buffer for x in loads(bound)} <= self.steady:
                self.known[self.level([bound])].add(bound)
        values = {x for e in exprs for x in _always_read(e) if {y.buffer for y in loads(x)} <= self.steady}
        self.known[-1] |= {x for x in values if self.level([x]) == len(self.vars) - 1}

    def level(self, exprs: Iterable[Expr]) -> int:
        """The outermost scope in which all of `exprs` can be computed."""
        return max((self._level(e) for e in exprs), default=0)

    def _level(self, e: Expr) -> int:
        known = next((k for k, held in enumerate(self.known) if e in held), None)
        if known is not None:
            return known
        if isinstance(e, Load):
            return len(self.vars) - 1
        if isinstance(e, Var):
            return max((k for k, names in enumerate(self.vars) if e.name in names), default=0)
        return self.level(children(e))

    # --- accesses ------------------------------------------------------------------------------

    def expr(self, e: TExpr) -> TExpr:
        """An expression whose loads have their addresses; what is loaded to be permuted is loaded so."""

        def access(x: TExpr) -> TExpr | None:
            if isinstance(x, Rearrange) and isinstance(x.arg, LoadTile):
                x = transposed_load(x.arg, x.pattern) or x
            return self.load(x) if isinstance(x, LoadTile) else None

        return rewrite(e, access)

    def load(self, e: LoadTile) -> LoadTile:
        with self.place(True):
            index = tuple(map(self.expr, e.index))
        e = replace(e, index=index, mask=None if e.mask is None else self.expr(e.mask))
        return replace(e, at=self.loaded_at(e))

    def loaded_at(self, e: LoadTile) -> Address:
        """The address of a load: a box where it is one, for what lies outside is zero in it."""
        zeros = e.mask is None or (e.other == 0 and math.copysign(1, e.other) > 0)
        box = self.box(e.buffer, e.index, e.dims, e.mask) if self.boxes and zeros and not self.placing else None
        return box or self.pointers(e.buffer, e.index)

    def stored_at(self, s: StoreTile) -> Address:
        """The address of a store: a box where it is one of the dims of its value, in their order."""
        box = self.box(s.buffer, s.index, s.dims, s.mask) if self.boxes and s.value.dims == s.dims else None
        if box is not None and tuple(a for a in box.axes if a is not None) == s.dims:
            return box
        return replace(self.pointers(s.buffer, s.index), fenced=s.buffer in self.reread)

    def box(
        self,
        buffer: str,
        index: tuple[TExpr, ...],
        dims: tuple[str, ...],
        mask: TExpr | None,
        *,
        temporaries: bool = False,
    ) -> Box | None:
        """The box of an access, None where only pointers will do; `temporaries` as in `box_of`."""
        box = box_of(self, buffer, index, dims, temporaries=temporaries) if buffer not in self.reread else None
        return box if box is not None and inside(self, buffer, index, mask) else None

    def pointers(self, buffer: str, index: tuple[TExpr, ...]) -> Pointers:
        """The tile of pointers of an access: terms by where and how they are added."""
        bases: dict[int, list[Part]] = {}
        axes: list[Part] = []
        gathers: list[Part] = []
        rows: dict[str, list[Part]] = {}
        for dim, e in enumerate(index):
            strided = dim < len(index) - 1
            scalars: dict[int, list[Term]] = {}
            for t in linear(e):
                if t.tile is None:
                    scalars.setdefault(self.level(t.factors), []).append(t)
                elif isinstance(t.tile, Iota):
                    axes.append(self.tile(dim, strided, t, strided and (self.int64 or factor(t) is None)))
                elif (one_axis := along(t.tile)) is not None:
                    rows.setdefault(one_axis[0], []).append(
                        self.tile(dim, strided, replace(t, tile=one_axis[1]), strided)
                    )
                else:
                    gathers.append(self.tile(dim, strided, t, strided))
            for level, terms in scalars.items():
                bases.setdefault(level, []).append(self.scalar(dim, strided, terms))
        return Pointers(
            tuple(Sum(level, tuple(bases[level])) for level in sorted(bases)),
            tuple(gathers),
            tuple((axis, self.summed(parts)) for axis, parts in rows.items()),
            self.summed(axes) if axes else None,
        )

    def tile(self, dim: int, strided: bool, t: Term, cast: bool) -> Part:
        return Part(dim, strided, (t,), 64 if cast else 32, cast)

    def scalar(self, dim: int, strided: bool, terms: list[Term]) -> Part:
        """A sum of scalars, widened before it is multiplied by a stride and could pass 2**31."""
        wide = any(_direct(f) & self.wide for t in terms for f in t.factors)
        cast = strided and not wide and not single(terms)
        return Part(dim, strided, tuple(terms), 64 if wide or cast else 32, cast)

    def summed(self, parts: list[Part]) -> Sum:
        terms = [t for p in parts for t in p.terms]
        exprs = [f for t in terms for f in t.factors]
        exprs += [x.expr for t in terms if t.tile is not None for x in walk(t.tile) if isinstance(x, Scalar)]
        return Sum(self.level(exprs), tuple(parts))

    # --- scalars -------------------------------------------------------------------------------

    def reads(self) -> dict[Load, tuple[Part, ...]]:
        """The addresses of the scalars that the kernel reads from memory."""
        exprs = [g.extent for g in self.kernel.grid]
        for s in walk_stmts(self.kernel.body):
            exprs += bound_exprs(s)
            exprs += [x.expr for e in stmt_exprs(s) for x in walk(e) if isinstance(x, Scalar)]
        read = dict.fromkeys(x for e in exprs for x in loads(e) if x.buffer in self.program.globals)
        return {x: tuple(self.element(x)) for x in read}

    def element(self, x: Load) -> Iterator[Part]:
        for dim, i in enumerate(x.index):
            if not (isinstance(i, Const) and i.value == 0):
                yield self.scalar(dim, dim < len(x.index) - 1, [Term(False, (i,))])


def _steady(program: TileProgram, kernel: TileKernel) -> frozenset[str]:
    """The buffers that a kernel leaves alone: what it reads of them is the same wherever it does."""
    return frozenset(program.globals) - {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, StoreTile)}


def _places(body: tuple[TStmt, ...]) -> frozenset[str]:
    """The tile variables by which places to load from are computed, directly or through others."""
    assigned: dict[str, list[TExpr]] = {}
    for s in walk_stmts(body):
        if isinstance(s, Assign):
            assigned.setdefault(s.name, []).append(s.value)
    todo = [
        i for s in walk_stmts(body) for e in stmt_exprs(s) for x in walk(e) if isinstance(x, LoadTile) for i in x.index
    ]
    names: set[str] = set()
    while todo:
        fresh = {x.name for x in walk(todo.pop()) if isinstance(x, Local)} - names
        names |= fresh
        todo += [value for name in fresh for value in assigned.get(name, ())]
    return frozenset(names)


def _always_read(e: Expr) -> Iterator[Load]:
    """What an expression reads whichever way its choices go."""
    if isinstance(e, Load):
        yield e
    for x in (e.pred,) if isinstance(e, Select) else children(e):
        yield from _always_read(x)


def address_only(kernel: TileKernel) -> frozenset[str]:
    """Grid variables that occur in nothing but scalar parts of addresses: these may be int64 throughout."""
    elsewhere: set[str] = set()
    for s in walk_stmts(kernel.body):
        elsewhere |= _statement_variables(s)
    for g in kernel.grid:
        elsewhere |= variables(g.extent)
    return frozenset(g.var for g in kernel.grid) - elsewhere


def _statement_variables(s: TStmt) -> set[str]:
    exprs: list[Expr] = []
    if isinstance(s, Loop):
        exprs = [s.lo, s.hi]
    elif not isinstance(s, StoreTile) and hasattr(s, "pred"):
        exprs = [s.pred]
    names = {v for e in exprs for v in _direct(e)}
    roots = stmt_exprs(s)
    if isinstance(s, StoreTile):
        roots = roots[len(s.index) :]
        for i in s.index:
            names |= _index_variables(i)
    for root in roots:
        names |= _tile_variables(root)
    return names


def _direct(e: Expr) -> set[str]:
    """Variables of `e` outside the indices of loads in it."""
    if isinstance(e, Load):
        return set()
    if isinstance(e, Var):
        return {e.name}
    return {v for c in children(e) for v in _direct(c)}


def _tile_variables(e: TExpr) -> set[str]:
    """Variables of scalars in `e`, but for bare scalar indices of its loads."""
    names: set[str] = set()
    skip: set[int] = set()
    for x in walk(e):
        if isinstance(x, LoadTile):
            for i in x.index:
                names |= _index_variables(i)
                skip |= {id(n) for n in walk(i)}
        elif isinstance(x, Scalar) and id(x) not in skip:
            names |= _direct(x.expr)
    return names


def _index_variables(i: TExpr) -> set[str]:
    """Variables of the parts of an index that become tiles."""
    names: set[str] = set()
    for t in linear(i):
        if t.tile is not None:
            names |= {v for f in t.factors for v in _direct(f)} | _tile_variables(t.tile)
    return names
