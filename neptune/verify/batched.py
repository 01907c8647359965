"""A Program that does its work for many sets of float inputs at once.

A loop around everything numbers the instances, and every global buffer that holds floats or results has a dimension
for them in front. The loop is one of lanes (`neptune.ir.evaluate.parallel`), so that the evaluator runs all instances
in lockstep: a hundred small ones take about as long as one.

    for i: y[i] = x[i] * s[d[i]]   →   for instance: for i: y[instance, i] = x[instance, i] * s[instance, d[i]]

Inputs of integers and bools are the same in all instances.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Const, Expr, Load, Var, rewrite
from neptune.ir.program import Buffer, For, Program, Scalar, Stage, Stmt, map_exprs, sub_stmts, with_stmts, writes

COUNT, INSTANCE = "__instances", "__instance"
"""The names of the number of instances, a scalar of the batched program, and of the loop's variable."""


def batched(program: Program, outputs: tuple[Buffer, ...]) -> Program:
    """The program for many instances. `outputs` are the buffers to have as its results: outputs and temporaries."""
    count, instance = Var(COUNT), Var(INSTANCE)
    many = {b.name for b in program.globals.values() if is_float(b.dtype)}
    many |= {b.name for b in (*program.outputs, *program.temporaries)}

    def wider(b: Buffer) -> Buffer:
        return replace(b, shape=(count, *b.shape)) if b.name in many else b

    def read(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer not in many:
            return None
        return replace(e, index=(instance, *(rewrite(i, read) for i in e.index)))

    def write(s: Stmt) -> Stmt:
        if isinstance(s, Stage):
            if writes(s.action)[0] not in many:
                return s
            return replace(s, action=replace(s.action, index=(instance, *s.action.index)))
        return with_stmts(s, tuple(write(p) for p in sub_stmts(s)))

    body = write(map_exprs(program.body, lambda e: rewrite(e, read)))
    named = {b.name for b in outputs}
    temporaries = tuple(wider(b) for b in (*program.outputs, *program.temporaries) if b.name not in named)
    return replace(
        program,
        inputs=tuple(wider(b) for b in program.inputs),
        outputs=tuple(wider(b) for b in outputs),
        temporaries=temporaries,
        scalars=(*program.scalars, Scalar(COUNT)),
        body=For(INSTANCE, Const(0, "int32"), count, body),
    )
