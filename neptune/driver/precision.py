"""What explain() says of arithmetic that is less exact than float32: of products on some GPU, and of functions."""

from __future__ import annotations

from math import expm1

from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Expr, Load, rewrite
from neptune.ir.forms import FORMS, Taken, short
from neptune.ir.perturb import ABSOLUTE
from neptune.ir.program import Program, map_exprs, updates
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.verify.exact import ExactReport, exact_report


def short_products(tiles: TileProgram) -> tuple[Decision, ...]:
    """A Decision for each kernel that multiplies matrices of 8-bit floats.

    c += dot(x, w), of float8_e4m3fn   →   scaled_kernel: multiplies float8_e4m3fn (products)
    """
    decisions = []
    for k in tiles.kernels:
        dtypes = sorted({d.a.dtype for d in dots(k)} & set(FLOAT8))
        if dtypes:
            reason = (
                "NVIDIA's units of sm_89 and sm_90 sum 8-bit products with about 14 bits: 32 of them on sm_90 (a tile "
                "in the asynchronous form), a tile on sm_89; these sums are added in float32\n"
                "where that is too coarse: cast the operands to float16, then to float32, and float16 is multiplied"
            )
            decisions.append(Decision("products", k.name, f"multiplies {' and '.join(dtypes)}", reason))
    return tuple(decisions)


def form_decisions(taken: tuple[Taken, ...]) -> tuple[Decision, ...]:
    """A Decision for each stage in which functions have cheaper forms.

    score = tanh(s)·50   →   score: tanh to an absolute error of 9.0e-07 (forms)
    """
    decisions = []
    for t in taken:
        off = ", ".join(f"`{name}` by {expm1(error.size):.1e}" for name, error in t.results.items())
        verdict = " and ".join(map(_to, t.operators))
        reason = f"moves {off}, relative to the magnitudes of its summands: less than its last place"
        decisions.append(Decision("forms", t.stage, verdict, reason))
    return tuple(decisions)


def _to(name: str) -> str:
    form = FORMS[name]
    what = "an absolute error" if form.kind == ABSOLUTE else "an error"
    return f"{form.of} to {what} of {form.error:.1e}"


def short_functions(program: Program) -> tuple[Taken, ...]:
    """The stages whose functions may be single instructions on sm_90 (`neptune.ir.forms.short`).

    The maximum that a softmax takes off cancels: where the results do not depend on it, as an exact check of the
    program with another one says, its error does not count. Several that each cancel need not do so together.
    """
    maxima = frozenset(b for u in updates(program.body) if u.reducer == "max" for b in u.buffers)
    taken = short(program, maxima)
    if not taken or taken == (known := short(program)):
        return taken
    return taken if len(maxima) == 1 and all(_is_free(program, b) for b in maxima) else known


def _is_free(program: Program, buffer: str) -> bool:
    """True if other values in a buffer, for each place another one, leave the results as they are."""

    def other(x: Expr) -> Expr | None:
        return x * 0.5 + 1.0 if isinstance(x, Load) and x.buffer == buffer else None

    changed = program.with_body(map_exprs(program.body, lambda e: rewrite(e, other)))
    report = exact_report(program, changed)
    return isinstance(report, ExactReport) and report.accepted
