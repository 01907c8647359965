"""write_directly: where an axis is folded in one part, what folds that writes the results itself.

`write_directly(z)` behind `split_k`, for softmax's row sums, before → after::

    for z grid.y: for i0 grid.x:                for z grid.y: for i0 grid.x:
      … m_split[z, i], l_split[z, i]              … m_split[z, i], l_split[z, i]
    for i grid.x:                                 if NUM_SPLITS == 1:
      for z: m: m[i] max= m_split[z, i]             lse_direct: lse[i] = m_split[z, i] + log(l_split[z, i])
      for z: l: l[i] += …                       for i grid.x:
      lse: lse[i] = m[i] + log(l[i])              if NUM_SPLITS != 1: …

A global fold over one part is what that part has folded: its factor h(t, r, r) = t is one of the repair's proofs. What
the whole starts from is taken in, unless it is nothing. So what follows the folds is computed from the part's own
results. The number of parts is tested on the device: one kernel and one captured graph serve every number. What the
others would have read is then not written either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.errors import FusionError, ScheduleError
from neptune.ir.expr import Expr, Load, Var, eq, loads, ne, rewrite, substitute
from neptune.ir.program import For, If, Made, Seq, Stmt, Store, for_loops, nests, paths, seq, stages, starts, writes
from neptune.ir.reducers import REDUCERS
from neptune.schedule.alignment import meetings
from neptune.schedule.definition import Axis, Definition, define, whole_axis
from neptune.schedule.primitives.fuse_at import fuse_definition
from neptune.schedule.primitives.inline import inliner
from neptune.schedule.state import Decision, Loop, State, fresh_name, names_in_use, replace_node


@dataclass(frozen=True)
class _Parts:
    """The loop over the parts in the kernel that folds them, and the local stage of each global fold's buffer."""

    request: str
    loop: For
    nest: Stmt
    host: str
    local: Mapping[str, str]

    @property
    def one(self) -> Expr:
        return eq(self.loop.hi, 1)


def write_directly(state: State, ref: Loop) -> State:
    """Let the kernel that folds the parts write the results where there is one part (see the module's text)."""
    p = _parts(state, ref)
    outputs = [b.name for b in state.program.outputs if _follows(state, p, b.name)]
    before = _inner(state, p).body
    for name in outputs:
        d = _definition(state, p, name)
        # In the expression's order: an output may be computed from others.
        stage = fresh_name(names_in_use(state.program), f"{name}_direct")
        inner = _inner(state, p)
        placed = fuse_definition(state, stage, d, Loop(p.host, inner.var), p.request, Made("direct", name))
        # Definitions are the user's: there the result has one stage, the other one.
        state = replace(state, program=placed.program)
    inner = _inner(state, p)
    count = len(before.stmts) if isinstance(before, Seq) else 1
    assert isinstance(inner.body, Seq)
    old, new = inner.body.stmts[:count], inner.body.stmts[count:]
    body = replace_node(state.program.body, inner, replace(inner, body=seq(*old, If(p.one, seq(*new)))))
    state = state.with_body(_skipped(state, p, body))
    what = f"{', '.join(outputs)} where {p.loop.var} has one iteration"
    return state.note(Decision("write_directly", p.host, "writes results", what))


def _parts(state: State, ref: Loop) -> _Parts:
    request = f"write_directly(`{ref.var}` of `{ref.stage}`)"
    loop = state.loop(ref)
    local = {
        b: mine
        for fold in state.definitions
        for part in _parts_of(state, fold)
        for b, mine in zip(*(writes(state.definitions[s].action) for s in (fold, part)), strict=True)
    }
    chosen = {s.name for s in state.program.scalars if s.upto is not None}
    host = next((part for fold in state.definitions for part in _parts_of(state, fold)), None)
    if (
        host is None
        or not any(f is loop for f in state.loops(host))
        or not isinstance(loop.hi, Var)
        or loop.hi.name not in chosen
    ):
        wrong = f"`{ref.var}` is no loop over parts whose number a launch chooses"
        raise ScheduleError(request, wrong, hint='split_k(loop, "NUM_SPLITS"), and bind the loop that it returns')
    nest = next(n for n in nests(state.program.body) if any(f is loop for f in _loops(n)))
    return _Parts(request, loop, nest, host, local)


def _parts_of(state: State, fold: str) -> list[str]:
    """The local stage of a global fold, in a list; none for other stages."""
    return [s for s in state.made("part", fold) if s in state.definitions]


def _loops(s: Stmt) -> list[For]:
    return [f for path, _ in paths(s) for f in for_loops(path)]


def _inner(state: State, p: _Parts) -> For:
    """The innermost grid loop around the local folds."""
    loops = state.loops(p.host)
    grid = [f for f in loops if f.kind != "serial"]
    if not grid or p.loop.var not in {f.var for f in grid}:
        raise ScheduleError(p.request, f"`{p.loop.var}` is not spread over the grid", hint="bind it first")
    return grid[-1]


