"""Domains of values that the evaluator computes with: the protocol `Domain`, one implementation a file.

=====================  ==========================  ========================================================
domain                 values                      says
=====================  ==========================  ========================================================
`floats.Float64`       float64                     the numerical oracle
`floats.Rounded`       float64, rounded per node   what an unfused program would compute in its own dtypes
`field.FieldPair`      (a mod P, b mod Q)          equality up to what `max` is, exp a homomorphism
`rationals.Ordered…`   exact rationals             equality with the true `max`, exp a power of two
`degrees.Degrees`      degrees of quotients        what a Schwartz-Zippel bound needs
=====================  ==========================  ========================================================

Only floats belong to a domain: integers and bools are int64 and bool numpy arrays (or Python numbers) in
every one of them.  A domain's array type is its own; `parts` and `make` take it apart into numpy arrays of
one shape and put it together again, and everything structural (indexing, broadcasting, permuting) is done
on the parts.

A bound on the probability of a false accept is proved for the fragment of + - * / and constants only
(`degrees`); with exp, max, comparisons or opaque functions a check is n draws, no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from neptune.errors import Answer, Given, Unsupported
from neptune.ir.reducers import REDUCERS

Array: TypeAlias = npt.NDArray[Any]
# An array of some domain: float64 numpy for one, a tuple of residues for another.
Value: TypeAlias = Any


class EvaluationError(LookupError):
    """The program does what no program may: reads out of bounds, or lets undefined memory reach a result."""


class TooLarge(Unsupported):
    """An instance takes more work than a check may."""


Unevaluated: TypeAlias = EvaluationError | Unsupported
"""Why an evaluation has no results, where that is an answer and no error: what `evaluated` gives in their place."""
Results: TypeAlias = dict[str, Value]
"""The outputs of an evaluation, by name."""


def results_or_why(
    evaluation: Callable[Given, Answer], *args: Given.args, **options: Given.kwargs
) -> Answer | Unevaluated:
    """What an evaluation gives, or why there is nothing: a statement deep in the program finds that out."""
    try:
        return evaluation(*args, **options)
    except (EvaluationError, Unsupported) as why:
        return why.with_traceback(None)


def every(answers: Iterable[Results | Unevaluated]) -> list[Results] | Unevaluated:
    """The results of several evaluations, or why the first that has none has none."""
    values: list[Results] = []
    for results in answers:
        if isinstance(results, Unevaluated):
            return results
        values.append(results)
    return values


class Domain(Protocol):
    """The values of float expressions. Arrays broadcast like numpy's."""

    name: str

    def parts(self, v: Value) -> tuple[Array, ...]:
        """The numpy arrays, all of one shape, that make up `v`."""

    def make(self, parts: Sequence[Array]) -> Value:
        """The inverse of `parts`."""

    def undefined(self, shape: tuple[int, ...]) -> Value:
        """Poison: uninitialised memory."""

    def const(self, value: float, dtype: str) -> Value:
        """A literal, as an array of rank 0."""

    def lift(self, value: Any, dtype: str) -> Value:
        """An input: an array of the domain as it is, numbers converted. Never aliases writable memory."""

    def embed(self, value: Array, dtype: str) -> Value:
        """Integers or bools cast to a float dtype."""

    def truncate(self, v: Value, dtype: str) -> Array:
        """Floats cast to an integer dtype or to bool."""

    def cast(self, v: Value, dtype: str) -> Value:
        """One rounding to another float dtype."""

    def apply(self, name: str, args: Sequence[Value], dtype: str) -> Value:
        """An arithmetic, math or constant operator of OPS on floats."""

    def compare(self, name: str, a: Value, b: Value) -> Array:
        """A comparison operator of OPS on floats."""

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        """Reduce one axis of positive length with "sum", "prod", "max" or "min"."""

    def dot(self, a: Value, b: Value, dtype: str) -> Value:
        """The exact (or accumulated in `dtype`) matrix product of (x, k) and (k, y)."""

    def check(self, name: str, v: Value) -> None:
        """Raise EvaluationError or Unsupported where an output holds a poisoned element."""


class Model(Domain, Protocol):
    """A domain for exact checks: inputs can be drawn and results compared."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
        """Random inputs."""

    def differs(self, expected: Value, got: Value) -> Array:
        """Return a mask of wrong elements of `got`. Where `expected` is undefined (0/0), anything is right."""

    def known(self, v: Value) -> Array:
        """Return a mask of the elements of `v` that a comparison can fail on."""


FOLD_OPS = {row.name: row.op for row in REDUCERS.values() if row.op}


def tree_fold(
    combine: Callable[[tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]],
    values: tuple[Value, ...],
    axis: int,
    domain: Domain,
) -> tuple[Value, ...]:
    """Fold one axis of positive length by combining neighbours, so that the order is kept."""

    def take(v: Value, cut: slice) -> Value:
        def part(x: Array) -> Array:
            index: list[slice] = [slice(None)] * x.ndim
            index[axis] = cut
            return x[tuple(index)]

        if isinstance(v, np.ndarray):
            return part(v)
        return domain.make([part(x) for x in domain.parts(v)])

    def length(v: Value) -> int:
        first = v if isinstance(v, np.ndarray) else domain.parts(v)[0]
        return int(first.shape[axis])

    def join(a: Value, b: Value) -> Value:
        if isinstance(a, np.ndarray):
            return np.concatenate([a, b], axis)
        pairs = zip(domain.parts(a), domain.parts(b), strict=True)
        return domain.make([np.concatenate(pair, axis) for pair in pairs])

    while (n := length(values[0])) > 1:
        even = n - n % 2
        left = tuple(take(v, slice(0, even, 2)) for v in values)
        right = tuple(take(v, slice(1, even, 2)) for v in values)
        fresh = combine(left, right)
        if even != n:
            fresh = tuple(join(f, take(v, slice(even, n))) for f, v in zip(fresh, values, strict=True))
        values = fresh
    return tuple(squeeze(v, axis, domain) for v in values)


def some(x: Any) -> bool:
    """True where any element of an array is not 0: of few elements, as checks have, `any` takes four times as long."""
    return bool(np.count_nonzero(x))


def squeeze(v: Value, axis: int, domain: Domain) -> Value:
    """Drop an axis of length one."""
    if isinstance(v, np.ndarray):
        return v.squeeze(axis)
    return domain.make([x.squeeze(axis) for x in domain.parts(v)])


class Elementwise:
    """Folds and products for a domain that only knows elementwise operators."""

    def fold(self: Any, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        op = FOLD_OPS[reducer]
        (result,) = tree_fold(lambda a, b: (self.apply(op, (a[0], b[0]), dtype),), (v,), axis, self)
        return result

    def dot(self: Any, a: Value, b: Value, dtype: str) -> Value:
        left = self.make([x[:, :, None] for x in self.parts(a)])
        right = self.make([x[None, :, :] for x in self.parts(b)])
        return self.fold("sum", self.apply("mul", (left, right), dtype), 1, dtype)


def flagged_output(name: str, bad: Array, what: str) -> str:
    """The message for an output with a poisoned element."""
    where = ", ".join(str(int(i)) for i in np.argwhere(bad)[0]) if bad.ndim else ""
    return f"output {name}[{where}] {what}"
