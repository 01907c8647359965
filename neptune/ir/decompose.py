"""Make the init of every reduction an explicit stage.

Before::

    for i in [0, m):
      for j in [0, n):
        s: y[i] += x[i, j]  init 0

After::

    for i in [0, m):
      s_init: y[i] = 0
      for j in [0, n):
        s: y[i] += x[i, j]

The init goes before the outermost loop around the stage that is a reduction loop of it; loops inside
that one which the target's index does use are repeated around the init.  A loop outside the Alloc of a
target is no reduction loop: the target starts afresh in each of its iterations.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from neptune.errors import InternalError
from neptune.ir.expr import Expr, conjuncts, loads, logical_and, variables
from neptune.ir.names import fresh_name
from neptune.ir.program import (
    Alloc,
    For,
    If,
    Made,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    for_loops,
    paths,
    reduction_loops,
    seq,
    stages,
    starts,
    sub_stmts,
    walk,
    with_stmts,
    writes,
)


def _lifetime(path: tuple[Stmt, ...], buffers: tuple[str, ...]) -> tuple[Stmt, ...]:
    """The part of a path inside which all the buffers exist."""
    start = max((k + 1 for k, s in enumerate(path) if isinstance(s, Alloc) and s.buffer.name in buffers), default=0)
    return path[start:]


def _anchor(path: tuple[Stmt, ...], stage: Stage) -> For | None:
    """The outermost reduction loop of an Update, or None."""
    inside = _lifetime(path, writes(stage.action))
    return next(iter(reduction_loops(stage, for_loops(inside))), None)


def init_nest(path: tuple[Stmt, ...], stage: Stage, taken: Set[str], before: For | None = None) -> Stmt | str:
    """The init of `stage`, which belongs before its outermost reduction loop, or right before the stage; or before
    `before`, a loop around that one. Why not, where it has no place there. `taken`: names of other stages."""
    action = stage.action
    anchor = before or _anchor(path, stage)
    inside = path[next(k for k, s in enumerate(path) if s is anchor) :] if anchor is not None else ()
    reduced = reduction_loops(stage, for_loops(inside))
    outer = [s for s in for_loops(inside) if s not in reduced]
    gone = frozenset(f.var for f in reduced)
    # What the loop itself allocates or computes is not there yet either.
    late = frozenset(s.buffer.name for s in walk(anchor) if isinstance(s, Alloc)) if anchor is not None else frozenset()
    if anchor is not None:
        late |= {b for s in stages(anchor) for b in writes(s.action)}

    def known(e: Expr) -> bool:
        return not variables(e) & gone and not any(x.buffer in late for x in loads(e))

    for loop in outer:
        if not known(loop.lo) or not known(loop.hi):
            where = f"before loop {anchor.var if anchor else ''!r}: the bounds of loop {loop.var!r}"
            return f"the init of stage {stage.name!r} cannot go {where} depend on what happens inside it"
    # A guard that only restricts what is spatial restricts the init too; the others do not concern it.
    guards = conjuncts(stage.when) + [c for s in inside if isinstance(s, If) for c in conjuncts(s.pred)]
    guards = [c for c in guards if known(c)]
    when = logical_and(*guards) if guards else None
    nest: Stmt = seq(
        *(
            Stage(name, Store(buffer, action.index, value), when, Made("init", stage.name))
            for name, buffer, value in zip(_names(stage, taken), action.buffers, starts(action), strict=True)
        )
    )
    for loop in reversed(outer):
        # Its facts hold inside the reduction loop; before it, where that loop may be empty, they need not.
        nest = replace(loop, body=nest, facts=())
    return nest


def _names(stage: Stage, taken: Set[str]) -> list[str]:
    """The names of the stages that write each part of an init: the same ones for all pieces of a loop."""
    wishes = [f"{stage.name}_init{k}" for k in range(len(writes(stage.action)))]
    return [fresh_name(taken, w) for w in (wishes if len(wishes) > 1 else [f"{stage.name}_init"])]


def misplaced(program: Program) -> str | None:
    """Why an init of a program has no place; None where `decompose` makes all of them explicit."""
    inits = (init_nest(path, s, frozenset()) for path, s in paths(program.body) if s.action.init is not None)
    return next((nest for nest in inits if isinstance(nest, str)), None)


def decompose(program: Program) -> Program:
    """Return the program with every `Update.init` replaced by an explicit Store (semantics unchanged).

    >>> from neptune.ir.text.parser import parse_program
    >>> lines = ["program p", "  out y: f32[]", "body:", "  for j in [0, 4):", "    s: y[] += 1.0 init 0.0"]
    >>> print(str(decompose(parse_program("\\n".join(lines)))).split("body:\\n")[1], end="")
      s_init: y[] = 0.0
      for j in [0, 4):
        s: y[] += 1.0
    """
    if all(s.action.init is None for s in stages(program.body)):
        return program
    return program.with_body(_placed(program.body, (), {s.name for s in stages(program.body)}))


def _placed(s: Stmt, path: tuple[Stmt, ...], taken: Set[str]) -> Stmt:
    """The statement at the end of `path` with its inits explicit, those that belong right before it included.

    Positions are told apart by their path: one object may stand at several places of a program.
    """
    inits: list[Stmt] = []
    if isinstance(s, For | Stage):
        for around, stage in paths(s, path):
            if stage.action.init is not None:
                anchor = _anchor(around, stage)
                if (s is stage and anchor is None) or (len(around) > len(path) and around[len(path)] is anchor):
                    nest = init_nest(around, stage, taken)
                    if isinstance(nest, str):
                        raise InternalError(nest)
                    inits.append(nest)
    if isinstance(s, Stage):
        inner: Stmt = replace(s, action=replace(s.action, init=None)) if isinstance(s.action, Update) else s
    else:
        inner = with_stmts(s, tuple(_placed(part, (*path, s), taken) for part in sub_stmts(s)))
    return seq(*inits, inner) if inits else inner
