"""Loop-to-tile translation (paper §5 and Appendix E).

    for i1 in [0, BM): for j1 in [0, BN): m: m[i1] max= score[i1, j1]      loop-scalar IR
    m = max(m, reduce("i1 j1 -> i1", score, max))                          tile IR

Each nest is partitioned at its outermost structurally tensorizable loop: loops around more than one
statement, and loops whose trip count is known only at run time, stay loops; the others become tile
axes. Every access is relaxed to a tile of the axes its indices use, and dimension orders are reconciled
by einops patterns. Guards become load and store masks, and, where a reduction folds over guarded
elements, its identity, unless the masked value is provably the identity already.

distribute: one loop over several statements becomes a loop over each.

Before → after::

    for i1: for j1:                       for i1: for j1: s_init: s[i1, j1] = 0
      s_init: s[i1, j1] = 0               for i1: for j1: for d: s: s[i1, j1] += …
      for d: s: s[i1, j1] += …

Legal where iterations are independent: then all of the first statement may run before the second.

Which of the axes that a stage sums over are axes of its tile, and which are loops around it.

The matrix unit sums over one axis: of several, the last one of the longest.

    for u in [0, 3): for i1: for j1: for k1: …     →     u is a loop around the tiles (i1, j1, k1)

What is no product, and none of whose operands fills a tile, as a sum of squared distances, goes element by element:

    for i1: for j1: for d: far[i1, j1] += (x[i1, d] - y[j1, d])²     →     for d: far += (x[:, d] - y[:, d])²

A tile over i1, j1 and d would hold as many values as it computes, where x and y are two of its sides: in registers
there is no room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from neptune.errors import InternalError, TargetError
from neptune.ir.contraction import Contraction, matrix_product
from neptune.ir.expr import Const, Expr, Var, loads, substitute, variables
from neptune.ir.integers import constant_length
from neptune.ir.program import (
    ZERO,
    Alloc,
    For,
    If,
    Program,
    Seq,
    Stage,
    Stmt,
    for_loops,
    map_action,
    paths,
    reduction_loops,
    seq,
    stages,
    sub_stmts,
    updates,
    values,
    walk,
    with_stmts,
    wrap,
    writes,
    written,
)
from neptune.schedule.primitives.bind import is_independent
from neptune.tile.arrange import arrange, started
from neptune.tile.context import SHORTEST_DOT, Context
from neptune.tile.ir import (
    Branch,
    GridAxis,
    Loop,
    TileKernel,
    TileProgram,
    TStmt,
    reread,
)
from neptune.tile.localize import LOOP, grid_of, is_axis, kernels_of, localize
from neptune.tile.stage import translate_stage

# The grid loop around what `_joined` puts into one kernel: not the name of any loop of a program.
ONCE = "1"


def translate(program: Program) -> TileProgram:
    """The TileProgram of a scheduled program; TargetError where a nest has no tile form."""
    program = localize(arrange(prepared(program)))
    kernels: list[TileKernel] = []
    for nest in kernels_of(program.body):
        kernels.append(translate_kernel(program, nest, [k.name for k in kernels]))
    return tile_program(program, kernels)


def prepared(program: Program) -> Program:
    """The program in the form that is translated nest by nest: inits explicit, each with its reduction."""
    if program.owes:
        raise InternalError(f"program `{program.name}` still owes {program.owes[0]} and was to be lowered")
    return _joined(with_depths(started(program)))


def tile_program(program: Program, kernels: Sequence[TileKernel]) -> TileProgram:
    """Kernels over the parameters of a program."""
    return TileProgram(
        program.name,
        program.inputs,
        program.outputs,
        program.temporaries,
        program.scalars,
        program.tunables,
        tuple(kernels),
    )


def translate_kernel(program: Program, nest: Stmt, taken: Sequence[str], *, memory: bool = False) -> TileKernel:
    """One nest, its buffers local; `taken` are the names of other kernels. TargetError where it has no tile form.

    With `memory`, the kernel may read back what it has written to global memory: there are no tiles then.
    """
    _check_bounds(program, nest)
    return _Translator(program, memory).kernel(nest, taken)


def _check_bounds(program: Program, nest: Stmt) -> None:
    """Raise TargetError where the extent of a loop is computed by the kernel itself, but for a scalar kept on chip."""
    scalars = {s.buffer.name for s in walk(nest) if isinstance(s, Alloc) and not s.buffer.shape}
    written = {b for s in stages(nest) for b in writes(s.action)} - scalars
    for s in walk(nest):
        exprs = (s.lo, s.hi) if isinstance(s, For) else (s.pred,) if isinstance(s, If) else ()
        own = next((x.buffer for e in exprs for x in loads(e) if x.buffer in written), None)
        if own is not None:
            raise TargetError(
                f"compile `{program.name}`",
                f"the range of a loop reads `{own}`, which the same kernel computes",
                hint=f"leave `{own}` in a kernel of its own",
            )


@dataclass
class _Translator:
    program: Program
    memory: bool = False
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.context = Context(self.program)

    def kernel(self, nest: Stmt, taken: Sequence[str]) -> TileKernel:
        grid, body = grid_of(nest)
        self.context.outer = list(grid)
        if any(is_product(s, for_loops(path)) for path, s in paths(body)):
            self.context.shortest = SHORTEST_DOT
        stmts = tuple(self.stmt(body))
        if not self.memory:
            self.check_memory(stmts)
        axes = tuple(self.context.axes.items())
        last = self.context.stored[-1] if self.context.stored else self.program.name
        name = f"{self.program.name}_{last}" if len(kernels_of(self.program.body)) > 1 else self.program.name
        name = next(n for n in chain([name], (f"{name}_{k}" for k in count(1))) if f"{n}_kernel" not in taken)
        launch = tuple(GridAxis(f.var, f.hi, f.kind.removeprefix("grid.")) for f in grid if f.var != ONCE)
        return TileKernel(f"{name}_kernel", launch, axes, stmts)

    def check_memory(self, stmts: tuple[TStmt, ...]) -> None:
        """Check that a kernel loads nothing that it stores."""
        both = reread(stmts)
        if both:
            raise TargetError(
                f"compile `{self.program.name}`",
                f"one kernel would both write `{both[0]}` to global memory and read it back",
                hint="leave its reader in a kernel of its own, or fuse it where the value is still on chip",
            )

    def stmt(self, s: Stmt) -> list[TStmt]:
        match s:
            case Seq(parts):
                return [t for x in parts for t in self.stmt(x)]
            case Alloc(buffer, body):
                self.context.local[buffer.name] = buffer
                self.context.born[buffer.name] = frozenset(f.var for f in self.context.outer)
                self.context.assigned.discard(buffer.name)
                self.context.contents.forget([buffer.name])
                return self.stmt(body)
            case If(pred, body):
                return [Branch(pred, self.inside(body))]
            case Stage():
                return self.tensorize((), s)
            case For():
                return self.loop(s)

    def inside(self, body: Stmt) -> tuple[TStmt, ...]:
        """A body that may run any number of times: what it assigns is unknown at its start and behind it."""
        before = set(self.context.assigned)
        self.context.contents.may_run(stages(body))
        translated = tuple(self.stmt(body))
        self.context.contents.may_run(stages(body))
        self.context.assigned &= before
        return translated

    def loop(self, s: For) -> list[TStmt]:
        """A loop that becomes tile axes together with its nest, or stays a loop."""
        nest = perfect(s)
        if nest is not None and all(is_axis(self.program, f) for f in nest[0]):
            return self.tensorize(*nest)
        if nest is not None and (turned := self.turned(*nest)) is not None:
            return self.loop(turned)
        if is_axis(self.program, s) and (nests := distribute(s)) is not None:
            return [t for x in nests for t in self.stmt(x)]
        if s.kind not in ("serial", LOOP):
            raise TargetError(
                f"compile `{self.program.name}`",
                f"grid loop `{s.var}` has statements or loops around it that are not of the grid",
                hint="bind only loops that enclose the whole nest",
            )
        self.context.outer.append(s)
        body = self.inside(s.body)
        self.context.outer.pop()
        return [Loop(s.var, s.lo, s.hi, body, s.facts)]

    def turned(self, loops: tuple[For, ...], stage: Stage) -> For | None:
        """The nest with its loops outside its tile axes; None where it is so, or that is not legal.

        The elements of one stage are independent, and every element still folds in the same order.
        """
        axes = [f for f in loops if is_axis(self.program, f)]
        rest = [f for f in loops if f not in axes]
        bounds = frozenset[str]().union(*(variables(e) for f in rest for e in (f.lo, f.hi, *f.facts)))
        spatial = frozenset[str]().union(*(variables(i) for i in stage.action.index))
        independent = stage.folds or all(f.var in spatial for f in loops)
        if list(loops) == [*rest, *axes] or bounds & {f.var for f in axes} or not independent:
            return None
        nest = wrap([*rest, *axes], stage)
        assert isinstance(nest, For)
        return nest

    def tensorize(self, loops: tuple[For, ...], stage: Stage) -> list[TStmt]:
        loops, stage = self.unify(loops, stage)
        return translate_stage(self.context, loops, stage)

    def unify(self, loops: tuple[For, ...], stage: Stage) -> tuple[tuple[For, ...], Stage]:
        """Rename loops so that one tile axis has one name: that of the tile the stage reads or writes."""
        present = {f.var for f in loops}
        outer = {f.var for f in self.context.outer}
        names: dict[str, str] = {}
        for buffer, index in self.context.local_accesses(stage):
            for v, axis in zip(index, self.context.tile_dims.get(buffer, ()), strict=False):
                if not isinstance(v, Var) or v.name == axis or v.name not in present - set(names):
                    continue
                if axis not in outer | set(names.values()):
                    names[v.name] = axis
        # Two loops never get one name: a name in use must itself be given up.
        while clash := [a for a, b in names.items() if b in present and b not in names]:
            for a in clash:
                del names[a]
        for f in loops:
            wish = names.get(f.var, f.var)
            if self.context.axes.get(wish, self.context.extent(f)) != self.context.extent(f):
                used = present | outer | set(names.values())
                fits = (n for n in (f"{wish}_{k}" for k in count(1)) if n not in used)
                names[f.var] = next(n for n in fits if self.context.axes.get(n) in (None, self.context.extent(f)))
        if not names:
            return loops, stage
        env: dict[str, Expr] = {a: Var(b) for a, b in names.items()}
        fresh = tuple(replace(f, var=names.get(f.var, f.var)) for f in loops)
        when = None if stage.when is None else substitute(stage.when, env)
        return fresh, replace(stage, action=map_action(stage.action, lambda e: substitute(e, env)), when=when)


def _joined(program: Program) -> Program:
    """The program with the start of a reduction in the kernel of the reduction.

    y_init: y[] = 0                       for 1 in [0, 1) grid.x:
    for r: y: y[] += x[r]          →        y_init: y[] = 0
                                            for r: y: y[] += x[r]
    """
    nests: list[Stmt] = []
    starts: list[Stmt] = []
    for nest in kernels_of(program.body):
        grid, _ = grid_of(nest)
        folded = {b for u in updates(nest) for b in u.buffers}
        first = next((k for k, s in enumerate(starts) if written(s) & folded), len(starts))
        if not grid and first < len(starts):
            once = For(ONCE, ZERO, Const(1, "int32"), seq(*starts[first:], nest), "grid.x")
            nests += [*starts[:first], once]
            starts = []
        elif not grid and not folded:
            starts.append(nest)
        else:
            nests += [*starts, nest]
            starts = []
    return program.with_body(seq(*nests, *starts))


# --- one loop over several statements ---------------------------------------------------------------


def distribute(loop: For) -> list[Stmt] | None:
    """The loops over the parts of `loop`'s body; None where it has one part, or iterations depend."""
    if not is_independent(loop):
        return None
    parts = _parts(loop.body)
    return None if len(parts) < 2 else [replace(loop, body=p) for p in parts]


