"""Cheaper forms of functions, by their absolute error, where results cannot tell the difference.

score = tanh(s·c)·50      →      r = rsqrt(exp2(s·(c·2·log2e)) + 1);  score = (1 - 2·r·r)·50

A form is taken where the error analysis of the whole expression (`neptune.ir.perturb`) shows that each result is off by
less than one unit in its last place: the weights of an attention are relatively exact where scores are absolutely so.
A result in float32, or tanh itself as a result, keeps the form that is exact near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from neptune.ir.expr import Const, Expr, Op, args_of, op, rewrite, walk
from neptune.ir.perturb import EXACT, RELATIVE, WEIGHTED, Error, errors, negligible, roundings
from neptune.ir.program import Program, Stage, Stmt, map_exprs, rewrite_stmt, stages


@dataclass(frozen=True)
class Form:
    """`make` gives the form of an argument; on every float32 it is off by at most `error`.

    `error` counts the worst that GPUs document: 2⁻²² of ex2.approx and 2⁻²²·⁹ of rsqrt.approx, relatively (PTX ISA),
    and one rounding for each other operation.
    """

    error: float
    make: Callable[[Expr], Expr]


@dataclass(frozen=True)
class Taken:
    """A stage whose `operators` have cheaper forms, and what that and the forms taken before make of the results."""

    stage: str
    operators: tuple[str, ...]
    results: Mapping[str, Error]


def _tanh(x: Expr) -> Expr:
    """1 - 2 / (e²ˣ + 1), where the reciprocal of w is rsqrt(w)²: one instruction, and no w is too large for it."""
    y, c = args_of(x, "mul") or (x, None)
    if not isinstance(c, Const):
        y, c = x, None
    log2e = op("mul", Const(2.0, x.dtype), op("log2e", dtype=x.dtype))
    r = op("rsqrt", op("exp2", y * (log2e if c is None else op("mul", c, log2e))) + 1.0)
    return 1.0 - r * r * 2.0


FORMS: Mapping[str, Form] = {"tanh": Form(9e-7, _tanh)}
INSTRUCTIONS: Mapping[str, float] = {"tanh": 8e-6}
"""The absolute error of one instruction for a function, on sm_90. PTX promises 2⁻¹¹ relatively for `tanh.approx.f32`;
on all float32 an H200 keeps within this (`python -m bench.instructions`)."""


def cheaper(program: Program) -> tuple[Program, tuple[Taken, ...]]:
    """The definitions with cheaper forms in all stages where results cannot tell, and which these are."""
    made = {name: form.error for name, form in FORMS.items()}
    outputs = {b.name: b.dtype for b in program.outputs}
    taken = _borne(program, made, lambda name, error: negligible(error, outputs[name]))
    chosen = {t.stage for t in taken}

    def stage(s: Stmt) -> Stmt:
        inside = isinstance(s, Stage) and s.name in chosen
        return map_exprs(s, lambda e: rewrite(e, _formed)) if inside else s

    return (program.with_body(rewrite_stmt(program.body, stage) or program.body) if taken else program), taken


def short(program: Program, free: Collection[str] = ()) -> tuple[Taken, ...]:
    """The stages in which functions may be single instructions: they move no result by more than the program's own
    casts to shorter floats may, so that what they cost is at most another such rounding.

    On values of `free` buffers no result depends. Of an attention in float16 weights are rounded to 2⁻¹¹, and so is the
    result: caps of scores up to 61.
    """
    own = roundings(program)

    def bearable(name: str, error: Error) -> bool:
        if error == EXACT:
            return True
        bound = own.get(name, EXACT)
        return error.kind in (RELATIVE, WEIGHTED) and bound.kind in (RELATIVE, WEIGHTED) and error.size <= bound.size

    return _borne(program, INSTRUCTIONS, bearable, free)


def _borne(
    program: Program,
    made: Mapping[str, float],
    bearable: Callable[[str, Error], bool],
    free: Collection[str] = (),
) -> tuple[Taken, ...]:
    """The stages, one after the other, whose operators may be off by what `made` says."""
    taken: list[Taken] = []
    for s in stages(program.body):
        if names := sorted({x.name for v in s.action.values for x in walk(v) if isinstance(x, Op) and _has_form(x)}):
            found = errors(program, made, {t.stage for t in taken} | {s.name}, free)
            results = {b.name: found.get(b.name, EXACT) for b in program.outputs}
            if all(bearable(name, error) for name, error in results.items()):
                taken.append(Taken(s.name, tuple(names), results))
    return tuple(taken)


def _has_form(e: Op[Expr]) -> bool:
    return e.name in FORMS and e.dtype == "float32"


def _formed(e: Expr) -> Expr | None:
    return FORMS[e.name].make(rewrite(e.args[0], _formed)) if isinstance(e, Op) and _has_form(e) else None
