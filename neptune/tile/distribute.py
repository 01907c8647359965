"""distribute: one loop over several statements becomes a loop over each.

Before → after::

    for i1: for j1:                       for i1: for j1: s_init: s[i1, j1] = 0
      s_init: s[i1, j1] = 0               for i1: for j1: for d: s: s[i1, j1] += …
      for d: s: s[i1, j1] += …

Legal where iterations are independent: then all of the first statement may run before the second.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.program import Alloc, For, If, Seq, Stmt
from neptune.schedule.bind import is_independent


def distribute(loop: For) -> list[Stmt] | None:
    """The loops over the parts of `loop`'s body; None where it has one part, or iterations depend."""
    if not is_independent(loop):
        return None
    parts = _parts(loop.body)
    return None if len(parts) < 2 else [replace(loop, body=p) for p in parts]


def _parts(body: Stmt) -> list[Stmt]:
    match body:
        case Seq(stmts):
            return [p for s in stmts for p in _parts(s)]
        case For():
            inner = distribute(body)
            return inner if inner is not None else [body]
        case If() | Alloc():
            return [body]
        case _:
            return [body]
