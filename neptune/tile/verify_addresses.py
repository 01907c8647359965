"""Do the addresses of a kernel reach the elements that its indices name, at all sizes?

Asked of each access by itself, without the pass that made it:
- the kernel is its source but for addresses, and for loads that are loaded permuted: no index and no mask is another;
- its parts add up to its index, dimension by dimension: at points drawn for variables, positions and what is read, at
  which two different sums agree with no probability to speak of;
- what is computed in a scope has its variables there, and reads nothing but what was read there whatever happens
  and no one writes;
- what a stride multiplies is int64, but for tiles of offsets whose spans the caller looks at, and for 0 and 1 strides;
- a box reads and writes what its mask lets through: the mask holds in all of the buffer, and what it hides is 0;
- what the kernel reads back, it writes through pointers between barriers.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import copysign

from neptune.ir.check import report
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, children, loads, rewrite, walk
from neptune.ir.ops import INTEGER
from neptune.ir.program import parameter_names
from neptune.tile.address import Addressed, Part, Pointers, Sum, factor, single
from neptune.tile.boxes import Box
from neptune.tile.index import Term, transposed_load
from neptune.tile.ir import (
    Branch,
    Full,
    Iota,
    LoadTile,
    Loop,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    bound_exprs,
    map_stmt,
    reread,
    stmt_exprs,
    walk_stmts,
)

POINTS, INSIDE, TRIES = 3, 12, 150
"""Points at which sums are compared, and those inside of a buffer at which a mask must hold, of so many drawn."""


def verify_addresses(addressed: Addressed, source: TileKernel | None = None) -> None:
    """Raise InternalError with every address that is wrong; `source` is the kernel before the pass."""
    findings = [] if source is None else list(_kept(addressed.kernel, source))
    findings += _Kernel(addressed).findings()
    report(f"addresses of kernel {addressed.kernel.name}", list(dict.fromkeys(findings)))


def _kept(kernel: TileKernel, source: TileKernel) -> Iterator[str]:
    def permuted(x: TExpr) -> TExpr | None:
        load = transposed_load(x.arg, x.pattern) if isinstance(x, Rearrange) and isinstance(x.arg, LoadTile) else None
        return None if load is None else rewrite(load, permuted)

    def bare(x: TExpr) -> TExpr | None:
        return rewrite(replace(x, at=None), bare) if isinstance(x, LoadTile) and x.at is not None else None

    before = tuple(map_stmt(s, lambda e: rewrite(e, permuted)) for s in source.body)
    after = tuple(_unaddressed(map_stmt(s, lambda e: rewrite(e, bare))) for s in kernel.body)
    if replace(kernel, body=after) != replace(source, body=before):
        yield "it is another kernel than the one that it was made from"


def _unaddressed(s: TStmt) -> TStmt:
    if isinstance(s, Loop | Branch):
        return replace(s, body=tuple(map(_unaddressed, s.body)))
    return replace(s, at=None) if isinstance(s, StoreTile) else s


# --- points ------------------------------------------------------------------------------------


@dataclass
class _Point:
    """Values of everything that an index is made of, drawn when it is first asked for; the same for what is equal."""

    rng: random.Random
    most: int
    sizes: frozenset[str] = frozenset()
    known: dict[Hashable, int] = field(default_factory=dict)

    def drawn(self, key: Hashable, least: int = 0) -> int:
        if key not in self.known:
            self.known[key] = least + self.rng.randrange(self.most * (16 if least else 1))
        return self.known[key]

    def of(self, e: TExpr | Expr) -> int:
        """The value of an element."""
        match e:
            case Const(value, _):
                return int(value)
            case Var(name, _):
                return self.drawn(name, name in self.sizes)
            case Scalar(arg) | Full(arg, _, _) | Rearrange(arg, _) | Cast(arg, _):
                return self.of(arg)
            case Iota(axis):
                return self.drawn(e) if axis else 0
            case Load(buffer, index, _):
                return self.drawn((buffer, *map(self.of, index)))
            case Op(name, args, _) if name in INTEGER:
                values = [self.of(a) for a in args]
                if name in ("floordiv", "mod") and values[1] == 0:
                    return self.drawn((name, *values))
                return int(not values[0]) if name == "not" else int(INTEGER[name](*values))
            case Select(pred, then, other):
                return self.of(then) if self.of(pred) else self.of(other)
            case _:
                return self.drawn(e)

    def term(self, t: Term) -> int:
        value = -1 if t.negative else 1
        for f in t.factors:
            value *= self.of(f)
        return value if t.tile is None else value * self.of(t.tile)


# --- kernels -----------------------------------------------------------------------------------


class _Kernel:
    """The addresses of one kernel."""

    def __init__(self, addressed: Addressed) -> None:
        self.made, self.kernel, self.buffers = addressed, addressed.kernel, addressed.program.globals
        self.params = frozenset(parameter_names(addressed.program.scalars, addressed.program.tunables))
        stored = {s.buffer for s in walk_stmts(self.kernel.body) if isinstance(s, StoreTile)}
        self.steady = self.buffers.keys() - stored
        self.reread = reread(self.kernel.body)
        # By scope: the variables that it binds, and what is read or computed there whatever happens.
        self.vars = [frozenset[str]()] * (len(addressed.scopes) - 1) + [frozenset(g.var for g in self.kernel.grid)]
        self.known: list[list[Expr]] = [[] for _ in addressed.scopes]

    def findings(self) -> Iterator[str]:
        for g in self.kernel.grid:
            yield from self.narrow("the grid", (g.extent,))
        for read, parts in self.made.reads.items():
            yield from (f"{read.buffer}: {x}" for p in parts for x in self.width(p, read.buffer))
            yield from self.adds_up(read.buffer, read.index, [(p.dim, p.terms) for p in parts])
        yield from self.body(self.kernel.body)

    def body(self, body: tuple[TStmt, ...]) -> Iterator[str]:
        for s in body:
            exprs = stmt_exprs(s)
            scalars = [x.expr for e in exprs for x in walk(e) if isinstance(x, Scalar)]
            found = [*bound_exprs(s), *(x for e in (*scalars, *bound_exprs(s)) for x in _unguarded(e))]
            self.known[-1] += [e for e in found if {x.buffer for x in loads(e)} <= self.steady]
            reads = {x for e in (*scalars, *bound_exprs(s)) for x in loads(e) if x.buffer in self.buffers}
            yield from (f"read of {x.buffer}: it has no address" for x in reads - self.made.reads.keys())
            yield from self.narrow("a bound", bound_exprs(s))
            if isinstance(s, Loop | Branch):
                self.vars.append(frozenset({s.var}) if isinstance(s, Loop) else frozenset())
                self.known.append([])
                yield from self.body(s.body)
                self.vars.pop()
                self.known.pop()
            elif isinstance(s, StoreTile):
                yield from self.expr(s.value)
                yield from self.access(s)
            else:
                yield from (x for e in exprs for x in self.expr(e))

    def expr(self, e: TExpr) -> Iterator[str]:
        if isinstance(e, LoadTile):
            yield from self.access(e)
        elif isinstance(e, Scalar):
            yield from self.narrow("a value", (e.expr,))
        else:
            yield from (x for p in e.parts for x in self.expr(p))

    def narrow(self, what: str, exprs: Iterable[Expr]) -> Iterator[str]:
        """What is no scalar part of an address is int32."""
        for e in exprs:
            yield from (f"{what} reads {v}, which is int64" for v in sorted(_direct(e) & self.made.wide))

    # --- accesses ------------------------------------------------------------------------------

    def access(self, s: LoadTile | StoreTile) -> Iterator[str]:
        if s.mask is not None:
            yield from self.expr(s.mask)
        for i in s.index:
            yield from (x for n in walk(i) if isinstance(n, LoadTile) for x in self.access(n))
        match s.at:
            case None:
                problems = iter(["it has no address"])
            case Box():
                problems = self.box(s, s.at)
            case Pointers():
                problems = self.pointers(s, s.at)
        yield from (f"{'load' if isinstance(s, LoadTile) else 'store'} {s.buffer}: {x}" for x in problems)

    def pointers(self, s: LoadTile | StoreTile, pointers: Pointers) -> Iterator[str]:
        yield from self.adds_up(s.buffer, s.index, [(p.dim, p.terms) for p in pointers.parts])
        if pointers.fenced != (isinstance(s, StoreTile) and s.buffer in self.reread):
            yield "barriers around what is not read back" if pointers.fenced else "what is read back has no barriers"
        for b in pointers.bases:
            yield from self.scoped("base", b)
        offsets = [] if pointers.offsets is None else [pointers.offsets]
        for sum_ in (*offsets, *(r for _, r in pointers.rows)):
            yield from self.scoped("offsets", sum_)
        for p in pointers.parts:
            yield from self.width(p, s.buffer, small=any(p in o.parts for o in offsets))
            tiles = [t for t in p.terms if t.tile is not None]
            yield from (x for t in tiles for x in self.narrow("a tile", t.factors))
            yield from (x for t in tiles if t.tile is not None for x in self.expr(t.tile))

    def adds_up(
        self, buffer: str, index: tuple[TExpr, ...] | tuple[Expr, ...], parts: list[tuple[int, tuple[Term, ...]]]
    ) -> Iterator[str]:
        rng = random.Random(0)
        for point in (_Point(rng, 1 << 20) for _ in range(POINTS)):
            for dim, i in enumerate(index):
                if sum(point.term(t) for d, terms in parts if d == dim for t in terms) != point.of(i):
                    yield f"what is added for dimension {dim} is not its index"
        if any(not 0 <= d < len(index) for d, _ in parts):
            yield f"{buffer} has {len(index)} dimensions"

    def scoped(self, what: str, s: Sum) -> Iterator[str]:
        if not 0 <= s.scope < len(self.vars):
            yield f"{what} of a scope that is not open"
            return
        exprs = [f for p in s.parts for t in p.terms for f in t.factors]
        tiles = [t.tile for p in s.parts for t in p.terms if t.tile is not None]
        exprs += [x.expr for tile in tiles for x in walk(tile) if isinstance(x, Scalar)]
        if not all(self.computable(e, s.scope) for e in exprs):
            yield f"{what} cannot be computed in scope {s.scope}"

    def computable(self, e: Expr, scope: int) -> bool:
        """True where an expression has its variables, and has read what it reads, in a scope."""
        if any(e in known for known in self.known[: scope + 1]):
            return True
        if isinstance(e, Load):
            return scope == len(self.vars) - 1
        if isinstance(e, Var):
            return e.name in self.params.union(*self.vars[: scope + 1])
        return all(self.computable(x, scope) for x in children(e))

    def width(self, p: Part, buffer: str, small: bool = False) -> Iterator[str]:
        """A product with a stride is int64, unless it is of positions in a `small` tile of offsets."""
        if p.strided != (p.dim < len(self.buffers[buffer].shape) - 1):
            yield f"dimension {p.dim} has the stride of another"
        wide = any(_direct(f) & self.made.wide for t in p.terms if t.tile is None for f in t.factors)
        if p.bits != (64 if p.cast or wide else 32):
            yield f"dimension {p.dim} is not added in {p.bits} bits"
        # The caller looks at the strides of a tile of offsets, by its spans.
        spanned = small and not self.made.int64 and all(factor(t) is not None for t in p.terms)
        if p.strided and p.bits < 64 and not spanned and not single(p.terms):
            yield f"dimension {p.dim} is multiplied by its stride in 32 bits"

    def box(self, s: LoadTile | StoreTile, box: Box) -> Iterator[str]:
        if s.buffer in self.reread:
            yield "a copy of what the kernel writes itself"
        axes = [a for a in box.axes if a is not None]
        if len(box.axes) != len(s.index) or sorted(axes) != sorted(s.dims) or box.axes[-1] is None:
            yield f"a box over {axes} is not one over {list(s.dims)}"
            return
        tiles = [() if a is None else (Term(False, (), Iota(a)),) for a in box.axes]
        parts = [(d, (*start, *tile)) for d, (start, tile) in enumerate(zip(box.starts, tiles, strict=True))]
        yield from self.adds_up(s.buffer, s.index, parts)
        yield from (x for start in box.starts for t in start for x in self.narrow("a coordinate", t.factors))
        if isinstance(s, LoadTile) and s.mask is not None and (s.other != 0 or copysign(1, s.other) < 0):
            yield f"a box is 0 where its mask wants {s.other}"
        if s.mask is not None and not self.held(s, s.mask):
            yield "a box has elements that its mask hides"

    def held(self, s: LoadTile | StoreTile, mask: TExpr) -> bool:
        """True where the mask holds at points inside of the buffer."""
        rng, inside = random.Random(0), 0
        shape = self.buffers[s.buffer].shape
        sizes = frozenset(d.name for b in self.buffers.values() for d in b.shape if isinstance(d, Var))
        for _ in range(TRIES):
            point = _Point(rng, 4, sizes)
            if all(0 <= point.of(i) < point.of(n) for i, n in zip(s.index, shape, strict=True)):
                inside += 1
                if not point.of(mask):
                    return False
            if inside == INSIDE:
                break
        return True


def _direct(e: Expr) -> frozenset[str]:
    """Variables of an expression, but for those of indices of reads, which are addresses themselves."""
    if isinstance(e, Load):
        return frozenset()
    own = frozenset({e.name}) if isinstance(e, Var) else frozenset[str]()
    return own.union(*map(_direct, children(e)))


def _unguarded(e: Expr) -> Iterator[Load]:
    """What an expression reads whichever way its choices go."""
    if isinstance(e, Load):
        yield e
    for x in (e.pred,) if isinstance(e, Select) else children(e):
        yield from _unguarded(x)
