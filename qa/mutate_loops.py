"""Mutants of Programs: every mistake of `qa.mutate.KINDS` at every statement it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from neptune.ir.evaluate.parallel import accesses, classify
from neptune.ir.expr import Expr, Op, Var, as_expr, conjuncts, loads, logical_and, variables
from neptune.ir.expr import walk as walk_expr
from neptune.ir.program import (
    Alloc,
    For,
    If,
    Program,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    seq,
    sub_stmts,
    values,
    walk,
    with_stmts,
    writes,
)
from qa.mutate import EXPONENTIALS, LATE, PARTS, Change, Put, Scope, expr_changes, loop_mistakes, numbers_of_parts

REDUCERS = {"sum": "max", "max": "sum", "min": "max", "prod": "sum", "argmax": "argmin", "argmin": "argmax"}
REDUCERS |= {"bitor": "bitxor", "bitxor": "bitor"}


def loop_mutants(program: Program) -> Iterator[Change]:
    """Every mutant of a Program, in program order; none is equal to it."""
    rescales = _rescales(program.body)
    for s, path, put in _holes(program.body, ()):
        loops = tuple(x for x in path if isinstance(x, For))
        for change in _statement(s, loops, program, rescales):
            body = put(change.made)
            if body is not None and body != program.body:
                yield replace(change, made=program.with_body(body))


def _holes(s: Stmt, path: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, tuple[Stmt, ...], Put]]:
    """Every statement, those around it, and how to put another one (None: nothing) in its place."""
    yield s, path, lambda new: new
    parts = sub_stmts(s)
    for k, part in enumerate(parts):
        for inner, inside, put in _holes(part, (*path, s)):

            def whole(new: Stmt | None, k: int = k, put: Put = put) -> Stmt | None:
                fresh = put(new)
                mine = (*parts[:k], *(() if fresh is None else (fresh,)), *parts[k + 1 :])
                return with_stmts(s, mine) if mine else None

            yield inner, inside, whole


def _reads_itself(s: Stage) -> bool:
    """A repair: a store that changes what is there."""
    return isinstance(s.action, Store) and s.action.buffer in {x.buffer for x in loads(s.action.value)}


def _rescales(body: Stmt) -> frozenset[str]:
    """Buffers that hold what repairs multiply by."""
    repairs = [s for s in walk(body) if isinstance(s, Stage) and _reads_itself(s)]
    return frozenset(x.buffer for s in repairs for v in values(s.action) for x in loads(v)) - {
        b for s in repairs for b in writes(s.action)
    }


def _statement(s: Stmt, loops: tuple[For, ...], program: Program, rescales: frozenset[str]) -> Iterator[Change]:
    match s:
        case For():
            numbers = numbers_of_parts(program)
            parts = {f.var for f in loops if variables(f.hi) & numbers}
            for c in _loop(s):
                yield replace(c, kind=PARTS.get(c.kind, c.kind)) if parts & variables(s.lo) else c
        case If(pred, body):
            yield Change("dropped tile", "if", None)
            yield Change("mask dropped", "if", body)
            for c in expr_changes(pred, _scope(loops, program)):
                yield Change(c.kind, f"if: {c.where}", If(c.made, body))
        case Seq(stmts):
            yield from _order(stmts)
        case Alloc():
            pass
        case Stage():
            yield from _stage(s, loops, program, rescales)


def _scope(loops: tuple[For, ...], program: Program) -> Scope:
    return Scope(tuple(f.var for f in loops), program.buffers)


def _loop(s: For) -> Iterator[Change]:
    again = s.kind == "serial" and _changes_what_it_reads(s)
    for c in loop_mistakes(s, lambda after: If(after, s.body), again):
        yield replace(c, made=seq(*c.made))


def _changes_what_it_reads(s: Stmt) -> bool:
    """Whether to run it twice is not the same as once: it accumulates, or overwrites what it reads."""
    actions = [x.action for x in walk(s) if isinstance(x, Stage)]
    read = {x.buffer for a in actions for v in (*values(a), *a.index) for x in loads(v)}
    return any(isinstance(a, Update) for a in actions) or bool(_written(s) & read)


def _order(stmts: tuple[Stmt, ...]) -> Iterator[Change]:
    """Neighbours exchanged, and starts moved into the loop that follows."""
    for k, (a, b) in enumerate(pairwise(stmts)):
        if _conflict(a, b):
            where = f"{_name(a)} after {_name(b)}"
            yield Change("stages out of order", where, Seq((*stmts[:k], b, a, *stmts[k + 2 :])))
    for k, s in enumerate(stmts):
        inner = [x for x in walk(s) if isinstance(x, Stage)]
        if len(inner) != 1 or not isinstance(inner[0].action, Store) or _reads_itself(inner[0]):
            continue
        for m, after in enumerate(stmts[k + 1 :], k + 1):
            if (
                isinstance(after, For)
                and set(writes(inner[0].action)) & _written(after)
                and classify(after) == "serial"
            ):
                moved = replace(after, body=seq(s, after.body))
                made = Seq((*stmts[:k], *stmts[k + 1 : m], moved, *stmts[m + 1 :]))
                yield Change("init inside the loop", inner[0].name, made)
                break


def _name(s: Stmt) -> str:
    found = [x.name for x in walk(s) if isinstance(x, Stage)]
    return found[0] if len(found) == 1 else f"{found[0]}…" if found else "nothing"


def _written(s: Stmt) -> set[str]:
    return {b for x in walk(s) if isinstance(x, Stage) for b in writes(x.action)}


def _conflict(a: Stmt, b: Stmt) -> bool:
    """Whether the order of two statements matters: one writes what the other reads or writes."""
    private = {x.buffer.name for s in (a, b) for x in walk(s) if isinstance(x, Alloc)}
    touched = [{name for name, _ in accesses(s)} - private for s in (a, b)]
    return bool(((_written(a) - private) & touched[1]) | ((_written(b) - private) & touched[0]))


def _stage(s: Stage, loops: tuple[For, ...], program: Program, rescales: frozenset[str]) -> Iterator[Change]:
    repairs, factor = _reads_itself(s), bool(rescales & set(writes(s.action)))
    start = isinstance(s.action, Store) and not loads(s.action.value)
    kind = "missing rescale" if repairs else "missing init" if start else "missing stage"
    yield Change(kind, s.name, None)
    guards = conjuncts(s.when)
    for k in range(len(guards)):
        kept = (*guards[:k], *guards[k + 1 :])
        yield Change("conjunct dropped", f"guard of {s.name}", replace(s, when=logical_and(*kept) if kept else None))
    scope = _scope(loops, program)
    if s.when is not None:
        for c in expr_changes(s.when, scope):
            yield Change(c.kind, f"guard of {s.name}: {c.where}", replace(s, when=c.made))
    for f in loops:
        if f.kind == "serial" and classify(f) == "serial":
            early = Op("lt", (Var(f.var), f.lo + as_expr(LATE, "int32")), "bool")
            yield Change("dropped tile", f"{s.name} after {LATE} of {f.var}", If(early, s))
    if isinstance(s.action, Update):
        yield from _update(s, s.action)
    for k, e in enumerate(_exprs(s)):
        for c in expr_changes(e, scope):
            kind = _role(c.kind, repairs, factor)
            if kind == "factor dropped" and _combines(s, e, c.made, program):
                kind = "combine that ignores m"
            yield Change(kind, f"{s.name}: {c.where}", _with(s, k, c.made))


def _combines(s: Stage, e: Expr, made: Expr, program: Program) -> bool:
    """Whether a change takes the weights from partial results that are added up."""
    temporaries = {b.name for b in program.temporaries}
    weights = [sum(isinstance(x, Op) and x.name in EXPONENTIALS for x in walk_expr(v)) for v in (e, made)]
    return isinstance(s.action, Update) and weights[1] < weights[0] and any(x.buffer in temporaries for x in loads(e))


def _role(kind: str, repairs: bool, factor: bool) -> str:
    """What a mistake is called in a repair, or in what repairs multiply by."""
    if kind == "swapped operands" and (repairs or factor):
        return "reversed rescale"
    return "missing rescale" if kind == "factor dropped" and repairs else kind


def _update(s: Stage, action: Update) -> Iterator[Change]:
    other = REDUCERS.get(action.reducer)
    if other is not None:
        yield Change("other reducer", s.name, replace(s, action=replace(action, reducer=other)))


def _exprs(s: Stage) -> tuple[Expr, ...]:
    """Value and index of a stage, its init where it has one."""
    a = s.action
    init = a.init if isinstance(a, Update) and a.init else ()
    return (*values(a), *a.index, *init)


def _with(s: Stage, k: int, new: Expr) -> Stage:
    """The stage with another k-th of `_exprs`."""
    parts = list(_exprs(s))
    parts[k] = new
    a, v, n = s.action, len(values(s.action)), len(s.action.index)
    index = tuple(parts[v : v + n])
    if isinstance(a, Store):
        return replace(s, action=replace(a, index=index, value=parts[0]))
    init = tuple(parts[v + n :]) or None
    return replace(s, action=replace(a, index=index, values=tuple(parts[:v]), init=init))
