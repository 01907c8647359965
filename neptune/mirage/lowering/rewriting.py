"""Changes to definitions: a stage in front of another, every expression by a rule, and temporaries laid out otherwise.

    t[i, j] = exp(x[i, j]); s[j] += t[i, j]      {"t": ("j", "i")}  →  t[j, i] = exp(x[i, j]); s[j] += t[j, i]

Which order of dimensions is best is a question of `neptune.mirage.layouts`; what is computed does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from neptune.ir.expr import Expr, Load, Var, rewrite
from neptune.ir.names import fresh_name
from neptune.ir.program import (
    ZERO,
    Buffer,
    For,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    map_exprs,
    nests,
    rewrite_stmt,
    seq,
    stages,
    wrap,
)
from neptune.mirage.lowering.definitions import Definitions, Placement
from neptune.schedule.state import Decision, reads

Action = Callable[[str, tuple[Var, ...]], "Store | Update"]
"""(buffer, index) → what a new stage does."""
Actions = Mapping[str, "Store | Update"]
"""What writes each buffer."""


def actions_of(program: Program) -> Actions:
    """What writes each buffer of a program."""
    return {b: s.action for s in stages(program.body) for b in s.action.buffers}


def at_index(action: Store | Update, index: Sequence[Expr]) -> dict[str, Expr]:
    """What the variables of an action stand for where its element at an index is read."""
    return {v.name: i for v, i in zip(action.index, index, strict=True) if isinstance(v, Var)}


def inserted(
    algebra: Definitions,
    before: str,
    wish: str,
    axes: Sequence[str],
    action: Action,
    folded: Sequence[str] = (),
) -> tuple[Definitions, Load]:
    """A new stage over `axes` (and `folded` axes) in front of another, where that is; also the load of its element."""
    program = algebra.program
    taken = {*program.globals, *(s.name for s in program.scalars), *algebra.sizes}
    name, index = fresh_name(taken, wish), tuple(Var(a) for a in axes)
    stage = Stage(name, action(name, index))
    dtype = stage.action.values[0].dtype
    loops = [For(a, ZERO, algebra.sizes[a], stage) for a in (*axes, *folded)]
    fresh: list[Stmt] = []
    for nest in nests(program.body):
        if any(s.name == before for s in stages(nest)):
            fresh.append(wrap(loops, stage))
        fresh.append(nest)
    buffer = Buffer(name, tuple(algebra.sizes[a] for a in axes), dtype)
    program = replace(program, body=seq(*fresh), temporaries=(*program.temporaries, buffer))
    placement: dict[str, Placement] = {}
    for other, known in algebra.placement.items():
        placement |= {name: known, other: known} if other == before else {other: known}
    return replace(algebra, program=program, placement=placement), Load(name, index, dtype)


def mapped(algebra: Definitions, fn: Callable[[Expr], Expr]) -> Definitions:
    """The definitions with a rule applied to every expression."""
    return replace(algebra, program=algebra.program.with_body(map_exprs(algebra.program.body, fn)))


def with_stages(program: Program, fn: Callable[[Stage], Stage]) -> Program:
    """The program with each of its stages as `fn` rewrites it."""
    body = rewrite_stmt(program.body, lambda s: fn(s) if isinstance(s, Stage) else s)
    assert body is not None
    return program.with_body(body)


def ordered(algebra: Definitions, inside: Container[str]) -> Definitions:
    """The stages of each step: what those `inside` its loop are computed from, these, and what follows."""
    feeding: set[str] = set()
    for s in reversed(algebra.stages):
        if s.name in inside or feeding.intersection(s.action.buffers):
            feeding |= {x.buffer for x in reads(s)}

    def rank(nest: Stmt) -> tuple[int, int]:
        (stage,) = stages(nest)
        return algebra.placement[stage.name].step, 1 if stage.name in inside else 2 * (stage.name not in feeding)

    left, done = [*nests(algebra.program.body)], list[Stmt]()
    missing = {b for s in algebra.stages for b in s.action.buffers}
    while left:
        ready = [n for n in left if not missing & {x.buffer for x in reads(stages(n)[0])}]
        chosen = min(ready, key=rank)
        missing -= {*stages(chosen)[0].action.buffers}
        left.remove(chosen)
        done.append(chosen)
    names = [stages(n)[0].name for n in done]
    placement = {n: algebra.placement[n] for n in names}
    return replace(algebra, program=algebra.program.with_body(seq(*done)), placement=placement)


# --- layouts ----------------------------------------------------------------------------------------


Orders = Mapping[str, Sequence[int]]
"""For each buffer its dimensions in their new order, by number."""


def relaid(algebra: Definitions, orders: Mapping[str, tuple[str, ...]]) -> Definitions:
    """The definitions with the tensors between kernels laid out as `orders` says: their axes, the innermost last."""
    permutations: dict[str, list[int]] = {}
    for tensor, axes in orders.items():
        buffer = algebra.tensors.get(tensor)
        stage = next((s for s in algebra.stages if buffer in s.action.buffers), None)
        if stage is None or buffer is None:
            continue
        names = [v.name for v in stage.action.index if isinstance(v, Var)]
        wanted = [algebra.axes[a] for a in axes]
        if sorted(names) == sorted(wanted) and names != wanted:
            permutations[buffer] = [names.index(n) for n in wanted]
            algebra = algebra.note(
                Decision("layout", buffer, f"stored as [{', '.join(wanted)}]", "for those who read it")
            )
    return replace(algebra, program=permuted(algebra.program, permutations)) if permutations else algebra


def permuted(program: Program, orders: Orders) -> Program:
    """The program with the dimensions of temporaries in another order, where they are declared, written and read."""

    def read(e: Expr) -> Expr:
        def load(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in orders:
                return None
            return replace(x, index=tuple(read(x.index[k]) for k in orders[x.buffer]))

        return rewrite(e, load)

    def written(s: Stage) -> Stage:
        order = orders.get(s.action.buffers[0])
        if order is None:
            return s
        return replace(s, action=replace(s.action, index=tuple(s.action.index[k] for k in order)))

    temporaries = tuple(
        replace(b, shape=tuple(b.shape[k] for k in orders[b.name])) if b.name in orders else b
        for b in program.temporaries
    )
    return with_stages(replace(program, temporaries=temporaries, body=map_exprs(program.body, read)), written)
