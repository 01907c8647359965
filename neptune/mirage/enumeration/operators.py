"""What the operators of a kernel make of the values in it: types, forms and phases as tables.

A *problem* is one kernel to be found: tensors to load, targets, the loop and the axes split over the grid. A value is
(form, parts of axes that it varies over, phase), where the phase is *before* the loop (loop-invariant), *body* or
*behind* (reads an accumulator). Axes of the grid that nothing sums are not seen here: they change no form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from neptune.mirage.enumeration.abstract import ALL_BITS, GRID_BIT, Labels, apply, cut
from neptune.mirage.enumeration.algebra import Algebra, Written
from neptune.mirage.enumeration.composites import COMPOSITE, Chain
from neptune.mirage.enumeration.prunes import Features, Target
from neptune.mirage.ops import OPS

BEFORE, BODY, BEHIND = 0, 1, 2
UNARY = OPS["neg"]
PRUNES = frozenset({"expression", "duplicate", "unused"})
"""What a search leaves out, by names; docs/mirage.md says why and what is lost."""
Key: TypeAlias = tuple[int, int, int]
"""Form, parts of axes and phase of a value."""
Result: TypeAlias = tuple[int, Key, bool]
"""An operator by its number, what it makes, and whether its operands are swapped."""
Admitted: TypeAlias = tuple[tuple[tuple[int, int, bool], ...], int]
"""The operators with the values that may be part of a target, and how many others the expression has refused."""
Makers: TypeAlias = tuple[tuple[int, bool], ...]
"""Operators by their numbers, and whether their operands are swapped."""


class Operator(NamedTuple):
    """A row of `OPS` with its axis, its number or function, and the parts that a fold takes."""

    name: str
    axis: str = ""
    label: Any = None
    split: bool = False


class Known(NamedTuple):
    """A tensor in device memory or a target: its form as written, and the parts of axes that it varies over."""

    name: str
    form: Written
    free: int


@dataclass(frozen=True)
class Problem:
    """One kernel to be found. `labels` are (operator, number or function) of the reference; `outer` its outer maps.

    `outer` has the sets of axes of maps in the reference that have more axes than any of their operands.
    """

    axes: tuple[str, ...]
    loads: tuple[Known, ...]
    targets: tuple[Known, ...]
    loop: str | None
    splits: tuple[str, ...]
    operators: frozenset[str]
    labels: tuple[tuple[str, Any], ...] = ()
    outer: frozenset[tuple[str, ...]] = frozenset()
    prunes: frozenset[str] = PRUNES


class Table:
    """The values of one problem by number, and what operators make of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._by_expression = "expression" in problem.prunes
        self.algebra = Algebra()
        self.labels = Labels(self.algebra, problem.axes)
        self.cuts = [cut(a, problem.loop, problem.splits) for a in problem.axes]
        self.operators: list[Operator] = list(_operators(problem))
        self._binary = [(n, op) for n, op in enumerate(self.operators) if _reads_two(op)]
        self._ids: dict[Key, int] = {}
        self.form: list[int] = []
        self.free: list[int] = []
        self.phase: list[int] = []
        self.body: list[bool] = []
        self.features: list[int] = []
        self.is_target: list[bool] = []
        self.present: list[bool] = []
        self.pairs: list[dict[int, Admitted]] = []
        self._unary: list[Admitted | None] = []
        self._goal_unary: dict[int, Makers] = {}
        self._goal_pair: dict[tuple[int, int], Makers] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self._needs: dict[int, int] = {}
        self._wanted = [(Target(self.algebra, self.algebra.read(t.form)), t.free) for t in problem.targets]
        self.labels.symbols((1 << 3 * len(problem.axes)) - 1)
        chains = [op.label for op in self.operators if op.name == COMPOSITE]
        self._lacking = Features(self.algebra, [t.form for t, _ in self._wanted], problem.loop is not None, chains)
        self.in_loop = self._lacking.in_loop
        self.missing = self._lacking.missing
        phase = BEHIND if problem.loop else BEFORE
        self.targets = [self.value(t.form, free, phase) for t, free in self._wanted]
        for v in self.targets:
            self.is_target[v] = True
        self.goal = self.targets[0] if len(self.targets) == 1 else -1
        self.loads = [self._loaded(x) for x in problem.loads]
        # What has an atom that the targets lack is part of none.
        self.algebra.closed = self._by_expression

    def made(self) -> range:
        return range(len(self.form))

    def value(self, form: int, free: int, phase: int) -> int:
        key = (form, free, phase)
        v = self._ids.setdefault(key, len(self.form))
        if v == len(self.form):
            self.form.append(form)
            self.free.append(free)
            self.phase.append(phase)
            self.body.append(phase == BODY)
            self.features.append(self._lacking.of(form) | (self.in_loop if phase == BEHIND else 0))
            self.is_target.append(False)
            self.present.append(False)
            self.pairs.append({})
            self._unary.append(None)
        return v

    def _loaded(self, x: Known) -> int:
        # A dimension that a split has left is there whole in every program.
        return self.value(self.algebra.read(x.form), x.free, BODY if self._in_loop(x.free) else BEFORE)

    def _in_loop(self, free: int) -> bool:
        return any(c.loop and free >> 3 * n & c.loop for n, c in enumerate(self.cuts))

    # -- what operators make

    def unary(self, v: int) -> Admitted:
        """What one operator makes of v."""
        known = self._unary[v]
        if known is None:
            known = self._unary[v] = self._sifted(self._ones(v))
        return known

    def pair(self, v: int, u: int) -> Admitted:
        """What one operator makes of v and u."""
        known = self.pairs[v][u] = self._sifted(self._twos(v, u))
        return known

    def _sifted(self, results: Iterable[Result]) -> Admitted:
        admitted, refused = [], 0
        for op, key, swapped in results:
            value = self._admitted(op, key)
            if value >= 0:
                admitted.append((op, value, swapped))
            else:
                refused += 1
        return tuple(admitted), refused

    def goal_unary(self, v: int) -> Makers:
        """The operators that make the only target of v."""
        if v not in self._goal_unary:
            self._goal_unary[v] = self._makers(self._ones(v))
        return self._goal_unary[v]

    def goal_pair(self, v: int, u: int) -> Makers:
        """The operators that make the only target of v and u."""
        if (v, u) not in self._goal_pair:
            self._goal_pair[v, u] = self._makers(self._twos(v, u))
        return self._goal_pair[v, u]

    def _makers(self, results: Iterable[Result]) -> Makers:
        goal = self._key(self.goal)
        return tuple((op, swapped) for op, key, swapped in results if key == goal)

    def _key(self, v: int) -> Key:
        return self.form[v], self.free[v], self.phase[v]

    def _admitted(self, op: int, key: Key) -> int:
        """The number of a value that may be part of a target, or -1."""
        form, free, phase = key
        if form < 0:
            return -1
        known = self._ids.get(key, -1)
        if self.operators[op].name in ("scale", "neg") and not any(t.closes(form) for t, _ in self._wanted):
            return -1
        if known >= 0:
            return known
        if self._by_expression and not any(t.has(form, self._need(free & ~out)) for t, out in self._wanted):
            return -1
        return self.value(form, free, phase)

    def _need(self, bits: int) -> int:
        known = self._needs.get(bits)
        if known is None:
            known = self._needs[bits] = self.labels.symbols(bits)
        return known

    def _ones(self, v: int) -> Iterator[Result]:
        """Operators on v, and what they make: a form of -1 has what no target has."""
        form, free, phase = self._key(v)
        for n, op in enumerate(self.operators):
            if op.name == COMPOSITE:
                end = self._composite(op.label, (form, free, phase))
                if end is not None:
                    yield n, end[0], False
                continue
            row = OPS[op.name]
            if row.kind == "map":
                if row.arity == 1 or (row.arity < 0 and op.label[1] == 1):
                    yield n, (self._apply(op, (form,)), free, phase), False
                continue
            if row.arity != 1:
                continue
            taken = self._taken(op, free, phase)
            if taken:
                behind = BEHIND if row.kind == "accumulate" else phase
                yield n, (self._apply(op, (form,), taken), free & ~taken, behind), False

    def expanded(self, number: int, v: int) -> list[Operator]:
        """The plain operators of a composite on v, one after another."""
        end = self._composite(self.operators[number].label, self._key(v))
        assert end is not None
        return end[1]

    def _composite(self, chain: Chain, start: Key) -> tuple[Key, list[Operator]] | None:
        """What a composite makes, and of what operators; None where it is not legal."""
        form, free, phase = start
        plain: list[Operator] = []
        for link in chain.links:
            op = Operator(link.op, link.axis, link.constant)
            taken = 0
            if link.axis:
                inner = self._taken(op, free, phase)
                if not inner and link.op == "sum" and "acc_sum" in self.problem.operators:
                    op = Operator("acc_sum", link.axis)
                    inner = self._taken(op, free, phase)
                if not inner:
                    return None
                taken = inner
            form = self._apply(op, (form,), taken) if form >= 0 else form
            free &= ~taken
            phase = BEHIND if op.name == "acc_sum" else phase
            plain.append(op)
        if chain.end:
            joint = self._joint(start[1], free)
            if joint < 0 or {start[2], phase} == {BODY, BEHIND}:
                return None
            op = Operator(chain.end)
            operands = (form, start[0]) if chain.swapped else (start[0], form)
            form, free, phase = self._apply(op, operands) if form >= 0 else form, joint, max(phase, start[2])
            plain.append(op)
        return (form, free, phase), plain

    def _apply(self, op: Operator, forms: tuple[int, ...], taken: int = 0) -> int:
        return apply(self.algebra, op.name, forms, self._need(taken), op.label)

    def _taken(self, op: Operator, free: int, phase: int) -> int:
        """The parts of axes that a fold or an accumulator takes away; 0 where it is not legal, or never needed."""
        position = self.problem.axes.index(op.axis)
        c, has = self.cuts[position], free >> 3 * position & ALL_BITS
        tile = has & c.tile == c.tile
        if op.split:
            return GRID_BIT << 3 * position if has == GRID_BIT and not c.grid else 0
        if OPS[op.name].kind == "accumulate":
            if phase != BODY or not has & c.loop:
                return 0
            # An accumulator takes what the tile has left of its axis: acc(sum(x)) is acc_sum(x).
            if op.name == "acc_sum":
                return (c.loop | c.tile) << 3 * position if tile else 0
            return 0 if has & c.tile else c.loop << 3 * position
        if not tile or (op.name == "sum" and has & c.loop and "acc_sum" in self.problem.operators):
            return 0
        return c.tile << 3 * position

    def _twos(self, v: int, u: int) -> Iterator[Result]:
        form, free, phase = self._key(v)
        other, other_free, their_phase = self._key(u)
        if phase + their_phase == BODY + BEHIND and phase != their_phase:
            return
        joint = self._joint(free, other_free)
        if joint < 0:
            return
        phase = max(phase, their_phase)
        nested = joint in (free, other_free) or self.labels.names(joint) in self.problem.outer
        for n, op in self._binary:
            if op.name == "matmul":
                taken = self._contracted(op, free, other_free)
                if taken:
                    yield n, (self._apply(op, (form, other), taken), joint & ~taken, phase), False
            elif nested:
                yield n, (self._apply(op, (form, other)), joint, phase), False
                if not OPS[op.name].commutes:
                    yield n, (self._apply(op, (other, form)), joint, phase), True

    def _contracted(self, op: Operator, free: int, other_free: int) -> int:
        """The tile part of an axis that a product sums; each operand has an axis that the other lacks."""
        position = self.problem.axes.index(op.axis)
        tile = self.cuts[position].tile << 3 * position
        if free & tile != tile or other_free & tile != tile or self.labels.names(free) == self.labels.names(other_free):
            return 0
        return tile

    def _joint(self, free: int, other_free: int) -> int:
        """The parts of a map of two values, or -1 where one lacks what the other has of a shared axis."""
        known = self._joined.get((free, other_free))
        if known is None:
            known = free | other_free
            for n, c in enumerate(self.cuts):
                x, y = free >> 3 * n & ALL_BITS, other_free >> 3 * n & ALL_BITS
                if x and y and x != y and not _agree(x, y, c.tile, c.loop, c.grid):
                    known = -1
                    break
            self._joined[free, other_free] = known
        return known


