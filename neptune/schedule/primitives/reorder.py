"""reorder: permute the loops of a perfect nest.

`reorder(j, i)` before → after::

    for i in [0, m):          for j in [0, n):
      for j in [0, n):          for i in [0, m):
        s: …                      s: …

Every reducer here is associative and commutative, and one stage's iterations otherwise touch different
elements, so any order is legal for a single stage. Where several stages share the nest, at most one of
the loops that move may hand values on from iteration to iteration.
"""

from __future__ import annotations

from itertools import pairwise

from neptune.errors import ScheduleError
from neptune.ir.expr import variables
from neptune.ir.program import For, stages, wrap, writes
from neptune.schedule.primitives.bind import is_independent
from neptune.schedule.state import Loop, State, reads, replace_node


def reorder(state: State, refs: tuple[Loop, ...]) -> State:
    """Put the named loops in the given order, in the places they occupy now."""
    request = f"reorder({', '.join(r.var for r in refs)})"
    if not refs:
        raise ScheduleError(request, "no loop is named")
    chain, loops = _chain(state, refs, request)
    order = iter(loops)
    fresh = [next(order) if any(f is x for x in loops) else f for f in chain]
    _check_ranges(fresh, request)
    _check_order(state, chain, fresh, request)
    return state.with_body(replace_node(state.program.body, chain[0], wrap(fresh, chain[-1].body)))


def _chain(state: State, refs: tuple[Loop, ...], request: str) -> tuple[list[For], list[For]]:
    """The perfect nest from the outermost to the innermost named loop, and the named loops."""
    loops = [state.loop(r) for r in refs]
    if len({id(f) for f in loops}) != len(loops):
        raise ScheduleError(request, "a loop is named twice")
    path = state.loops(refs[0].stage)
    foreign = next((f.var for f in loops if not any(f is x for x in path)), None)
    if foreign is not None:
        raise ScheduleError(
            request, f"loop `{foreign}` is not around stage `{refs[0].stage}`", legal=[f.var for f in path]
        )
    places = [k for k, f in enumerate(path) if any(f is x for x in loops)]
    chain = list(path[places[0] : places[-1] + 1])
    for outer, inner in pairwise(chain):
        if outer.body is not inner:
            raise ScheduleError(
                request,
                f"loops `{outer.var}` and `{inner.var}` are not perfectly nested: other statements stand between",
                hint="reorder before you fuse stages into the nest",
            )
    return chain, loops


def _check_ranges(fresh: list[For], request: str) -> None:
    seen: set[str] = set()
    for f in reversed(fresh):
        late = (variables(f.lo) | variables(f.hi)) & seen
        if late:
            raise ScheduleError(request, f"the range of `{f.var}` depends on `{', '.join(sorted(late))}`")
        seen.add(f.var)
    for outer, inner in pairwise(fresh):
        if outer.kind == "serial" and inner.kind != "serial":
            raise ScheduleError(
                request, f"`{inner.var}` is bound to {inner.kind}, and `{outer.var}` outside of it would run serially"
            )


def _check_order(state: State, chain: list[For], fresh: list[For], request: str) -> None:
    """One stage that reads nothing it writes may run in any order; several may not carry values over two loops."""
    body = stages(chain[-1])
    if len(body) == 1 and not set(writes(body[0].action)) & {x.buffer for x in reads(body[0])}:
        return
    moved = [f for f, new in zip(chain, fresh, strict=True) if f is not new]
    dependent = [f.var for f in moved if not is_independent(f, state.program)]
    if len(dependent) > 1:
        raise ScheduleError(
            request, f"the stages inside hand values on over both `{dependent[0]}` and `{dependent[1]}`, in this order"
        )
