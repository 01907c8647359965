"""Alignment of axes: which axes of different stages are one, for fusion, roles and repairs.

Two axes *meet* where both index the same dimension of a buffer and are equally long. They meet first through
results that one stage hands to the other, and only where there are none through a common input.

- `Axes(definitions)` closes that over a whole program: what templates ask to find their stages;
- `align(state, d, nest)` picks, for one stage that moves into a nest, the axes of the stages there that it
  can run along with in full, over the loops as they are now. Where that leaves loops of the nest, it goes by the
  relation of the whole program;
- `tiled(state, name, d, nest, aligned)` finds, of its other axes, those whose tiles a stage there counts (`replicate`);
- `counted(state, name, d, nest, aligned)` finds those that count tiles themselves, which loops of the nest count.

Where an axis is now is `State.axes`: an expression over loops. After `fuse` that is a quotient or a remainder of
a loop: such a loop can only be shared by running over all axes in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from neptune.ir.expr import Expr, Op, Var, ceildiv, substitute, variables, walk
from neptune.ir.indices.affine import poly, scope_of, to_expr
from neptune.ir.indices.quotients import quotient
from neptune.ir.program import For, for_loops, paths, stages, writes
from neptune.schedule.definition import Definition
from neptune.schedule.state import Loop, State

StageAxis = tuple[str, str]
"""(stage, axis name)"""
Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Nest:
    """The nest that a stage moves into: the loops around the end of `loop`'s body, and the stages there."""

    outer: tuple[For, ...]
    hosts: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(f.var for f in self.outer)


def nest_of(state: State, ref: Loop) -> Nest:
    """The loops around a stage down to `ref`, with the stages inside the outermost one."""
    loop = state.loop(ref)
    path = state.loops(ref.stage)
    outer = path[: path.index(loop) + 1]
    return Nest(outer, tuple(dict.fromkeys(s.name for s in stages(outer[0]))))


# --- where two stages meet -----------------------------------------------------------------------


def _touches(d: Definition) -> list[tuple[str, Index]]:
    return [(b, d.action.index) for b in writes(d.action)] + [(x.buffer, x.index) for x in d.reads()]


def meetings(d: Definition, other: Definition, results: Collection[str], through_inputs: bool) -> Iterator[StageAxis]:
    """(axis of `d`, axis of `other`) that index one dimension of a buffer: of `results`, what `other` writes
    there; through inputs, any buffer but those. What chooses parts of axes in both under one name is one axis, too."""
    if through_inputs:
        shared = d.choosing & other.choosing
        yield from ((a, a) for a in d.names if a in shared)
    touched = _touches(other)
    for buffer, index in _touches(d):
        if (buffer in results) == through_inputs:
            continue
        indices = [ix for b, ix in touched if b == buffer]
        if not through_inputs:
            indices = [other.action.index] if buffer in writes(other.action) else []
        for a, b in (pair for ix in indices for pair in zip(index, ix, strict=True)):
            if isinstance(a, Var) and isinstance(b, Var):
                yield a.name, b.name


def same_extent(d: Definition, mine: str, other: Definition, theirs: str, env: Mapping[str, Expr]) -> bool:
    """True if two axes are equally long, as expressions; `env`: axes of `d` → those of `other` they are."""
    if mine not in d.names or theirs not in other.names:
        return False
    bounds, there = ((x.extent, x.lo, x.hi) for x in (d.axis(mine), other.axis(theirs)))
    needed = frozenset[str]().union(*map(variables, bounds)) & set(d.names)
    return needed <= set(env) and tuple(substitute(e, dict(env)) for e in bounds) == there


class Axes:
    """The classes of a program's axes that are the same axis: joined where one stage reads another's result.

    Two axes of one stage may be in one class, as those of x[i] · x[j]: then the nearest are each other's.
    """

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._parent: dict[StageAxis, StageAxis] = {}
        self._met: dict[StageAxis, list[StageAxis]] = {}
        self._definitions = definitions
        self._results = {b for d in definitions.values() for b in writes(d.action)}
        self._join(through_inputs=False)

    def join_through_inputs(self) -> None:
        """Also join the axes of different stages that run over one dimension of an input."""
        self._join(through_inputs=True)

    def same(self, a: StageAxis, b: StageAxis) -> bool:
        return self.root(a) == self.root(b)

    def root(self, a: StageAxis) -> StageAxis:
        while (up := self._parent.get(a, a)) != a:
            a = up
        return a

    def of(self, stage: str, like: StageAxis) -> str | None:
        """The axis of `stage` that is the same axis as `like`, and as no axis of that stage that is nearer."""
        mine, theirs = self._like(stage, like), self._like(like[0], like)
        if len(mine) <= 1 and len(theirs) <= 1:
            return mine[0] if mine else None
        steps = self._steps(like)
        best = min(mine, key=lambda n: steps[stage, n], default=None)
        if best is None:
            return None
        back = self._steps((stage, best))
        return best if all(back[like] <= back[like[0], n] for n in theirs) else None

    def _like(self, stage: str, like: StageAxis) -> list[str]:
        """The axes of a stage that are in the class of `like`."""
        d = self._definitions.get(stage)
        return [] if d is None else [n for n in d.names if self.same((stage, n), like)]

    def _steps(self, begin: StageAxis) -> dict[StageAxis, int]:
        """How many meetings apart the axes of a class are from one of them."""
        steps, todo = {begin: 0}, [begin]
        for axis in todo:
            fresh = [a for a in self._met.get(axis, ()) if a not in steps]
            steps |= dict.fromkeys(fresh, steps[axis] + 1)
            todo += fresh
        return steps

    def _join(self, through_inputs: bool) -> None:
        for name, d in self._definitions.items():
            for host, other in self._definitions.items():
                if host == name:
                    continue
                for mine, theirs in meetings(d, other, self._results, through_inputs):
                    along = ((a, self.of(host, (name, a))) for a in d.names)
                    env: dict[str, Expr] = {a: Var(b) for a, b in along if b is not None}
                    if same_extent(d, mine, other, theirs, env):
                        self._parent[self.root((name, mine))] = self.root((host, theirs))
                        self._met.setdefault((name, mine), []).append((host, theirs))
                        self._met.setdefault((host, theirs), []).append((name, mine))


