"""inline: compute a map stage where it is read.

`inline(e)` before → after::

    for i: e: t[i] = exp(x[i])            for i: y: y[i] = exp(x[i]) * 2
    for i: y: y[i] = t[i] * 2
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Expr, Load, Var, rewrite, substitute, variables
from neptune.ir.program import Store, map_exprs, stages, writes
from neptune.ir.text.printer import print_stage
from neptune.schedule.definition import Definition, MapDef
from neptune.schedule.state import State, reads


def inlined_stores(definition: Definition) -> dict[str, Store] | str:
    """A definition that can be inlined (a map over plain, distinct axes) by buffer, or why it cannot be."""
    if not isinstance(definition, MapDef):
        return "a reduction cannot be inlined: its value is complete only after its loops"
    action = definition.action
    names = [i.name for i in action.index if isinstance(i, Var)]
    if len(names) != len(action.index) or len(set(names)) != len(names):
        return "its index is not a plain list of its axes"
    if set(variables(action.value)) & set(definition.extents) - set(names):
        return "its value depends on an axis that its index does not have"
    return {action.buffer: action}


def inliner(name: str, definition: Definition) -> dict[str, Store]:
    """`inlined_stores`, for a stage that is to be inlined: ScheduleError where it cannot be."""
    stores = inlined_stores(definition)
    if isinstance(stores, str):
        raise ScheduleError(f"inline(`{name}`)", stores)
    return stores


def inline_loads(e: Expr, stores: dict[str, Store]) -> Expr:
    """Replace loads of the given buffers by the expressions stored there (indices substituted)."""

    def fn(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x.buffer not in stores:
            return None
        store = stores[x.buffer]
        index = tuple(inline_loads(i, stores) for i in x.index)
        env = {v.name: i for v, i in zip(store.index, index, strict=True) if isinstance(v, Var)}
        return inline_loads(substitute(store.value, env), stores)

    return rewrite(e, fn)


def _check_unchanged(state: State, name: str, buffer: str) -> None:
    """Check that no buffer the stage reads changes before its readers."""
    order = stages(state.program.body)
    first = next(k for k, s in enumerate(order) if s.name == name)
    last = max((k for k, s in enumerate(order) if any(x.buffer == buffer for x in reads(s))), default=first)
    sources = {x.buffer for s in order if s.name == name for x in reads(s)}
    for s in order[first + 1 : last + 1]:
        changed = sources & set(writes(s.action))
        if changed:
            raise ScheduleError(
                f"inline(`{name}`)",
                f"`{s.name}` changes `{min(changed)}`, which `{name}` reads, before `{buffer}` is read",
                where=print_stage(s),
            )


def inline(state: State, name: str) -> State:
    """Inline one map stage into all its readers and remove it."""
    _, stage = state.path(name)
    stores = inliner(name, state.definition(name))
    (buffer,) = stores
    if state.is_output(buffer):
        raise ScheduleError(f"inline(`{name}`)", f"`{buffer}` is an output", where=print_stage(stage))
    if state.definitions[name].when is not None:
        raise ScheduleError(f"inline(`{name}`)", "it is computed only where its guard holds", where=print_stage(stage))
    _check_unchanged(state, name, buffer)

    def inlined(e: Expr) -> Expr:
        return inline_loads(e, stores)

    definitions = {n: d.rewritten(inlined) for n, d in state.definitions.items()}
    body = map_exprs(state.program.body, inlined)
    return replace(state.with_body(body), definitions=definitions).drop_stage(name)
