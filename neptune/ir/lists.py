"""Updates of the k best that fold a sorted list, the result of another such update, rather than one element.

    a0[i], a1[i], b0[i], b1[i] top2= p0[z, i], p1[z, i], q0[z, i], q1[z, i]      where p0 … q1 are what a top2 made

Merging takes sorted lists, and nothing in an expression says that one is: it is what an update of the same reducer
left, as it is or copied part by part.
"""

from __future__ import annotations

from collections.abc import Iterator

from neptune.ir.expr import Load
from neptune.ir.program import Program, Store, Update, stages
from neptune.ir.reducers import REDUCERS


def folds_list(action: Store | Update) -> bool:
    """Return True if the folded values have the form of a list: every value a load, all at one place."""
    places = {x.index if isinstance(x, Load) else None for x in action.values}
    return len(action.values) > 2 and len(places) == 1 and None not in places


def check_lists(program: Program) -> Iterator[str]:
    """The updates that fold a list which no update of their reducer has made."""
    every = [(s, s.action) for s in stages(program.body)]
    folds = [a for s, a in every if s.folds]
    copied = {
        (x.buffer, b) for s, a in every if not s.folds for b in a.buffers for x in a.values if isinstance(x, Load)
    }
    for s, action in every:
        if s.folds and REDUCERS[action.reducer].best and folds_list(action):
            parts = tuple(x.buffer for x in action.values if isinstance(x, Load))
            if not any(u.reducer == action.reducer and _same(u.buffers, parts, copied) for u in folds):
                yield f"{', '.join(parts)}, which stage {s.name} merges, are no result of {action.reducer}"


def _same(written: tuple[str, ...], read: tuple[str, ...], copied: set[tuple[str, str]]) -> bool:
    """Return True if the parts that are read are those that were made, in their order, or copies of them."""
    return all(a == b or (a, b) in copied for a, b in zip(written, read, strict=True))
