"""Work done more often, or in smaller pieces, than it need be: passes, scalars, prefixes, idle processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, prod

from neptune.ir.contraction import NARROW
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, Expr, Op, Select, Var, conjuncts, loads, variables, walk
from neptune.ir.integers import evaluate_size, is_size
from neptune.ir.program import For, Stage, Update
from neptune.tile.ir import (
    Assign,
    Branch,
    LoadTile,
    Loop,
    StoreTile,
    TileKernel,
    reread,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block
from neptune.tune.model.facts import sweeps, trips
from neptune.tune.model.work import work_of
from neptune.tune.slow.products import Found, listed
from neptune.tune.subject import Subject, around

MANY = 4096
"""Runs of a scalar loop, in all programs, from which on it costs time."""
PASSES = 2
"""Passes over an input that some algorithms need: one for a statistic of a row, one to use it."""
SMALL = 1 << 20
"""Bytes of all inputs, of sizes that were named, up to which passes over them take no time."""
LARGE = 1 / 8
"""A share of the bytes of all inputs, from which on passes over one cost time."""
SHORT_SUM = 16
"""Elements that may be summed in 16 bits, and lengths up to which a prefix is not long."""
IDLE = 1 / 2
"""A share of the processors that programs leave without work: launches choose numbers of parts that leave some."""
WORTH = 20.0
"""Microseconds of a kernel from which on idle processors cost time."""
PART = 0.5
"""The share of the time of all kernels that idle ones take at least."""


# --- passes over memory ---------------------------------------------------------------------------


def repeated_passes(s: Subject) -> Iterator[Found]:
    """Inputs that are read more than twice, or in every iteration of a loop."""
    if _is_small(s):
        return
    for name, count in sweeps(s.tiles).items():
        if count > PASSES * _shares(s, name) and _is_large(s, name) and not _by_columns(s, name):
            often = "again in every iteration of a loop" if count == inf else f"in {count:g} passes"
            yield name, {"often": often}


def _by_columns(s: Subject, name: str) -> bool:
    """True where each loop that reads an input goes along its rows, one column an iteration: a program's own rows,
    which it finds in the nearest cache when it goes along them again."""
    sections = [x for k in s.tiles.kernels for x in work_of(k).sections if x.loop and isinstance(x.loop.hi, Const)]
    columns = [m.column for x in sections for m in x.moves if m.buffer == name]
    return bool(columns) and all(columns)


def _is_large(s: Subject, name: str) -> bool:
    sizes = {b.name: _bytes(s, b.shape, b.dtype) for b in s.loops.inputs}
    return sizes[name] >= LARGE * sum(sizes.values())


def _is_small(s: Subject) -> bool:
    """True where all inputs are known to be so small that passes over them take no time."""
    return s.given and sum(_bytes(s, b.shape, b.dtype) for b in s.loops.inputs) < SMALL


def _shares(s: Subject, name: str) -> int:
    """How many stages of the expression read parts of an input of which no two have an element in common."""
    apart: list[list[tuple[float, float]]] = []
    for loops, stage in s.nests:
        ends = {f.var: (_number(f.lo, s), _number(f.hi, s) - 1) for f in loops}
        for x in (x for v in stage.action.values for x in loads(v) if x.buffer == name):
            region = [_ends(e, ends) for e in x.index]
            if all(any(a[1] < b[0] or b[1] < a[0] for a, b in zip(region, r, strict=True)) for r in apart):
                apart.append(region)
    return max(1, len(apart))


def _ends(e: Expr, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """The least and the largest value of an index; of what is no sum of loop variables and numbers nothing is known."""
    match e:
        case Const(value, _):
            return value, value
        case Var(name, _) if name in ranges:
            return ranges[name]
        case Op("add", (a, b), _):
            first, second = _ends(a, ranges), _ends(b, ranges)
            return first[0] + second[0], first[1] + second[1]
    return -inf, inf


def _bytes(s: Subject, shape: Sequence[Expr], dtype: str) -> float:
    return prod(_number(e, s) for e in shape) * DTYPES[dtype].bits / 8


def temporaries_inside(s: Subject) -> Iterator[Found]:
    """Buffers in memory that one kernel both writes and reads back."""
    for kernel in s.tiles.kernels:
        if (names := reread(kernel.body)) and not _is_small(s):
            yield names[0], {"kernel": kernel.name, "names": listed(names, "is", "are")}


# --- small pieces ---------------------------------------------------------------------------------


def scalar_loops(s: Subject) -> Iterator[Found]:
    """Innermost loops, and programs without loops, that work on one element at a time."""
    for kernel in s.tiles.kernels:
        found: dict[str, str] = {}
        for loops, body in _innermost(kernel.body, ()):
            stages = [x.stage for x in walk_stmts(body) if isinstance(x, Assign | StoreTile) and x.stage]
            if stages and _runs(s, kernel, loops) > MANY and _is_scalar(s, kernel, body):
                found.setdefault(stages[-1], f"loop `{loops[-1].var}`" if loops else "each program")
        if found:
            first, where = next(iter(found.items()))
            names = listed([*found], "is", "are")
            yield first, {"kernel": kernel.name, "where": where, "names": names}


def _innermost(body: Block, loops: tuple[Loop, ...]) -> Iterator[tuple[tuple[Loop, ...], Block]]:
    """The bodies without loops inside, with the loops around them."""
    inside = [x for x in walk_stmts(body) if isinstance(x, Loop)]
    if not inside:
        yield loops, body
    for x in body:
        if isinstance(x, Loop):
            yield from _innermost(x.body, (*loops, x))
        elif isinstance(x, Branch) and any(isinstance(y, Loop) for y in walk_stmts(x.body)):
            yield from _innermost(x.body, loops)


def _is_scalar(s: Subject, kernel: TileKernel, body: Block) -> bool:
    """True where statements read or write memory, and none has a tile of more than one element."""
    extents = {axis: s.extent(e) for axis, e in kernel.axes}
    nodes = [x for b in walk_stmts(body) for e in stmt_exprs(b) for x in walk(e)]
    stores = [b for b in walk_stmts(body) if isinstance(b, StoreTile)]
    if not stores and not any(isinstance(x, LoadTile) for x in nodes):
        return False
    tiles = [x.dims for x in (*nodes, *stores)]
    return all(prod(extents.get(d, 1) for d in dims) <= 1 for dims in tiles)


def _runs(s: Subject, kernel: TileKernel, loops: Sequence[Loop]) -> float:
    return prod(_number(g.extent, s) for g in kernel.grid) * prod(_number(trips(x), s) for x in loops)


def _number(e: Expr, s: Subject) -> float:
    """The value of a size; what depends on more than sizes, or divides by none, may be large."""
    try:
        return evaluate_size(e, s.values) if is_size(e, s.values.keys()) else inf
    except ZeroDivisionError:
        return inf


# --- what the expression asks for -----------------------------------------------------------------


def narrow_sums(s: Subject) -> Iterator[Found]:
    """Sums of the expression whose every addition rounds to 16 bits."""
    for loops, stage in s.nests:
        value = stage.action.values[0]
        if stage.action.reducer == "sum" and value.dtype in NARROW:
            folded = around(loops, stage)[1]
            if prod(s.length(f) for f in folded) > SHORT_SUM:
                yield stage.name, {"dtype": value.dtype}


def prefixes(s: Subject) -> Iterator[Found]:
    """Reductions of the first (or last) j elements, for every j: all that they fold but one, the one before has."""
    for loops, stage in s.nests:
        if not isinstance(stage.action, Update) or len(stage.action.values) != 1:
            continue
        kept, folded = around(loops, stage)
        for k in folded:
            for j in kept:
                if min(s.length(k), s.length(j)) > SHORT_SUM and _is_prefix(stage, k, j):
                    yield stage.name, {"k": k.var, "j": j.var}


def _is_prefix(stage: Stage, k: For, j: For) -> bool:
    """True where j only says where the elements along k end, or where they begin."""
    value = stage.action.values[0]
    tests = [] if stage.when is None else [*conjuncts(stage.when)]
    while isinstance(value, Select) and isinstance(value.other, Const):
        tests += conjuncts(value.pred)
        value = value.then
    ends = [x for x in tests if {k.var, j.var} <= variables(x)]
    ranged = [e for e in (k.lo, k.hi) if j.var in variables(e)]
    others = [value, *(x for x in tests if x not in ends)]
    if any(j.var in variables(x) for x in others) or len(ends) + len(ranged) != 1:
        return False
    return all(_orders(x) for x in ends) and not any(loads(x) for x in (*ends, *ranged))


def _orders(e: Expr) -> bool:
    return isinstance(e, Op) and e.name in ("lt", "le", "gt", "ge") and all(isinstance(a, Var | Op) for a in e.args)


# --- processors -----------------------------------------------------------------------------------


def idle_processors(s: Subject) -> Iterator[Found]:
    """The longest kernel that leaves more than half of the processors idle, where such kernels take most of the time.

    At the sizes that were named; where some were not, at the largest, which leave fewest idle.
    """
    predicted = s.predicted(s.sizes if s.given else s.largest)
    if predicted is None:
        return
    idle = [k for k in predicted.kernels if k.programs < IDLE * s.machine.processors]
    if idle and sum(k.us for k in idle) >= max(WORTH, PART * sum(k.us for k in predicted.kernels)):
        longest = max(idle, key=lambda k: k.us)
        sizes = s.sizes if s.given else s.largest
        named = ", ".join(f"{n}={v}" for n, v in sizes.items())
        where = f"{' at' if s.given else ', even at'} {named}" if sizes else ""
        few = f"{longest.programs} program{'s' * (longest.programs != 1)}"
        numbers = {"programs": few, "processors": str(s.machine.processors)}
        yield longest.name, {**numbers, "machine": s.machine.name, "at": where}
