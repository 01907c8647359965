"""From solved masks to the ranges of iterations that are visited, none twice.

    causal, window                    [lo, hi), clean on [begin, end)
    j < 4 or i - j < w, causal        [0, cdiv(4, BN)) and [max(lo, cdiv(4, BN)), hi)

The alternatives of all masks are multiplied out. Those that start where the loop does make up one range, those that
end where it does another, those between the two a third: the hull of them, which may visit more than is needed.
What one range has visited the next one leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod

from neptune.ir.expr import TRUE, Const, Expr, Op, loads, maximum, minimum
from neptune.ir.program import ZERO, For
from neptune.schedule.solve_bounds import MOST, Bound, Solved

SHORT = 16
"""No tile of a matrix product is shorter: fewer elements have no clean tiles, and code for them would be idle."""


@dataclass(frozen=True)
class Range:
    """Iterations [lo, hi) to visit. All predicates hold between the largest of `begins` and the least of `ends`
    (None: nowhere) within the range; `facts` are known there. `cut`: `hi` ends them where none of `ends` does."""

    lo: Expr
    hi: Expr
    begins: tuple[Expr, ...] | None
    ends: tuple[Expr, ...] | None
    facts: tuple[Expr, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class _Set:
    """One combination of alternatives: its bounds, and which of them let iterations be skipped."""

    bounds: tuple[Bound, ...]
    skipping: tuple[Bound, ...]
    open: bool

    def side(self, *, upper: bool, skipping: bool = False) -> tuple[Bound, ...]:
        return tuple(b for b in (self.skipping if skipping else self.bounds) if b.upper == upper)


def usable(solved: Sequence[Solved]) -> list[Solved]:
    """Without those predicates, the most complicated first, that make too many alternatives together."""
    remaining = list(solved)
    while prod(len(s.alternatives) for s in remaining) > MOST:
        remaining.remove(max(remaining, key=lambda s: len(s.alternatives)))
    return remaining


def ranges(solved: Sequence[Solved], loop: For) -> list[Range]:
    """Return the ranges that must be visited, in order and disjoint, for `usable` predicates."""
    sets = [
        _Set(
            tuple(b for a in chosen for b in a.bounds),
            tuple(b for a, s in zip(chosen, solved, strict=True) if s.skips for b in a.bounds),
            any(a.open for a in chosen),
        )
        for chosen in product(*(s.alternatives for s in solved))
    ]
    if len(sets) == 1 or any(not s.skipping for s in sets):
        everything = any(not s.skipping for s in sets)
        whole = _hull(sets, loop, everything)
        # Where data says that it starts behind the end it runs nothing, and no index there need fit its dtype.
        return [replace(whole, lo=minimum(whole.lo, loop.hi)) if loads(whole.lo) else whole]
    first = [s for s in sets if not s.side(upper=False, skipping=True)]
    last = [s for s in sets if s not in first and not s.side(upper=True, skipping=True)]
    middle = [s for s in sets if s not in first and s not in last]
    hulls = [_hull(group, loop) for group in (first, middle, last) if group]
    if first:
        hulls[1:] = [replace(r, lo=maximum(r.lo, hulls[0].hi)) for r in hulls[1:]]
    if middle and last:
        first_place = 1 if first else 0
        hulls[first_place] = replace(hulls[first_place], hi=minimum(hulls[first_place].hi, hulls[-1].lo))
    return hulls


def _hull(sets: Sequence[_Set], loop: For, everything: bool = False) -> Range:
    """One range around all of these sets (with `everything`, the whole loop)."""
    lo, hi = loop.lo, loop.hi
    if not everything:
        lo = reduce(minimum, [_start(s, loop) for s in sets])
        hi = reduce(maximum, [reduce(minimum, _somewhere(s, upper=True), loop.hi) for s in sets])
    clean = [s for s in sets if not s.open and not _idle(s)]
    if not clean:
        return Range(lo, hi, None, None)
    bounds, cut = clean[0].bounds, False
    if len(sets) == 1 and not everything:
        # What bounds the visited range anyhow cuts nothing off it.
        bounds = tuple(b for b in bounds if b not in clean[0].skipping or b.somewhere != b.everywhere)
        cut = any(b.upper for b in set(clean[0].bounds) - set(bounds))
    begins, ends = (tuple(dict.fromkeys(b.everywhere for b in bounds if b.upper == up)) for up in (False, True))
    facts = tuple(dict.fromkeys(b.fact for b in clean[0].bounds))
    if len(clean) > 1 and all(s.side(upper=False) == clean[0].side(upper=False) for s in clean):
        ends = (reduce(maximum, [reduce(minimum, [b.everywhere for b in s.side(upper=True)], loop.hi) for s in clean]),)
        facts = _common(clean)
    elif len(clean) > 1 and all(s.side(upper=True) == clean[0].side(upper=True) for s in clean):
        starts = [[b.everywhere for b in s.side(upper=False)] or [loop.lo] for s in clean]
        begins = (reduce(minimum, [reduce(maximum, alternatives) for alternatives in starts]),)
        facts = _common(clean)
    return Range(lo, hi, begins, ends, tuple(f for f in facts if f != TRUE), cut)


def _start(s: _Set, loop: For) -> Expr:
    # Every lower bound is at least 0, where most loops start.
    starts = _somewhere(s, upper=False)
    return reduce(maximum, starts if starts and loop.lo == ZERO else [loop.lo, *starts])


def _somewhere(s: _Set, *, upper: bool) -> list[Expr]:
    return [b.somewhere for b in s.side(upper=upper, skipping=True)]


def _common(sets: Sequence[_Set]) -> tuple[Expr, ...]:
    """The facts of bounds that all of the sets have."""
    return tuple(b.fact for b in dict.fromkeys(sets[0].bounds) if all(b in s.bounds for s in sets))


def _idle(s: _Set) -> bool:
    """True where a set is a few elements at the start."""
    tops = [b.everywhere.args[0] for b in s.side(upper=True) if isinstance(b.everywhere, Op)]
    return any(isinstance(t, Const) and t.value < SHORT for t in tops)
