"""The consumer's body: a wait before what it reads of shared memory, asynchronous products, releases behind them.

    k = k[…]                       Await(k, k_turn)
    s = dot(q, kᵀ)                 Issue s = dot(q, kᵀ)
    v = v[…]                       Await(v, v_turn)
    acc = acc + dot(p, v)    →     Issue acc = acc + dot(p, v)
    m = max(m, s)                  Finish(1, s);  Release(k, k_turn);  k_turn = k_turn + 1
    l = l + Σ exp2(s - m)          m = max(m, s);  l = l + Σ exp2(s - m)
    acc = acc · r                  Finish(0, acc, also m l);  Release(v, v_turn);  v_turn = v_turn + 1
                                   acc = acc · r

Every block is taken by itself. Products are issued where they stand and finished where the first statement needs it:
one that reads or sets a result in flight, sets a register operand of one, or is a loop or a branch; the end of a block
finishes all, so that no product with an operand in registers outlives its iteration (the compiler is known to put
other values in those registers). A tile is released when the last product that reads it is finished.

    for p in [0, n):                     if 0 < n:
      a = a[…]; b = b[…]                   Await(a, a_turn);  Await(b, b_turn);  Issue c = c + dot(a, b)
      c = c + dot(a, b)             →      for p in [1, n):
                                             Await(a, a_turn + 1);  Await(b, b_turn + 1);  Issue c = c + dot(a, b)
                                             Finish(1, also c);  Release(a, a_turn);  a_turn = a_turn + 1;  …
                                           Finish(0, c);  Release(a, a_turn);  a_turn = a_turn + 1;  …

Products at the end of an iteration stay in flight until those of the next are issued, where all that they read lies in
shared memory, and nothing in the loop but products touches their sums: so the matrix unit goes from one to the next.
Their tiles are held a step longer. The first iteration has none to finish, and is peeled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from neptune.errors import Unsupported
from neptune.hopper.ir import (
    AStmt,
    Await,
    Drain,
    Finish,
    Issue,
    Out,
    Release,
    Ring,
    Send,
    Staged,
    staged_in,
    tile_of,
    with_inside,
)
from neptune.hopper.roles.ring_groups import advanced, turn_of
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import binary, op, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    StoreTile,
    TExpr,
    TStmt,
    bare,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.operands import sums_of
from neptune.tile.passes.util import Block, assigns, bound_reads, products, reads
from neptune.tile.registers import read_in_registers
from neptune.tile.scalars import put


def consumed(
    body: Block, rings: Mapping[str, Ring], outs: Mapping[str, Out], counters: Mapping[str, str], *, again: bool
) -> tuple[AStmt, ...]:
    """The body of a consumer, whose products are statements of their own (`neptune.tile.passes.operands`).

    `rings` are the staged tiles by name, `outs` by buffer the results that leave through shared memory, `counters` by
    ring the local that counts its turns. With `again`, programs go on with other groups: then tiles are released as
    early as can be, and a result's memory is drained where the next group needs it.
    """
    read = {n for s in walk_stmts(body) for e in stmt_exprs(s) for n in read_in_registers(e)}
    writer = _Writer(rings, outs, counters, frozenset(read & rings.keys()), again)
    last = () if again else tuple(Drain(o.name) for o in outs.values() if o.over is None)
    return (*_BlockWriter(writer, body).written(), *last)


_Tile: TypeAlias = tuple[str, int]
"""A tile by its ring, and which of that ring's it is: counted from those that the block began with."""


