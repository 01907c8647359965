"""What split_k writes: a local fold of each reduction for every part of an axis, and a global one that combines them.

See `neptune.fusion.split_k`, which decides and proves; here nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neptune.fusion import parts_moments
from neptune.fusion.emit import accumulated, applied, from_nothing, nothing, valued
from neptune.fusion.infinite import START, bounded
from neptune.fusion.plan import KEPT, Plan
from neptune.fusion.roles import Moments, previous
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Load, Var, binary, cast, minimum, op, rewrite
from neptune.ir.program import Buffer, For, Stage, Stmt, Store, Update, seq, writes
from neptune.ir.reducers import REDUCERS
from neptune.schedule.state import Definition, State, fresh_name, names_in_use

PART_OF = "parts of"
"""The kind of entry in `State.copies` that names the local stage of a global fold."""


@dataclass(frozen=True)
class Split:
    """What is split: the axis of each stage that runs over it, the parts, and where each begins and ends."""

    request: str
    axis: Mapping[str, str]
    part: Var
    parts: Expr
    length: Expr
    extent: Expr

    @property
    def range(self) -> tuple[Expr, Expr]:
        begin = binary("mul", self.part, self.length)
        return begin, minimum(binary("add", begin, self.length), self.extent)

    def over_part(self, name: str, d: Definition, action: Store | Update) -> Definition:
        """The definition of a stage for one part; the axis keeps its name and its elements."""
        return replace(
            d,
            axes=((self.part.name, self.parts), *d.axes),
            action=action,
            ranges={**d.ranges, self.axis[name]: self.range},
        )


def depends(state: State, name: str, on: list[str]) -> bool:
    """Whether a stage reads, directly or through others, a result of one of these reductions."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        for x in state.definitions[todo.pop()].reads():
            writer = state.writer(x.buffer)
            if writer in on:
                return True
            if writer is not None and writer not in seen:
                seen.add(writer)
                todo.append(writer)
    return False


