"""The state that schedule primitives work on: a Program and where the original axes have gone.

A primitive is a pure function State → State (a new State, or an exception: nothing is ever half done).

- `definitions[stage]` is the stage as the user wrote it (`definition.py`). Frontiers, alignment and repairs are worked
  out on definitions; `map(stage)` and `reduction(stage)` give them as what they are.
- `axes[stage][axis]` is the present expression of each original axis over the present loops,
  e.g. i ↦ i0*BLOCK_M + i1; after `fuse` it is a quotient or a remainder, i ↦ i_j // n. Which axes of different
  stages are one axis is the business of `alignment.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from neptune.errors import ScheduleError
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.expr import Expr, Load, Op, Var, binary, loads, redirected, substitute
from neptune.ir.indices.affine import scope_of
from neptune.ir.indices.quotients import divided
from neptune.ir.names import fresh_name as fresh_name
from neptune.ir.program import (
    ZERO,
    Buffer,
    For,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    for_loops,
    made_as,
    map_exprs,
    paths,
    retarget,
    rewrite_stmt,
    seq,
    stages,
    starts,
    sub_stmts,
    values,
    with_stmts,
    writes,
)
from neptune.ir.text.printer import print_stage
from neptune.schedule.definition import Definition, MapDef, ReductionDef, define, whole_axis


@dataclass(frozen=True)
class Loop:
    """A loop as a template names it: the loop `var` around stage `stage`."""

    stage: str
    var: str

    def __str__(self) -> str:
        return self.var


@dataclass(frozen=True)
class Assumption:
    """What a kernel takes for granted and nothing proves: `name` stays the same from one version to the next.

    >>> Assumption("finite", "x: finite numbers").about("x").name
    'finite(x)'
    """

    name: str
    text: str

    def about(self, subject: str) -> Assumption:
        """The assumption of a kind as that about a stage or an input."""
        return replace(self, name=f"{self.name}({subject})")


@dataclass(frozen=True)
class Decision:
    """One line of explain(): what was decided about `subject`, and why.

    `finite`: inputs that are taken to be so. `ranges`: bounds on inputs that it is not proved without. `assumed`: both,
    and what else is not proved, by name.
    """

    kind: str
    subject: str
    verdict: str
    reason: str
    details: tuple[str, ...] = ()
    finite: tuple[str, ...] = ()
    ranges: tuple[RangePredicate, ...] = ()
    assumed: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class State:
    """The program so far, the definitions of its stages, and the decisions; a primitive maps it to another state."""

    program: Program
    definitions: Mapping[str, Definition]
    axes: Mapping[str, Mapping[str, Expr]]
    decisions: tuple[Decision, ...] = ()

    # --- looking things up ---

    def path(self, stage: str) -> tuple[tuple[Stmt, ...], Stage]:
        """The statements around a stage and the stage itself (its first piece)."""
        if stage not in self._paths:
            raise unknown_stage(self.program, stage)
        return self._paths[stage]

    @cached_property
    def _paths(self) -> dict[str, tuple[tuple[Stmt, ...], Stage]]:
        return {s.name: (path, s) for path, s in reversed(list(paths(self.program.body)))}

    def loops(self, stage: str) -> tuple[For, ...]:
        return for_loops(self.path(stage)[0])

    def loop(self, ref: Loop) -> For:
        """The For node a reference names, or a ScheduleError that lists the stage's loops."""
        loops = self.loops(ref.stage)
        for f in loops:
            if f.var == ref.var:
                return f
        raise ScheduleError(
            f"unknown loop `{ref.var}` of stage `{ref.stage}`",
            f"stage `{ref.stage}` has no loop of that name",
            legal=[f.var for f in loops],
            where=print_stage(self.path(ref.stage)[1]),
        )

    def definition(self, stage: str) -> Definition:
        """The definition of a stage, or a ScheduleError: unknown, or a helper that a primitive added."""
        _, node = self.path(stage)
        if stage not in self.definitions:
            raise ScheduleError(
                f"stage `{stage}`",
                "it is a helper of another stage, which a primitive added: it moves with that one",
                legal=list(self.definitions),
                where=print_stage(node),
            )
        return self.definitions[stage]

    def map(self, stage: str) -> MapDef:
        """The definition of a stage that is known to be a map."""
        d = self.definitions[stage]
        assert isinstance(d, MapDef), stage
        return d

    def reduction(self, stage: str) -> ReductionDef:
        """The definition of a stage that is known to be a reduction."""
        d = self.definitions[stage]
        assert isinstance(d, ReductionDef), stage
        return d

    @property
    def maps(self) -> dict[str, MapDef]:
        """The definitions that are maps, in program order."""
        return {n: d for n, d in self.definitions.items() if isinstance(d, MapDef)}

    @property
    def reductions(self) -> dict[str, ReductionDef]:
        """The definitions that are reductions, in program order."""
        return {n: d for n, d in self.definitions.items() if isinstance(d, ReductionDef)}

    def writer(self, buffer: str) -> str | None:
        """The stage whose definition writes `buffer` (None for an input)."""
        for name, d in self.definitions.items():
            if buffer in writes(d.action):
                return name
        return None

    def readers(self, buffer: str) -> list[str]:
        """The stages whose definitions read `buffer`, in program order."""
        return [n for n, d in self.definitions.items() if any(x.buffer == buffer for x in d.reads())]

    def made(self, kind: str, of: str | None = None) -> list[str]:
        """The names of the stages that rewrites made as `kind` of stage or buffer `of`, in program order."""
        return [s.name for s in made_as(self.program.body, kind, of)]

    def present(self, stage: str, e: Expr, also: Mapping[str, Expr] | None = None) -> Expr:
        """An expression over the axes of a stage, and names that `also` stand for something, over its present loops."""
        env = {**self.axes[stage], **(also or {})}
        return divided(substitute(e, env), scope_of(self.program, self.loops(stage)))

    def is_output(self, buffer: str) -> bool:
        return any(b.name == buffer for b in self.program.outputs)

    # --- making a changed copy ---

    def with_body(self, body: Stmt) -> State:
        return replace(self, program=self.program.with_body(body))

    def note(self, decision: Decision) -> State:
        return replace(self, decisions=(*self.decisions, decision))

    def with_temporary(self, buffer: Buffer) -> State:
        return replace(self, program=replace(self.program, temporaries=(*self.program.temporaries, buffer)))

    def define(self, stage: str, definition: Definition, axes: Mapping[str, Expr]) -> State:
        return replace(
            self,
            definitions={**self.definitions, stage: definition},
            axes={**self.axes, stage: dict(axes)},
        )

    def define_beside(self, stage: str, definition: Definition, other: str, *, after: bool) -> State:
        """Define a new stage, with loops called like its axes, next to another in the order of stages."""
        order: dict[str, Definition] = {}
        for name, d in self.definitions.items():
            own = {stage: definition} if name == other else {}
            order |= {name: d, **own} if after else {**own, name: d}
        axes = {a: Var(a) for a in definition.names}
        return replace(self, definitions=order, axes={**self.axes, stage: axes})

    def reindexed(
        self, loop: For, nest: Stmt, loops: Mapping[str, tuple[str, ...]], fn: Callable[[Expr], Expr]
    ) -> State:
        """The state with `nest` in the place of a loop: `loops` says which ones became which, and `fn` what has become
        of an expression over the old ones. Obligations and axes go along."""
        inside = {s.name for s in stages(loop)}
        became = ((o, loops.get(o.loop, (o.loop,)) if o.stage in inside else (o.loop,)) for o in self.program.owes)
        owes = dict.fromkeys(replace(o, loop=x) for o, names in became for x in names)
        # Helpers (a previous value, a repair) have no axes of their own.
        axes = {n: {a: fn(e) for a, e in own.items()} if n in inside else own for n, own in self.axes.items()}
        program = replace(self.program, owes=tuple(owes)).with_body(replace_node(self.program.body, loop, nest))
        return replace(self, program=program, axes=axes)

    def redirected(self, stage: str, names: Mapping[str, str]) -> State:
        """A stage reads other buffers: each of `names` under its new name."""

        def fix(e: Expr) -> Expr:
            return redirected(e, names)

        node = self.path(stage)[1]
        state = self.with_body(replace_node(self.program.body, node, map_exprs(node, fix)))
        return state.define(stage, self.definitions[stage].rewritten(fix), self.axes[stage])

    def drop_stage(self, name: str) -> State:
        """Remove a stage and, where nothing uses it any more, its temporary buffer."""
        action = self.definitions[name].action
        body = rewrite_stmt(self.program.body, lambda s: None if isinstance(s, Stage) and s.name == name else s)
        definitions = {k: v for k, v in self.definitions.items() if k != name}
        axes = {k: v for k, v in self.axes.items() if k != name}
        still = {b for d in definitions.values() for b in (*writes(d.action), *(x.buffer for x in d.reads()))}
        gone = {b for b in writes(action) if b not in still}
        assert body is not None
        program = replace(
            self.program,
            body=body,
            temporaries=tuple(b for b in self.program.temporaries if b.name not in gone),
            owes=tuple(o for o in self.program.owes if o.stage != name),
        )
        return replace(self, program=program, definitions=definitions, axes=axes)

    def rename(self, old: str, new: str) -> State:
        """Rename a map stage together with its buffer (both are called `old`)."""

        def fix(e: Expr) -> Expr:
            return redirected(e, {old: new})

        def fix_stmt(s: Stmt) -> Stmt:
            if isinstance(s, Stage):
                provenance = replace(s.made, of=new) if s.made is not None and s.made.of == old else s.made
                return Stage(new if s.name == old else s.name, retarget(s.action, {old: new}), s.when, provenance)
            return with_stmts(s, tuple(fix_stmt(p) for p in sub_stmts(s)))

        program = replace(
            self.program,
            body=fix_stmt(map_exprs(self.program.body, fix)),
            temporaries=tuple(replace(b, name=new) if b.name == old else b for b in self.program.temporaries),
            owes=tuple(replace(o, stage=new if o.stage == old else o.stage) for o in self.program.owes),
        )
        fresh = {n: d.rewritten(fix) for n, d in self.definitions.items()}
        definitions = {
            new if n == old else n: replace(d, action=retarget(d.action, {old: new})) for n, d in fresh.items()
        }
        axes = {new if n == old else n: a for n, a in self.axes.items()}
        return replace(self, program=program, definitions=definitions, axes=axes)