@dataclass
class _Flight:
    """A product that was issued: its register operand, the tiles it reads, and what has been assigned since."""

    name: str
    left: str | None
    tiles: frozenset[_Tile]
    since: list[Assign] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class _Carried:
    """The state that an iteration leaves to the next one: products in flight, and how many tiles of each ring it
    holds."""

    flight: tuple[_Flight, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Range:
    """From where to where a loaded tile is in use, by index in its block; None where nothing reads it."""

    name: str
    first: int
    last: int | None


@dataclass(frozen=True)
class _Writer:
    rings: Mapping[str, Ring]
    outs: Mapping[str, Out]
    counters: Mapping[str, str]
    in_registers: frozenset[str]
    again: bool


class _BlockWriter:
    """The state of writing one block: products in flight, tiles whose last reader has been issued; of each ring the
    tiles that were begun and those that were released, and how many there were at most between the two.

    `given` are tiles that were awaited around the block, and are to be released in it; `carried` is what the iteration
    before has left.
    """

    def __init__(
        self, writer: _Writer, body: Block, given: tuple[str, ...] = (), carried: _Carried = _Carried()
    ) -> None:
        self.of, self.body = writer, body
        self.out: list[AStmt] = []
        self.flight: list[_Flight] = [replace(f, since=[]) for f in carried.flight]
        self.ended: list[_Tile] = [(name, k) for name, count in carried.held.items() for k in range(count)]
        self.begun, self.gone = Counter({**carried.held, **dict.fromkeys(given, 1)}), Counter[str]()
        self.most = Counter(self.begun)
        self.before = frozenset(self.ended)
        self.ranges = [self._range(k, s.name) for k, s in enumerate(body) if self._load(s) and isinstance(s, Assign)]
        self.ranges += [replace(self._range(-1, name), first=-1) for name in given]

    def written(self) -> tuple[AStmt, ...]:
        """The block, at whose end nothing is in flight."""
        self.steps()
        self._finish(len(self.flight))
        return tuple(self.out)

    def iteration(self) -> _Carried:
        """Write the block as an iteration; returns what it leaves to the next."""
        self.steps()
        sums = sums_of(self.body, self.of.rings)
        ends = (k for k, f in enumerate(self.flight[::-1]) if f.name not in sums or f.tiles & self.before)
        count = next(ends, len(self.flight))
        self._finish(len(self.flight) - count)
        held = Counter({n: k - self.gone[n] for n, k in self.begun.items() if k > self.gone[n]})
        flight = (replace(f, tiles=frozenset((n, k - self.gone[n]) for n, k in f.tiles)) for f in self.flight)
        return _Carried(tuple(flight), held)

    def steps(self) -> None:
        """Write the statements of the block."""
        for k, s in enumerate(self.body):
            for r in self.ranges:
                if r.first == k:
                    self._begin(r)
            ends = [r.name for r in self.ranges if r.last == k]
            if isinstance(s, Branch) and self.of.again and ends:
                self._either(s, tuple(ends))
            else:
                if not self._load(s):
                    self._statement(s)
                self._end(ends)

    # --- tiles ---

    def _load(self, s: TStmt) -> bool:
        return isinstance(s, Assign) and s.name in self.of.rings and isinstance(s.value, LoadTile)

    def _range(self, position: int, name: str) -> _Range:
        """The range of statements in which the tile that is loaded at a place is in use."""
        users: list[int] = []
        for k in range(position + 1, len(self.body)):
            s = self.body[k]
            if reads_first(s, name) or name == self._over(s):
                users.append(k)
            if name in assigns(s):
                if not isinstance(s, Assign) and any(reads_first(x, name) for x in self.body[k + 1 :]):
                    raise Unsupported("it is read behind a loop or a branch that loads it again", name)
                break
        if not users:
            return _Range(name, position, None)
        products = [k for k in users if name in multiplied(self.body[k]) or name == self._over(self.body[k])]
        # What is only read into registers is read at once.
        return _Range(name, users[0], products[-1] if products else None)

    def _over(self, s: TStmt) -> str | None:
        """The ring whose memory a store takes."""
        out = self.of.outs.get(s.buffer) if isinstance(s, StoreTile) else None
        return None if out is None else out.over

    def _begin(self, r: _Range) -> None:
        """Wait for a tile; one that no product reads is done with at once."""
        if any(name == r.name and (name, k) not in self.before for name, k in self.ended):
            self._finish_tiles(r.name)
        ring, turn = self.of.rings[r.name], turn_of(self.of.counters[r.name], self.begun[r.name] - self.gone[r.name])
        self.begun[r.name] += 1
        self.most[r.name] = max(self.most[r.name], self.begun[r.name] - self.gone[r.name])
        self.out.append(Await(ring.name, turn))
        if r.name in self.of.in_registers:
            tile = Staged(ring.name, turn, ring.dims, ring.dtype)
            self._conflicts(frozenset({r.name}), frozenset())
            self.out.append(Assign(r.name, tile_of(tile), ring.name))
        if r.last is None:
            self._finish_tiles(r.name)
            self._release(r.name)

    def _end(self, names: list[str]) -> None:
        for name in names:
            tile = (name, self.begun[name] - 1)
            if any(tile in f.tiles for f in self.flight):
                self.ended.append(tile)
            else:
                self._release(name)

    def _release(self, name: str) -> None:
        """Release the oldest tile of a ring that is held."""
        self.gone[name] += 1
        self.out += self._released(name)

    def _released(self, name: str) -> tuple[AStmt, ...]:
        counter = self.of.counters[name]
        return Release(self.of.rings[name].name, turn_of(counter)), advanced(counter)

    # --- products ---

    def _statement(self, s: TStmt) -> None:
        if isinstance(s, Loop | Branch):
            for name in sorted(assigns(s) & self.of.rings.keys()):
                if reads_first(s, name):
                    raise Unsupported("it is carried from one iteration to the next", name)
            self._finish(len(self.flight))
            self.out.append(self._kept(s) if isinstance(s, Loop) else self._inner(s))
        elif isinstance(s, Assign) and isinstance(s.value, Dot):
            self._issue(s, s.value)
        elif isinstance(s, StoreTile):
            self._conflicts(frozenset(), frozenset(reads(s)))
            self._store(s)
        else:
            self._conflicts(frozenset({s.name}), frozenset(reads(s)))
            self.out.append(s)
            if not isinstance(s.value, Local):
                for f in self.flight:
                    f.since.append(s)

    def _inner(self, s: Loop | Branch) -> AStmt:
        """A loop or a branch that leaves nothing in flight."""
        return with_inside(s, _BlockWriter(self.of, s.body).written())

    def _kept(self, s: Loop) -> AStmt:
        """A loop whose iterations leave products in flight, with the first one peeled, where there are such products
        and stages enough."""
        first = _BlockWriter(self.of, put(s.body, s.var, s.lo))
        carried = first.iteration()
        if not carried.flight:
            return self._inner(s)
        again = _BlockWriter(self.of, s.body, carried=carried)
        if again.iteration() != carried or any(n > self.of.rings[name].stages for name, n in again.most.items()):
            return self._inner(s)
        last = _BlockWriter(self.of, (), carried=carried).written()
        rest = with_inside(replace(s, lo=binary("add", s.lo, 1)), tuple(again.out))
        return with_inside(Branch(op("lt", s.lo, s.hi), ()), (*first.out, rest, *last))

    def _either(self, s: Branch, names: tuple[str, ...]) -> None:
        """A branch that releases, at their last reader, tiles that nothing reads behind it; else they are now."""
        self._finish(len(self.flight))
        self.out.append(with_inside(s, _BlockWriter(self.of, s.body, names).written()))
        other = Branch(op("not", s.pred), ())
        self.out.append(with_inside(other, tuple(x for n in names for x in self._released(n))))

    def _issue(self, s: Assign, dot: Dot) -> None:
        left, right = self._operand(dot.a, dot), self._operand(dot.b, dot)
        rings = {n.ring for e in (left, right) for n in staged_in(e)}
        tiles = frozenset((n, max(self.begun[n], 1) - 1) for n in rings)
        in_registers = left.name if isinstance(left, Local) else None
        # Products on one accumulator follow each other by themselves.
        sets = frozenset() if dot.acc is not None else frozenset({s.name})
        self._conflicts(sets, frozenset() if in_registers is None else frozenset({in_registers}))
        self.out.append(Issue(s.name, replace(dot, a=left, b=right), s.stage))
        self.flight.append(_Flight(s.name, in_registers, tiles))

    def _operand(self, e: TExpr, dot: Dot) -> TExpr:
        """An operand, read from shared memory where it is staged."""
        name = bare(e)
        if not isinstance(name, Local) or name.name not in self.of.rings:
            return e
        ring = self.of.rings[name.name]
        # The matrix unit takes tiles of 8 bits along the summed axis only.
        if ring.dtype not in ("float16", "bfloat16") and ring.dims[-1] != dot.a.dims[1]:
            raise Unsupported(
                f"it is of {ring.dtype} and lies along {ring.dims[-1]}, while its product sums over {dot.a.dims[1]}",
                name.name,
                legal=["float16 and bfloat16 tiles either way", f"8-bit tiles along {dot.a.dims[1]}"],
            )
        # The newest tile of the ring; or one that was awaited around the block.
        ahead = max(self.begun[name.name] - self.gone[name.name], 1) - 1
        staged = tile_of(Staged(ring.name, turn_of(self.of.counters[name.name], ahead), ring.dims, ring.dtype))
        return staged if e.dims == ring.dims else Rearrange(staged, f"{' '.join(ring.dims)} -> {' '.join(e.dims)}")

    def _store(self, s: StoreTile) -> None:
        out = self.of.outs.get(s.buffer)
        if out is None:
            self.out.append(s)
            return
        if out.over is not None:
            self._finish_tiles(out.over)
        elif self.of.again:
            self.out.append(Drain(out.name))
        self.out.append(Send(out.name, s.buffer, s.index, s.value, s.mask, s.dims, s.stage))
        if out.over is not None:
            self.out.append(Drain(out.name))

    # --- waits ---

    def _conflicts(self, sets: frozenset[str], read: frozenset[str]) -> None:
        """Finish the products that a statement must not overtake."""
        needed = [k for k, f in enumerate(self.flight) if f.name in sets | read or f.left in sets]
        if needed:
            self._finish(needed[-1] + 1)

    def _finish_tiles(self, name: str) -> None:
        """Finish the products that read a tile."""
        needed = [k for k, f in enumerate(self.flight) if name in {ring for ring, _ in f.tiles}]
        if needed:
            self._finish(needed[-1] + 1)

    def _finish(self, count: int) -> None:
        """Finish the first products in flight, and release what only they read. A sum that later ones add to is handed
        on."""
        if not count:
            return
        done, self.flight = self.flight[:count], self.flight[count:]
        left = {f.name for f in self.flight}
        names = dict.fromkeys(f.name for f in done if f.name not in left)
        also = dict.fromkeys(f.name for f in done if f.name in left)
        also |= dict.fromkeys(n for n in _held(done[0].since) if n not in names)
        self.out.append(Finish(len(self.flight), tuple(names), tuple(also)))
        free = [t for t in self.ended if not any(t in f.tiles for f in self.flight)]
        self.ended = [t for t in self.ended if t not in free]
        for name, _ in free:
            self._release(name)


def _held(under: list[Assign]) -> tuple[str, ...]:
    """The locals that are to be there when a product is finished, of those that were assigned under it.

    Tiles of one dim only where no positions are looked at: an iteration that masks has no registers to spare for what
    holds them in place (three consumers of 64 columns spilled there, and not in the loop without masks). No tiles of
    8 bits, such as tables of blocks: Triton's lowering of a wait fails on them.
    """
    masked = any(isinstance(n, Iota) for s in under for n in walk(s.value))
    wide = [s for s in under if DTYPES[s.value.dtype].bits > 8]
    return tuple(s.name for s in wide if not masked or len(s.value.dims) > 1)


def reads_first(s: TStmt, name: str) -> bool:
    """True if a statement reads the value that a local has before it."""
    if not isinstance(s, Loop | Branch):
        return name in set(reads(s))
    if name in bound_reads(s):
        return True
    for x in s.body:
        if reads_first(x, name):
            return True
        if isinstance(x, Assign) and x.name == name:
            return False
    return False


def multiplied(s: TStmt) -> set[str]:
    """The locals that are operands of products in a statement, those in its body included."""
    return {x.name for _, dot in products((s,)) for x in (bare(dot.a), bare(dot.b)) if isinstance(x, Local)}
