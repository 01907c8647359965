"""Statements and Programs of the loop-scalar IR: the grammar on one screen.

    program := inputs outputs temporaries scalars tunables owes  body
    stmt    := For(var, lo, hi, kind, facts, body) | If(pred, body) | Alloc(buffer, body)
             | Seq(stmt…) | Stage(name, when, Store | Update, made)
    store   := buffer[index…] = expr
    update  := (buffer[index…], …) ⊕= (expr, …)  init (expr, …)

Semantics.
- `For` runs var = lo … hi-1 in order (an empty range runs nothing); `kind` "serial" or a grid axis
  ("grid.x" …), whose iterations are independent. `facts` are predicates that hold in every iteration.
- A `Stage` is one named single-statement nest; it runs where `when` holds (None = always). Stage names
  are unique *per piece*: a partitioned loop holds copies of its stages under the same names. `made` says which
  rewrite added a stage, and for which other one; names say nothing.
- `Update` folds values into its targets with a reducer. With `init` given, each target location is set to
  `init` on entry to the outermost enclosing loop whose variable is not in the target's index (a
  reduction loop); with `init=None` an explicit Store has done so. `neptune.ir.decompose` makes all
  inits explicit, and everything that executes a Program runs that form.
- `Alloc` gives a buffer that lives (undefined at first) for one execution of its body.
- A loop variable is never shadowed on a path; sibling nests may reuse a name.
- Any order of folding is allowed for an associative and commutative reducer; kernels keep a fixed one.
- Integers in indices are exact; loop bounds and indices may load integer buffers.
- `owes` lists open fusion obligations (stage reads `on` while `loop` still changes it): a Program that
  owes anything is not executable as the user's expression and cannot be lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TypeAlias

from neptune.ir.expr import Const, Expr, Var, args_of, variables


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense array. `scope` is "global", or "tile" for what one program keeps on chip."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: str = "global"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument or symbolic size with inclusive bounds and a known divisor.

    Where `upto` is given it is no argument: each launch chooses it, sensibly at most that (any value ≥ `lo` is right).
    """

    name: str
    dtype: str = "int32"
    lo: int | None = None
    hi: int | None = None
    divisor: int = 1
    upto: Expr | None = None


@dataclass(frozen=True, slots=True)
class Tunable:
    """A named tile size, positive, chosen after compilation from `candidates`.

    Where `covers` is given, the value is not free: it is the smallest power of two ≥ that size at launch.
    """

    name: str
    candidates: tuple[int, ...]
    covers: Expr | None = None

    @property
    def least(self) -> int:
        """The least value that it may have: of one that covers max(n, 16), the side of a product, 16."""
        if self.covers is None:
            return min(self.candidates, default=1)
        sides = args_of(self.covers, "max")
        return max((int(x.value) for x in sides if isinstance(x, Const)), default=1)


@dataclass(frozen=True, slots=True)
class Owe:
    """An open obligation: `stage` reads `on`, which is still changing inside `loop`."""

    stage: str
    on: str
    loop: str


