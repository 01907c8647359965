"""Which dimensions of a program's stages and tensors are one axis.

    s[i, j] += q[i, d] * k[j, d];  l[i1] += s[i1, t]     →    i ~ i1 ~ dim 0 of q,  j ~ t ~ dim 0 of k,  d ~ dims 1

Two dimensions are one axis where one indexes the other. What a stage reads of another stage is joined first, then what
stages read of inputs. A join that would make two dimensions of one stage, or of one tensor, the same axis is not made:
the reader gets a *use* of its own, the stage once more over other axes, or the input as a second tensor (x[i, k] and
x[j, k] of x·xᵀ).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from neptune.ir.expr import Expr, Load, Var
from neptune.ir.names import fresh_name
from neptune.ir.program import Buffer
from neptune.schedule.definition import Definition

Dim: TypeAlias = tuple["Use", str]
"""A dimension of a use by name: an axis of a stage, the number of a dimension of an input."""


@dataclass(frozen=True)
class Use:
    """A stage, or an input where `stage` is empty, as some readers use it."""

    buffer: str
    stage: str
    number: int


Class: TypeAlias = dict[Use, str]
"""The dimensions that are one axis, at most one of each use."""


@dataclass
class Axes:
    """The uses of stages and inputs, and which of their dimensions are one axis.

    `sources` says of what use a load (its buffer and its indices) of a use is.
    """

    definitions: Mapping[str, Definition]
    writers: Mapping[str, str]
    inputs: Mapping[str, Buffer]
    uses: list[Use] = field(default_factory=list)
    sources: dict[tuple[Use, str, tuple[Expr, ...]], Use] = field(default_factory=dict)
    _of: dict[str, list[Use]] = field(default_factory=dict)
    _classes: dict[Dim, Class] = field(default_factory=dict)

    def read_all(self, outputs: Iterable[str]) -> None:
        """Find the uses behind these results, stages first and then inputs."""
        for buffer in outputs:
            if not self.uses_of(buffer):
                self._use(buffer)
        for use in self.uses:  # it grows while it is gone through
            self._read(use, self.writers)
        for use in list(self.uses):
            self._read(use, self.inputs)
        for buffer in self.inputs:
            if not self.uses_of(buffer):
                self._use(buffer)

    def uses_of(self, buffer: str) -> list[Use]:
        """The uses of a buffer, in the order that they were found in."""
        return self._of.get(buffer, [])

    def in_order(self) -> list[Use]:
        """The uses of stages, each behind those that it reads."""
        reads: dict[Use, list[Use]] = {}
        for (use, _, _), source in self.sources.items():
            reads.setdefault(use, []).append(source)
        ordered: dict[Use, None] = {}
        waiting = [use for use in reversed(self.uses) if use.stage]
        while waiting:
            use = waiting[-1]
            missing = [x for x in reads.get(use, ()) if x.stage and x not in ordered]
            if missing:
                waiting += reversed(missing)
            else:
                ordered[waiting.pop()] = None
        return list(ordered)

    def root(self, dim: Dim) -> Dim:
        """The dimension that stands for the axis of this one."""
        return next(iter(self._classes[dim].items()))

    def dims(self, use: Use) -> tuple[Dim, ...]:
        """The dimensions of a use in the order of its buffer."""
        if not use.stage:
            return tuple((use, str(k)) for k in range(len(self.inputs[use.buffer].shape)))
        index = self.definitions[use.stage].action.index
        return tuple((use, i.name) for i in index if isinstance(i, Var))

    def names(self, taken: Iterable[str]) -> dict[Dim, str]:
        """A name for each axis, by its root: that of the first stage's loop which is it, made one of its own."""
        labels: dict[Dim, str] = {}
        used = set(taken)
        for use in self.uses:
            for dim in self._every(use):
                if self.root(dim) not in labels:
                    labels[self.root(dim)] = fresh_name(used, dim[1] if use.stage else f"{use.buffer}{dim[1]}")
                    used.add(labels[self.root(dim)])
        return labels

    def _every(self, use: Use) -> tuple[Dim, ...]:
        """The dimensions of a use, of a stage those that it folds as well."""
        kept = self.dims(use)
        folded = self.definitions[use.stage].names if use.stage else ()
        return (*kept, *((use, a) for a in folded if (use, a) not in kept))

    def _use(self, buffer: str) -> Use:
        use = Use(buffer, self.writers.get(buffer, ""), len(self.uses_of(buffer)))
        self.uses.append(use)
        self._of.setdefault(buffer, []).append(use)
        self._classes |= {dim: {use: dim[1]} for dim in self._every(use)}
        return use

    def _read(self, use: Use, known: Mapping[str, object]) -> None:
        if not use.stage:
            return
        for load in self.definitions[use.stage].reads():
            if load.buffer in known and (use, load.buffer, load.index) not in self.sources:
                self.sources[use, load.buffer, load.index] = self._source(use, load)

    def _source(self, use: Use, load: Load) -> Use:
        """The use that a load reads: one that there is where its axes can be those, else another one."""
        own = [(use, i.name) for i in load.index if isinstance(i, Var)]
        for source in self.uses_of(load.buffer):
            if self._join(zip(own, self.dims(source), strict=True)):
                return source
        source = self._use(load.buffer)
        assert self._join(zip(own, self.dims(source), strict=True))
        return source

    def _join(self, pairs: Iterable[tuple[Dim, Dim]]) -> bool:
        """Make each pair one axis, unless that would make two dimensions of one use the same."""
        before: dict[Dim, Class] = {}
        for pair in pairs:
            a, b = (self._classes[dim] for dim in pair)
            if a is b:
                continue
            if any(a.get(use, axis) != axis for use, axis in b.items()):
                self._classes |= before
                return False
            both = a | b
            for dim in both.items():
                before.setdefault(dim, self._classes[dim])
                self._classes[dim] = both
        return True
