"""Mutants of TilePrograms: every mistake of `qa.mutate.KINDS` at every tile statement it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Const, Op, Select, Var, as_expr, variables, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from qa.mutate import (
    EXPONENTIALS,
    LATE,
    PARTS,
    Change,
    Put,
    Scope,
    expr_changes,
    holes,
    loop_mistakes,
    numbers_of_parts,
    op_mistakes,
    other_values,
)

REDUCERS = {"sum": "max", "max": "sum", "min": "max", "prod": "sum", "bitor": "bitxor", "bitxor": "bitor"}
Body = tuple[TStmt, ...]


def tile_mutants(program: TileProgram) -> Iterator[Change]:
    """Every mutant of a TileProgram, in program order; none is equal to it."""
    for k, kernel in enumerate(program.kernels):
        for change in _kernel(kernel, program):
            if change.made != kernel:
                yield replace(
                    change,
                    made=replace(program, kernels=(*program.kernels[:k], change.made, *program.kernels[k + 1 :])),
                )


def _kernel(kernel: TileKernel, program: TileProgram) -> Iterator[Change]:
    one = as_expr(1, "int32")
    for k, g in enumerate(kernel.grid):
        grid = (*kernel.grid[:k], replace(g, extent=g.extent - one), *kernel.grid[k + 1 :])
        yield Change("dropped tile", f"grid {g.var} ends early", replace(kernel, grid=grid))
    scope = _Scope(kernel, program)
    for body, loops, put in _bodies(kernel.body, tuple(g.var for g in kernel.grid)):
        for change in _sequence(body, loops, scope):
            yield replace(change, made=replace(kernel, body=put(change.made)))


class _Scope:
    """The tile variables of a kernel by dims and dtype, and those that repairs multiply by."""

    def __init__(self, kernel: TileKernel, program: TileProgram) -> None:
        numbers = numbers_of_parts(program)
        temporaries = {b.name for b in program.temporaries}
        self.grid = {g.var for g in kernel.grid}
        self.parts = {g.var for g in kernel.grid if variables(g.extent) & numbers}
        stmts = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign)]
        self.locals: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for s in stmts:
            names = self.locals.setdefault((s.value.dims, s.value.dtype), [])
            if s.name not in names:
                names.append(s.name)
        self.partial = {s.name for s in stmts if {x.buffer for x in _loads(s.value)} & temporaries}
        repairs = [s for s in stmts if _reads_itself(s)]
        self.rescales = {
            n.name
            for s in repairs
            for m in walk(s.value)
            if isinstance(m, Op) and m.name == "mul" and any(_is(a, s.name) for a in m.args)
            for a in m.args
            for n in walk(a)
            if isinstance(n, Local) and n.name != s.name
        }


def _reads_itself(s: TStmt) -> bool:
    return isinstance(s, Assign) and any(isinstance(n, Local) and n.name == s.name for n in walk(s.value))


def _is(e: TExpr, name: str) -> bool:
    return (isinstance(e, Local) and e.name == name) or (isinstance(e, Rearrange) and _is(e.arg, name))


def _bodies(body: Body, loops: tuple[str, ...]) -> Iterator[tuple[Body, tuple[str, ...], Put]]:
    """Every body, the variables around it, and how to put another one in its place."""
    yield body, loops, lambda new: new
    for k, s in enumerate(body):
        if isinstance(s, Loop | Branch):
            inside = (*loops, s.var) if isinstance(s, Loop) else loops
            for inner, names, put in _bodies(s.body, inside):

                def whole(new: Body, k: int = k, s: Loop | Branch = s, put: Put = put) -> Body:
                    return (*body[:k], replace(s, body=put(new)), *body[k + 1 :])

                yield inner, names, whole


def _sequence(body: Body, loops: tuple[str, ...], scope: _Scope) -> Iterator[Change]:
    """Mistakes in the statements of one body, not in what they hold."""
    for k, s in enumerate(body):
        for change in _statement(s, loops, scope):
            yield replace(change, made=(*body[:k], *change.made, *body[k + 1 :]))
        if loops and loops[-1] not in scope.grid and isinstance(s, Assign) and not isinstance(s.value, Full):
            for change in _late(s, loops[-1]):
                yield replace(change, made=(*body[:k], *change.made, *body[k + 1 :]))
    for k, (a, b) in enumerate(pairwise(body)):
        if _conflict(a, b):
            where = f"{_name(a)} after {_name(b)}"
            yield Change("stages out of order", where, (*body[:k], b, a, *body[k + 2 :]))
    for k, s in enumerate(body):
        if isinstance(s, Assign) and isinstance(s.value, Full):
            for m, after in enumerate(body[k + 1 :], k + 1):
                if isinstance(after, Loop) and s.name in _touched(after)[1]:
                    moved = replace(after, body=(s, *after.body))
                    yield Change(
                        "init inside the loop", s.name, (*body[: k + 1], *body[k + 1 : m], moved, *body[m + 1 :])
                    )
                    break


def _touched(s: TStmt) -> tuple[set[str], set[str]]:
    """What a statement reads and what it writes, as tile variables and buffers."""
    reads: set[str] = set()
    writes: set[str] = set()
    for x in walk_stmts((s,)):
        if isinstance(x, Assign):
            writes.add(x.name)
        elif isinstance(x, StoreTile):
            writes.add(f"{x.buffer}[]")
        for n in (n for e in stmt_exprs(x) for n in walk(e)):
            if isinstance(n, Local):
                reads.add(n.name)
            elif isinstance(n, LoadTile):
                reads.add(f"{n.buffer}[]")
    return reads, writes


def _conflict(a: TStmt, b: TStmt) -> bool:
    (reads_a, writes_a), (reads_b, writes_b) = _touched(a), _touched(b)
    return bool(writes_a & (reads_b | writes_b) or writes_b & reads_a)


def _name(s: TStmt) -> str:
    match s:
        case Assign(name, _, _):
            return name
        case StoreTile():
            return s.buffer
        case Loop():
            return f"loop {s.var}"
        case Branch():
            return "branch"


def _statement(s: TStmt, loops: tuple[str, ...], scope: _Scope) -> Iterator[Change]:
    """Mistakes in a statement; `made` is what stands in its place."""
    match s:
        case Loop():
            for c in loop_mistakes(s, lambda after: (Branch(after, s.body),)):
                yield replace(c, kind=PARTS.get(c.kind, c.kind)) if variables(s.lo) & scope.parts else c
            for c in expr_changes(s.lo, Scope(loops)):
                yield Change("wrong piece bound", f"loop {s.var}: {c.where}", (replace(s, lo=c.made),))
            for c in expr_changes(s.hi, Scope(loops)):
                yield Change("wrong piece bound", f"loop {s.var}: {c.where}", (replace(s, hi=c.made),))
        case Branch():
            yield Change("dropped tile", "branch", ())
            yield Change("mask dropped", "branch", s.body)
            for c in expr_changes(s.pred, Scope(loops)):
                yield Change(c.kind, f"branch: {c.where}", (replace(s, pred=c.made),))
        case Assign():
            repairs = _reads_itself(s)
            start = isinstance(s.value, Full)
            yield Change("missing rescale" if repairs else "missing init" if start else "missing stage", s.name, ())
            for c in _changes(s.value, loops, scope, s.name):
                yield Change(_role(c, s, scope), f"{s.name}: {c.where}", (replace(s, value=c.made),))
        case StoreTile():
            yield Change("missing stage", s.buffer, ())
            for c in _changes(s.value, loops, scope, ""):
                yield Change(c.kind, f"{s.buffer}: {c.where}", (replace(s, value=c.made),))
            if s.mask is not None:
                yield Change("mask dropped", f"mask of {s.buffer}", (replace(s, mask=None),))
                for c in _changes(s.mask, loops, scope, ""):
                    yield Change(c.kind, f"mask of {s.buffer}: {c.where}", (replace(s, mask=c.made),))
            for k, i in enumerate(s.index):
                for c in _changes(i, loops, scope, ""):
                    made = replace(s, index=(*s.index[:k], c.made, *s.index[k + 1 :]))
                    yield Change(c.kind, f"index of {s.buffer}: {c.where}", (made,))


def _role(change: Change, s: Assign, scope: _Scope) -> str:
    """What a mistake is called in a repair, in what repairs multiply by, or where partial results are added up."""
    if change.kind == "swapped operands" and s.name in scope.rescales:
        return "reversed rescale"
    if change.kind == "factor dropped":
        weights = [sum(isinstance(n, Op) and n.name in EXPONENTIALS for n in walk(v)) for v in (s.value, change.made)]
        reads = {n.name for n in walk(s.value) if isinstance(n, Local)}
        if weights[1] < weights[0] and reads & scope.partial:
            return "combine that ignores m"
    return change.kind


def _loads(e: TExpr) -> list[LoadTile]:
    return [n for n in walk(e) if isinstance(n, LoadTile)]


def _late(s: Assign, var: str) -> Iterator[Change]:
    early = Op("lt", (Var(var), as_expr(LATE, "int32")), "bool")
    yield Change("dropped tile", f"{s.name} after {LATE} of {var}", (Branch(early, (s,)),))


# --- tile expressions -----------------------------------------------------------------------------


def _changes(e: TExpr, loops: tuple[str, ...], scope: _Scope, target: str) -> Iterator[Change]:
    """Every mistake in one tile expression that keeps the dims of every node."""
    for node, put in holes(e):
        for kind, where, new in _node(node, loops, scope, target):
            if new != node and new.dims in (node.dims, ()) and (made := put(_spread(new, node.dims))).dims == e.dims:
                yield Change(kind, where, made)


def _node(e: TExpr, loops: tuple[str, ...], scope: _Scope, target: str) -> Iterator[tuple[str, str, TExpr]]:
    match e:
        case Scalar(expr):
            for c in expr_changes(expr, Scope(loops)):
                yield c.kind, c.where, Scalar(c.made)
        case Full(value, _, dtype):
            if isinstance(value.expr, Const):
                for new in other_values(value.expr.value, dtype):
                    yield "other constant", "full", replace(e, value=Scalar(Const(new, dtype)))
        case Local(name, dims, dtype):
            for other in scope.locals.get((dims, dtype), ()):
                if other != name:
                    yield "other buffer", name, Local(other, dims, dtype)
        case Op():
            yield from ((kind, e.name, new) for kind, new in _map(e, target))
        case Select(_, then, other):
            yield "mask dropped", "where", _spread(then, e.dims)
            yield "mask dropped", "where", _spread(other, e.dims)
        case Reduce(reducer, _, _) if reducer in REDUCERS:
            yield "other reducer", "reduce", replace(e, reducer=REDUCERS[reducer])
        case Dot(a, b, acc, _):
            if acc is not None:
                yield "term dropped", "dot", replace(e, acc=None)
            if len({*a.dims, *b.dims}) == 1:
                yield "swapped operands", "dot", replace(e, a=b, b=a)
        case LoadTile():
            yield from _load(e)
        case _:
            pass


def _spread(e: TExpr, dims: tuple[str, ...]) -> TExpr:
    """A scalar as a tile."""
    return Full(e, dims, e.dtype) if isinstance(e, Scalar) and dims else e


def _load(e: LoadTile) -> Iterator[tuple[str, str, TExpr]]:
    if e.mask is not None:
        yield "mask dropped", f"load of {e.buffer}", replace(e, mask=None)
        other = 1.0 if is_float(e.dtype) else 1
        yield "other constant", f"padding of {e.buffer}", replace(e, other=other)
    for k, i in enumerate(e.index):
        if isinstance(i, Scalar) and isinstance(i.expr, Const):
            continue
        more = Op("add", (i, Scalar(as_expr(1, i.dtype))), i.dtype)
        yield "other index", f"index of {e.buffer}", replace(e, index=(*e.index[:k], more, *e.index[k + 1 :]))
    scalars = [k for k, i in enumerate(e.index) if not i.dims]
    for a, b in pairwise(scalars):
        index = list(e.index)
        index[a], index[b] = index[b], index[a]
        yield "transposed", f"indices of {e.buffer}", replace(e, index=tuple(index))


def _map(e: Op[TExpr], target: str) -> Iterator[tuple[str, TExpr]]:
    def shifted(x: TExpr, by: int) -> TExpr:
        return Op("add", (x, Scalar(as_expr(by, x.dtype))), x.dtype)

    mine = target and any(_is(n, target) for a in e.args for n in walk(a))
    for kind, made in op_mistakes(e, shifted, of_tiles=True):
        yield "missing rescale" if mine and kind == "factor dropped" else kind, made
