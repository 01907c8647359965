"""reorder: permute the loops of a perfect nest.

`reorder(j, i)` before → after::

    for i in [0, m):          for j in [0, n):
      for j in [0, n):          for i in [0, m):
        s: …                      s: …

Every reducer here is associative and commutative, and one stage's iterations otherwise touch different
elements, so any order is legal within one perfect nest.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from neptune.errors import ScheduleError
from neptune.ir.expr import variables
from neptune.ir.program import For, Stmt
from neptune.schedule.state import Loop, State, replace_node


def reorder(state: State, refs: tuple[Loop, ...]) -> State:
    """Put the named loops in the given order, in the places they occupy now."""
    request = f"reorder({', '.join(r.var for r in refs)})"
    loops = [state.loop(r) for r in refs]
    if len({id(f) for f in loops}) != len(loops):
        raise ScheduleError(request, "a loop is named twice")
    path = list(state.loops(refs[0].stage))
    places = sorted(path.index(f) for f in loops)
    chain = path[places[0] : places[-1] + 1]
    for outer, inner in pairwise(chain):
        if outer.body is not inner:
            raise ScheduleError(
                request,
                f"loops `{outer.var}` and `{inner.var}` are not perfectly nested: other statements stand between",
                hint="reorder before you fuse stages into the nest",
            )
    order = iter(loops)
    fresh = [next(order) if f in loops else f for f in chain]
    seen: set[str] = set()
    for f in reversed(fresh):
        late = (variables(f.lo) | variables(f.hi)) & seen
        if late:
            raise ScheduleError(request, f"the range of `{f.var}` depends on `{', '.join(sorted(late))}`")
        seen.add(f.var)
    body: Stmt = chain[-1].body
    for f in reversed(fresh):
        body = replace(f, body=body)
    assert isinstance(body, For)
    return state.with_body(replace_node(state.program.body, chain[0], body))
