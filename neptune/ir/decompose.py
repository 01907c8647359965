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
that one which the target's index does use are repeated around the init.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import conjuncts, logical_and, variables
from neptune.ir.program import (
    For,
    If,
    Program,
    Stage,
    Stmt,
    Store,
    Update,
    for_loops,
    paths,
    reduction_loops,
    rewrite_stmt,
    seq,
)


def init_nest(path: tuple[Stmt, ...], stage: Stage) -> tuple[For | None, Stmt]:
    """The loop before which the init of `stage` belongs (None: right before the stage), and the init."""
    action = stage.action
    assert isinstance(action, Update) and action.init is not None
    reduced = reduction_loops(stage, for_loops(path))
    anchor = reduced[0] if reduced else None
    inside = path[path.index(anchor) + 1 :] if anchor is not None else ()
    kept = [s for s in inside if isinstance(s, For) and s not in reduced]
    # A guard that only restricts what is spatial restricts the init too; the others do not concern it.
    gone = frozenset(f.var for f in reduced)
    guards = [c for c in conjuncts(stage.when) if not variables(c) & gone]
    guards += [s.pred for s in inside if isinstance(s, If) and not variables(s.pred) & gone]
    when = logical_and(*guards) if guards else None
    single = len(action.buffers) == 1
    nest: Stmt = seq(
        *(
            Stage(f"{stage.name}_init" if single else f"{stage.name}_init{k}", Store(buffer, action.index, value), when)
            for k, (buffer, value) in enumerate(zip(action.buffers, action.init, strict=True))
        )
    )
    for loop in reversed(kept):
        nest = replace(loop, body=nest)
    return anchor, nest


def decompose(program: Program) -> Program:
    """Return the program with every `Update.init` replaced by an explicit Store (semantics unchanged)."""
    before: dict[int, list[Stmt]] = {}
    for path, stage in paths(program.body):
        if isinstance(stage.action, Update) and stage.action.init is not None:
            anchor, nest = init_nest(path, stage)
            before.setdefault(id(anchor if anchor is not None else stage), []).append(nest)

    def place(s: Stmt) -> Stmt | None:
        inits = before.get(id(s), [])
        inner = s
        if isinstance(s, Stage) and isinstance(s.action, Update) and s.action.init is not None:
            inner = replace(s, action=replace(s.action, init=None))
        elif inits:
            before.pop(id(s))
            fresh = rewrite_stmt(s, place)
            assert fresh is not None
            inner = fresh
        return seq(*inits, inner) if inits else inner

    if not before:
        return program
    body = rewrite_stmt(program.body, place)
    assert body is not None
    return program.with_body(body)
