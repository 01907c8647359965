"""Stages of split_k: a local fold of each reduction for every part of an axis, and a global one that combines them.

The global fold takes each accumulator of a part by its proved step from the part's r to that of the whole; sums about a
mean are so moved from the mean of their part to the mean of the whole (Chan). `split_k(j, …)` of the squares of
x - s/n, before → after, with n_z the elements of part z::

    q[i] += (x[i, j] - s[i]/n)²      q_split[z, i]   += (x[i, j] - ρ_z)²                    ρ_z = s_split[z, i] / n_z
                                     q_1_split[z, i] += x[i, j] - ρ_z
                                     q_acc[i] += q_split[z, i] + δ·(q_1_split[z, i]·-2 + δ·n_z)     δ = s[i]/n - ρ_z
                                     q_1[i]   += q_1_split[z, i] - δ·n_z
                                     q[i] = …, moved by what rounding left the mean off

A part without elements has the mean 0, and 0 elements are moved. See `neptune.fusion.split_k`, which decides and
proves; here nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neptune.fusion.repairs.roles import ALL, COUNT, FOLDED, Mean, change, previous, slot
from neptune.fusion.repairs.starts import START, bounded
from neptune.fusion.rewriting.plan import Plan, count
from neptune.fusion.rewriting.write import finished, folding
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Load, Var, binary, cast, maximum, minimum, rewrite, substitute
from neptune.ir.program import Buffer, Made, Store, Update, map_action, retarget, seq, starts, writes
from neptune.ir.reducers import REDUCERS
from neptune.schedule.definition import Axis, Definition, ReductionDef, define, whole_axis
from neptune.schedule.state import State, fresh_name, names_in_use


@dataclass(frozen=True)
class Split:
    """A split of an axis: its name in each stage that runs over it, the parts, and where each begins and ends."""

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
        begin, end = self.range
        axes = (replace(a, lo=begin, hi=end) if a.name == self.axis[name] else a for a in d.axes)
        return define((self.over_parts, *axes), action, d.when)

    @property
    def over_parts(self) -> Axis:
        """The axis that the parts are."""
        return whole_axis(self.part.name, self.parts)


def depends(state: State, name: str, on: list[str]) -> bool:
    """Return True if a stage reads, directly or through others, a result of one of these reductions."""
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
        self.names = names_in_use(original.program) | {s.part.name}
        # The local result of each reduction, by the buffer of the global one, and its stage by the global stage.
        self.local = {b: self.fresh(f"{b}_split") for n in plans for b in writes(original.definitions[n].action)}
        self.stages = {n: self.local[writes(original.definitions[n].action)[0]] for n in plans}
        # The accumulators of a vector, by number: of the whole and of the parts.
        self.whole, self.parts = dict[str, dict[int, str]](), dict[str, dict[int, str]]()
        for name in (n for n, p in plans.items() if p.repair.means):
            self._name_vector(name)
        # What is rolled reads these as finite numbers, and so does what is computed per element for it.
        self.infinite = {b: r for p in plans.values() for b, r in p.infinite.items() if b not in p.clamped}
        # What is computed per element has a form for the parts beside the one that others read.
        self.element: dict[str, str] = {}
        for name in (n for n in s.axis if n not in plans):
            shared = self._read_outside(name)
            for b in writes(original.definitions[name].action):
                self.element[b] = self.fresh(f"{b}_split") if shared else b
            self.stages[name] = self.element[writes(original.definitions[name].action)[0]] if shared else name
        self.made = {
            self.stages[n]: Made("part" if n in plans else "element", n) for n in s.axis if self.stages[n] != n
        }

    def _name_vector(self, name: str) -> None:
        (buffer,) = writes(self.original.definitions[name].action)
        numbers = range(len(self.plans[name].repair.slots))
        whole = {k: self.fresh(f"{buffer}_{k or 'acc'}") for k in numbers}
        self.parts[name] = {k: self.local[buffer] if k == 0 else self.fresh(f"{whole[k]}_split") for k in numbers}
        self.whole[name] = whole

    def _read_outside(self, name: str) -> bool:
        """Return True if anything but the parts reads it: a caller, a stage without the axis, or one so read itself."""
        buffers = writes(self.original.definitions[name].action)
        readers = {r for b in buffers for r in self.original.readers(b)} - set(self.plans)
        outside = any(self.original.is_output(b) for b in buffers) or not readers <= set(self.s.axis)
        return outside or any(self._read_outside(r) for r in readers)

    def fresh(self, wish: str) -> str:
        name = fresh_name(self.names, wish)
        self.names.add(name)
        return name

    def state(self) -> State:
        """Local stages where they were, then the global folds, then what reads their results."""
        definitions = self.original.definitions
        late = [n for n in definitions if n not in self.plans and depends(self.original, n, list(self.plans))]
        fresh: dict[str, Definition] = {}
        for name, d in definitions.items():
            if name in self.plans:
                fresh |= self.of_parts(name, self.original.reduction(name))
            elif name in self.s.axis:
                fresh[self.stages[name]] = self.per_element(name, d)
                fresh |= {name: d} if self.stages[name] != name and name not in late else {}
            elif name not in late:
                fresh[name] = d
        for name in self.plans:
            fresh |= self.of_whole(name, self.original.reduction(name))
        fresh |= {n: definitions[n] for n in late if n not in self.s.axis or self.stages[n] != n}
        fresh = _alive(fresh, {b.name for b in self.original.program.outputs})
        for name, parts in self.parts.items():
            # Folds that nothing reads have no stage that this would be the part of.
            gone = [buffer for k, buffer in parts.items() if k > 0 and self.whole[name][k] not in fresh]
            self.made |= dict.fromkeys(gone, Made("moment", parts[0]))
        used = {b for d in fresh.values() for b in writes(d.action)}
        program = replace(
            self.original.program,
            body=seq(*(d.nest(n, self.made.get(n)) for n, d in fresh.items())),
            temporaries=tuple(b for n, b in self.temporaries.items() if n in used),
        )
        axes = {n: {a: Var(a) for a in d.names} for n, d in fresh.items()}
        return State(program, fresh, axes)

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
        own = d if name in self.original.reductions else replace(d, action=map_action(d.action, self._finite))
        action = retarget(map_action(own.action, self.value), self.element)
        return self.s.over_part(name, d, replace(action, index=index))

    def _finite(self, e: Expr) -> Expr:
        """Return `e` with rolled accumulators read as finite numbers."""
        return bounded(e, self.infinite)

    def fold(self, name: str) -> tuple[Update, tuple[str, ...]]:
        """Return the fold of a reduction, without what is applied to the whole at the end, and its dtypes."""
        repair, action = self.plans[name].repair, self.original.reduction(name).action
        dtypes = tuple(self.declared[b].dtype for b in action.buffers)
        if not repair.deferred and not repair.means:
            return action, dtypes
        alone, k = repair.slots[0], REDUCERS[action.reducer].elements
        action = folding(replace(action, values=(alone.value, *action.values[1:])), alone)
        return action, (*[alone.dtype] * k, *dtypes[k:])

    def of_parts(self, name: str, d: ReductionDef) -> dict[str, Definition]:
        """The local folds of a reduction: one for each accumulator, the target's own first."""
        repair, (action, dtypes) = self.plans[name].repair, self.fold(name)
        local = tuple(self.local[b] for b in action.buffers)
        for b, buffer, dtype in zip(action.buffers, local, dtypes, strict=True):
            self.part_of(b, buffer, dtype)
        # The values of a repair, which are folded where something is deferred, say so themselves.
        infinite = {} if repair.deferred or repair.means else self.infinite
        means: dict[Expr, Expr] = {m.load: self.mean(m, d) for m in repair.means}
        index = (self.s.part, *action.index)

        def over(values: Iterable[Expr]) -> tuple[Expr, ...]:
            return tuple(self.value(bounded(rewrite(v, means.get), infinite)) for v in values)

        # What is rolled absorbs the finite identity turned into 0, as is proved; of -inf times 0 it would be NaN.
        start = REDUCERS[action.reducer].identity(*dtypes) if repair.rolled else start_of_part(action, dtypes)
        fresh = replace(action, buffers=local, index=index, values=over(action.values), init=start)
        folds = {self.stages[name]: self.s.over_part(name, d, fresh)}
        for k, s in list(enumerate(repair.slots))[1:]:
            buffer = self.parts[name][k]
            self.part_of(action.buffers[0], buffer, s.dtype)
            fresh = Update((buffer,), index, s.fold, over([s.value]), REDUCERS[s.fold].identity(s.dtype))
            folds[buffer] = self.s.over_part(name, d, fresh)
        return folds

    def mean(self, m: Mean, d: ReductionDef) -> Expr:
        """ρ_z, over the results of the whole: those of the part are to be put in their place."""
        begin, end = self.s.range
        every = count(d)
        assert every is not None
        return substitute(m.running, {COUNT.name: maximum(binary("sub", end, begin), 1), ALL.name: every})

    def value(self, e: Expr) -> Expr:
        """An expression for one part: its local results, and what is per element, in place of the whole."""

        def fix(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.buffer not in {*self.local, *self.element}:
                return None
            index = (self.s.part, *(rewrite(i, fix) for i in x.index))
            return Load((self.local | self.element)[x.buffer], index, x.dtype)

        return rewrite(e, fix)

    # --- over the whole ---

    def of_whole(self, name: str, d: ReductionDef) -> dict[str, Definition]:
        """The global folds of a reduction, and behind them what comes of their accumulators."""
        p, (action, dtypes) = self.plans[name], self.fold(name)
        over = (*d.spatial, self.s.over_parts)
        values: tuple[Expr, ...] = tuple(
            self._of_part(b, action.index, t) for b, t in zip(action.buffers, dtypes, strict=True)
        )
        values = (self.moved(p, d, 0, values[0]), *values[1:])
        if not p.repair.deferred and not p.repair.means:
            return {name: define(over, replace(action, values=values))}
        buffers = list(action.buffers)
        for k in range(len(d.elements)):
            buffers[k] = self.whole[name][0] if p.repair.means else self.fresh(f"{buffers[k]}_acc")
            self.temporaries[buffers[k]] = Buffer(buffers[k], self.declared[action.buffers[k]].shape, dtypes[k])
        start = start_of_part(action, dtypes)
        folds = {name: define(over, replace(action, buffers=tuple(buffers), values=values, init=start))}
        further: dict[int, Load] = {}
        for k, s in list(enumerate(p.repair.slots))[1:]:
            buffer = self.whole[name][k]
            self.temporaries[buffer] = Buffer(buffer, self.declared[action.buffers[0]].shape, s.dtype)
            value = self.moved(p, d, k, Load(self.parts[name][k], (self.s.part, *action.index), s.dtype))
            fold = Update((buffer,), action.index, s.fold, (value,), REDUCERS[s.fold].identity(s.dtype))
            folds[buffer] = define(over, fold)
            self.made |= {buffer: Made("moment", name), self.parts[name][k]: Made("part", buffer)}
            further[k] = Load(buffer, action.index, s.dtype)
        for k in range(len(d.elements)):
            whole = finished(p, {**further, 0: Load(buffers[k], action.index, dtypes[k])}, d, k)
            if p.repair.slots[0].start is None:
                whole = self.started(d, whole)
            folds[self.final(name, k)] = define(d.spatial, Store(action.buffers[k], action.index, whole))
        return folds

    def moved(self, p: Plan, d: ReductionDef, k: int, alone: Expr) -> Expr:
        """An accumulator of a part, by its step from the r and the means of the part to those of the whole."""
        step, begin, end = p.repair.slots[k].step, *self.s.range
        if step is None:
            return alone
        action = d.action
        env: dict[str, Expr] = {slot(k, "").name: alone, FOLDED.name: maximum(binary("sub", end, begin), 0)}
        for i, s in enumerate(p.repair.slots):
            if i != k:
                env[slot(i, "").name] = Load(self.parts[p.target][i], (self.s.part, *action.index), s.dtype)
        for i, m in enumerate(p.repair.means):
            of_part = self.value(self.mean(m, d))
            env[change(i, "").name] = binary("sub", cast(m.value, p.query.dtype), cast(of_part, p.query.dtype))
        local = {previous(Load(b, (), "")).buffer: b for b in self.local}

        def before(x: Expr) -> Expr | None:
            return (
                self._of_part(local[x.buffer], x.index, x.dtype) if isinstance(x, Load) and x.buffer in local else None
            )

        return substitute(rewrite(step, before), env)

    def _of_part(self, buffer: str, index: tuple[Expr, ...], dtype: str) -> Load:
        """The result of a part in place of that of the whole."""
        return Load(self.local[buffer], (self.s.part, *index), dtype)

    def final(self, name: str, k: int = 0) -> str:
        """The stage behind the global fold of a reduction, for the part `k` of its result."""
        stage = self.fresh(f"{name}_final{k or ''}")
        self.made[stage] = Made("final", name)
        return stage

    def started(self, d: ReductionDef, e: Expr) -> Expr:
        """Return the start of a reduction of single values with `e` folded in."""
        ((start,), row) = starts(d.action), REDUCERS[d.action.reducer]
        return e if (start,) == row.identity(e.dtype) else binary(row.op, start, e)


def start_of_part(action: Update, dtypes: Iterable[str]) -> tuple[Expr, ...]:
    """Return the start of each part: nothing folded; the start of the whole is folded in once, by the global fold."""
    row = REDUCERS[action.reducer]
    identity = row.identity(*dtypes)
    if action.init == identity or action.reducer not in START or not is_float(identity[0].dtype):
        return identity
    # From anything but the finite extreme, the whole of nothing but infinities may be one.
    return (REDUCERS[action.reducer].nothing(identity[0].dtype),)


def _alive(definitions: dict[str, Definition], outputs: Iterable[str]) -> dict[str, Definition]:
    """Without stages that nothing reads: maps that were inlined into what is folded."""
    while True:
        read = {x.buffer for d in definitions.values() for x in d.reads()} | set(outputs)
        alive = {n: d for n, d in definitions.items() if read.intersection(writes(d.action))}
        if len(alive) == len(definitions):
            return definitions
        definitions = alive
