"""Who reads and writes a buffer under a statement.

for i: for j: s: s[i] += x[i, j]      →  of "x": s reads [i, j];  of "s": s reads [i], s writes [i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from neptune.ir.expr import Expr, loads
from neptune.ir.program import For, If, Stage, Stmt, paths, values

Index: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True)
class Access:
    """A read or a write of a buffer by a stage, in the loops between the statement that was asked about and it."""

    loops: tuple[For, ...]
    stage: Stage
    index: Index
    writes: bool


class Accesses:
    """Accesses by statement and buffer. Whole nests are asked about part by part and buffer by buffer, so that each
    part is walked once for all buffers, and each expression once for all parts."""

    def __init__(self) -> None:
        # By identity: equal statements may stand in several places. What is known is kept alive by its statement.
        self._known: dict[int, tuple[Stmt, dict[str, list[Access]]]] = {}
        self._read: dict[int, tuple[Expr, list[tuple[str, Index]]]] = {}

    def of(self, s: Stmt, buffer: str) -> Sequence[Access]:
        """Every access to a buffer under `s` in program order, reads of a stage before its write."""
        if id(s) not in self._known:
            self._known[id(s)] = s, self._found(s)
        return self._known[id(s)][1].get(buffer, ())

    def _found(self, s: Stmt) -> dict[str, list[Access]]:
        found: dict[str, list[Access]] = {}
        for path, stage in paths(s):
            loops = tuple(x for x in path if isinstance(x, For))
            action = stage.action
            exprs = [*values(action), *action.index, *([] if stage.when is None else [stage.when])]
            exprs += [e for f in loops for e in (f.lo, f.hi)]
            exprs += [x.pred for x in path if isinstance(x, If)]
            for buffer, index in (x for e in exprs for x in self._loads(e)):
                found.setdefault(buffer, []).append(Access(loops, stage, index, False))
            for buffer in dict.fromkeys(action.buffers):
                folded = [Access(loops, stage, action.index, False)] * stage.folds
                found.setdefault(buffer, []).extend([*folded, Access(loops, stage, action.index, True)])
        return found

    def _loads(self, e: Expr) -> list[tuple[str, Index]]:
        if id(e) not in self._read:
            self._read[id(e)] = e, [(x.buffer, x.index) for x in loads(e)]
        return self._read[id(e)][1]
