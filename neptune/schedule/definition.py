"""The definition of a stage by itself: a map or a reduction over its axes.

    e[i, j] = exp(x[i, j])    over i in [0, m), j in [0, n)      MapDef(axes, e[i, j] = …)
    l[i] += e[i, j]                                              ReductionDef(axes, l[i] += …)   terms (Term("l", …),)

A definition is a stage as the user wrote it, untouched by tiling and fusion. Only what changes the dataflow changes it:
`inline`, `cache_read`, `cache_write`, `pack`, `replicate`, `split_k`, and a repair, which folds something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from neptune.ir.expr import Const, Expr, Load, binary, loads, variables
from neptune.ir.program import ZERO, For, Made, Stage, Stmt, Store, Update, map_action, starts, wrap
from neptune.ir.reducers import REDUCERS


@dataclass(frozen=True)
class Axis:
    """An axis of a stage: it runs over [lo, hi) of the `extent` elements that its dimension has.

    The bounds may read axes before it, and tensors: part z of an axis is [z·C, min(z·C + C, n)) of n elements, a row
    of a sparse matrix [indptr[i], indptr[i + 1]).
    """

    name: str
    lo: Expr
    hi: Expr
    extent: Expr

    @property
    def whole(self) -> bool:
        """True where it runs over all of its dimension."""
        return (self.lo, self.hi) == (ZERO, self.extent)

    @property
    def length(self) -> Expr:
        """The number of elements that it runs over; it has none where this is not above 0."""
        return self.extent if self.whole else binary("sub", self.hi, self.lo)

    @property
    def choosing(self) -> frozenset[str]:
        """The variables that say which part of the dimension it runs over."""
        return frozenset() if self.whole else variables(self.lo) | variables(self.hi)


def whole_axis(name: str, extent: Expr) -> Axis:
    """The axis that runs over all of a dimension."""
    return Axis(name, ZERO, extent, extent)


@dataclass(frozen=True)
class Term:
    """One part of what a reduction folds: `value` into `buffer`, from `start` (None: a stage does that)."""

    buffer: str
    value: Expr
    start: Expr | None


@dataclass(frozen=True)
class Definition:
    """A stage as written: its axes (outermost first), the action over them, and its guard. See `define`."""

    axes: tuple[Axis, ...]
    action: Store | Update
    when: Expr | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its axes."""
        return tuple(a.name for a in self.axes)

    @property
    def extents(self) -> dict[str, Expr]:
        """The length of the dimension that each axis runs over."""
        return {a.name: a.extent for a in self.axes}

    @property
    def reduced(self) -> tuple[str, ...]:
        """The axes that it folds away."""
        return ()

    @property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes that it keeps."""
        return tuple(a for a in self.axes if a.name not in self.reduced)

    @cached_property
    def choosing(self) -> frozenset[str]:
        """The axes that say which part of another one is run over."""
        return frozenset[str]().union(*(a.choosing for a in self.axes)) & set(self.names)

    def axis(self, name: str) -> Axis:
        return next(a for a in self.axes if a.name == name)

    def rewritten(self, fn: Callable[[Expr], Expr]) -> Definition:
        """The definition with `fn` applied to every expression of its action and its guard."""
        return replace(self, action=map_action(self.action, fn), when=None if self.when is None else fn(self.when))

    def nest(self, name: str, provenance: Made | None = None) -> Stmt:
        """A stage of that name in loops over the axes."""
        stage = Stage(name, self.action, self.when, provenance)
        return wrap([For(a.name, a.lo, a.hi, stage) for a in self.axes], stage)

    def reads(self) -> list[Load]:
        """Every load of the value expressions, the init and the guard, indices included."""
        return list(self._loads)

    @cached_property
    def _loads(self) -> tuple[Load, ...]:
        guard = () if self.when is None else (self.when,)
        return tuple(x for e in (*self.action.values, *guard, *starts(self.action)) for x in loads(e))


@dataclass(frozen=True)
class MapDef(Definition):
    """A stage that computes each element of its result on its own."""

    action: Store


@dataclass(frozen=True)
class ReductionDef(Definition):
    """A stage that folds the elements of some axes with a reducer."""

    action: Update

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        spatial = {x for i in self.action.index for x in variables(i)}
        return tuple(n for n in self.names if n not in spatial)

    @property
    def identity(self) -> tuple[Const, ...]:
        """The values that its reducer starts from without an init."""
        return REDUCERS[self.action.reducer].identity(*(v.dtype for v in self.action.values))

    @property
    def terms(self) -> tuple[Term, ...]:
        """The parts of what it folds; of a choice first the values, then the indices that they were found at."""
        start = self.action.init or (None,) * len(self.action.buffers)
        return tuple(map(Term, self.action.buffers, self.action.values, start))

    @property
    def elements(self) -> tuple[Term, ...]:
        """The terms that are values, the others being the indices of those."""
        return self.terms[: REDUCERS[self.action.reducer].elements]

    @property
    def places(self) -> tuple[Term, ...]:
        """The terms that are the indices of a choice's elements."""
        return self.terms[len(self.elements) :]


def define(axes: tuple[Axis, ...], action: Store | Update, when: Expr | None = None) -> Definition:
    """The definition of a stage, as what it is.

    >>> from neptune.ir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> axes = (whole_axis("i", Var("m")), whole_axis("j", Var("n")))
    >>> define(axes, Update(("y",), (i,), "sum", (Load("x", (i, j), "float32"),), None)).reduced
    ('j',)
    """
    return MapDef(axes, action, when) if isinstance(action, Store) else ReductionDef(axes, action, when)