def _follows(state: State, p: _Parts, buffer: str) -> bool:
    """Return True if a buffer is computed from the combined folds of the parts."""
    writer = state.writer(buffer)
    if buffer in p.local:
        return True
    return writer is not None and any(
        x.buffer != buffer and _follows(state, p, x.buffer) for x in state.definitions[writer].reads()
    )


def _definition(state: State, p: _Parts, buffer: str) -> Definition:
    """The stage that computes an output from the results of the one part."""
    writer = state.writer(buffer)
    assert writer is not None
    d = state.definitions[writer]
    index = d.action.index
    whole = Load(buffer, index, state.program.globals[buffer].dtype)
    value = whole if writer in state.reductions else d.action.values[0]
    part = whole_axis(p.loop.var, p.loop.hi)
    direct = define((part, *d.spatial), Store(buffer, index, _of_part(state, p, value)), d.when)
    return replace(direct, axes=tuple(_like_folds(state, p, direct, a) for a in direct.axes))


def _like_folds(state: State, p: _Parts, d: Definition, axis: Axis) -> Axis:
    """The axis as the local folds run over it, in tiles of the one part, where it is the one that is split."""
    for local in p.local.values():
        writer = state.writer(local)
        assert writer is not None
        fold = state.definitions[writer]
        for mine, theirs in meetings(d, fold, (), through_inputs=True):
            if mine == axis.name and theirs in fold.names and theirs != p.loop.var:
                split = fold.axis(theirs)
                if not split.whole and split.extent == axis.extent and split.choosing & set(d.names) == {p.loop.var}:
                    return replace(split, name=axis.name)
    return axis


def _of_part(state: State, p: _Parts, e: Expr) -> Expr:
    """An expression over results of the whole, over those of the part."""

    def fix(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or not _follows(state, p, x.buffer):
            return None
        index = tuple(_of_part(state, p, i) for i in x.index)
        if x.buffer in p.local:
            return _of_one(state, p, x.buffer, index)
        writer = state.writer(x.buffer)
        assert writer is not None
        d = state.definitions[writer]
        if writer in state.reductions or d.when is not None:
            wrong = f"`{writer}` folds what the parts have folded together: its result is not there yet"
            raise FusionError(p.request, wrong, hint="leave the combination to its own kernel")
        store = inliner(writer, d)[x.buffer]
        env = {v.name: i for v, i in zip(store.index, index, strict=True) if isinstance(v, Var)}
        return _of_part(state, p, substitute(store.value, env))

    return rewrite(e, fix)


def _of_one(state: State, p: _Parts, buffer: str, index: tuple[Expr, ...]) -> Expr:
    """A global fold's result where there is one part: what that has folded, taken into what the whole starts from."""
    name = state.writer(buffer)
    assert name is not None
    d = state.reduction(name)
    action = d.action
    k = action.buffers.index(buffer)
    if _from_nothing(state, p, name):
        local = p.local[buffer]
        return Load(local, (Var(p.loop.var), *index), state.program.globals[local].dtype)
    env = {v.name: i for v, i in zip(action.index, index, strict=True) if isinstance(v, Var)}
    env |= {a: Var(p.loop.var) for a in d.reduced}
    before, parts = ([_of_part(state, p, substitute(e, env)) for e in es] for es in (starts(action), action.values))
    combined = REDUCERS[action.reducer].combine(before, parts)
    known: dict[str, Expr] = {}
    for v, e in combined.lets:
        known[v.name] = substitute(e, known)
    return substitute(combined.result[k], known)


def _from_nothing(state: State, p: _Parts, name: str) -> bool:
    """Return True if a global fold, and those it is repaired with, start from the same values as each part."""
    action, part = (state.definitions[n].action for n in (name, *_parts_of(state, name)))
    repaired = {state.writer(x.buffer) for e in action.values for x in loads(e) if x.buffer in p.local}
    return action.init == part.init and all(n is not None and _from_nothing(state, p, n) for n in repaired)


def _skipped(state: State, p: _Parts, body: Stmt) -> Stmt:
    """The kernels that only combine parts, with nothing to do where there is one."""
    fresh: list[Stmt] = []
    for nest in nests(body):
        names = {s.name for s in stages(nest)}
        mine = any(f.var == p.loop.var and f.kind != "serial" for f in _loops(nest))
        combines = not mine and all(
            any(b in p.local or _follows(state, p, b) or b not in state.program.globals for b in writes(s.action))
            or state.definitions.get(s.name) is None
            for s in stages(nest)
        )
        fresh.append(_under(nest, ne(p.loop.hi, 1)) if combines and names else nest)
    return seq(*fresh)


def _under(nest: Stmt, pred: Expr) -> Stmt:
    """A kernel all of whose programs test `pred` first."""
    if isinstance(nest, For) and nest.kind != "serial":
        return replace(nest, body=_under(nest.body, pred))
    return If(pred, nest)