def initial(program: Program) -> State:
    """The State of a freshly imported program (one nest per stage)."""
    program = program.with_body(from_zero(program.body))
    definitions: dict[str, Definition] = {}
    axes: dict[str, dict[str, Expr]] = {}
    for path, stage in paths(program.body):
        loops = for_loops(path)
        axes_of = tuple(whole_axis(f.var, f.hi) for f in loops)
        definitions[stage.name] = define(axes_of, stage.action, stage.when)
        axes[stage.name] = {f.var: Var(f.var) for f in loops}
    return State(program, definitions, axes)


def from_zero(s: Stmt) -> Stmt:
    """Loops that start elsewhere start at 0: `for j in [2, n): x[j]` → `for j in [0, n - 2): x[j + 2]`."""
    s = with_stmts(s, tuple(from_zero(p) for p in sub_stmts(s)))
    if not isinstance(s, For) or s.lo == ZERO:
        return s
    env = {s.var: binary("add", Var(s.var), s.lo)}
    body = map_exprs(s.body, lambda e: substitute(e, env))
    facts = tuple(substitute(f, env) for f in s.facts)
    return replace(s, lo=ZERO, hi=binary("sub", s.hi, s.lo), body=body, facts=facts)


def init_loads(action: Store | Update) -> list[Load]:
    """Return the loads of a reduction's start values, made before its outermost reduction loop."""
    return [x for e in starts(action) for x in loads(e)]


