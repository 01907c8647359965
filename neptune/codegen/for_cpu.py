"""Programs as a CPU runs them well: long sums in parts, and places that data decide inside of their buffers.

Long sums become partial sums of float64, side by side.

A loop that adds one number after another to one place waits for each addition, and loses digits with the length of the
row. On a GPU the numbers of a tile are added in a tree; here `LANES` sums grow at once, in float64, and are joined at
the end. Which of them a number goes to follows from its place in the row alone.

    for j in [0, BLOCK_N):                         alloc s_lanes: f64[16]
      s: s[i] += x[i, j] when j < n                for l in [0, 16): s_lanes[l] = 0.0
                                                   for j_step in [0, min(BLOCK_N, n) // 16):
                                                     for l in [0, 16):
                                                       s_lanes[l] += x[i, 16 * j_step + l]
                                                   for l in [0, min(BLOCK_N, n) mod 16): …
                                                   s: s[i] += s_lanes[0] + … + s_lanes[15]

Sums of a tile go on through the loop over tiles, so that they are float64, too; whatever else reads them reads float32,
and what they are multiplied by to repair them is.

Reads and writes at places that data decide are kept inside of their buffers where one outside would end the process.

    y[i] = x[idx[i]]                              y[i] = x[max(min(idx[i], n - 1), 0)]
    for j in [0, len[i]): z[j] = 0                for j in [0, len[i]): z[j] = 0  when j < n

Places that are shown to lie inside stay as they are.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial, reduce

from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    binary,
    cast,
    conjuncts,
    loads,
    logical_and,
    maximum,
    minimum,
    rewrite,
    select,
    substitute,
    variables,
)
from neptune.ir.indices.affine import Scope, always, as_nonnegative, linear, number, poly, scope_of, to_expr
from neptune.ir.names import fresh_name
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    If,
    Made,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    map_action,
    seq,
    stages,
    sub_stmts,
    walk,
    with_stmts,
)

LANES = 16
_SUMMED = frozenset({"float32", "float64"})
_EXACT = frozenset({"add", "sub", "mul", "div", "neg"})
"""What a sum goes through in float64 on the way to itself."""


def in_partial_sums(program: Program) -> Program:
    """The program with sums of float32 and float64 rows as above; what it computes is equal in the reals."""
    return _Sums(widened(program)).program()


# --- sums of a tile -------------------------------------------------------------------------------


def widened(program: Program) -> Program:
    """The program with the float32 buffers of tiles that only sums fold into as float64."""
    local = {s.buffer.name for s in walk(program.body) if isinstance(s, Alloc) and s.buffer.dtype == "float32"}
    folds = [(b, s.action) for s in stages(program.body) if isinstance(s.action, Update) for b in s.action.buffers]
    sums = {b for b, a in folds if a.reducer == "sum"} - {b for b, a in folds if a.reducer != "sum"}
    wide = local & sums - {b.name for b in program.globals.values()}
    return replace(program, body=_with_wide(program.body, wide)) if wide else program


def _with_wide(s: Stmt, wide: Set[str]) -> Stmt:
    match s:
        case Alloc(buffer, body) if buffer.name in wide:
            return Alloc(replace(buffer, dtype="float64"), _with_wide(body, wide))
        case Stage():
            return _wide_stage(s, wide)
        case _:
            return with_stmts(s, tuple(_with_wide(x, wide) for x in sub_stmts(s)))


def _wide_stage(s: Stage, wide: Set[str]) -> Stage:
    def read(e: Expr) -> Expr:
        def of_wide(x: Expr) -> Expr | None:
            return cast(replace(x, dtype="float64"), "float32") if isinstance(x, Load) and x.buffer in wide else None

        return rewrite(e, of_wide)

    when = None if s.when is None else read(s.when)
    if s.action.buffers[0] not in wide:
        return replace(s, action=map_action(s.action, read), when=when)
    own = s.action.buffers[0]

    def whole(e: Expr) -> Expr:
        """The value in float64, as far as it goes from the sum to itself."""
        if not any(x.buffer == own for x in loads(e)):
            return cast(read(e), "float64")
        match e:
            case Load():
                return replace(e, dtype="float64")
            case Op(name, args, "float32") if name in _EXACT:
                return Op(name, tuple(map(whole, args)), "float64")
            case Select(p, a, b):
                return select(read(p), whole(a), whole(b))
        return cast(read(e), "float64")

    a = s.action
    if isinstance(a, Store):
        return replace(s, action=Store(own, a.index, whole(a.value)), when=when)
    init = None if a.init is None else tuple(map(whole, a.init))
    return replace(s, action=replace(a, values=tuple(map(whole, a.values)), init=init), when=when)


# --- sums of a loop -------------------------------------------------------------------------------


class _Sums:
    def __init__(self, program: Program) -> None:
        self.of, self.dtypes = program, {n: b.dtype for n, b in program.buffers.items()}
        loops = {s.var for s in walk(program.body) if isinstance(s, For)}
        sizes = {*(s.name for s in program.scalars), *(t.name for t in program.tunables)}
        self.taken = {*program.buffers, *(s.name for s in stages(program.body)), *loops, *sizes}

    def program(self) -> Program:
        return replace(self.of, body=self.stmt(self.of.body))

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, For) and isinstance(s.body, Stage) and self.is_sum(s, s.body):
            return self.summed(s, s.body)
        return with_stmts(s, tuple(map(self.stmt, sub_stmts(s))))

    def is_sum(self, loop: For, s: Stage) -> bool:
        """Whether the loop adds numbers to one place, one after the other, and none of them depends on that."""
        a = s.action
        if not isinstance(a, Update) or a.reducer != "sum" or a.init is not None or loop.kind != "serial":
            return False
        (target,) = a.buffers
        read = (*a.values, *conjuncts(s.when), loop.lo, loop.hi, *a.index)
        return (
            self.dtypes[target] in _SUMMED
            and not any(loop.var in variables(i) for i in a.index)
            and not any(x.buffer == target for e in read for x in loads(e))
        )

    def name(self, wish: str) -> str:
        fresh = fresh_name(self.taken, wish)
        self.taken.add(fresh)
        return fresh

    def summed(self, loop: For, s: Stage) -> Stmt:
        a = s.action
        assert isinstance(a, Update)
        hi, outer, inner = _bounded(loop, s.when)
        # A size is at least 0; an axis of constants may end before it begins.
        known = hi == loop.hi and isinstance(hi, Var) and loop.lo == Const(0, loop.lo.dtype)
        count = hi if known else maximum(binary("sub", hi, loop.lo), 0)
        lanes, fold = self.name(f"{s.name}_lanes"), self.name(f"{s.name}_lane")
        lane, step = self.name(f"{loop.var}_lane"), self.name(f"{loop.var}_step")
        position = Var(lane, Var(loop.var).dtype)

        def added(j: Expr) -> Stage:
            env = {loop.var: j}
            values = tuple(cast(substitute(v, env), "float64") for v in a.values)
            when = logical_and(*(substitute(c, env) for c in inner)) if inner else None
            return Stage(fold, Update((lanes,), (position,), "sum", values, None), when)

        zero, all_lanes = Const(0, position.dtype), Const(LANES, position.dtype)
        whole = binary("floordiv", count, LANES)
        first = binary("add", loop.lo, binary("mul", Var(step, position.dtype), LANES))
        behind = binary("add", loop.lo, binary("mul", whole, LANES))
        start = Stage(
            self.name(f"{fold}_init"), Store(lanes, (position,), Const(0.0, "float64")), made=Made("init", fold)
        )
        parts: list[Expr] = [Load(lanes, (Const(k, position.dtype),), "float64") for k in range(LANES)]
        total = cast(reduce(partial(binary, "add"), parts), self.dtypes[a.buffers[0]])
        body = seq(
            For(lane, zero, all_lanes, start),
            For(step, zero, whole, For(lane, zero, all_lanes, added(binary("add", first, position)))),
            For(lane, zero, binary("mod", count, LANES), added(binary("add", behind, position))),
            replace(s, action=replace(a, values=(total,)), when=None),
        )
        allocated = Alloc(Buffer(lanes, (Const(LANES, position.dtype),), "float64", "tile"), body)
        return If(logical_and(*outer), allocated) if outer else allocated


def _bounded(loop: For, when: Expr | None) -> tuple[Expr, list[Expr], list[Expr]]:
    """Where the loop ends by its condition `j < n`, what is left of the condition outside of it, and inside."""
    hi, outer, inner = loop.hi, list[Expr](), list[Expr]()
    for c in conjuncts(when):
        if loop.var not in variables(c):
            outer.append(c)
        elif (end := _end(loop.var, c)) is not None:
            hi = minimum(hi, cast(end, hi.dtype))
        else:
            inner.append(c)
    return hi, outer, inner


def _end(var: str, c: Expr) -> Expr | None:
    """n where the condition is `var + … < n - …`."""
    if not (isinstance(c, Op) and c.name == "lt") or loads(c):
        return None
    room = linear(poly(binary("sub", c.args[0], c.args[1])), var)
    if room is None or room[0] != number(1):
        return None
    return to_expr(-room[1], c.args[0].dtype)


# --- places that data decide ------------------------------------------------------------------------


def clamped(program: Program) -> Program:
    """The program, whose indices that data decide lie inside for any data; where they do anyhow it means the same."""
    return replace(program, body=_Clamp(program).stmt(program.body, (), ()))


class _Clamp:
    def __init__(self, program: Program) -> None:
        self.program, self.shapes = program, {n: b.shape for n, b in program.buffers.items()}

    def stmt(self, s: Stmt, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Stmt:
        match s:
            case For(_, lo, hi, body, _, _):
                lo, hi = self.expr(lo, loops, guards), self.expr(hi, loops, guards)
                return replace(s, lo=lo, hi=hi, body=self.stmt(body, (*loops, s), guards))
            case If(pred, body):
                return If(self.expr(pred, loops, guards), self.stmt(body, loops, (*guards, *conjuncts(pred))))
            case Stage():
                return self.stage(s, loops, guards)
            case _:
                return with_stmts(s, tuple(self.stmt(x, loops, guards) for x in sub_stmts(s)))

    def stage(self, s: Stage, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Stage:
        when = None if s.when is None else self.expr(s.when, loops, guards)
        guards = (*guards, *conjuncts(s.when))
        action = map_action(s.action, lambda e: self.expr(e, loops, guards))
        written = action.buffer if hasattr(action, "buffer") else action.buffers[0]
        outside = [
            c
            for i, n in zip(action.index, self.shapes[written], strict=False)
            for c in self.unproved(i, n, loops, guards)
        ]
        return replace(s, action=action, when=logical_and(*conjuncts(when), *outside) if outside else when)

    def expr(self, e: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Expr:
        """The same expression with every such read inside."""

        def inside(x: Expr) -> Expr | None:
            if not isinstance(x, Load):
                return None
            index = tuple(self.expr(i, loops, guards) for i in x.index)
            shape = self.shapes[x.buffer]
            return replace(x, index=tuple(self.index(i, n, loops, guards) for i, n in zip(index, shape, strict=True)))

        return rewrite(e, inside)

    def index(self, i: Expr, extent: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Expr:
        if not self.unproved(i, extent, loops, guards):
            return i
        last = binary("sub", cast(extent, i.dtype), 1)
        return binary("max", binary("min", i, last), 0)

    def unproved(self, i: Expr, extent: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> list[Expr]:
        """Return those of 0 <= i and i < extent that are not shown, if data decide the index; [] for any other."""
        by_data: set[str] = set()
        for f in loops:
            bounds = (f.lo, f.hi)
            if any(loads(b) or variables(b) & by_data for b in bounds):
                by_data.add(f.var)
        if not (loads(i) or variables(i) & by_data):
            return []
        base = scope_of(self.program, loops)
        facts = tuple(p for g in guards for p in as_nonnegative(g) or [])
        scope = Scope(base.ranges, base.at_least, (*base.facts, *facts))
        sides = (binary("ge", i, 0), binary("lt", i, cast(extent, i.dtype)))
        return [c for c in sides if not always(c, scope)]