# --- moving into a nest ------------------------------------------------------------------------------


def align(state: State, d: Definition, nest: Nest) -> dict[str, StageAxis]:
    """axis of `d` → (host stage, axis of that host) it runs along with."""
    result: dict[str, StageAxis] = {}
    hosts = [h for h in nest.hosts if h in state.definitions]
    made_here = {b for h in hosts for b in writes(state.definitions[h].action)}
    for through_inputs in (False, True):
        for host in hosts:
            other = state.definitions[host]
            for mine, theirs in meetings(d, other, made_here, through_inputs):
                if mine in result:
                    continue
                env = _in_axes_of(state, host, result)
                if same_extent(d, mine, other, theirs, env) and _free(state, (host, theirs), result, nest):
                    result[mine] = (host, theirs)
    covered = frozenset[str]().union(*(variables(state.axes[h][a]) for h, a in result.values()))
    if not nest.names <= covered:
        result = _through_others(state, d, nest, hosts, result)
    return {a: place for a, place in result.items() if not _carried_in_blocks(state, d, a, nest, result)}


def _carried_in_blocks(state: State, d: Definition, axis: str, nest: Nest, aligned: Mapping[str, StageAxis]) -> bool:
    """True for an axis of a result that a loop of the nest carries, where a host goes through it in blocks inside.

    The accumulator is one tile, and no block of it: v[j, c] is k[j, c], whose product before sums c in blocks.
    """
    now = {a: state.axes[h][b] for a, (h, b) in aligned.items()}
    carries = any(variables(now[a]) & nest.names for a in d.reduced if a in now)
    return (
        carries and axis not in d.reduced and not isinstance(now[axis], Var) and not variables(now[axis]) & nest.names
    )


def tiled(
    state: State, name: str, d: Definition, nest: Nest, aligned: Mapping[str, StageAxis]
) -> dict[str, tuple[StageAxis, Expr]]:
    """axis of `d` → (axis of a host that counts its tiles, their width): the stage reads at axis // width.

    A factor that waits until the loop is over is read by the stage `name` as it is, and no more by `d`.
    """
    result: dict[str, tuple[StageAxis, Expr]] = {}
    hosts = {b: h for h in nest.hosts if h in state.definitions for b in writes(state.definitions[h].action)}
    now = state.definitions.get(name, d)
    for load in (x for x in (*d.reads(), *now.reads()) if x.buffer in hosts):
        host = hosts[load.buffer]
        other = state.definitions[host]
        for mine, theirs in zip(load.index, other.action.index, strict=True):
            if not (isinstance(mine, Op) and mine.name == "floordiv" and isinstance(theirs, Var)):
                continue
            whole, width = mine.args
            if not isinstance(whole, Var) or whole.name in aligned or whole.name not in d.names:
                continue
            axis, known = d.axis(whole.name), {**aligned, **{a: place for a, (place, _) in result.items()}}
            counts = axis.whole and other.axis(theirs.name).hi == ceildiv(axis.extent, width)
            if counts and theirs.name in other.names and _free(state, (host, theirs.name), known, nest):
                result.setdefault(whole.name, ((host, theirs.name), width))
    return result


def counting(state: State, name: str, axis: str) -> tuple[StageAxis, Expr] | None:
    """The axis whose tiles an axis of a stage counts (`replicate`), and their width: what reads the stage says so."""
    seen: set[StageAxis] = set()
    todo = [(name, axis)]
    while todo:
        current = todo.pop()
        d = state.definitions.get(current[0])
        if current in seen or d is None or Var(current[1]) not in d.action.index:
            continue
        seen.add(current)
        place = d.action.index.index(Var(current[1]))
        for reader in dict.fromkeys(r for b in writes(d.action) for r in state.readers(b)):
            for x in (x for x in state.definitions[reader].reads() if x.buffer in writes(d.action)):
                match x.index[place]:
                    case Op("floordiv", (Var(whole), width), _) if whole in state.definitions[reader].names:
                        return (reader, whole), width
                    case Var(other):
                        todo.append((reader, other))
    return None