def _parts(body: Stmt) -> list[Stmt]:
    match body:
        case Seq(stmts):
            return [p for s in stmts for p in _parts(s)]
        case For():
            inner = distribute(body)
            return inner if inner is not None else [body]
        case If() | Alloc():
            return [body]
        case _:
            return [body]


# --- which axes a stage sums over in its tile -------------------------------------------------------


def with_depths(program: Program) -> Program:
    """The program with the loops that shall not become tile axes marked."""
    return program.with_body(_marked(program, program.body, ()))


def perfect(s: For) -> tuple[tuple[For, ...], Stage] | None:
    """The loops and the one stage of a perfect nest."""
    loops: list[For] = []
    body: Stmt = s
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    return (tuple(loops), body) if isinstance(body, Stage) else None


def _marked(program: Program, s: Stmt, around: tuple[For, ...]) -> Stmt:
    nest = perfect(s) if isinstance(s, For) else None
    if nest is None:
        inside = (*around, s) if isinstance(s, For) else around
        return with_stmts(s, tuple(_marked(program, p, inside) for p in sub_stmts(s)))
    loops, stage = nest
    depths = [f for f in reduction_loops(stage, loops) if is_axis(program, f)]
    tiles = {f.var for f in (*around, *loops) if is_axis(program, f) and f not in depths}
    kept = _depth(depths) if is_product(stage, loops) else [] if _unfilled(stage, depths, tiles) else depths
    return wrap([replace(f, kind=LOOP) if f in depths and f not in kept else f for f in loops], stage)


def _depth(depths: Sequence[For]) -> list[For]:
    """The axis that the matrix unit sums over."""
    return [max(reversed(depths), key=lambda f: constant_length(f.hi))] if depths else []


def is_product(stage: Stage, loops: Sequence[For]) -> bool:
    """True for what goes to the matrix unit, over `loops` and those around that its target runs over."""
    axes = frozenset(f.var for f in loops).union(*map(variables, stage.action.index))
    return isinstance(matrix_product(stage.action, axes), Contraction)


def _unfilled(stage: Stage, depths: Sequence[For], tiles: set[str]) -> bool:
    """True for a sum over a tile that has two axes or more, where each operand that the sum moves along has one."""
    deep, kept = {f.var for f in depths}, tiles & frozenset[str]().union(*map(variables, stage.action.index))
    reads = [frozenset[str]().union(*map(variables, x.index)) for v in values(stage.action) for x in loads(v)]
    sides = [r & kept for r in reads if r & deep]
    return bool(deep) and len(frozenset[str]().union(*sides)) > 1 and all(len(s) < 2 for s in sides)
