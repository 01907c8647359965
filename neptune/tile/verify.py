"""Is this TileProgram well-formed?  Run after the last tile pass.

With NEPTUNE_VERIFY=2 or NEPTUNE_STRICT=1, as in the tests, after every one.

Every node's `dims` and dtype must follow from its parts by the rules of `neptune.tile.ir`: `Op` and
`Select` join operands of one rank (a scalar, of rank 0, joins any), indices, masks and stored values
broadcast to the dims of their access, a `Local` has one shape and is assigned on every way to a use.

But for the widths of their indices, programs for all sizes and for nearly all must be the same (`narrowed`):

    q[cast(i64, h0 * 4) + cast(i64, i_h0) * 64:i64]    →    q[h0 * 4 + i_h0 * 64]

At sizes that are drawn for a check no integer leaves int32, so that two programs which are the same here compute the
same, where no integer is data: one exact check is of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neptune.ir.check import check_dtypes, check_expr, check_integer, check_predicate, report
from neptune.ir.dtypes import is_float, is_int
from neptune.ir.expr import Cast, Const, Expr, Op, Var, children, loads, rewrite
from neptune.ir.nodes import Dims, join, rewrite_parts
from neptune.ir.program import Buffer, parameter_names
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
    Iota,
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
    map_stmt,
    stmt_exprs,
)


def verify_tiles(program: TileProgram) -> None:
    """Raise InternalError with every way in which `program` is not well-formed."""
    report(f"tile program {program.name}", mistakes(program))


def mistakes(program: TileProgram) -> list[str]:
    """Every way in which `program` is not well-formed."""
    findings: list[str] = []
    names = [k.name for k in program.kernels]
    findings += [f"kernel {n} is declared twice" for n in sorted(set(names)) if names.count(n) > 1]
    written = {b.name for b in program.inputs}
    for kernel in program.kernels:
        findings += [f"kernel {kernel.name}: {text}" for text in _check_kernel(program, kernel, written)]
    findings += [f"output {b.name} is never written" for b in program.outputs if b.name not in written]
    return findings


# --- dims --------------------------------------------------------------------------------------


def broadcasts(source: Dims, target: Dims) -> bool:
    """Can a tile of dims `source` stand where one of dims `target` is expected?"""
    return not source or join(source, target) == target


def _show(dims: Dims) -> str:
    return f"<{' '.join(dims)}>"


# --- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """The scope of a tile statement. `shapes` holds the first assignment of each local of the kernel."""

    names: Mapping[str, str]
    axes: frozenset[str]
    buffers: Mapping[str, Buffer]
    inputs: frozenset[str]
    written: set[str]
    assigned: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[Dims, str]] = field(default_factory=dict)

    @property
    def readable(self) -> dict[str, Buffer]:
        """Return the buffers that scalars, bounds and conditions may read: globals, and assigned scalar locals."""
        scalars = {n: dtype for n, (dims, dtype) in self.shapes.items() if n in self.assigned and not dims}
        return {**{n: Buffer(n, (), dtype, "tile") for n, dtype in scalars.items()}, **self.buffers}


def _check_kernel(program: TileProgram, kernel: TileKernel, written: set[str]) -> Iterator[str]:
    """Findings of one kernel; adds to `written` the buffers it writes."""
    params = parameter_names(program.scalars, program.tunables)
    yield from _check_axes(program, kernel)
    names = dict(params)
    for g in kernel.grid:
        if g.axis not in ("x", "y", "z"):
            yield f"grid variable {g.var}: unknown launch dimension {g.axis}"
        if g.var in names:
            yield f"grid variable {g.var} shadows a variable of that name"
        yield from check_integer(f"extent of grid variable {g.var},", g.extent)
        yield from check_expr(g.extent, params, program.globals)
        names[g.var] = "int32"
    axes = frozenset(name for name, _ in kernel.axes)
    inputs = frozenset(b.name for b in program.inputs)
    yield from _check_body(kernel.body, _Scope(names, axes, program.globals, inputs, written))


def _check_axes(program: TileProgram, kernel: TileKernel) -> Iterator[str]:
    tunables: dict[Expr, tuple[int, ...]] = {Var(t.name, "int32"): t.candidates for t in program.tunables}
    names = [name for name, _ in kernel.axes]
    yield from (f"axis {n} is declared twice" for n in sorted(set(names)) if names.count(n) > 1)
    for name, extent in kernel.axes:
        if not name.isidentifier():
            yield f"{name!r} cannot be the name of an axis"
        constant = isinstance(extent, Const) and extent.dtype == "int32"
        if not constant and extent not in tunables:
            yield f"extent of axis {name} is neither a constant nor a tunable"
        for size in (int(extent.value),) if isinstance(extent, Const) and constant else tunables.get(extent, ()):
            if size < 1 or size & (size - 1):
                yield f"extent of axis {name} is {size}, not a power of two"


# --- statements --------------------------------------------------------------------------------


def _check_body(body: tuple[TStmt, ...], scope: _Scope) -> Iterator[str]:
    for s in body:
        match s:
            case Assign():
                yield from (f"{text}\n      in: {s.name} = …" for text in _check_assign(s, scope))
            case StoreTile():
                yield from (f"{text}\n      in: {s.buffer}[…] = …" for text in _check_store(s, scope))
            case Loop(var, lo, hi, inner, facts):
                if var in scope.names:
                    yield f"loop {var} shadows a variable of that name"
                for e in (lo, hi):
                    yield from check_integer(f"bound of loop {var},", e)
                    yield from check_expr(e, scope.names, scope.readable)
                inside = replace(scope, names={**scope.names, var: "int32"})
                for fact in facts:
                    yield from check_predicate(f"fact of loop {var},", fact)
                    yield from check_expr(fact, inside.names, inside.buffers)
                yield from _check_inner(inner, inside)
            case Branch(pred, inner):
                yield from check_predicate("condition", pred)
                yield from check_expr(pred, scope.names, scope.readable)
                yield from _check_inner(inner, scope)


def _check_inner(body: tuple[TStmt, ...], scope: _Scope) -> Iterator[str]:
    """A body that may not run: what it assigns first is not there after it."""
    yield from _check_body(body, replace(scope, assigned=set(scope.assigned)))


def _check_assign(s: Assign, scope: _Scope) -> Iterator[str]:
    findings = list(_check_texpr(s.value, scope))
    yield from findings
    if s.name in scope.names:
        yield f"local {s.name} shadows a variable of that name"
    scope.assigned.add(s.name)
    if findings:
        return  # the dims of what is malformed mean nothing
    shape = (s.value.dims, s.value.dtype)
    first = scope.shapes.setdefault(s.name, shape)
    if first != shape:
        yield f"local {s.name} is {first[1]}{_show(first[0])}, assigned {shape[1]}{_show(shape[0])}"


def _check_store(s: StoreTile, scope: _Scope) -> Iterator[str]:
    if s.buffer in scope.inputs:
        yield f"input {s.buffer} is written"
    findings = [text for e in stmt_exprs(s) for text in _check_texpr(e, scope)]
    yield from findings
    scope.written.add(s.buffer)
    if findings:
        return
    yield from _check_access(s.buffer, s.index, s.mask, s.dims, scope)
    if not broadcasts(s.value.dims, s.dims):
        yield f"value {_show(s.value.dims)} does not broadcast to {_show(s.dims)}"
    if s.buffer in scope.buffers and scope.buffers[s.buffer].dtype != s.value.dtype:
        yield f"buffer {s.buffer} is {scope.buffers[s.buffer].dtype}, its value is {s.value.dtype}"


def _check_access(
    buffer: str, index: tuple[TExpr, ...], mask: TExpr | None, dims: Dims, scope: _Scope
) -> Iterator[str]:
    """Yield the mistakes in `buffer[index…]` under `mask` over `dims`, those inside the expressions apart."""
    yield from _check_dims(dims, scope)
    if buffer not in scope.buffers:
        yield f"buffer {buffer} is not defined"
    elif len(index) != len(scope.buffers[buffer].shape):
        yield f"buffer {buffer} has rank {len(scope.buffers[buffer].shape)}, indexed by {len(index)}"
    for i in index:
        if not is_int(i.dtype):
            yield f"index of {buffer} is {i.dtype}, not an integer"
    for what, e in [("index", i) for i in index] + ([] if mask is None else [("mask", mask)]):
        if not broadcasts(e.dims, dims):
            yield f"{what} {_show(e.dims)} of {buffer} does not broadcast to {_show(dims)}"
    if mask is not None and mask.dtype != "bool":
        yield f"mask of {buffer} is {mask.dtype}, not bool"


def _check_dims(dims: Dims, scope: _Scope) -> Iterator[str]:
    """Declared axes, each once."""
    named = [d for d in dims if d != "1"]
    yield from (f"axis {d} is not declared" for d in named if d not in scope.axes)
    if len(set(named)) < len(named):
        yield f"an axis occurs twice in {_show(dims)}"


# --- tile expressions --------------------------------------------------------------------------


def _check_texpr(e: TExpr, scope: _Scope) -> Iterator[str]:
    """Findings of an expression, its parts first: a node is only looked at where its parts are sound."""
    inner = [text for child in children(e) for text in _check_texpr(child, scope)]
    yield from inner
    if not inner:
        yield from _check_node(e, scope)


def _check_node(e: TExpr, scope: _Scope) -> Iterator[str]:
    match e:
        case Scalar(expr):
            yield from check_expr(expr, scope.names, scope.readable)
            known = scope.written | scope.assigned
            yield from (_unwritten(x.buffer) for x in loads(expr) if x.buffer not in known)
        case Full(value, dims, dtype):
            yield from _check_dims(dims, scope)
            if value.dtype != dtype:
                yield f"full of {value.dtype} is not {dtype}"
        case Iota(axis):
            yield from _check_dims((axis,), scope)
        case Local(name, dims, dtype):
            if name not in scope.assigned:
                yield f"local {name} is read where it may not be assigned"
            if scope.shapes.get(name, (dims, dtype)) != (dims, dtype):
                had = scope.shapes[name]
                yield f"local {name} is {had[1]}{_show(had[0])}, read as {dtype}{_show(dims)}"
        case LoadTile():
            yield from _check_load(e, scope)
        case Reduce():
            yield from _check_reduce(e)
        case Dot():
            yield from _check_dot(e)
        case Rearrange(arg, pattern):
            yield from _check_pattern(arg.dims, pattern)
        case _:
            yield from check_dtypes(e)
            if join(*(x.dims for x in e.parts)) is None:
                what = e.name if isinstance(e, Op) else "select"
                yield f"{what} of {', '.join(_show(x.dims) for x in e.parts)} is impossible"


def _check_load(e: LoadTile, scope: _Scope) -> Iterator[str]:
    yield from _check_access(e.buffer, e.index, e.mask, e.dims, scope)
    if e.buffer in scope.buffers:
        if scope.buffers[e.buffer].dtype != e.dtype:
            yield f"buffer {e.buffer} is {scope.buffers[e.buffer].dtype}, loaded as {e.dtype}"
        if e.buffer not in scope.written:
            yield _unwritten(e.buffer)


def _unwritten(buffer: str) -> str:
    return f"buffer {buffer} is read before anything writes it"


def _check_reduce(e: Reduce) -> Iterator[str]:
    if e.reducer not in REDUCERS:
        yield f"unknown reducer {e.reducer}"
    elif REDUCERS[e.reducer].width != 1:
        yield f"reduce folds with a reducer of width one, not {e.reducer}"
    if e.axis == "1" or e.axis not in e.arg.dims:
        yield f"reduce over {e.axis}, which is no axis of {_show(e.arg.dims)}"
    if e.reducer in REDUCERS and not REDUCERS[e.reducer].takes(e.arg.dtype):
        yield f"reduce of {e.arg.dtype} by {e.reducer}"


def _check_dot(e: Dot) -> Iterator[str]:
    a, b = e.a.dims, e.b.dims
    if len(a) != 2 or len(b) != 2:
        yield f"dot takes tiles of rank 2, not {_show(a)} and {_show(b)}"
        return
    if "1" in (*a, *b) or a[1] != b[0] or a[0] == b[1] or a[0] == a[1] or b[0] == b[1]:
        yield f"dot takes <x k> and <k y>, not {_show(a)} and {_show(b)}"
    if e.a.dtype != e.b.dtype or not (is_float(e.a.dtype) or e.a.dtype == "int8"):
        yield f"dot takes floats of one dtype, or int8, not {e.a.dtype} and {e.b.dtype}"
    if e.acc is not None and (e.acc.dims, e.acc.dtype) != (e.dims, e.dtype):
        yield f"dot accumulates {e.dtype}{_show(e.dims)}, not {e.acc.dtype}{_show(e.acc.dims)}"


def _check_pattern(dims: Dims, pattern: str) -> Iterator[str]:
    sides = [tuple(side.split()) for side in pattern.split("->")]
    if len(sides) != 2:
        yield f"rearrange pattern {pattern!r} is not `left -> right`"
        return
    left, right = sides
    if left != dims:
        yield f"rearrange pattern {pattern!r} is for {_show(left)}, not for {_show(dims)}"
    if sorted(d for d in left if d != "1") != sorted(d for d in right if d != "1"):
        yield f"rearrange pattern {pattern!r} is no permutation"
    elif right.count("1") < left.count("1"):
        yield f"rearrange pattern {pattern!r} removes a dimension"


# --- but for the widths of indices ------------------------------------------------------------------

WIDE, NARROW = "int64", "int32"


def same_but_widths(a: TileProgram, b: TileProgram) -> bool:
    """True where two programs that read and write no integers differ at most in casts and dtypes of indices."""
    if any(is_int(buffer.dtype) for program in (a, b) for buffer in program.globals.values()):
        return False
    return narrowed(a) == narrowed(b)


def narrowed(program: TileProgram) -> TileProgram:
    """The program with all arithmetic on indices of its statements in int32, without the casts between."""
    kernels = (replace(k, body=tuple(map_stmt(s, _tile) for s in k.body)) for k in program.kernels)
    return replace(program, kernels=tuple(kernels))


def _tile(e: TExpr) -> TExpr:
    return rewrite(e, _narrow)


def _narrow(e: Any) -> Any:
    """A node without its width; the same for tiles and for the scalars in them."""
    if isinstance(e, Scalar):
        return Scalar(rewrite(e.expr, _narrow))
    if isinstance(e, Cast) and is_int(e.dtype) and is_int(e.arg.dtype):
        return rewrite(e.arg, _narrow)
    # A number that is cut to an integer may be any.
    if e.dtype == WIDE and not isinstance(e, Cast) and "dtype" in type(e).__dataclass_fields__:
        return replace(rewrite_parts(e, _narrow), dtype=NARROW)
    return None
