"""Cheaper forms of functions, by their absolute error, where results cannot tell the difference.

score = tanh(s·c)·50      →      r = rsqrt(exp2(s·(c·2·log2e)) + 1);  score = (1 - 2·r·r)·50
y = cast(f16, x·(1 + erf(x·c)))      →      e = exp2(-P(|x|));  y = cast(f16, x·(e where x < 0, else 2 - e))

A form is taken where the error analysis of the whole expression (`neptune.ir.analysis.perturb`) shows that each result
is off by less than one unit in its last place: the weights of an attention are relatively exact where scores are
absolutely so. A result in float32, or tanh itself as a result, keeps the form that is exact near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from neptune.ir.analysis.perturb import ABSOLUTE, EXACT, RELATIVE, WEIGHTED, Error, errors, negligible, roundings
from neptune.ir.expr import Const, Expr, Op, Select, args_of, op, rewrite, walk
from neptune.ir.program import Program, Stage, Stmt, map_exprs, rewrite_stmt, stages


@dataclass(frozen=True)
class Form:
    """`make` gives the form of an expression that is `of` the function, None of any other; on every float32 it is off
    by at most `error`, of a `kind` of `neptune.ir.analysis.perturb`.

    `error` counts the worst that GPUs document: 2⁻²² of ex2.approx and 2⁻²²·⁹ of rsqrt.approx, relatively (PTX ISA),
    and one rounding for each other operation.
    """

    of: str
    error: float
    make: Callable[[Expr], Expr | None]
    kind: str = ABSOLUTE


@dataclass(frozen=True)
class Taken:
    """A stage whose `operators` have cheaper forms, and what that and the forms taken before make of the results."""

    stage: str
    operators: tuple[str, ...]
    results: Mapping[str, Error]


def _tanh(e: Expr) -> Expr | None:
    """1 - 2 / (e²ˣ + 1), where the reciprocal of w is rsqrt(w)²: one instruction, and no w is too large for it."""
    if not (isinstance(e, Op) and e.name == "tanh"):
        return None
    x = e.args[0]
    y, c = args_of(x, "mul") or (x, None)
    if not isinstance(c, Const):
        y, c = x, None
    log2e = op("mul", Const(2.0, x.dtype), op("log2e", dtype=x.dtype))
    r = op("rsqrt", op("exp2", y * (log2e if c is None else op("mul", c, log2e))) + 1.0)
    return 1.0 - r * r * 2.0


ERFC = (1.62805984, 0.917103453, 0.152384678, -0.0338688467, 0.00520487531, -0.000482005771, 1.99760216e-05)
"""a·(ERFC[0] + ERFC[1]·a + …) is -log2(1 - erf(a)) on 0 to 4, 1 - erf(a) so 3.8·10⁻⁶ off at most, relatively (a fit of
ours, by reweighted least squares); from there on it grows, so that the power of two vanishes as 1 - erf(a) does."""


def _erf(e: Expr) -> Expr | None:
    """1 + erf(x), where x < 0 as a power of two, else as 2 minus that of -x: what a gelu has. Where x is far below 0,
    where erf itself has no place left to tell it from -1, that is relatively exact."""
    one, f = args_of(e, "add") or (None, None)
    one, f = (f, one) if isinstance(f, Const) else (one, f)
    if one != Const(1.0, "float32") or not (isinstance(f, Op) and f.name == "erf"):
        return None
    y, c = args_of(f.args[0], "mul") or (None, None)
    # Not where its seventh power, in a coefficient, would leave float32.
    if not (y is not None and isinstance(c, Const) and 1 / 64 <= c.value <= 64):
        y, c = f.args[0], Const(1.0, "float32")
    powers = [a * float(c.value) ** (k + 1) for k, a in enumerate(ERFC)]
    a = op("abs", y)
    p = a * powers[-1]
    for x in powers[-2:0:-1]:
        p = (p + x) * a
    small = op("exp2", -(p + powers[0]) * a)
    return Select(op("lt", y, Const(0.0, "float32")), small, 2.0 - small)


FORMS: Mapping[str, Form] = {
    "tanh": Form("tanh", 9e-7, _tanh),
    # Off by so much of 1 + |erf(x)|.
    "erf": Form("1 + erf", 4e-6, _erf, WEIGHTED),
}
INSTRUCTIONS: Mapping[str, float] = {"tanh": 8e-6}
"""The absolute error of one instruction for a function, on sm_90. PTX promises 2⁻¹¹ relatively for `tanh.approx.f32`;
compared with float64 on all float32, an H200 keeps within this."""


def cheaper(program: Program) -> tuple[Program, tuple[Taken, ...]]:
    """The definitions with cheaper forms in all stages where results cannot tell, and which these are."""
    errors_of = {name: Error(form.error, form.kind) for name, form in FORMS.items()}
    outputs = {b.name: b.dtype for b in program.outputs}
    taken = _borne(program, errors_of, lambda name, error: negligible(error, outputs[name]))
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

    return _borne(program, {n: Error(x, ABSOLUTE) for n, x in INSTRUCTIONS.items()}, bearable, free)


def _borne(
    program: Program,
    errors_of: Mapping[str, Error],
    bearable: Callable[[str, Error], bool],
    free: Collection[str] = (),
) -> tuple[Taken, ...]:
    """The stages, one after the other, whose operators may be off by what `made` says."""

    def off(e: Op[Expr]) -> Error:
        return next((error for name, error in errors_of.items() if _form(name, e) is not None), EXACT)

    taken: list[Taken] = []
    for s in stages(program.body):
        parts = [x for v in s.action.values for x in walk(v)]
        if names := sorted(n for n in errors_of if any(_form(n, x) is not None for x in parts)):
            errors_then = errors(program, off, {t.stage for t in taken} | {s.name}, free)
            results = {b.name: errors_then.get(b.name, EXACT) for b in program.outputs}
            if all(bearable(name, error) for name, error in results.items()):
                taken.append(Taken(s.name, tuple(names), results))
    return tuple(taken)


def _form(name: str, e: Expr) -> Expr | None:
    """The form of an expression by the function of a name."""
    return FORMS[name].make(e) if isinstance(e, Op) and e.dtype == "float32" else None


def _formed(e: Expr) -> Expr | None:
    """The form of an expression, with the forms of what is inside."""
    written = next((x for name in FORMS if (x := _form(name, e)) is not None), None)
    return None if written is None else rewrite(written, _formed)