class Rewriter:
    """The program with local and global stages in place of those over the axis."""

    def __init__(self, original: State, s: Split, plans: Mapping[str, Plan]) -> None:
        self.original, self.s, self.plans = original, s, plans
        self.declared = original.program.globals
        self.temporaries = {b.name: b for b in original.program.temporaries}
        self.taken = names_in_use(original.program) | {s.part.name}
        # The local result of each reduction, by the buffer of the global one, and its stage by the global stage.
        self.local = {b: self.fresh(f"{b}_split") for n in plans for b in writes(original.definitions[n].action)}
        self.stages = {n: self.local[writes(original.definitions[n].action)[0]] for n in plans}
        self.vectors = {n: self._vector(n, p.repair.moments) for n, p in plans.items() if p.repair.moments is not None}
        # What is rolled reads these as finite numbers, and so does what is computed per element for it.
        self.infinite = {b: r for p in plans.values() for b, r in p.infinite.items() if b not in p.clamped}
        # What is computed per element has a form for the parts beside the one that others read.
        self.element: dict[str, str] = {}
        for name in (n for n in s.axis if n not in plans):
            shared = self._read_outside(name)
            for b in writes(original.definitions[name].action):
                self.element[b] = self.fresh(f"{b}_split") if shared else b
            self.stages[name] = self.element[writes(original.definitions[name].action)[0]] if shared else name

    def _vector(self, name: str, found: Moments) -> parts_moments.Vector:
        """The accumulators of a sum about a mean, the first of them named by the target."""
        d = self.original.definitions[name]
        (buffer,) = writes(d.action)
        numbers = parts_moments.kept(found)
        whole = {k: self.fresh(f"{buffer}_{k or 'acc'}") for k in numbers}
        local = {k: self.local[buffer] if k == 0 else self.fresh(f"{whole[k]}_split") for k in numbers}
        return parts_moments.Vector(self.plans[name], found, d, local, whole, self.s.part, self.s.range)

    def _read_outside(self, name: str) -> bool:
        """Whether anything but the parts reads it: a result, what has no axis here, or what is itself read outside."""
        buffers = writes(self.original.definitions[name].action)
        readers = {r for b in buffers for r in self.original.readers(b)} - set(self.plans)
        outside = any(self.original.is_output(b) for b in buffers) or not readers <= set(self.s.axis)
        return outside or any(self._read_outside(r) for r in readers)

    def fresh(self, wish: str) -> str:
        name = fresh_name(self.taken, wish)
        self.taken.add(name)
        return name

    def state(self) -> State:
        """Local stages where they were, then the global folds, then what reads their results."""
        definitions = self.original.definitions
        late = [n for n in definitions if n not in self.plans and depends(self.original, n, list(self.plans))]
        found: dict[str, Definition] = {}
        for name, d in definitions.items():
            if name in self.plans:
                found |= self.locals(name, d)
            elif name in self.s.axis:
                found[self.stages[name]] = self.per_element(name, d)
                found |= {name: d} if self.stages[name] != name and name not in late else {}
            elif name not in late:
                found[name] = d
        for name in self.plans:
            found |= self.whole(name, definitions[name])
        found |= {n: definitions[n] for n in late if n not in self.s.axis or self.stages[n] != n}
        found = _alive(found, {b.name for b in self.original.program.outputs})
        used = {b for d in found.values() for b in writes(d.action)}
        program = replace(
            self.original.program,
            body=seq(*(_nest(n, d) for n, d in found.items())),
            temporaries=tuple(b for n, b in self.temporaries.items() if n in used),
        )
        copies = {(PART_OF, n): self.stages[n] for n in self.plans} | self._kept()
        axes = {n: {a: Var(a) for a in d.extents} for n, d in found.items()}
        return State(program, found, axes, copies=copies)

    def _kept(self) -> dict[tuple[str, str], str]:
        """The further local stages of vectors, by the stages that fold these, and those that must stay as they are."""
        found: dict[tuple[str, str], str] = {}
        for v in self.vectors.values():
            found |= {(PART_OF, b): v.local[k] for k, b in v.whole.items() if k > 0}
            found |= {(KEPT, b): v.local[0] for b in v.local.values()}
        return found

    # --- over the parts ---

    def part_of(self, buffer: str, name: str, dtype: str | None = None) -> None:
        """Declare a buffer with a place for each part."""
        b = self.declared[buffer]
        shape = (self.s.parts, *b.shape)
        self.temporaries[name] = Buffer(name, shape, dtype or b.dtype)

    def per_element(self, name: str, d: Definition) -> Definition:
        """A stage with a result for each element of the axis."""
        for b in writes(d.action):
            self.part_of(b, self.element[b])
        index = (self.s.part, *d.action.index)
        if isinstance(d.action, Store):
            value = self.value(bounded(d.action.value, self.infinite))
            return self.s.over_part(name, d, Store(self.element[d.action.buffer], index, value))
        buffers = tuple(self.element[b] for b in d.action.buffers)
        values = tuple(map(self.value, d.action.values))
        init = None if d.action.init is None else tuple(map(self.value, d.action.init))
        return self.s.over_part(name, d, replace(d.action, buffers=buffers, index=index, values=values, init=init))

    def fold(self, name: str) -> tuple[Update, tuple[str, ...]]:
        """What is folded of a reduction, without what is applied to the whole at the end, and in which dtypes."""
        p, action = self.plans[name], self.original.definitions[name].action
        assert isinstance(action, Update)
        dtypes = tuple(self.declared[b].dtype for b in action.buffers)
        if p.repair.deferred is None:
            return action, dtypes
        action, dtype, k = replace(action, values=(p.repair.body, *action.values[1:])), accumulated(p), valued(action)
        if p.repair.deferred_op == "apply":
            action = from_nothing(replace(action, reducer=p.repair.fold or action.reducer), dtype)
        return action, (*[dtype] * k, *dtypes[k:])

    def locals(self, name: str, d: Definition) -> dict[str, Definition]:
        """The local folds of a reduction: one, or those of a vector."""
        vector = self.vectors.get(name)
        if vector is None:
            return {self.stages[name]: self.folded(name, d)}
        found: dict[str, Definition] = {}
        for k, mine in vector.local.items():
            self.part_of(writes(d.action)[0], mine, vector.dtype)
            action = vector.sum(mine, (self.s.part, *d.action.index), self.value(vector.folded(k)))
            found[mine] = self.s.over_part(name, d, action)
        return found

    def folded(self, name: str, d: Definition) -> Definition:
        """The local fold of a reduction."""
        action, dtypes = self.fold(name)
        local = tuple(self.local[b] for b in action.buffers)
        for b, mine, dtype in zip(action.buffers, local, dtypes, strict=True):
            self.part_of(b, mine, dtype)
        index = (self.s.part, *action.index)
        # The body of a repair, which is folded where something is deferred, says so itself.
        infinite = self.infinite if self.plans[name].repair.deferred is None else {}
        values = tuple(self.value(bounded(v, infinite)) for v in action.values)
        action = replace(action, buffers=local, index=index, values=values, init=start_of_part(action, dtypes))
        return self.s.over_part(name, d, action)

    def value(self, e: Expr) -> Expr:
        """An expression for one part: its local results, and what is per element, in place of the whole."""

        def fix(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in {*self.local, *self.element}:
                return None
            index = (self.s.part, *(rewrite(i, fix) for i in x.index))
            return Load((self.local | self.element)[x.buffer], index, x.dtype)

        return rewrite(e, fix)

    # --- over the whole ---

    def whole(self, name: str, d: Definition) -> dict[str, Definition]:
        """The global fold of a reduction, and behind it what was deferred."""
        if name in self.vectors:
            return self.moved(name, d)
        p = self.plans[name]
        action, dtypes = self.fold(name)
        parts = zip(action.buffers, dtypes, strict=True)
        values: tuple[Expr, ...] = tuple(Load(self.local[b], (self.s.part, *action.index), t) for b, t in parts)
        if p.repair.factor is not None:
            values = (op("mul", values[0], cast(rewrite(p.repair.factor, self._of_part), dtypes[0])),)
        spatial = tuple((a, n) for a, n in d.axes if a not in d.reduced)
        over = (*spatial, (self.s.part.name, self.s.parts))
        if p.repair.deferred is None:
            return {name: Definition(over, replace(action, values=values))}
        buffers = list(action.buffers)
        for k in range(valued(action)):
            buffers[k] = self.fresh(f"{buffers[k]}_acc")
            self.temporaries[buffers[k]] = Buffer(buffers[k], self.declared[action.buffers[k]].shape, dtypes[k])
        start = start_of_part(action, dtypes)
        found = {name: Definition(over, replace(action, buffers=tuple(buffers), values=values, init=start))}
        for k in range(valued(action)):
            whole = applied(p, Load(buffers[k], action.index, dtypes[k]), p.repair.deferred, d, k)
            if p.repair.deferred_op != "apply":
                whole = self.started(d, whole)
            store = Store(action.buffers[k], action.index, whole)
            found[self.fresh(f"{name}_final{k or ''}")] = Definition(spatial, store)
        return found

    def moved(self, name: str, d: Definition) -> dict[str, Definition]:
        """The global folds of a vector, and behind them what comes of it."""
        vector = self.vectors[name]
        spatial = tuple((a, n) for a, n in d.axes if a not in d.reduced)
        means: dict[Expr, Expr] = {s.load: self.value(vector.mean(s)) for s in vector.found.shifts}
        found: dict[str, Definition] = {}
        for k, buffer in vector.whole.items():
            (target,) = writes(d.action)
            self.temporaries[buffer] = Buffer(buffer, self.declared[target].shape, vector.dtype)
            action = vector.sum(buffer, d.action.index, vector.moved(k, means))
            found[name if k == 0 else buffer] = Definition((*spatial, (self.s.part.name, self.s.parts)), action)
        store = Store(writes(d.action)[0], d.action.index, self.started(d, vector.result()))
        return {**found, self.fresh(f"{name}_final"): Definition(spatial, store)}

    def started(self, d: Definition, e: Expr) -> Expr:
        """What a reduction of single values starts from, with `e` folded in."""
        assert isinstance(d.action, Update) and d.action.init is not None
        (start,), row = d.action.init, REDUCERS[d.action.reducer]
        return e if (start,) == row.identity(e.dtype) else binary(row.op, start, e)

    def _of_part(self, x: Expr) -> Expr | None:
        """In a repair, what was the previous value is that of the part."""
        names = {previous(Load(b, (), "float32")).buffer: local for b, local in self.local.items()}
        if isinstance(x, Load) and x.buffer in names:
            return Load(names[x.buffer], (self.s.part, *x.index), x.dtype)
        return None


def start_of_part(action: Update, dtypes: Iterable[str]) -> tuple[Expr, ...]:
    """What each part starts from: nothing folded; what the whole starts from is taken in once, by the global fold."""
    row = REDUCERS[action.reducer]
    identity = row.identity(*dtypes)
    if action.init == identity or action.reducer not in START or not is_float(identity[0].dtype):
        return identity
    # From anything but the finite extreme, the whole of nothing but infinities may be one.
    return (nothing(action.reducer, identity[0].dtype),)


def _alive(found: dict[str, Definition], outputs: Iterable[str]) -> dict[str, Definition]:
    """Without stages that nothing reads: maps that were inlined into what is folded."""
    while True:
        read = {x.buffer for d in found.values() for x in d.reads()} | set(outputs)
        alive = {n: d for n, d in found.items() if read.intersection(writes(d.action))}
        if len(alive) == len(found):
            return found
        found = alive


def _nest(name: str, d: Definition) -> Stmt:
    """A stage in loops over its axes."""
    body: Stmt = Stage(name, d.action, d.when)
    for a, _ in reversed(d.axes):
        body = For(a, *d.range_of(a), body)
    return body
