"""Is this Program well-formed?  What it finds is a defect of ours, except in a Program written by hand.

Run on what is imported, scheduled and placed; with NEPTUNE_VERIFY=2 or NEPTUNE_STRICT=1, as in the tests, after every
primitive of a schedule.

    verify(program)                 names, dtypes, ranks, writers, order, grid
    verify(program, lowered=True)   … and nothing left open: no `owes`, no `Update.init`

All findings are collected, so that one report shows the whole damage. Bounds are not checked here: the
evaluator raises on an access out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from neptune.ir.check import check_access, check_expr, check_integer, check_predicate, report
from neptune.ir.decompose import decompose, misplaced
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Expr, conjuncts, eq, loads, variables
from neptune.ir.lists import check_lists, folds_list
from neptune.ir.program import (
    MADE,
    Alloc,
    Buffer,
    For,
    If,
    Program,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    parameter_names,
    stages,
    starts,
    values,
    walk,
    writes,
)
from neptune.ir.reducers import REDUCERS, Reducer
from neptune.ir.text.line import is_name
from neptune.ir.text.printer import print_stage

SCOPES = ("global", "tile")


def verify(program: Program, *, lowered: bool = False) -> None:
    """Raise InternalError with every way in which `program` is not well-formed.

    >>> from neptune.ir.text.parser import parse_program
    >>> verify(parse_program("program p\\n  out y: f32[]\\nbody:\\n  s: y[] = 1.0\\n"))
    """
    findings = [*_declarations(program), *_body(program), *_writers(program), *_owes(program)]
    if not findings:
        findings += [*_order(program), *check_lists(program)]
    if not findings:
        findings += _marked(program)
    if lowered:
        findings += _lowered(program)
    report(f"program {program.name}", findings)


# --- declarations ------------------------------------------------------------------------------


def _declarations(program: Program) -> Iterator[str]:
    declared = [b.name for b in (*program.inputs, *program.outputs, *program.temporaries)]
    params = [s.name for s in program.scalars] + [t.name for t in program.tunables]
    for kind, names in (("buffer", declared), ("scalar or tunable", params)):
        yield from (f"{kind} {name} is declared twice" for name in sorted({n for n in names if names.count(n) > 1}))
    used = [*declared, *params, *(s.name for s in stages(program.body))]
    used += [x.var for x in walk(program.body) if isinstance(x, For)]
    used += [x.buffer.name for x in walk(program.body) if isinstance(x, Alloc)]
    yield from (f"{n!r} cannot be a name" for n in used if not is_name(n))
    sizes = parameter_names(program.scalars, program.tunables)
    for b in program.globals.values():
        yield from _check_buffer(b, sizes, {})
    for s in program.scalars:
        if s.dtype not in DTYPES:
            yield f"scalar {s.name}: unknown dtype {s.dtype}"
        elif not DTYPES[s.dtype].computes:
            yield f"scalar {s.name} is {s.dtype}, which only tensors hold"
        if s.divisor < 1 or (s.lo is not None and s.hi is not None and s.lo > s.hi):
            yield f"scalar {s.name}: no value lies in [{s.lo}, {s.hi}] with divisor {s.divisor}"
    for t in program.tunables:
        if any(c < 1 for c in t.candidates) or (t.covers is None and not t.candidates):
            yield f"tunable {t.name} needs positive candidates"
        if t.covers is not None:
            yield from check_integer(f"tunable {t.name} covers", t.covers)
            yield from check_expr(t.covers, sizes, {})


def _check_buffer(b: Buffer, names: Mapping[str, str], buffers: Mapping[str, Buffer]) -> Iterator[str]:
    if b.dtype not in DTYPES:
        yield f"buffer {b.name}: unknown dtype {b.dtype}"
    if b.scope not in SCOPES:
        yield f"buffer {b.name}: unknown scope {b.scope}"
    for d in b.shape:
        yield from check_integer(f"a dimension of buffer {b.name},", d)
        yield from check_expr(d, names, buffers)


# --- statements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """The scope of a statement. `grid`: the grid loops around it with more than one iteration; `extents`: their
    numbers of iterations; `outside`: the number of those loops around an alloc."""

    names: Mapping[str, str]
    buffers: Mapping[str, Buffer]
    inputs: frozenset[str]
    grid: tuple[str, ...] = ()
    serial: bool = False
    outside: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, Expr] = field(default_factory=dict)

    def under(self, pred: Expr) -> _Scope:
        """The scope where a predicate holds: `if NUM_SPLITS == 1:` is inside one iteration of that loop."""
        parts = conjuncts(pred)
        once = {v for v, n in self.extents.items() if eq(n, 1) in parts}
        # A loop keeps its place: buffers count those around them.
        return replace(self, grid=tuple("" if v in once else v for v in self.grid))


def _body(program: Program) -> Iterator[str]:
    names = parameter_names(program.scalars, program.tunables)
    inputs = frozenset(b.name for b in program.inputs)
    yield from _check_stmt(program.body, _Scope(names, program.globals, inputs))
    first: dict[str, Stage] = {}
    for s in stages(program.body):
        one = first.setdefault(s.name, s)
        if writes(one.action) != writes(s.action):
            yield f"stage name {s.name} stands for two stages: one writes {writes(one.action)}, one {writes(s.action)}"
        if one.made != s.made:
            yield f"stage name {s.name} stands for two stages: {_made_text(one)}, and {_made_text(s)}"
        elif s.made is not None and s.made.kind not in MADE:
            yield f"stage {s.name} is {_made_text(s)}: there is no such kind"


def _made_text(s: Stage) -> str:
    return "the user's" if s.made is None else f"made as {s.made.kind} of {s.made.of}"


def _check_stmt(s: Stmt, scope: _Scope) -> Iterator[str]:
    match s:
        case For():
            yield from _check_for(s, scope)
        case If(pred, body):
            yield from check_predicate("condition", pred)
            yield from check_expr(pred, scope.names, scope.buffers)
            yield from _check_stmt(body, scope.under(pred))
        case Alloc(buffer, body):
            if buffer.name in scope.buffers:
                yield f"alloc {buffer.name} shadows a buffer of that name"
            yield from _check_buffer(buffer, scope.names, scope.buffers)
            buffers = {**scope.buffers, buffer.name: buffer}
            outside = {**scope.outside, buffer.name: len(scope.grid)}
            yield from _check_stmt(body, replace(scope, buffers=buffers, outside=outside))
        case Seq(parts):
            for part in parts:
                yield from _check_stmt(part, scope)
        case Stage():
            yield from (f"{text}\n      in: {_stage_text(s)}" for text in _check_stage(s, scope))


def _check_for(s: For, scope: _Scope) -> Iterator[str]:
    grid = s.kind.startswith("grid.")
    if s.var in scope.names:
        yield f"loop {s.var} shadows a variable of that name"
    if not grid and s.kind != "serial":
        yield f"loop {s.var}: unknown kind {s.kind}"
    if grid and scope.serial:
        yield f"grid loop {s.var} is inside a serial loop"
    for e in (s.lo, s.hi):
        yield from check_integer(f"bound of loop {s.var},", e)
        yield from check_expr(e, scope.names, scope.buffers)
    around = (*scope.grid, s.var) if grid else scope.grid
    names = {**scope.names, s.var: "int32"}
    for fact in s.facts:
        yield from check_predicate(f"fact of loop {s.var},", fact)
        yield from check_expr(fact, names, scope.buffers)
    extents = {**scope.extents, s.var: s.hi} if grid else scope.extents
    inside = replace(scope, names=names, grid=around, serial=scope.serial or not grid, extents=extents)
    yield from _check_stmt(s.body, inside)


def _check_stage(stage: Stage, scope: _Scope) -> Iterator[str]:
    action = stage.action
    exprs = [*action.index, *values(action), *starts(action)]
    if stage.when is not None:
        yield from check_predicate("guard", stage.when)
        exprs.append(stage.when)
    if isinstance(action, Update):
        yield from _check_reducer(action)
    for e in exprs:
        yield from check_expr(e, scope.names, scope.buffers)
    for buffer in writes(action):
        if buffer in scope.inputs:
            yield f"input {buffer} is written"
        yield from check_access(buffer, action.index, scope.buffers)
        # What is allocated inside a grid loop exists once per program; all else is shared between them.
        # A temporary that must become a tile (set_scope) will be.
        used = frozenset[str]().union(*(variables(i) for i in action.index))
        if buffer not in scope.outside and buffer in scope.buffers and scope.buffers[buffer].scope == "tile":
            continue
        for var in scope.grid[scope.outside.get(buffer, 0) :]:
            if var and var not in used:
                yield f"{buffer} is written by every iteration of grid loop {var}, which its index does not use"
    for buffer, parts in _typed_values(action):
        if buffer in scope.buffers:
            for word, e in parts:
                if e.dtype != scope.buffers[buffer].dtype:
                    yield f"buffer {buffer} is {scope.buffers[buffer].dtype}, its {word} is {e.dtype}"


def _typed_values(action: Store | Update) -> Iterator[tuple[str, list[tuple[str, Expr]]]]:
    """Each written buffer with the expressions that must have its dtype."""
    parts = (("value", values(action)), ("init", starts(action)))
    for k, buffer in enumerate(writes(action)):
        yield buffer, [(word, part[k]) for word, part in parts if k < len(part)]


def _check_reducer(action: Update) -> Iterator[str]:
    reducer = REDUCERS.get(action.reducer)
    if reducer is None:
        yield f"unknown reducer {action.reducer}"
        return
    if len(set(action.buffers)) < len(action.buffers):
        yield f"an update of {', '.join(action.buffers)} writes a buffer twice"
    widths = {"targets": len(action.buffers), "values": len(action.values)}
    if action.init is not None:
        widths["inits"] = len(action.init)
    for what, width in widths.items():
        if width != reducer.width:
            yield f"reducer {reducer.name} has width {reducer.width}, not {width} {what}"
    for v in action.values if reducer.op else ():
        if not reducer.takes(v.dtype):
            yield f"reducer {reducer.name} folds {reducer.folds}, not {v.dtype}"
    for v in action.values:
        if v.dtype in DTYPES and not DTYPES[v.dtype].computes:
            yield f"reducer {reducer.name} folds {v.dtype}, which only tensors hold"
    if reducer.best and set(widths.values()) == {reducer.width}:
        yield from _check_choice(reducer, action)
    if reducer.name == "lse" and set(widths.values()) == {reducer.width}:
        yield from _check_exponentials(action)


def _check_exponentials(action: Update) -> Iterator[str]:
    """A sum of exponentials folds pairs of floats."""
    dtypes = {v.dtype for v in action.values}
    if len(dtypes) > 1 or not all(map(is_float, dtypes)):
        yield f"reducer lse folds pairs of one float dtype, not {', '.join(sorted(dtypes))}"


def _check_choice(reducer: Reducer, action: Update) -> Iterator[str]:
    """A choice folds pairs of a number and an integer, one at a time."""
    k = reducer.elements
    dtypes = tuple(v.dtype for v in action.values)
    numbers, indices = set(dtypes[:k]), set(dtypes[k:])
    if len(numbers) > 1 or "bool" in numbers or len(indices) > 1 or not indices <= {"int32", "int64"}:
        yield f"reducer {reducer.name} folds {k} numbers and {k} int32 or int64 indices, not {', '.join(dtypes)}"
        return
    nothing = reducer.identity(*dtypes)
    element = (action.values[0], *nothing[1:k], action.values[k], *nothing[k + 1 :])
    # Merging takes sorted lists: a list of one element is one, and so is what another update has made.
    if (action.values != element and not folds_list(action)) or (k > 1 and action.init not in (None, nothing)):
        yield f"reducer {reducer.name} folds one element at a time: its other values, and its inits, are the identity"


def _stage_text(stage: Stage) -> str:
    try:
        return print_stage(stage)
    except (KeyError, OverflowError, ValueError):
        return stage.name


# --- the program as a whole --------------------------------------------------------------------


def _writers(program: Program) -> Iterator[str]:
    """Every output has a writer, and a buffer has one defining stage, beside what was made for that.

    Two updates of one buffer, or an update of what a plain store defines, are two defining stages.
    """
    for output in program.outputs:
        if not any(output.name in writes(s.action) for s in stages(program.body)):
            yield f"output {output.name} is never written"
    defining: dict[str, set[str]] = {}
    written = {(s.name, b) for s in stages(program.body) for b in writes(s.action)}
    for s in stages(program.body):
        for buffer in writes(s.action):
            if not _helps(s, buffer, written):
                defining.setdefault(buffer, set()).add(s.name)
    for buffer, names in defining.items():
        if len(names) > 1:
            yield f"buffer {buffer} is defined by several stages: {', '.join(sorted(names))}"


def _marked(program: Program) -> Iterator[str]:
    """A store reads what it writes only as the repair of a fold, and what starts or repairs a stage is of one that
    folds or was made: whoever wrote the program may have marked it so."""
    changing = {x.name for x in stages(program.body) if x.folds or x.made}
    for s in stages(program.body):
        kind = s.made.kind if s.made is not None else ""
        reads_own = isinstance(s.action, Store) and s.action.buffer in {x.buffer for x in loads(s.action.value)}
        if reads_own and kind != "repair":
            yield f"stage {s.name} reads {', '.join(writes(s.action))}, which it writes"
        if s.made is not None and kind in ("init", "repair") and not {*writes(s.action), s.made.of} & changing:
            yield f"stage {s.name} is made as {kind} of {s.made.of}, which folds nothing"


def _helps(s: Stage, buffer: str, written: Set[tuple[str, str]]) -> bool:
    """True for a stage that stores to a buffer which another one defines; `written` holds (stage, its buffer)."""
    if s.made is None or s.folds:
        return False
    return s.made.kind == "direct" or (s.made.kind in ("init", "repair") and (s.made.of, buffer) in written)


def _owes(program: Program) -> Iterator[str]:
    names = {s.name for s in stages(program.body)}
    known = names | program.buffers.keys()
    loops = {s.var for s in walk(program.body) if isinstance(s, For)}
    for o in program.owes:
        if o.stage not in names or o.on not in known or o.loop not in loops:
            yield f"owes {o.stage} <- {o.on} @ {o.loop} names what is not in the program"


def _lowered(program: Program) -> Iterator[str]:
    for o in program.owes:
        yield f"stage {o.stage} still owes a repair for {o.on}, which loop {o.loop} changes"
    for s in stages(program.body):
        if s.action.init is not None:
            yield f"stage {s.name} has an implicit init"


# --- order -------------------------------------------------------------------------------------


def _order(program: Program) -> list[str]:
    """Reads before any write, in program order, on the form in which the inits stand where they happen."""
    wrong = misplaced(program)
    if wrong is not None:
        return [wrong]
    body = decompose(program).body
    findings: list[str] = []
    _check_order(body, {b.name for b in program.inputs}, findings)
    return findings


def _check_order(s: Stmt, written: set[str], findings: list[str]) -> None:
    if isinstance(s, Seq):
        for part in s.stmts:
            _check_order(part, written, findings)
    elif isinstance(s, Alloc):
        # Written inside means written in this life of the buffer only.
        written.discard(s.buffer.name)
        _check_order(s.body, written, findings)
        written.discard(s.buffer.name)
    else:
        read = [x.buffer for e in _own_exprs(s) for x in loads(e)]
        if isinstance(s, Stage) and s.folds:
            read += s.action.buffers
        where = f"stage {s.name}" if isinstance(s, Stage) else f"loop {s.var}" if isinstance(s, For) else "a condition"
        findings += [f"{where} reads {b} before anything writes it" for b in read if b not in written]
        if isinstance(s, Stage):
            written.update(writes(s.action))
        else:
            _check_order(s.body, written, findings)


def _own_exprs(s: For | If | Stage) -> list[Expr]:
    """The expressions of a statement without its body (facts are claims, not reads)."""
    match s:
        case For(_, lo, hi):
            return [lo, hi]
        case If(pred, _):
            return [pred]
        case Stage(_, action, when):
            return [*action.index, *values(action), *starts(action), *([] if when is None else [when])]
