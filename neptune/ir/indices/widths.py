"""Integers have widths: what an expression may come to, whether that fits its dtype, and what becomes of it if not.

    j * 30000000, j in [0, 2**20]        up to 3.1e13: no int32          int64(j) * 30000000
    i + s_kv - s_q                       within ±2**21                   as it is

Arithmetic wraps around in its dtype, as torch's and Triton's does (`neptune.ir.dtypes.wrapped`). Proofs about indices
take integers for exact, so that whatever a proof is about must fit: arithmetic on indices and sizes is widened where it
may not (`widened`), for the sizes that are usual; a call with larger ones is looked at when it is launched. Arithmetic
on what tensors hold is data: it keeps its dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import is_

from neptune.ir.dtypes import holds, is_float, is_int, limits
from neptune.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    args_of,
    binary,
    bitwise,
    cast,
    children,
    conjuncts,
    loads,
    op,
    rebuild,
    walk,
)
from neptune.ir.indices.affine import Scope
from neptune.ir.program import For, If, Program, Stage, Stmt, map_action, sub_stmts, values, with_stmts

Interval = tuple[int, int]
Known = Callable[[Expr], Interval | None]
"""What is known of variables, of loads and of products; None: what their dtype and their parts say."""
Bounds = tuple[str, Expr, Expr]
"""A loop: its variable, lo and hi."""
USUAL = 1 << 20
"""Sizes up to here are usual: code for them is what is compiled first."""
TILE = 1 << 8
"""Tiles up to here are usual, where their length is not known yet."""
LARGEST = (1 << 31) - 1
"""No size is larger."""
NEARLY_ALL = 1 << 29
"""Of sizes up to here int32 holds the sum of a few, such as i + s_kv - s_q. What leaves int32 for one of them is
widened where it is meant exactly, and wraps around where torch computes it in int32."""
ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "floordiv", "mod", "min", "max")
"""Operators whose result is an integer that may have no room in the dtype of the arguments."""


# --- intervals -----------------------------------------------------------------------------------


def nothing(_e: Expr) -> Interval | None:
    """A `Known` that knows nothing."""
    return None


def up_to_nearly_all(e: Expr) -> Interval | None:
    """What is known of positions and sizes where larger ones are refused at the launch."""
    return (0, NEARLY_ALL) if isinstance(e, Var) else None


def interval(e: Expr, known: Known = nothing) -> Interval:
    """The integers that `e` may come to if nothing wraps around.

    >>> from neptune.ir.expr import Var
    >>> interval(Var("j") * 30 - 7, lambda e: (0, 10))
    (-7, 293)
    """
    match e:
        case Const(value, _):
            return int(value), int(value)
        case Var() | Load():
            return known(e) or limits(e.dtype)
        case Cast(arg, dtype):
            # A float is cut off at the limits of what it is cast to.
            source = limits(dtype) if is_float(arg.dtype) else interval(arg, known)
            return source if holds(dtype, source) else limits(dtype)
        case Select(_, a, b):
            return _hull([*interval(a, known), *interval(b, known)])
        case Op(name, args, dtype):
            if not is_int(dtype):
                return limits("bool")
            return known(e) or _of_multiple(e, known) or _applied(name, [interval(a, known) for a in args], dtype)


def _of_multiple(e: Op[Expr], known: Known) -> Interval | None:
    """Of (a // b + k) · b, where a chunk of length b begins: not far from a, however large the factors are."""
    args = tuple(_narrow(x) for x in e.args)
    for whole, b in (args, args[::-1]) if e.name == "mul" else ():
        quotient, k = whole.args if isinstance(whole, Op) and whole.name == "add" else (whole, None)
        if isinstance(quotient, Op) and quotient.name == "floordiv" and _narrow(quotient.args[1]) == b:
            numerator, length = interval(quotient.args[0], known), interval(b, known)
            more = (0, 0) if k is None else interval(k, known)
            if length[0] >= 1:
                by = _hull(x * y for x, y in itertools.product(more, length))
                low = 0 if numerator[0] >= 0 else numerator[0] - length[1] + 1
                return low + by[0], numerator[1] + by[1]
    return None


def _narrow(e: Expr) -> Expr:
    """`e` before it was cast to what holds all that it may come to."""
    while isinstance(e, Cast) and is_int(e.arg.dtype) and holds(e.dtype, limits(e.arg.dtype)):
        e = e.arg
    return e


def _hull(values: Iterable[int]) -> Interval:
    intervals = list(values)
    return min(intervals), max(intervals)


def _applied(name: str, operands: list[Interval], dtype: str) -> Interval:
    a, b = operands[0], operands[-1]
    match name:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            return _hull(x * y for x, y in itertools.product(a, b))
        case "neg":
            return -a[1], -a[0]
        case "abs":
            most = max(abs(a[0]), abs(a[1]))
            return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), most
        case "min" | "max":
            pick = min if name == "min" else max
            return pick(a[0], b[0]), pick(a[1], b[1])
        case "floordiv":
            return _hull(x // y for x, y in itertools.product(a, _divisors(b)))
        case "mod":
            return _remainder(a, b)
        case "shl" if a[0] >= 0 and b[0] >= 0 and b[1] < 63:
            top = a[0] << b[0], a[1] << b[1]
            return top if holds(dtype, top) else limits(dtype)
        case "shr" if b[0] >= 0:
            return _hull(x >> min(y, 63) for x, y in itertools.product(a, b))
        case "bitand" if a[0] >= 0 and b[0] >= 0:
            return 0, min(a[1], b[1])
        case _:
            return limits(dtype)


def _divisors(b: Interval) -> list[int]:
    """Those at which a quotient may be extreme; by 0 there is none."""
    return [y for y in (*b, *(y for y in (-1, 1) if b[0] <= y <= b[1])) if y] or [1]


def _remainder(a: Interval, b: Interval) -> Interval:
    if b[0] > 0 and a[0] >= 0:
        return (a[0], a[1]) if a[1] < b[0] else (0, min(a[1], b[1] - 1))
    return min(0, b[0] + 1), max(0, b[1] - 1)


# --- what does not fit -----------------------------------------------------------------------------


def is_data(e: Expr) -> bool:
    """True for what depends on what a tensor holds."""
    return bool(loads(e))


def misfits(e: Expr, known: Known) -> Iterator[Expr]:
    """The parts of `e`, innermost first, that may come to what their dtype does not hold.

    Data are left out, as is what is opaque, and the sums that are places in tensors: these lie in a dimension.
    """
    for part in children(e.args[0]) if isinstance(e, Op) and _is_opaque(e) else _without_places(e):
        yield from misfits(part, known)
    if _counts(e) and not holds(e.dtype, interval(e, known)):
        yield e


def _is_opaque(e: Op[Expr]) -> bool:
    return e.name == "bitxor" and e.args[1] == Const(0, e.dtype)


def _without_places(e: Expr) -> tuple[Expr, ...]:
    return tuple(i for i in e.index if not is_place(i)) if isinstance(e, Load) else children(e)


def is_place(e: Expr) -> bool:
    """True for sums and products of variables, as indices are."""
    return all(isinstance(x, Var | Const) or (isinstance(x, Op) and x.name in ("add", "sub", "mul")) for x in walk(e))


def fits(e: Expr, known: Known) -> bool:
    """True where every part of `e` that is no data fits its dtype.

    >>> from neptune.ir.expr import Var
    >>> fits(Var("j") * 30_000_000, lambda e: (0, 71)), fits(Var("j") * 30_000_000, lambda e: (0, 72))
    (True, False)
    """
    return next(misfits(e, known), None) is None


def _counts(e: Expr) -> bool:
    return isinstance(e, Op) and is_int(e.dtype) and e.name in ARITHMETIC and not is_data(e)


def widened(e: Expr, known: Known, wraps: bool = True) -> Expr:
    """`e` with all arithmetic on indices in dtypes that hold it; what not even int64 holds is `opaque`, if it `wraps`.

    The result may be int64 where `e` is int32.
    """
    if fits(e, known):
        return e
    if isinstance(e, Load):
        return Load(e.buffer, tuple(i if is_place(i) else widened(i, known, wraps) for i in e.index), e.dtype)
    parts = tuple(widened(x, known, wraps) for x in children(e))
    if not isinstance(e, Op | Select):
        return rebuild(e, parts)
    pred, values = (parts[:1], parts[1:]) if isinstance(e, Select) else ((), parts)
    room = not _counts(e) or holds(e.dtype, interval(e, known))
    if {v.dtype for v in values} <= {"int32", "int64"}:
        # The bits that a shift drops are those of its dtype.
        narrow = isinstance(e, Op) and e.name == "shl"
        common = e.parts[-1].dtype if narrow else "int64" if not room else max(v.dtype for v in values)
        values = tuple(cast(v, common) for v in values)
    rebuilt = rebuild(e, (*pred, *values)) if isinstance(e, Select) else op(e.name, *values, dtype=e.dtype)
    return rebuilt if room or not wraps or holds("int64", interval(e, known)) else opaque(rebuilt)


def opaque(e: Expr) -> Expr:
    """An integer of which no proof sees how it is made, so that it may wrap around."""
    return bitwise("xor", e, Const(0, e.dtype))


def ranges_of(bounds: Iterable[Bounds], sizes: Mapping[str, Interval]) -> dict[str, Interval]:
    """The intervals of loop variables (name, lo, hi), outermost first, and of the sizes that they depend on."""
    ranges = dict(sizes)
    for name, lo, hi in bounds:
        known = by_name(ranges)
        low, high = interval(lo, known)[0], interval(hi, known)[1] - 1
        # How far data let a loop run is not known before it does: indices are usual, as sizes are.
        high = min(high, USUAL) if is_data(hi) else high
        low = max(low, 0) if is_data(lo) else low
        ranges[name] = (low, max(low, high))
    return ranges


def settled(program: Program) -> Program:
    """The program, in which arithmetic on indices fits its dtype for usual sizes, in int64 where int32 has no room.

    Ranges of loops and shapes stay as they are: products of sizes are looked at when a kernel is launched.
    """
    room = USUAL + (1 << 14)  # for the tiles that its loops are split into
    sizes = {
        s.name: (s.lo, max(s.lo, min(room, room if s.hi is None else s.hi)))
        for s in program.scalars
        if s.lo is not None
    }
    body = _settled(program.body, sizes)
    return program if body is program.body else replace(program, body=body)


def wider(program: Program) -> Program | None:
    """A scheduled program for nearly all sizes: with arithmetic on indices in int64 where int32 has no room for some.
    None where int32 has room.

    Ranges of loops stay as they are, and what has no room in int64: a launch looks at the result again.
    """
    tiles = {t.name: (n := max(t.candidates, default=NEARLY_ALL), n) for t in program.tunables}
    ranges = {**tiles, **sizes_of(program, NEARLY_ALL)}
    if next(unfit(program, ranges), None) is None:
        return None
    body = _settled(program.body, ranges, wraps=False)
    return None if body is program.body else replace(program, body=body)


def sizes_of(program: Program, largest: int) -> dict[str, Interval]:
    """The intervals of a program's sizes, none above `largest`; other scalars may be any number."""
    highest = {s.name: largest if s.hi is None else min(s.hi, largest) for s in program.scalars}
    return {s.name: (s.lo, max(s.lo, highest[s.name])) for s in program.scalars if s.lo is not None}


def _settled(s: Stmt, ranges: Mapping[str, Interval], loops: tuple[Bounds, ...] = (), wraps: bool = True) -> Stmt:
    if isinstance(s, For):
        loops = (*loops, (s.var, s.lo, s.hi))
        ranges = {**ranges, **ranges_of(loops[-1:], ranges)}
    if not isinstance(s, Stage):
        parts = sub_stmts(s)
        fresh = tuple(_settled(x, ranges, loops, wraps) for x in parts)
        return s if all(map(is_, parts, fresh)) else with_stmts(s, fresh)
    known = by_name(ranges, loops)
    when = None if s.when is None else widened(s.when, known, wraps)
    action = map_action(s.action, lambda e: e if is_place(e) else cast(widened(e, known, wraps), e.dtype))
    return s if (when, action) == (s.when, s.action) else replace(s, action=action, when=when)


def unfit(program: Program, sizes: Mapping[str, Interval]) -> Iterator[Expr]:
    """The arithmetic on indices in a program that may leave its dtype while its sizes and tunables are in `sizes`."""
    yield from _unfit(program.body, sizes, ())


def _unfit(s: Stmt, ranges: Mapping[str, Interval], loops: tuple[Bounds, ...]) -> Iterator[Expr]:
    known = by_name(ranges, loops)
    match s:
        case For(var, lo, hi, _, _, _):
            exprs: tuple[Expr, ...] = (lo, hi)
            loops = (*loops, (var, lo, hi))
            ranges = {**ranges, **ranges_of([(var, lo, hi)], ranges)}
        case If(pred, _):
            exprs = (pred,)
        case Stage(_, action, when, _):
            exprs = tuple(e for e in (*values(action), *conjuncts(when)) if not is_place(e))
        case _:
            exprs = ()
    yield from (x for e in exprs for x in misfits(e, known))
    for part in sub_stmts(s):
        yield from _unfit(part, ranges, loops)


def usual(scope: Scope, largest: int = USUAL, tile: int = TILE) -> Known:
    """What is known of variables in a scope where no size is above `largest`, and no tile longer than `tile`."""
    sizes = {n: (low, max(low, tile if n in scope.tiles else largest)) for n, low in scope.at_least.items()}
    loops = [(n, low, _behind(high)) for n, (low, high) in scope.ranges.items()]
    return by_name(ranges_of(loops, sizes), loops)


def _behind(last: Expr) -> Expr:
    """The number behind the last one, as a loop writes it."""
    match last:
        case Op("sub", (end, Const(1)), _):
            return end
        case _:
            return binary("add", last, 1)


def by_name(ranges: Mapping[str, Interval], loops: Sequence[Bounds] = ()) -> Known:
    """A `Known` of variables, and of the places v·T at which the tiles of `loops` start, which lie within a size."""
    starts = {}
    for name, lo, hi in loops:
        tiled = [x for x in args_of(hi, "min") or (hi,) if isinstance(x, Op) and x.name == "floordiv"]
        for top, width in (x.args for x in tiled if isinstance(x.args[1], Var)):
            last = interval(top, by_name(ranges))[1]
            last = min(last, USUAL) if is_data(top) else last  # as in `ranges_of`
            if interval(lo, by_name(ranges))[0] >= 0:
                starts[frozenset((Var(name), width))] = (0, max(0, last))

    def known(e: Expr) -> Interval | None:
        if isinstance(e, Var):
            return ranges.get(e.name)
        return starts.get(frozenset(e.args)) if isinstance(e, Op) and e.name == "mul" else None

    return known
