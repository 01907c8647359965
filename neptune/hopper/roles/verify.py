"""Is this asynchronous kernel well-formed?

Shapes and types are those of its two bodies as tile programs. Beside that every role counts alike and keeps to the
protocol, on every way through it: turns of a ring come one after the other, a tile is read between its `Await` and its
`Release`, what a product in flight owns is left alone until a `Finish` that covers it, and the memory of an `Out` is
drained before it is written again. A loop may run any number of times, so that it must leave what it found.

That both roles make the same number of turns depends on the bounds of their loops, and is not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from neptune.hopper.group_order import across_of
from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Release,
    Send,
    Staged,
    exprs_of,
    inside,
    locals_of,
    staged_in,
    walk_async,
)
from neptune.hopper.roles.as_tiles import as_tiles
from neptune.hopper.roles.ring_groups import apart
from neptune.ir.check import report, reported
from neptune.ir.dtypes import DTYPES, FLOAT8, is_int
from neptune.ir.expr import Const, Expr, Load, Op
from neptune.ir.text.printer import print_expr
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, StoreTile, TileProgram, bare
from neptune.tile.passes.util import scalar_names
from neptune.tile.verify import mistakes


def verify_async(kernel: AsyncKernel, program: TileProgram) -> None:
    """Raise InternalError with every way in which `kernel`, of `program`, is not well-formed."""
    tiles = as_tiles(kernel, program)
    wrong = reported(f"tile program {tiles.name}", mistakes(tiles))
    findings = [*_declarations(kernel), *([wrong] if wrong else [])]
    for role, body in (("producer", kernel.producer), ("consumer", kernel.consumer)):
        problems = dict.fromkeys(_Role(kernel, role).findings(body))
        beside = sorted(set(apart(kernel.rings, body)))
        findings += [f"{role}: {n} shares barriers, and somewhere stands by itself" for n in beside]
        findings += [f"{role}: {text}" for text in problems]
    report(f"asynchronous kernel {kernel.name}", findings)


# --- declarations ------------------------------------------------------------------------------


def _declarations(kernel: AsyncKernel) -> Iterator[str]:
    names = [r.name for r in kernel.rings] + [o.name for o in kernel.outs]
    yield from (f"{n} is declared twice" for n in sorted(set(names)) if names.count(n) > 1)
    if kernel.group not in {g.var for g in kernel.grid}:
        yield f"the grid has no variable {kernel.group}"
    if kernel.levers.band and (kernel.weight is not None or across_of(kernel) is None):
        yield f"bands of {kernel.levers.band} groups, of a grid that has no such order"
    rings = {r.name: r for r in kernel.rings}
    filled = {s.ring for s in walk_async(kernel.producer) if isinstance(s, Fill)}
    for r in kernel.rings:
        if r.stages < 1:
            yield f"ring {r.name} has {r.stages} stages"
        leader = rings.get(r.barrier or r.name)
        if leader is None or leader.barrier is not None or leader.stages != r.stages:
            yield f"ring {r.name} cannot share the barriers of {r.barrier}"
        if r.name not in filled:
            yield f"ring {r.name} is never filled"
    taken = [o.over for o in kernel.outs if o.over is not None]
    for o in kernel.outs:
        if o.over is None:
            continue
        ring = rings.get(o.over)
        if ring is None or not ring.own or ring.stages != 1:
            yield f"out {o.name} lies over {o.over}, which is no ring of one tile for each consumer"
        elif [kernel.extents[d] for d in ring.dims] != [kernel.extents[d] for d in o.dims] or (
            DTYPES[ring.dtype].bits != DTYPES[o.dtype].bits
        ):
            yield f"out {o.name} has another form than the ring {o.over} whose memory it takes"
        if taken.count(o.over) > 1:
            yield f"ring {o.over} is the memory of several outs"


# --- the protocol ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flight:
    """A product that is not finished: what it sets, its register operand, and the turns that it reads."""

    name: str
    left: str | None
    turns: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class _State:
    """The state of a role. Turns are relative to the counter of their ring: `next` of each ring is the turn that no
    `Await` or `Fill` has had yet, `held` the turns between `Await` and `Release`; `sent` are outs that are not
    drained."""

    next: Mapping[str, int]
    held: frozenset[tuple[str, int]] = frozenset()
    flight: tuple[_Flight, ...] = ()
    sent: frozenset[str] = frozenset()

    def advanced(self, rings: frozenset[str], by: int) -> _State:
        """The counter of some rings has advanced."""

        def moved(turns: frozenset[tuple[str, int]]) -> frozenset[tuple[str, int]]:
            return frozenset((r, t - by if r in rings else t) for r, t in turns)

        return _State(
            {r: t - by if r in rings else t for r, t in self.next.items()},
            moved(self.held),
            tuple(replace(f, turns=moved(f.turns)) for f in self.flight),
            self.sent,
        )


class _Role:
    """Follows one role through its body."""

    def __init__(self, kernel: AsyncKernel, role: str) -> None:
        self.kernel, self.role = kernel, role
        self.rings = {r.name: r for r in kernel.rings}
        self.outs = {o.name: o for o in kernel.outs}
        self.counter_of: dict[str, str] = {}
        self.found: list[str] = []
        for s in walk_async((*kernel.producer, *kernel.consumer)):
            for ring, turn in _turns(s):
                counter = _counter(turn, kernel.counters)
                if ring not in self.rings:
                    self.found.append(f"ring {ring} is not declared")
                elif counter is None:
                    self.found.append(f"the turn of {ring} is no counter and a number")
                elif self.counter_of.setdefault(ring, counter[0]) != counter[0]:
                    self.found.append(f"turns of {ring} are counted by {counter[0]} and by {self.counter_of[ring]}")

    def findings(self, body: tuple[AStmt, ...]) -> list[str]:
        """The faults of a body."""
        if self.found:
            return self.found  # without turns nothing can be followed
        start = _State(dict.fromkeys(self.rings, 0))
        end = self.body(body, start)
        self.same("a group", end, start)
        if self.kernel.levers.once:
            self.found += [f"out {name} is not drained at the end" for name in sorted(end.sent)]
        else:
            self.body(body, end if not self.found else start)
        return self.found

    def say(self, text: str) -> None:
        self.found.append(text)

    def same(self, what: str, end: _State, start: _State) -> None:
        """Note in what a state differs from one that it should be."""
        for ring in self.rings:
            if end.next[ring] != start.next[ring]:
                self.say(f"{what} has {end.next[ring] - start.next[ring]:+d} turns of {ring} beside its counter")
        for ring, _ in sorted(end.held - start.held):
            self.say(f"{what} keeps a tile of {ring}")
        for ring, _ in sorted(start.held - end.held):
            self.say(f"{what} releases a tile of {ring} that was awaited outside of it")
        if end.flight != start.flight:
            names = ", ".join(f.name for f in (*end.flight, *start.flight))
            self.say(f"{what} changes which products are in flight: {names}")

    def body(self, body: tuple[AStmt, ...], state: _State) -> _State:
        skip = False
        for s, after in zip(body, (*body[1:], None), strict=True):
            if skip:
                skip = False
            elif isinstance(s, Branch) and isinstance(after, Branch) and after.pred == Op("not", (s.pred,), "bool"):
                one, other = self.body(inside(s), state), self.body(inside(after), state)
                self.reads(s, state)
                self.same(f"one of `if {print_expr(s.pred)}` and its other side", one, other)
                state, skip = replace(one, sent=one.sent | other.sent), True
            else:
                state = self.statement(s, state)
        return state

    def statement(self, s: AStmt, state: _State) -> _State:
        match s:
            case Loop(var, _, _, _, _):
                end = self.body(inside(s), state)
                if end.sent != state.sent:
                    self.body(inside(s), replace(state, sent=end.sent))
                self.reads(s, state)
                self.same(f"an iteration of {var}", end, state)
                for f in end.flight:
                    if f.left is not None:
                        self.say(f"{f.name} is in flight at the end of an iteration, with {f.left} in registers")
                return replace(state, sent=state.sent | end.sent)
            case Branch():
                self.reads(s, state)
                end = self.body(inside(s), state)
                self.same("a branch", end, state)
                return replace(state, sent=state.sent | end.sent)
            case Fill() | Await() | Release():
                return self.turn(s, state)
            case Issue():
                return self.issue(s, state)
            case Finish():
                return self.finish(s, state)
            case Send() | Drain():
                return self.out(s, state)
            case Assign():
                return self.assign(s, state)
            case StoreTile():
                self.consumers_only("a store")
                self.reads(s, state)
        return state

    # --- turns ---

    def turn(self, s: Fill | Await | Release, state: _State) -> _State:
        offset = self.offset(s.ring, s.turn)
        what = f"{type(s).__name__.lower()} of {s.ring}"
        if isinstance(s, Fill) != (self.role == "producer"):
            self.say(f"{what} is for the other role")
        if isinstance(s, Release):
            if (s.ring, offset) not in state.held:
                self.say(f"{what} of a turn that it does not have")
            if any((s.ring, offset) in f.turns for f in state.flight):
                self.say(f"{what} that a product in flight reads")
            if any(o.over == s.ring and o.name in state.sent for o in self.outs.values()):
                self.say(f"{what} whose memory is not drained")
            return replace(state, held=state.held - {(s.ring, offset)})
        if offset != state.next[s.ring]:
            self.say(f"{what} is for turn {offset:+d}, and {state.next[s.ring]:+d} is next")
        moved = {**state.next, s.ring: offset + 1}
        if isinstance(s, Await):
            return replace(state, next=moved, held=state.held | {(s.ring, offset)})
        if self.kernel.rows in scalar_names(s.load) and not self.rings[s.ring].own:
            self.say(f"{what}, which all consumers share, reads {self.kernel.rows}")
        return replace(state, next=moved)

    def offset(self, ring: str, turn: Expr) -> int:
        counter = _counter(turn, self.kernel.counters)
        assert counter is not None and ring in self.rings
        return counter[1]

    def staged(self, tile: Staged, state: _State, what: str) -> tuple[str, int]:
        """The turn of a staged tile, which must be held."""
        ring = self.rings[tile.ring]
        turn = (tile.ring, self.offset(tile.ring, tile.turn))
        if turn not in state.held:
            self.say(f"{what} reads a tile of {tile.ring} that it does not have")
        if (tile.dims, tile.dtype) != (ring.dims, ring.dtype):
            self.say(f"{what} reads {tile.ring} in another form")
        if any(o.over == tile.ring and o.name in state.sent for o in self.outs.values()):
            self.say(f"{what} reads {tile.ring}, over which a result was written")
        return turn

    # --- products ---

    def reads(self, s: AStmt, state: _State) -> None:
        """A statement must not read what is in flight."""
        for name in sorted(locals_of(s) & {f.name for f in state.flight}):
            self.say(f"{name} is read in flight")
        if not (isinstance(s, Assign) and isinstance(s.value, Staged)):
            for tile in (t for e in exprs_of(s) for t in staged_in(e)):
                self.say(f"a tile of {tile.ring} is read by no product, and not by itself")
        for e in exprs_of(s):
            if any(isinstance(x, Dot) for x in ((e,) if not isinstance(s, Issue) else ())):
                self.say("a product is not issued")

    def assign(self, s: Assign, state: _State) -> _State:
        if s.name in self.kernel.counters:
            by = _step(s)
            if by is None:
                self.say(f"the counter {s.name} is set otherwise than by a step")
                return state
            return state.advanced(frozenset(r for r, c in self.counter_of.items() if c == s.name), by)
        if self.role == "producer" and not _of_a_warp(s):
            self.say(f"a tile, {s.name}, is held by the producer")
        self.reads(s, state)
        if isinstance(s.value, Staged):
            self.staged(s.value, state, s.name)
        for f in state.flight:
            if s.name in (f.name, f.left):
                self.say(f"{s.name} is set while the product {f.name} is in flight")
        return state

    def issue(self, s: Issue, state: _State) -> _State:
        self.consumers_only("a product")
        if s.dot.acc not in (None, Local(s.name, s.dot.dims, s.dot.dtype)):
            self.say(f"the product {s.name} adds to another local")
        if s.dot.acc is not None and s.dot.a.dtype in FLOAT8:
            self.say(f"the product {s.name} adds {s.dot.a.dtype} to a running sum, which the unit cuts to 14 bits")
        if s.dot.acc is None and s.name in {f.name for f in state.flight}:
            self.say(f"{s.name} is set while the product {s.name} is in flight")
        turns = [self.staged(t, state, f"the product {s.name}") for x in (s.dot.a, s.dot.b) for t in staged_in(x)]
        left = s.dot.a.name if isinstance(s.dot.a, Local) else None
        if left in {f.name for f in state.flight}:
            self.say(f"{left} is read in flight")
        if not isinstance(bare(s.dot.b), Staged) or (left is None and not isinstance(bare(s.dot.a), Staged)):
            self.say(f"the product {s.name} reads an operand that is neither staged nor, on its left, a local")
        return replace(state, flight=(*state.flight, _Flight(s.name, left, frozenset(turns))))

    def finish(self, s: Finish, state: _State) -> _State:
        if s.pending >= len(state.flight):
            self.say(f"a wait for all but {s.pending} of {len(state.flight)} products waits for none")
            return state
        split = len(state.flight) - s.pending
        done, still = state.flight[:split], state.flight[split:]
        for name in s.names:
            if name in {f.name for f in still}:
                self.say(f"{name} is named by a wait that leaves it in flight")
            elif name not in {f.name for f in done}:
                self.say(f"{name} is named by a wait, and was not in flight")
        for name in sorted({f.name for f in done} & {f.name for f in still} - set(s.also)):
            self.say(f"{name}, to which products in flight add, is not handed on by the wait for others")
        missed = {f.name for f in done} - {f.name for f in still} - set(s.names)
        for name in sorted(missed):
            self.say(f"{name} is finished by a wait that does not name it")
        return replace(state, flight=still)

    # --- results ---

    def out(self, s: Send | Drain, state: _State) -> _State:
        self.consumers_only("a result")
        out = self.outs.get(s.out)
        if out is None:
            self.say(f"out {s.out} is not declared")
            return state
        if isinstance(s, Drain):
            return replace(state, sent=state.sent - {s.out})
        self.reads(s, state)
        if (s.buffer, s.dims, s.value.dtype) != (out.tensor, out.dims, out.dtype):
            self.say(f"out {s.out} is sent to {s.buffer} in another form")
        if s.out in state.sent:
            self.say(f"out {s.out} is written before it is drained")
        if out.over is not None:
            if not any(ring == out.over for ring, _ in state.held):
                self.say(f"out {s.out} is written over {out.over}, which is not held")
            if any(ring == out.over for f in state.flight for ring, _ in f.turns):
                self.say(f"out {s.out} is written over {out.over}, which a product in flight reads")
        return replace(state, sent=state.sent | {s.out})

    def consumers_only(self, what: str) -> None:
        if self.role == "producer":
            self.say(f"{what} is for consumers")


# --- turns -------------------------------------------------------------------------------------


def _turns(s: AStmt) -> Iterator[tuple[str, Expr]]:
    if isinstance(s, Fill | Await | Release):
        yield s.ring, s.turn
    for e in exprs_of(s):
        for t in staged_in(e):
            yield t.ring, t.turn


def _counter(turn: Expr, counters: tuple[str, ...]) -> tuple[str, int] | None:
    """A turn as a counter and a number: `k_turn - 1` is ("k_turn", -1)."""
    match turn:
        case Load(name, (), _) if name in counters:
            return name, 0
        case Op("add" | "sub" as sign, (Load(name, (), _), Const(value, _)), _) if name in counters:
            return name, int(value) if sign == "add" else -int(value)
        case _:
            return None


def _of_a_warp(s: Assign) -> bool:
    """True for what the producer, a warp, may hold: numbers, and rows of integers that bounds are made of."""
    return not s.value.dims or (len(s.value.dims) == 1 and (is_int(s.value.dtype) or s.value.dtype == "bool"))


def _step(s: Assign) -> int | None:
    """The number of turns by which an assignment advances its counter."""
    match s.value:
        case Op("add", (Local(name, _, _), step), _) if name == s.name:
            expr = getattr(step, "expr", None)
            return int(expr.value) if isinstance(expr, Const) else None
        case _:
            return None