def reads(stage: Stage) -> list[Load]:
    """Every load of a stage: of its values, its index, its init and its guard."""
    guard = () if stage.when is None else (stage.when,)
    every = [x for e in (*values(stage.action), *stage.action.index, *guard) for x in loads(e)]
    return [*every, *init_loads(stage.action)]


def check_whole(state: State, loop: For, request: str) -> None:
    """Raise a ScheduleError where `loop` holds only a piece of a stage that was partitioned."""
    ids = {id(s) for s in stages(loop)}
    inside = {s.name for s in stages(loop)}
    split = next((s.name for s in stages(state.program.body) if id(s) not in ids and s.name in inside), None)
    if split is not None:
        raise ScheduleError(
            request, f"`{split}` is in pieces, and `{loop.var}` is around one of them", hint="do this before partition"
        )


def unknown_stage(program: Program, name: str) -> ScheduleError:
    """The error for a stage that the program does not have, with the name that comes closest."""
    import difflib

    names = list(dict.fromkeys(s.name for s in stages(program.body)))
    close = difflib.get_close_matches(name, names, n=1)
    return ScheduleError(
        f"unknown stage `{name}`",
        f"program `{program.name}` has no stage of that name",
        legal=names,
        hint=f"did you mean `{close[0]}`?" if close else None,
    )


def replace_node(body: Stmt, old: Stmt, new: Stmt | None) -> Stmt:
    """The body with one statement (by identity) replaced, or deleted for None."""
    result = rewrite_stmt(body, lambda s: new if s is old else s)
    assert result is not None, "a schedule never deletes the last statement"
    return result


def append_to(body: Stmt, loop: For, *extra: Stmt) -> Stmt:
    """The body with statements added at the end of a loop (by identity)."""
    return replace_node(body, loop, replace(loop, body=seq(loop.body, *extra)))


def insert_before(body: Stmt, anchor: Stmt, *extra: Stmt) -> Stmt:
    """The body with statements added in front of a statement (by identity)."""
    return replace_node(body, anchor, seq(*extra, anchor))


def insert_after(body: Stmt, anchor: Stmt, *extra: Stmt) -> Stmt:
    """The body with statements added behind a statement (by identity)."""
    return replace_node(body, anchor, seq(anchor, *extra))


def add_guard(s: Stmt, pred: Expr) -> Stmt:
    """Every stage below with one more conjunct in its guard: in front of one that reads, which it may protect."""
    if isinstance(s, Stage):
        if s.when == pred:
            return s
        if s.when is None:
            return replace(s, when=pred)
        both = (pred, s.when) if loads(s.when) and not loads(pred) else (s.when, pred)
        return replace(s, when=Op("and", both, "bool"))
    return with_stmts(s, tuple(add_guard(p, pred) for p in sub_stmts(s)))


def names_in_use(program: Program, place: For | None = None) -> set[str]:
    """Every name that a new buffer, stage or loop must avoid; a loop in the `place` of another one only those of loops
    around it and within: sibling nests may reuse them."""
    used = set(program.buffers) | {s.name for s in program.scalars} | {t.name for t in program.tunables}
    for path, stage in paths(program.body):
        used.add(stage.name)
        if place is None or any(x is place for x in path):
            used |= {f.var for f in for_loops(path)}
    return used