def _reads_two(op: Operator) -> bool:
    """True for a product and for a map of two values."""
    row = OPS.get(op.name, UNARY)
    return op.name == "matmul" or (row.kind == "map" and (row.arity == 2 or (row.arity < 0 and op.label[1] == 2)))


def _agree(x: int, y: int, tile: int, loop: int, grid: int) -> bool:
    """As `types.agree`: one has fewer parts, and no tile part. Parts that this kernel does not have agree with none."""
    small = x & y
    return small in (x, y) and not small & tile and small in (loop, grid, loop | grid)


def _operators(problem: Problem) -> Iterator[Operator]:
    """The operators of a problem, in the order in which they are tried."""
    for row in OPS.values():
        if row.name not in problem.operators or row.name in ("cast", "acc_rescaled"):
            continue
        if row.constant or row.arity < 0:
            yield from (Operator(row.name, label=label) for op, label in problem.labels if op == row.name)
        elif row.kind == "map":
            yield Operator(row.name)
        elif row.kind == "accumulate":
            if problem.loop:
                yield Operator(row.name, problem.loop)
        else:
            for n, axis in enumerate(problem.axes):
                yield Operator(row.name, axis)
                if row.name in ("sum", "max") and any(x.free >> 3 * n & ALL_BITS == GRID_BIT for x in problem.loads):
                    yield Operator(row.name, axis, split=True)
    for name, label in problem.labels:
        if name == COMPOSITE and {*(x.op for x in label.links), label.end or "sum"} <= problem.operators:
            yield Operator(COMPOSITE, label=label)
