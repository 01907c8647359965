"""Loop-to-tile translation (paper §5 and Appendix E).

    for i1 in [0, BM): for j1 in [0, BN): m: m[i1] max= score[i1, j1]      loop-scalar IR
    m = max(m, reduce("i1 j1 -> i1", score, max))                          tile IR

Each nest is partitioned at its outermost structurally tensorizable loop: loops around more than one
statement, and loops whose trip count is known only at run time, stay loops; the others become tile
axes. Every access is relaxed to a tile of the axes its indices use, and dimension orders are reconciled
by einops patterns. Guards become load and store masks, and, where a reduction folds over guarded
elements, its identity, unless the masked value is provably the identity already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune.errors import InternalError, TargetError
from neptune.ir.decompose import decompose
from neptune.ir.expr import Expr, Var, substitute
from neptune.ir.program import (
    Alloc,
    For,
    If,
    Program,
    Seq,
    Stage,
    Stmt,
    map_action,
)
from neptune.tile.distribute import distribute
from neptune.tile.ir import Branch, GridAxis, Loop, TileKernel, TileProgram, TStmt
from neptune.tile.localize import grid_of, is_axis, kernels_of, localize
from neptune.tile.stage import Context, translate_stage


def translate(program: Program) -> TileProgram:
    """The TileProgram of a scheduled program; TargetError where a nest has no tile form."""
    if program.owes:
        raise InternalError(f"program `{program.name}` still owes {program.owes[0]} and was to be lowered")
    program = localize(decompose(program))
    kernels: list[TileKernel] = []
    for nest in kernels_of(program.body):
        kernels.append(_Translator(program).kernel(nest, [k.name for k in kernels]))
    return TileProgram(
        program.name,
        program.inputs,
        program.outputs,
        program.temporaries,
        program.scalars,
        program.tunables,
        tuple(kernels),
    )


@dataclass
class _Translator:
    program: Program
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.context = Context(self.program)

    def kernel(self, nest: Stmt, taken: list[str]) -> TileKernel:
        grid, body = grid_of(nest)
        self.context.outer = list(grid)
        stmts = tuple(self.stmt(body))
        axes = tuple(self.context.axes.items())
        last = self.context.stored[-1] if self.context.stored else self.program.name
        name = f"{self.program.name}_{last}" if len(kernels_of(self.program.body)) > 1 else self.program.name
        assert name not in taken
        launch = tuple(GridAxis(f.var, f.hi, f.kind.removeprefix("grid.")) for f in grid)
        return TileKernel(f"{name}_kernel", launch, axes, stmts)

    def stmt(self, s: Stmt) -> list[TStmt]:
        match s:
            case Seq(stmts):
                return [t for x in stmts for t in self.stmt(x)]
            case Alloc(buffer, body):
                self.context.local[buffer.name] = buffer
                return self.stmt(body)
            case If(pred, body):
                return [Branch(pred, tuple(self.stmt(body)))]
            case Stage():
                return self.tensorize((), s)
            case For():
                return self.loop(s)

    def loop(self, s: For) -> list[TStmt]:
        """A loop that becomes tile axes together with its nest, or stays a loop."""
        chain = _perfect(s)
        if chain is not None and all(is_axis(self.program, f) for f in chain[0]):
            return self.tensorize(*chain)
        if is_axis(self.program, s) and (nests := distribute(s)) is not None:
            return [t for x in nests for t in self.stmt(x)]
        if s.kind != "serial":
            raise TargetError(
                f"compile `{self.program.name}`",
                f"grid loop `{s.var}` has statements beside it",
                hint="bind only loops that enclose the whole nest",
            )
        self.context.outer.append(s)
        body = tuple(self.stmt(s.body))
        self.context.outer.pop()
        return [Loop(s.var, s.lo, s.hi, body, s.facts)]

    def tensorize(self, loops: tuple[For, ...], stage: Stage) -> list[TStmt]:
        loops, stage = self.unify(loops, stage)
        return translate_stage(self.context, loops, stage)

    def unify(self, loops: tuple[For, ...], stage: Stage) -> tuple[tuple[For, ...], Stage]:
        """Rename loops so that one tile axis has one name: that of the tile the stage reads or writes."""
        names: dict[str, str] = {}
        for buffer, index in self.context.local_accesses(stage):
            for v, axis in zip(index, self.context.tile_dims.get(buffer, ()), strict=False):
                if isinstance(v, Var) and v.name != axis and v.name not in names:
                    names[v.name] = axis
        present = {f.var for f in loops}
        names = {a: b for a, b in names.items() if a in present and (b not in present or b in names)}
        for f in loops:
            wish = names.get(f.var, f.var)
            known = self.context.axes.get(wish)
            if known is not None and known != self.context.extent(f):
                k = 1
                while self.context.axes.get(f"{wish}_{k}", self.context.extent(f)) != self.context.extent(f):
                    k += 1
                names[f.var] = f"{wish}_{k}"
        if not names:
            return loops, stage
        env: dict[str, Expr] = {a: Var(b) for a, b in names.items()}
        fresh = tuple(replace(f, var=names.get(f.var, f.var)) for f in loops)
        when = None if stage.when is None else substitute(stage.when, env)
        return fresh, Stage(stage.name, map_action(stage.action, lambda e: substitute(e, env)), when)


def _perfect(s: For) -> tuple[tuple[For, ...], Stage] | None:
    """The loops and the one stage of a perfect nest."""
    loops: list[For] = []
    body: Stmt = s
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    return (tuple(loops), body) if isinstance(body, Stage) else None
