"""Defects put into the compiler, each of which the fuzzer must find: what is patched, and by what.

A row breaks one thing that soundness rests on: a rule of the solver, a check of the plan, what is emitted, how a loop
is cut, how a tile is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from neptune.fusion.repairs import factor, obligations, repair, strategies
from neptune.fusion.rewriting import plan, write
from neptune.ir.expr import Op, rewrite
from neptune.schedule.primitives import partition
from neptune.tile.stage import StageTranslator


@dataclass(frozen=True)
class Bug:
    """`make` turns what is at `name` in `where`, or in each of several, into its broken form.

    `first`: a seed near which it shows.
    """

    where: Any
    name: str
    make: Callable[[Any], Any]
    first: int = 0


def _deferring(solve: Any) -> Any:
    """Whatever was to be rolled is left out: as if everything could wait."""

    def broken(query: Any) -> Any:
        found = solve(query)
        return replace(found, slots=tuple(replace(s, step=None) for s in found.slots))

    return broken


def _upside_down(solve: Any) -> Any:
    """exp(r' - r) becomes exp(r - r'), behind the prover's back."""

    def turned(e: Any) -> Any:
        return Op("sub", e.args[::-1], e.dtype) if isinstance(e, Op) and e.name == "sub" else None

    def broken(query: Any) -> Any:
        found = solve(query)
        slots = (s if s.step is None else replace(s, step=rewrite(s.step, turned)) for s in found.slots)
        return replace(found, slots=tuple(slots))

    return broken


def _one_too_many(clean_range: Any) -> Any:
    """The clean piece runs one tile too far."""

    def broken(*args: Any) -> Any:
        begin, end = clean_range(*args)
        return [begin, end + 1]

    return broken


def _first(emitted: Any) -> Any:
    """An insertion that inserts nothing."""
    return lambda state, *_: state


BUGS: Mapping[str, Bug] = {
    "the solver always defers": Bug(plan, "solve", _deferring, 3014),
    "the factor is upside down": Bug(plan, "solve", _upside_down, 3014),
    "the rescale is dropped": Bug(write, "_steps", _first, 3014),
    "what was deferred is never applied": Bug(write, "_epilogue", _first, 3008),
    "what an accumulator starts from is not checked": Bug(plan, "_check_starts", lambda _: lambda *args: None, 3000),
    "every factor is thought positive": Bug(
        (strategies, obligations), "not_negative", lambda _: lambda *args: True, 3100
    ),
    "a predecessor at another place is let pass": Bug(repair, "_unfit", lambda _: lambda query: [], 3085),
    "the clean piece is a tile too long": Bug(partition, "_clean_range", _one_too_many, 3018),
    "every mask is thought to be absorbed": Bug(partition, "unchanged", lambda _: lambda *args: True, 3002),
    "what is folded is not masked": Bug(
        StageTranslator, "guarded", lambda _: lambda self, value, guards, reducer: self.expr(value, ()), 3010
    ),
}

NOT_BELIEVED = Bug(factor.Splitter, "involved", lambda _: lambda self, e: False, 3000)
"""A choice on r is thought to split: no kernel shows it, since the prover believes no solver."""


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """With the defect in place."""
    repair.solve.cache_clear()
    with ExitStack() as stack:
        for where in bug.where if isinstance(bug.where, tuple) else (bug.where,):
            stack.enter_context(mock.patch.object(where, bug.name, bug.make(getattr(where, bug.name))))
        yield
    repair.solve.cache_clear()