@dataclass(frozen=True, slots=True)
class For:
    """`for var in [lo, hi)`: its iterations run in order, or side by side where `kind` is a grid axis."""

    var: str
    lo: Expr
    hi: Expr
    body: Stmt
    kind: str = "serial"
    facts: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    """`body` where `pred` holds."""

    pred: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Alloc:
    """`body` with a buffer that lives for one execution of it."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Seq:
    """Statements one after the other."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`. What is asked of either action has one name: a store has one buffer and value, no init
    and no reducer."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr

    @property
    def buffers(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def values(self) -> tuple[Expr, ...]:
        return (self.value,)

    @property
    def init(self) -> None:
        return None

    @property
    def reducer(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Update:
    """A reduction step. `buffers[k][index] = (state ⊕ values)[k]`; all targets share one index."""

    buffers: tuple[str, ...]
    index: tuple[Expr, ...]
    reducer: str
    values: tuple[Expr, ...]
    init: tuple[Expr, ...] | None


MADE = {
    "init": "the start of the reduction `of`",
    "previous": "the value of buffer `of` at the end of the iteration before",
    "factor": "what the steps of buffer `of` repair others with, once per iteration",
    "repair": "the accumulator of the reduction `of`, made right for the present values of what it reads",
    "mean": "the running mean that follows the sum in buffer `of`",
    "weight": "a sum that the running mean of buffer `of` is divided by",
    "moment": "a further accumulator of the reduction `of`",
    "final": "the result of the reduction `of`, from what that has folded",
    "copy": "the map `of` as another loop needs it",
    "element": "the map `of` as the parts of an axis need it",
    "part": "the reduction `of` over a part of what that folds together",
    "direct": "the output `of` where one part is the whole",
    "bound": "an extreme of what buffer `of` holds in a tile, or of the iterations of loop `of` to run",
    "store": "the tile of buffer `of`, written back",
}
"""What a stage may have been added for (`Made.kind`), in words. `of` is a stage where no other thing is said."""


@dataclass(frozen=True, slots=True)
class Made:
    """The origin of a stage that a rewrite added: `Made("repair", "l")` rescales the fold of stage `l` so far."""

    kind: str
    of: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A named statement. `made` is None for what the user defined, wherever it has been moved since."""

    name: str
    action: Store | Update
    when: Expr | None = None
    made: Made | None = None

    @property
    def folds(self) -> bool:
        """True for a reduction, whose targets its earlier runs have changed."""
        return isinstance(self.action, Update)


Stmt: TypeAlias = For | If | Alloc | Seq | Stage


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program. Tensors are passed in the order of `inputs`, results in the order of `outputs`.

    `temporaries` are global buffers that are neither; locals are declared by Alloc in the body.
    A symbolic size is a `Scalar`; where it is a plain dimension of an input it is bound by that
    tensor's shape, else it is a trailing argument of the call.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    scalars: tuple[Scalar, ...]
    tunables: tuple[Tunable, ...]
    body: Stmt
    owes: tuple[Owe, ...] = ()

    @property
    def globals(self) -> dict[str, Buffer]:
        """Every buffer declared outside the body, by name."""
        return {b.name: b for b in (*self.inputs, *self.outputs, *self.temporaries)}

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Every buffer, those of Allocs included."""
        return self.globals | {s.buffer.name: s.buffer for s in walk(self.body) if isinstance(s, Alloc)}

    @property
    def shape_scalars(self) -> frozenset[str]:
        """Names of scalars that are a dimension of some input (`ir/indices/sizes.py` has those inside of one)."""
        return frozenset(d.name for b in self.inputs for d in b.shape if isinstance(d, Var))

    def _repr_html_(self) -> str:
        """The text, as notebooks show a program."""
        return f"<pre>{escape(str(self))}</pre>"

    def with_body(self, body: Stmt) -> Program:
        return replace(self, body=body)

    def __str__(self) -> str:
        from neptune.ir.text.printer import print_program

        return print_program(self)


# --- actions -----------------------------------------------------------------------------------


def writes(action: Store | Update) -> tuple[str, ...]:
    """Names of the buffers an action writes."""
    return action.buffers


def values(action: Store | Update) -> tuple[Expr, ...]:
    """The value expressions of an action (the init of an Update is not one)."""
    return action.values


def starts(action: Store | Update) -> tuple[Expr, ...]:
    """The expressions that an Update starts from, where it says so itself."""
    return action.init or ()


def map_action(action: Store | Update, fn: Callable[[Expr], Expr]) -> Store | Update:
    """Apply `fn` to every expression of an action: index, values and init."""
    index = tuple(fn(i) for i in action.index)
    if isinstance(action, Store):
        return Store(action.buffer, index, fn(action.value))
    init = None if action.init is None else tuple(fn(v) for v in action.init)
    return replace(action, index=index, values=tuple(fn(v) for v in action.values), init=init)


def retarget(action: Store | Update, names: Mapping[str, str]) -> Store | Update:
    """The action with other names for buffers that it writes."""
    if isinstance(action, Store):
        return replace(action, buffer=names.get(action.buffer, action.buffer))
    return replace(action, buffers=tuple(names.get(b, b) for b in action.buffers))


# --- statements --------------------------------------------------------------------------------


def seq(*stmts: Stmt) -> Stmt:
    """A flat sequence; one statement stands for itself."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(nests(s))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def nests(body: Stmt) -> tuple[Stmt, ...]:
    """The statements that a body is a sequence of."""
    return body.stmts if isinstance(body, Seq) else (body,)


def sub_stmts(s: Stmt) -> tuple[Stmt, ...]:
    """The direct substatements."""
    match s:
        case For() | If() | Alloc():
            return (s.body,)
        case Seq(stmts):
            return stmts
        case _:
            return ()


def with_stmts(s: Stmt, parts: tuple[Stmt, ...]) -> Stmt:
    """The statement `s` with other substatements."""
    match s:
        case For() | If() | Alloc():
            return replace(s, body=parts[0])
        case Seq():
            return seq(*parts)
        case _:
            return s


def walk(s: Stmt) -> Iterator[Stmt]:
    """Every statement in program order, a parent before its parts."""
    yield s
    for part in sub_stmts(s):
        yield from walk(part)


def stages(s: Stmt) -> list[Stage]:
    """Every stage in program order."""
    return [x for x in walk(s) if isinstance(x, Stage)]


def updates(s: Stmt) -> list[Update]:
    """Every reduction step in program order."""
    return [x.action for x in stages(s) if isinstance(x.action, Update)]


def written(s: Stmt) -> frozenset[str]:
    """The buffers that stages write."""
    return frozenset(b for x in stages(s) for b in x.action.buffers)


def made_as(s: Stmt, kind: str, of: str | None = None) -> list[Stage]:
    """The stages that were made as `kind` (of stage or buffer `of`), the first piece of each, in program order."""
    candidates = (x for x in stages(s) if x.made is not None and x.made.kind == kind and of in (None, x.made.of))
    first: dict[str, Stage] = {}
    for x in candidates:
        first.setdefault(x.name, x)
    return list(first.values())


def paths(s: Stmt, prefix: tuple[Stmt, ...] = ()) -> Iterator[tuple[tuple[Stmt, ...], Stage]]:
    """Every stage with the statements around it, outermost first."""
    if isinstance(s, Stage):
        yield prefix, s
    for part in sub_stmts(s):
        yield from paths(part, (*prefix, s))


def rewrite_stmt(s: Stmt, fn: Callable[[Stmt], Stmt | None]) -> Stmt | None:
    """Top-down rewriting. `fn` returns a replacement (not revisited), the same node to descend, or
    None to delete the statement; loops and scopes left empty disappear."""
    new = fn(s)
    if new is not s:
        return new
    if isinstance(s, Stage):
        return s
    parts = tuple(p for x in sub_stmts(s) if (p := rewrite_stmt(x, fn)) is not None)
    if not parts:
        return None
    same = len(parts) == len(sub_stmts(s)) and all(a is b for a, b in zip(parts, sub_stmts(s), strict=True))
    return s if same else with_stmts(s, parts)


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """Apply `fn` to every expression in `s`: bounds, facts, predicates, guards and actions."""
    match s:
        case For(var, lo, hi, body, kind, facts):
            return For(var, fn(lo), fn(hi), map_exprs(body, fn), kind, tuple(fn(f) for f in facts))
        case If(pred, body):
            return If(fn(pred), map_exprs(body, fn))
        case Alloc(buffer, body):
            return Alloc(buffer, map_exprs(body, fn))
        case Seq(stmts):
            return Seq(tuple(map_exprs(x, fn) for x in stmts))
        case Stage(name, action, when, provenance):
            return Stage(name, map_action(action, fn), None if when is None else fn(when), provenance)


def wrap(loops: Sequence[For], body: Stmt) -> Stmt:
    """`body` inside `loops`, outermost first."""
    for f in reversed(loops):
        body = replace(f, body=body)
    return body


def reduction_loops(stage: Stage, loops: tuple[For, ...]) -> list[For]:
    """Those of the enclosing `loops` over which an Update reduces: not in its target's index."""
    if not stage.folds:
        return []
    spatial = frozenset[str]().union(*(variables(i) for i in stage.action.index))
    return [f for f in loops if f.var not in spatial]


def for_loops(path: tuple[Stmt, ...]) -> tuple[For, ...]:
    """The loops of a path, outermost first."""
    return tuple(s for s in path if isinstance(s, For))


ZERO = Const(0, "int32")


def parameter_names(scalars: Iterable[Scalar], tunables: Iterable[Tunable]) -> dict[str, str]:
    """The dtypes of scalars and tunables by name."""
    return {s.name: s.dtype for s in scalars} | {t.name: "int32" for t in tunables}
