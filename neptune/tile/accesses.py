"""Who reads and writes a buffer under a statement.

for i: for j: s: s[i] += x[i, j]      →  of "x": s reads [i, j];  of "s": s reads [i], s writes [i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from neptune.ir.expr import Expr, loads
from neptune.ir.program import For, If, Stage, Stmt, paths, sub_stmts, values

Index: TypeAlias = tuple[Expr, ...]
ByBuffer: TypeAlias = "dict[str, list[Access]]"


@dataclass(frozen=True)
class Access:
    """A read or a write of a buffer by a stage, in the loops between the statement that was asked about and it."""

    loops: tuple[For, ...]
    stage: Stage
    index: Index
    writes: bool


class Accesses:
    """Accesses by statement and buffer. Whole nests are asked about part by part and buffer by buffer, so that each
    part is looked at once for all buffers, and for what it is a part of."""

    def __init__(self) -> None:
        # By identity: equal statements may stand in several places. What is known is kept alive by its statement.
        self._known: dict[int, tuple[Stmt, ByBuffer]] = {}
        self._read: dict[int, tuple[Expr, list[tuple[str, Index]]]] = {}

    def of(self, s: Stmt, buffer: str) -> Sequence[Access]:
        """Every access to a buffer under `s` in program order, reads of a stage before its write."""
        _, known = self._known.get(id(s)) or self._look(s)
        return known.get(buffer, ())

    def _look(self, s: Stmt) -> tuple[Stmt, ByBuffer]:
        self._known[id(s)] = pair = s, self._found(s)
        return pair

    def _found(self, s: Stmt) -> ByBuffer:
        around = (s.lo, s.hi) if isinstance(s, For) else (s.pred,) if isinstance(s, If) else ()
        if isinstance(s, Stage) or any(map(self.loads, around)):
            return self._walked(s)
        by_buffer: ByBuffer = {}
        for part in sub_stmts(s):
            _, known = self._known.get(id(part)) or self._look(part)
            for buffer, accesses in known.items():
                if isinstance(s, For):
                    accesses = [Access((s, *a.loops), a.stage, a.index, a.writes) for a in accesses]
                by_buffer.setdefault(buffer, []).extend(accesses)
        return by_buffer

    def _walked(self, s: Stmt) -> ByBuffer:
        """Those of a stage, or of a statement each of whose stages reads the bounds around it, too."""
        by_buffer: ByBuffer = {}
        for path, stage in paths(s):
            loops = tuple(x for x in path if isinstance(x, For))
            action = stage.action
            exprs = [*values(action), *action.index, *([] if stage.when is None else [stage.when])]
            exprs += [e for f in loops for e in (f.lo, f.hi)]
            exprs += [x.pred for x in path if isinstance(x, If)]
            for buffer, index in (x for e in exprs for x in self.loads(e)):
                by_buffer.setdefault(buffer, []).append(Access(loops, stage, index, False))
            for buffer in dict.fromkeys(action.buffers):
                folded = [Access(loops, stage, action.index, False)] * stage.folds
                by_buffer.setdefault(buffer, []).extend([*folded, Access(loops, stage, action.index, True)])
        return by_buffer

    def loads(self, e: Expr) -> list[tuple[str, Index]]:
        """The buffers that an expression reads, and where."""
        if id(e) not in self._read:
            self._read[id(e)] = e, [(x.buffer, x.index) for x in loads(e)]
        return self._read[id(e)][1]
