"""All kernels of a given number of operators that compute given forms: the loop that the search spends its time in.

    loads x, w; target Σk(x·w) / √Σk(x·x); loop over k; 8 operators
        →  matmul acc sqr acc_sum sqrt div …, each as (operator, positions of its operands)

Tensors are numbered in the order in which they are added, a value (form, type, phase) is an integer, and what an
operator makes of two values is looked up in a table that fills as it is asked. Each graph is made once, operators in
the order of (last operand, other operand, operator): an operator may follow another only if it ranks behind it, so a
state is the set of what it holds. The prunes, and what is proved of them: docs/mirage.md, "The search".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from neptune.mirage.enumeration.composites import COMPOSITE
from neptune.mirage.enumeration.operators import Operator, Problem, Table
from neptune.mirage.ops import OPS

Step: TypeAlias = tuple[Operator, tuple[int, ...]]
"""An operator and the positions of its operands; positions count the loads first."""
Candidate: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""What may come next: its value, its operands as bits, its operator's number, its operands."""


@dataclass(frozen=True)
class Solution:
    """The operators of a kernel behind its loads, and where the targets are."""

    steps: tuple[Step, ...]
    targets: tuple[int, ...]


@dataclass
class Counts:
    """What a search did. `prunes` counts by kind what was not followed."""

    states: int = 0
    tries: int = 0
    prunes: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        self.states += other.states
        self.tries += other.tries
        for kind, n in other.prunes.items():
            self.prunes[kind] = self.prunes.get(kind, 0) + n


class Enumerator:
    """The kernels of one problem. Its tables serve every depth and share."""

    def __init__(self, problem: Problem) -> None:
        self.table = Table(problem)
        self.counts = Counts()
        self.deadline: float | None = None

    def prefixes(self, depth: int, length: int) -> tuple[list[tuple[int, ...]], bool]:
        """The first choices, by their places among the candidates: each path that leads to a state is a share.

        Also whether that is all of them, as in `solve`.
        """
        if depth < length + 3:
            return [()], True
        paths: list[tuple[int, ...]] = []
        run = _Run(self, depth)
        run.paths = paths
        run.path_length = length
        run.start(())
        return paths, not run.late

    def solve(self, depth: int, path: tuple[int, ...] = ()) -> tuple[list[Solution], bool]:
        """All kernels with exactly `depth` operators (loads not counted) that begin with the choices of `path`.

        Also whether that is all of them: where the deadline came first, those found until then.
        """
        run = _Run(self, depth)
        run.start(path)
        self.counts.add(run.counted())
        return run.found, not run.late


