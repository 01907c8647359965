"""Parts of sums about a mean: each part keeps a vector about its own mean, which the global folds move (Chan).

`split_k(j, …)` of the squares of x - s/n, before → after, with n_z the elements of part z::

    q[i] += (x[i, j] - s[i]/n)²      q_split[z, i]   += (x[i, j] - ρ_z)²                    ρ_z = s_split[z, i] / n_z
                                     q_1_split[z, i] += x[i, j] - ρ_z
                                     q_acc[i] += q_split[z, i] + δ·(q_1_split[z, i]·-2 + δ·n_z)     δ = s[i]/n - ρ_z
                                     q_1[i]   += q_1_split[z, i] - δ·n_z
                                     q[i] = …, moved by what rounding left the mean off

Whatever ρ_z is, a vector is moved from it to the mean of the whole by its update law and its linearity, proved as for a
rolling update (`fusion.prove_moments`). A part without elements has the mean 0, and 0 elements are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.fusion.emit_moments import moved_total
from neptune.fusion.plan import Plan, count
from neptune.fusion.roles import ALL, COUNT, FOLDED, Moments, Shift, moment, step
from neptune.ir.expr import Expr, Load, Select, binary, cast, maximum, rewrite, substitute, walk
from neptune.ir.program import Update
from neptune.ir.reducers import REDUCERS
from neptune.schedule.state import Definition


def unsuited(found: Moments) -> Expr | None:
    """A mean that a part may not have: all that it is divided by may be 0 there."""
    bad = (s.value for s in found.shifts if s.helpers or any(isinstance(x, Select) for x in walk(s.running)))
    return next(bad, None)


@dataclass(frozen=True)
class Vector:
    """The accumulators of one target. `local` and `whole`: buffers of the parts and of the whole, by number;
    `range`: the elements of a part; `of_part`: an expression over results of the whole, over those of the part."""

    plan: Plan
    found: Moments
    definition: Definition
    local: Mapping[int, str]
    whole: Mapping[int, str]
    part: Expr
    range: tuple[Expr, Expr]

    @property
    def dtype(self) -> str:
        return self.plan.query.dtype

    def mean(self, shift: Shift) -> Expr:
        """ρ_z, over the results of the whole: those of the part are to be put in their place."""
        begin, end = self.range
        elements = {COUNT.name: maximum(binary("sub", end, begin), 1), ALL.name: self.elements}
        return substitute(shift.running, elements)

    @property
    def elements(self) -> Expr:
        found = count(self.definition)
        assert found is not None
        return found

    def folded(self, k: int) -> Expr:
        """What a part folds into accumulator `k`."""
        means: dict[Expr, Expr] = {s.load: self.mean(s) for s in self.found.shifts}
        return rewrite(self.found.parts[k].value, means.get)

    def moved(self, k: int, of_part: Mapping[Expr, Expr]) -> Expr:
        """Accumulator `k` of a part about the mean of the whole. `of_part` gives ρ_z by its shift's load."""
        index = self.definition.action.index
        env: dict[str, Expr] = {
            moment(i, self.dtype).name: Load(b, (self.part, *index), self.dtype) for i, b in self.local.items()
        }
        for i, s in enumerate(self.found.shifts):
            env[step(i, self.dtype).name] = binary("sub", cast(s.value, self.dtype), cast(of_part[s.load], self.dtype))
        begin, end = self.range
        env[FOLDED.name] = maximum(binary("sub", end, begin), 0)
        repaired = self.found.parts[k].repaired
        return env[moment(k, self.dtype).name] if repaired is None else substitute(rewrite(repaired, of_part.get), env)

    def result(self) -> Expr:
        """What comes of the accumulators of the whole."""
        index = self.definition.action.index
        env: dict[str, Expr] = {moment(k, self.dtype).name: Load(b, index, self.dtype) for k, b in self.whole.items()}
        means: dict[Expr, Expr] = {s.load: s.value for s in self.found.shifts}
        total = rewrite(moved_total(self.found, self.dtype), means.get)
        return substitute(total, {**env, ALL.name: self.elements})

    def sum(self, buffer: str, index: tuple[Expr, ...], value: Expr) -> Update:
        """An accumulator, from nothing."""
        return Update((buffer,), index, "sum", (value,), REDUCERS["sum"].identity(self.dtype))


def kept(found: Moments) -> tuple[int, ...]:
    """The numbers of the accumulators, without multiples of the number of elements, which need none."""
    return tuple(k for k, part in enumerate(found.parts) if not part.counted)
