"""Reads and writes at places that data decide, kept inside of their buffers: for targets on which one outside would end
the process.

    y[i] = x[idx[i]]                              y[i] = x[max(min(idx[i], n - 1), 0)]
    for j in [0, len[i]): z[j] = 0                for j in [0, len[i]): z[j] = 0  when j < n

Places that are shown to lie inside stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import Expr, Load, binary, cast, conjuncts, loads, logical_and, rewrite, variables
from neptune.ir.indices.affine import Scope, always, as_nonnegative, scope_of
from neptune.ir.program import For, If, Program, Stage, Stmt, map_action, sub_stmts, with_stmts


def clamped(program: Program) -> Program:
    """The program, whose indices that data decide lie inside for any data; where they do anyhow it means the same."""
    return replace(program, body=_Clamp(program).stmt(program.body, (), ()))


class _Clamp:
    def __init__(self, program: Program) -> None:
        self.program, self.shapes = program, {n: b.shape for n, b in program.buffers.items()}

    def stmt(self, s: Stmt, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Stmt:
        match s:
            case For(_, lo, hi, body, _, _):
                lo, hi = self.expr(lo, loops, guards), self.expr(hi, loops, guards)
                return replace(s, lo=lo, hi=hi, body=self.stmt(body, (*loops, s), guards))
            case If(pred, body):
                return If(self.expr(pred, loops, guards), self.stmt(body, loops, (*guards, *conjuncts(pred))))
            case Stage():
                return self.stage(s, loops, guards)
            case _:
                return with_stmts(s, tuple(self.stmt(x, loops, guards) for x in sub_stmts(s)))

    def stage(self, s: Stage, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Stage:
        when = None if s.when is None else self.expr(s.when, loops, guards)
        guards = (*guards, *conjuncts(s.when))
        action = map_action(s.action, lambda e: self.expr(e, loops, guards))
        written = action.buffer if hasattr(action, "buffer") else action.buffers[0]
        outside = [
            c
            for i, n in zip(action.index, self.shapes[written], strict=False)
            for c in self.unproved(i, n, loops, guards)
        ]
        return replace(s, action=action, when=logical_and(*conjuncts(when), *outside) if outside else when)

    def expr(self, e: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Expr:
        """The same expression with every such read inside."""

        def inside(x: Expr) -> Expr | None:
            if not isinstance(x, Load):
                return None
            index = tuple(self.expr(i, loops, guards) for i in x.index)
            shape = self.shapes[x.buffer]
            return replace(x, index=tuple(self.index(i, n, loops, guards) for i, n in zip(index, shape, strict=True)))

        return rewrite(e, inside)

    def index(self, i: Expr, extent: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> Expr:
        if not self.unproved(i, extent, loops, guards):
            return i
        last = binary("sub", cast(extent, i.dtype), 1)
        return binary("max", binary("min", i, last), 0)

    def unproved(self, i: Expr, extent: Expr, loops: tuple[For, ...], guards: tuple[Expr, ...]) -> list[Expr]:
        """Return those of 0 <= i and i < extent that are not shown, if data decide the index; [] for any other."""
        by_data: set[str] = set()
        for f in loops:
            bounds = (f.lo, f.hi)
            if any(loads(b) or variables(b) & by_data for b in bounds):
                by_data.add(f.var)
        if not (loads(i) or variables(i) & by_data):
            return []
        base = scope_of(self.program, loops)
        facts = tuple(p for g in guards for p in as_nonnegative(g) or [])
        scope = Scope(base.ranges, base.at_least, (*base.facts, *facts))
        sides = (binary("ge", i, 0), binary("lt", i, cast(extent, i.dtype)))
        return [c for c in sides if not always(c, scope)]
