"""Statements and Programs of the loop-scalar IR: the grammar on one screen (design §4).

    program := inputs outputs temporaries scalars tunables owes  body
    stmt    := For(var, lo, hi, kind, facts, body) | If(pred, body) | Alloc(buffer, body)
             | Seq(stmt…) | Stage(name, when, Store | Update)
    store   := buffer[index…] = expr
    update  := (buffer[index…], …) ⊕= (expr, …)  init (expr, …)

Semantics.
- `For` runs var = lo … hi-1 in order (an empty range runs nothing); `kind` "serial" or a grid axis
  ("grid.x" …), whose iterations are independent. `facts` are predicates that hold in every iteration.
- A `Stage` is one named single-statement nest; it runs where `when` holds (None = always). Stage names
  are unique *per piece*: a partitioned loop holds copies of its stages under the same names.
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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from neptune.ir.expr import Const, Expr, Var, variables


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


@dataclass(frozen=True, slots=True)
class Owe:
    """An open obligation: `stage` reads `on`, which is still changing inside `loop`."""

    stage: str
    on: str
    loop: str


@dataclass(frozen=True, slots=True)
class For:
    var: str
    lo: Expr
    hi: Expr
    body: Stmt
    kind: str = "serial"
    facts: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class If:
    pred: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Alloc:
    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Seq:
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Store:
    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Update:
    """A reduction step. `buffers[k][index] = (state ⊕ values)[k]`; all targets share one index."""

    buffers: tuple[str, ...]
    index: tuple[Expr, ...]
    reducer: str
    values: tuple[Expr, ...]
    init: tuple[Expr, ...] | None


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    action: Store | Update
    when: Expr | None = None


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
        """Names of scalars that some input's shape binds."""
        return frozenset(d.name for b in self.inputs for d in b.shape if isinstance(d, Var))

    def with_body(self, body: Stmt) -> Program:
        return replace(self, body=body)

    def __str__(self) -> str:
        from neptune.ir.printer import print_program

        return print_program(self)


# --- actions -----------------------------------------------------------------------------------


def writes(action: Store | Update) -> tuple[str, ...]:
    """Names of the buffers an action writes."""
    return (action.buffer,) if isinstance(action, Store) else action.buffers


def values(action: Store | Update) -> tuple[Expr, ...]:
    """The value expressions of an action (the init of an Update is not one)."""
    return (action.value,) if isinstance(action, Store) else action.values


def map_action(action: Store | Update, fn: Callable[[Expr], Expr]) -> Store | Update:
    """Apply `fn` to every expression of an action: index, values and init."""
    index = tuple(fn(i) for i in action.index)
    if isinstance(action, Store):
        return Store(action.buffer, index, fn(action.value))
    init = None if action.init is None else tuple(fn(v) for v in action.init)
    return replace(action, index=index, values=tuple(fn(v) for v in action.values), init=init)


# --- statements --------------------------------------------------------------------------------


def seq(*stmts: Stmt) -> Stmt:
    """A flat sequence; one statement stands for itself."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


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
        case Stage(name, action, when):
            return Stage(name, map_action(action, fn), None if when is None else fn(when))


def reduction_loops(stage: Stage, loops: tuple[For, ...]) -> list[For]:
    """Those of the enclosing `loops` over which an Update reduces: not in its target's index."""
    if not isinstance(stage.action, Update):
        return []
    spatial = frozenset[str]().union(*(variables(i) for i in stage.action.index))
    return [f for f in loops if f.var not in spatial]


def for_loops(path: tuple[Stmt, ...]) -> tuple[For, ...]:
    """The loops of a path, outermost first."""
    return tuple(s for s in path if isinstance(s, For))


ZERO = Const(0, "int32")