def counted(state: State, name: str, d: Definition, nest: Nest, aligned: Mapping[str, StageAxis]) -> dict[str, Expr]:
    """axis of `d` → the loop of the nest that it is: the axis counts tiles (`replicate`), and so does the loop."""
    result: dict[str, Expr] = {}
    axes: Axes | None = None
    for a in d.axes:
        counter = None if a.name in aligned or name not in state.definitions else counting(state, name, a.name)
        if counter is None:
            continue
        like, width = counter
        if axes is None:
            axes = Axes(state.definitions)
            axes.join_through_inputs()
        for host in (h for h in nest.hosts if h in state.definitions):
            theirs = axes.of(host, like)
            if theirs is None or theirs not in state.axes[host]:
                continue
            scope = scope_of(state.program, state.loops(host))
            parts = quotient(poly(state.axes[host][theirs]), poly(width), scope)
            loop = None if parts is None else to_expr(parts[0])
            if isinstance(loop, Var) and loop.name in nest.names:
                result[a.name] = loop
                break
    return result


def _in_axes_of(state: State, host: str, aligned: Mapping[str, StageAxis]) -> dict[str, Expr]:
    """Return the aligned axes of any stage of the nest as axes of `host`: those whose expressions are equal."""
    names = {place: a for a, place in state.axes[host].items()}
    places = {a: state.axes[h][b] for a, (h, b) in aligned.items()}
    return {a: Var(names[e]) for a, e in places.items() if e in names}


def _through_others(
    state: State, d: Definition, nest: Nest, hosts: list[str], known: Mapping[str, StageAxis]
) -> dict[str, StageAxis]:
    """Align axes with loops of the nest that are left by what follows, as those of two products that one sum reads."""
    moving = ""  # no stage's name: the definition may differ from the one that the state has
    axes = Axes({**state.definitions, moving: d})
    axes.join_through_inputs()
    result = dict(known)
    for host in hosts:
        other = state.definitions[host]
        for mine in d.names:
            theirs = axes.of(host, (moving, mine))
            if mine in result or theirs is None:
                continue
            env = _in_axes_of(state, host, result)
            if same_extent(d, mine, other, theirs, env) and _free(state, (host, theirs), result, nest):
                result[mine] = (host, theirs)
    return result


def _free(state: State, axis: StageAxis, aligned: Mapping[str, StageAxis], nest: Nest) -> bool:
    """True if an axis of a host can run here in full, over loops that no other aligned axis runs over."""
    host = axis[0]
    expr = state.axes[host][axis[1]]
    # The axes of one host never stand for the same element twice, though `fuse` may have put them in one loop.
    occupied = {(h, a): state.axes[h][a] for h, a in aligned.values()}
    shares = (h != host and variables(expr) & variables(e) & nest.names for (h, _), e in occupied.items())
    if axis in occupied or expr in occupied.values() or any(shares):
        return False
    pieces = [{f.var: f for f in for_loops(path)} for path, s in paths(state.program.body) if s.name == host]
    around = {f.var: f for f in nest.outer}
    every = frozenset[str]().union(*pieces)
    sizes = {s.name for s in state.program.scalars} | {t.name for t in state.program.tunables}
    if not variables(expr) <= every | sizes:
        return False  # the host has given the axis away (to a private fold)
    if fused_loops(expr) & every - nest.names:
        return False  # a copy of a fused loop would run over its other axes as well
    for var in variables(expr) & every:
        loops = [p.get(var) for p in pieces]
        if var in around:
            loops.append(around[var])
        ranges = {None if f is None else (f.lo, f.hi) for f in loops}
        # A piece of a partitioned loop is not the axis; nor is a loop here that only shares the name.
        if len(ranges) > 1:
            return False
        bounds = [variables(f.lo) | variables(f.hi) for f in loops if f is not None and var not in around]
        if any((b & every) - nest.names for b in bounds):
            return False
    return True


def fused_loops(expr: Expr) -> frozenset[str]:
    """The variables of which an axis takes the quotient or the remainder."""
    parts = (x.args[0] for x in walk(expr) if isinstance(x, Op) and x.name in ("floordiv", "mod"))
    return frozenset[str]().union(*map(variables, parts))


def shared_in_part(state: State, aligned: Mapping[str, StageAxis], nest: Nest) -> str | None:
    """A loop of the nest that some aligned axis takes a quotient or remainder of, while another axis of the
    same host that is in it is not aligned: its iterations would come several times."""
    for host, axis in aligned.values():
        for var in sorted(fused_loops(state.axes[host][axis]) & nest.names):
            members = {(host, a) for a, e in state.axes[host].items() if var in variables(e)}
            if not members <= set(aligned.values()):
                return var
    return None
