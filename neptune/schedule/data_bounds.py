"""Bounds that depend on data: the extreme of what a tensor holds for the rows of a tile.

`start[i] <= j` bounds a loop over tiles of keys by the least start of the tile's rows, before → after::

    for j0 in […]: …                  alloc start_min: i32[] @tile
                                        start_min_init: start_min[] = 2147483647
                                        for i1 in [0, BM): start_min: start_min[] min= start[i0*BM + i1] when …
                                        for j0 in [start_min[] // BN, …): …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neptune.ir.affine import Scope, always, as_nonnegative, scope_of
from neptune.ir.expr import Expr, Load, binary, conjuncts, loads, logical_and, variables
from neptune.ir.extremes import OverData
from neptune.ir.program import Alloc, Buffer, For, Made, Program, Stage, Stmt, Store, Update, seq
from neptune.ir.reducers import REDUCERS
from neptune.schedule.state import fresh_name, names_in_use


@dataclass(frozen=True)
class Extreme:
    """`reducer` (min or max) of `load` over the loop `over`, where `when` holds."""

    load: Load
    over: For
    reducer: str
    when: tuple[Expr, ...]


@dataclass
class DataBounds:
    """The extremes that the bounds of one loop ask for, each once; read as `name[]`.

    `names`: of rows, outside of the loop.
    """

    program: Program
    outer: tuple[For, ...]
    loop: For
    names: dict[Extreme, str] = field(default_factory=dict)

    def within(self, inner: Sequence[For], when: Expr | None, *, key: str = "") -> OverData:
        """Answers for a stage under the loops `inner`, guarded by `when`; where keys are scanned, for each `key`."""
        inputs = {b.name for b in self.program.inputs}
        moving = {self.loop.var, key, *(f.var for f in inner)}

        def over_data(load: Load, name: str, largest: bool) -> Expr | None:
            over = next(f for f in inner if f.var == name)
            own = (variables(load) | variables(over.lo) | variables(over.hi)) & moving
            if own != {name} or any(x.buffer not in inputs for x in loads(load)):
                return None
            guards = [c for c in conjuncts(when) if variables(c) & moving <= own and not loads(c)]
            guards += self.unproved(load, inner, guards)
            # The body of the loop does not matter.
            extreme = Extreme(load, For(over.var, over.lo, over.hi, seq()), "max" if largest else "min", tuple(guards))
            if extreme not in self.names:
                self.names[extreme] = self.fresh(f"{load.buffer}_{extreme.reducer}")
            return Load(self.names[extreme], (), load.dtype)

        return over_data

    def fresh(self, wish: str) -> str:
        """A name that nothing has, as buffer, stage or, with `_init`, as the stage that starts it."""
        names = names_in_use(self.program) | {*self.names.values()}
        return fresh_name(names | {n.removesuffix("_init") for n in names}, wish)

    def unproved(self, load: Load, inner: Sequence[For], guards: Sequence[Expr]) -> list[Expr]:
        """Return conditions for `load` to lie in its buffers that `guards` do not give. No true mask reads outside."""
        facts = [p for g in guards for p in as_nonnegative(g) or []]
        base = scope_of(self.program, (*self.outer, self.loop, *inner))
        scope = Scope(base.ranges, base.at_least, (*base.facts, *facts))
        sides = [
            side
            for x in loads(load)
            for i, n in zip(x.index, self.program.buffers[x.buffer].shape, strict=True)
            for side in (binary("ge", i, 0), binary("lt", i, n))
        ]
        return [c for c in sides if not always(c, scope)]

    def known(self, e: Expr) -> bool:
        """True for a bound that reads inputs and these extremes only, nothing that the kernel itself computes."""
        readable = {b.name for b in self.program.inputs} | {*self.names.values()}
        return all(x.buffer in readable for x in loads(e))

    def of_rows(self, body: Stmt, used: Sequence[Expr]) -> Stmt:
        """`body`, in which the expressions `used` stand, behind the stages that compute what these read of rows."""
        read = {x.buffer for e in used for x in loads(e)}
        needed = [(x, name) for x, name in self.names.items() if name in read]
        return kept_in(
            {name: x.load.dtype for x, name in needed}, seq(*(s for x, name in needed for s in _stages(x, name)), body)
        )


def kept_in(scalars: Mapping[str, str], body: Stmt) -> Stmt:
    """`body` with these scalars (name → dtype) allocated on chip."""
    for name, dtype in reversed(list(scalars.items())):
        body = Alloc(Buffer(name, (), dtype, "tile"), body)
    return body


def _stages(x: Extreme, name: str) -> tuple[Stmt, Stmt]:
    start = REDUCERS[x.reducer].identity(x.load.dtype)[0]
    fold = Update((name,), (), x.reducer, (x.load,), None)
    stage = Stage(name, fold, logical_and(*x.when) if x.when else None, Made("bound", x.load.buffer))
    return Stage(f"{name}_init", Store(name, (), start), None, Made("init", name)), For(
        x.over.var, x.over.lo, x.over.hi, stage
    )