class _Run:
    """One depth-first walk. It is `late` where the deadline ended it."""

    def __init__(self, owner: Enumerator, depth: int) -> None:
        self.owner = owner
        self.table = owner.table
        self.unique, self.bounded = (x in self.table.problem.prunes for x in ("duplicate", "unused"))
        self.depth = depth
        self.found: list[Solution] = []
        self.chain: list[tuple[int, tuple[int, ...]]] = []
        self.values = list(self.table.loads)
        self.states = self.tries = self.duplicates = self.unused = self.refused = 0
        self.paths: list[tuple[int, ...]] | None = None
        self.path_length = 0
        self.ticks = 0
        self.late = False

    def counted(self) -> Counts:
        prunes = {"duplicate": self.duplicates, "unused": self.unused, "expression": self.refused}
        return Counts(self.states, self.tries, prunes)

    def start(self, path: tuple[int, ...]) -> None:
        t = self.table
        if self.unique and len(set(self.values)) < len(self.values):
            return
        for v in self.values:
            t.present[v] = True
        try:
            candidates: list[Candidate] = []
            features = 0
            unused = bodies = 0
            unmet = len(t.targets)
            for n, v in enumerate(self.values):
                candidates += self.new(n)
                features |= t.features[v]
                if v in t.targets:
                    unmet -= 1
                else:
                    unused |= 1 << n
                    bodies |= t.body[v] << n
            if self.depth > 0:
                self.go(self.depth, candidates, unused, bodies, features, unmet, path, ())
        finally:
            for v in t.made():
                t.present[v] = False

    def new(self, n: int) -> list[Candidate]:
        """What can be made of tensor n and those before it, in the order of rank."""
        t = self.table
        values = self.values
        v = values[n]
        bit = 1 << n
        unary, refused = t.unary(v)
        out: list[Candidate] = [(r, bit, op, (n,)) for op, r, _ in unary]
        row = t.pairs[v]
        for m in range(n):
            u = values[m]
            entry = row.get(u)
            if entry is None:
                entry = t.pair(v, u)
            pair, lost = entry
            refused += lost
            for op, r, swapped in pair:
                out.append((r, bit | 1 << m, op, (m, n) if swapped else (n, m)))
        self.refused += refused
        self.tries += refused
        return out

    def go(
        self,
        left: int,
        candidates: list[Candidate],
        unused: int,
        bodies: int,
        features: int,
        unmet: int,
        path: tuple[int, ...],
        taken: tuple[int, ...],
    ) -> None:
        """Every way to add `left` operators, the next being one of the candidates.

        `unused` are the tensors that nothing reads and that are no targets, `bodies` those of them that vary in the
        loop, `unmet` the number of targets to come.
        """
        t = self.table
        self.ticks += 1
        if self.owner.deadline is not None and self.ticks & 63 == 0 and time.process_time() > self.owner.deadline:
            self.late = True
            return
        if self.paths is not None and len(taken) == self.path_length:
            self.paths.append(taken)
            return
        present, values, chain = t.present, self.values, self.chain
        goal = t.goal
        body, feats, wanted, missing, in_loop = t.body, t.features, t.is_target, t.missing, t.in_loop
        n = len(values)
        bit = 1 << n
        unique, bounded = self.unique, self.bounded
        rest = left - 1
        last = rest == 1 and goal >= 0
        for k, (v, read, op, operands) in enumerate(candidates):
            if path and k != path[0]:
                continue
            self.tries += 1
            if unique and present[v]:
                self.duplicates += 1
                continue
            still = unused & ~read
            still_bodies = bodies & ~read
            to_come = unmet
            if wanted[v]:
                if v == goal and rest:
                    continue
                to_come -= 1
            else:
                still |= bit
                if body[v]:
                    still_bodies |= bit
            have = features | feats[v]
            # Operators that do nothing else: those that bring what the target has and the state lacks.
            lone = missing[have] + (1 if in_loop and still_bodies and have & in_loop else 0)
            if bounded and (lone > rest or to_come > rest or still.bit_count() > rest - lone + to_come):
                self.unused += 1
                continue
            self.states += 1
            if not rest:
                if not to_come and not still:
                    self.finish((*chain, (op, operands)), (*values, v))
                continue
            values.append(v)
            chain.append((op, operands))
            if last:
                self.close(n, still & ~bit)
            else:
                held, present[v] = present[v], True
                self.go(
                    rest,
                    candidates[k + 1 :] + self.new(n),
                    still,
                    still_bodies,
                    have,
                    to_come,
                    path[1:],
                    (*taken, k) if self.paths is not None else taken,
                )
                present[v] = held
            chain.pop()
            values.pop()
            if self.late:
                return

    def close(self, n: int, others: int) -> None:
        """The last operator reads tensor n and all others that nothing reads: looked up, not tried one by one."""
        t = self.table
        values = self.values
        v = values[n]
        if not others:
            for op, _ in t.goal_unary(v):
                self.finish((*self.chain, (op, (n,))), (*values, t.goal))
            partners = range(n)
        elif others & (others - 1):
            return
        else:
            partners = range(others.bit_length() - 1, others.bit_length())
        for m in partners:
            self.tries += 1
            for op, swapped in t.goal_pair(v, values[m]):
                self.finish((*self.chain, (op, (m, n) if swapped else (n, m))), (*values, t.goal))

    def finish(self, chain: tuple[tuple[int, tuple[int, ...]], ...], values: tuple[int, ...]) -> None:
        """Write a kernel with plain operators, in the order of rank whatever composites it was found with."""
        t = self.table
        positions = list(range(len(t.loads)))
        steps: list[Step] = []

        def emit(op: Operator, operands: tuple[int, ...]) -> int:
            if OPS[op.name].commutes:
                operands = tuple(sorted(operands, reverse=True))
            if (op, operands) not in steps:
                steps.append((op, operands))
            return len(t.loads) + steps.index((op, operands))

        for number, operands in chain:
            op = t.operators[number]
            read = tuple(positions[m] for m in operands)
            if op.name != COMPOSITE:
                positions.append(emit(op, read))
                continue
            last = read[0]
            for link in t.expanded(number, values[operands[0]]):
                pair = (last, read[0]) if op.label.swapped else (read[0], last)
                last = emit(link, pair if OPS[link.name].arity == 2 else (last,))
            positions.append(last)
        self.found.append(ordered(steps, len(t.loads), tuple(positions[values.index(x)] for x in t.targets)))


def ordered(steps: Sequence[Step], loads: int, targets: tuple[int, ...]) -> Solution:
    """The same kernel with its operators in the order of rank: of those that can be next, the least.

    A rank is (last operand, other operand, operator).
    """
    place = {n: n for n in range(loads)}
    left = dict(enumerate(steps, loads))
    placed: list[Step] = []
    while left:
        ready = {n: (op, tuple(place[m] for m in r)) for n, (op, r) in left.items() if all(m in place for m in r)}
        n = min(ready, key=lambda n: (sorted(ready[n][1], reverse=True), ready[n][1], repr(ready[n][0])))
        place[n] = loads + len(placed)
        op, read = ready[n]
        placed.append((op, tuple(sorted(read, reverse=True)) if OPS[op.name].commutes else read))
        del left[n]
    return Solution(tuple(placed), tuple(place[n] for n in targets))
