"""Hypothesis strategies for well-formed Programs and their expressions.

`programs()` are programs that pass the verifier, stay in bounds for every size ≥ 1, and use every
construct of the IR; `exprs(…)` are expressions over given names.  Indices stay in bounds because every
index into a dimension `d` is a loop variable over [0, d), 0, or something mod `d`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import OPS, Const, Expr, Load, Var, binary, cast, maximum, minimum, op, select
from neptune.ir.program import (
    ZERO,
    Alloc,
    Buffer,
    For,
    If,
    Made,
    Program,
    Scalar,
    Stage,
    Stmt,
    Store,
    Tunable,
    Update,
    seq,
)
from neptune.ir.reducers import REDUCERS

SIZES = (Var("m"), Var("n"))
UNARY = [row.name for row in OPS.values() if row.arity == 1 and row.kind == "math"] + ["neg"]
ODD_FLOATS = (math.inf, -math.inf, math.nan, -0.0, 1e-30, -3.4028234663852886e38)


@dataclass(frozen=True)
class Names:
    """What an expression may use. `loops` maps a loop variable to the size it runs over."""

    loops: dict[str, Expr] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=lambda: {"m": "int32", "n": "int32", "alpha": "float32"})
    buffers: tuple[Buffer, ...] = ()


def consts(dtype: str) -> st.SearchStrategy[Const]:
    """Literals of a dtype, the odd floats included."""
    if dtype == "bool":
        return st.booleans().map(lambda v: Const(v, "bool"))
    if is_float(dtype):
        floats = st.floats(-1e4, 1e4, width=16) | st.sampled_from(ODD_FLOATS)
        return floats.map(lambda v: Const(v, dtype))
    return st.integers(max(-100, int(DTYPES[dtype].lowest)), 100).map(lambda v: Const(v, dtype))


@st.composite
def index_of(draw: st.DrawFn, size: Expr, names: Names, depth: int) -> Expr:
    """An integer expression in [0, size)."""
    exact: list[Expr] = [Var(v) for v, extent in names.loops.items() if extent == size]
    plain = draw(st.integers(0, 3)) > 0
    if exact and plain:
        return draw(st.sampled_from(exact))
    if depth and draw(st.booleans()):
        return binary("mod", draw(exprs("int32", names, depth - 1)), size)
    return ZERO


@st.composite
def load_of(draw: st.DrawFn, buffer: Buffer, names: Names, depth: int) -> Expr:
    """A load in bounds."""
    return Load(buffer.name, tuple(draw(index_of(d, names, depth)) for d in buffer.shape), buffer.dtype)


@st.composite
def leaves(draw: st.DrawFn, dtype: str, names: Names, depth: int) -> Expr:
    """A literal, a variable, a named constant or a load."""
    found: list[Expr] = [Var(n, d) for n, d in names.scalars.items() if d == dtype]
    found += [Var(n) for n in names.loops if dtype == "int32"]
    options: list[st.SearchStrategy[Expr]] = [consts(dtype)]
    options += [st.sampled_from(found)] if found else []
    options += [load_of(b, names, depth) for b in names.buffers if b.dtype == dtype]
    if is_float(dtype):
        options.append(st.sampled_from(["log2e", "ln2"]).map(lambda n: op(n, dtype=dtype)))
    return draw(st.one_of(options))


@st.composite
def exprs(draw: st.DrawFn, dtype: str, names: Names, depth: int = 3) -> Expr:
    """An expression of a dtype, through the folding constructors."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(leaves(dtype, names, max(depth - 1, 0)))

    def part(d: str = dtype) -> Expr:
        return draw(exprs(d, names, depth - 1))

    if dtype == "bool":
        kind = draw(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"]))
        if kind == "not":
            return op("not", part())
        of = "bool" if kind in ("and", "or") else draw(st.sampled_from(["int32", "float32"]))
        return op(kind, part(of), part(of))
    kind = draw(st.sampled_from(["infix", "call", "select", "cast", "divide"]))
    if kind == "select":
        return select(part("bool"), part(), part())
    if kind == "cast":
        return cast(part(draw(st.sampled_from(["int32", "int64", "float32", "float16", "bfloat16"]))), dtype)
    if kind == "call":
        return op(draw(st.sampled_from(UNARY)), part()) if is_float(dtype) else op("abs", part())
    if kind == "divide":
        by = Const(draw(st.integers(1, 9)), dtype) if not is_float(dtype) else part()
        return binary("div" if is_float(dtype) else draw(st.sampled_from(["floordiv", "mod"])), part(), by)
    return binary(draw(st.sampled_from(["add", "sub", "mul", "min", "max"])), part(), part())


@st.composite
def nests(draw: st.DrawFn, name: str, target: Buffer, readable: tuple[Buffer, ...], grid: bool) -> Stmt:
    """A nest that computes all of `target`: a map, or a reduction with its init implicit or explicit."""
    loops = {f"{name}_i{k}": d for k, d in enumerate(target.shape)}
    index = tuple(Var(v) for v in loops)
    reduced = f"{name}_k"
    reduces = draw(st.booleans()) and is_float(target.dtype)
    names = Names(loops | ({reduced: draw(st.sampled_from(SIZES))} if reduces else {}), buffers=readable)
    local: Buffer | None = None
    first: tuple[Stmt, ...] = ()
    if draw(st.booleans()):
        # A buffer on chip, filled at once and then read like any other.
        local = Buffer(f"{name}_t", (), target.dtype, "tile")
        first = (Stage(f"{name}_t", Store(local.name, (), draw(exprs(target.dtype, names, 2)))),)
        names = replace(names, buffers=(*readable, local))
    value = draw(exprs(target.dtype, names, 3))
    guard = draw(st.none() | exprs("bool", names, 2))
    body: Stmt
    if reduces:
        fitting = sorted(n for n, row in REDUCERS.items() if row.width == 1 and row.takes(target.dtype))
        reducer = draw(st.sampled_from(fitting))
        init = REDUCERS[reducer].identity(target.dtype)
        explicit = draw(st.booleans())
        update = Update((target.name,), index, reducer, (value,), None if explicit else init)
        body = seq(*first, Stage(name, update, guard))
        body = body if local is None else Alloc(local, body)
        body = For(reduced, ZERO, names.loops[reduced], body)
        if explicit:
            body = seq(Stage(f"{name}_init", Store(target.name, index, init[0]), None, Made("init", name)), body)
    else:
        body = seq(*first, Stage(name, Store(target.name, index, value), guard))
        body = body if local is None else Alloc(local, body)
    if draw(st.booleans()):
        body = If(draw(exprs("bool", Names(loops), 2)), body)
    for k, (v, d) in reversed(list(enumerate(loops.items()))):
        hi = minimum(d, maximum(d, draw(st.integers(0, 9))))
        facts = tuple(draw(st.lists(st.just(binary("lt", Var(v), d)), max_size=1)))
        body = For(v, ZERO, draw(st.sampled_from([d, hi])), body, f"grid.{'xyz'[k]}" if grid else "serial", facts)
    return body


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A well-formed program of one to four stages over two sizes."""
    m, n = SIZES
    readable: list[Buffer] = [
        Buffer("x", (m, n), "float32"),
        Buffer("idx", (n,), "int32"),
        Buffer("h", (), "float16"),
    ]
    inputs = tuple(readable)
    made: list[Buffer] = []
    parts: list[Stmt] = []
    for k in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=2)))
        target = Buffer(f"s{k}", shape, draw(st.sampled_from(["float32", "float16", "int32"])))
        parts.append(draw(nests(target.name, target, tuple(readable), draw(st.booleans()))))
        made.append(target)
        readable.append(target)
    tunables = [Tunable("BLOCK", (16, 32))]
    tunables += [Tunable("WIDE", (), binary("add", n, 1))] if draw(st.booleans()) else []
    return Program(
        name=draw(st.sampled_from(["p", "flash-attention 2"])),
        inputs=inputs,
        outputs=(made[-1],),
        temporaries=tuple(made[:-1]),
        scalars=(Scalar("m", lo=1), Scalar("n", lo=1, hi=1 << 20, divisor=4), Scalar("alpha", "float32")),
        tunables=tuple(tunables),
        body=seq(*parts),
    )
