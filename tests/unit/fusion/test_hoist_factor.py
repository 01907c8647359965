"""hoist_factor: what is taken out of a sum, what that rests on, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.errors import FusionError, ScheduleError
from neptune.frontend.builder import build, compute, max, placeholder, reduce_axis, select, sum
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program, stages
from tests.examples.hidden_products import (
    K,
    M,
    N,
    plain,
    rms_linear,
    scaled_product,
    through_a_map,
    weighted_rms_linear,
    wide,
)
from tests.examples.schedule_examples import check_round_trips, check_same

FORMS: dict[str, tuple[Callable[[], Program], str, str]] = {
    "middle": (lambda: scaled_product(lambda x, w, r, c: x * r * w), "x[i, q] * w[q, j]", "y_acc[i, j] * r[i]"),
    "first": (lambda: scaled_product(lambda x, w, r, c: r * x * w), "x[i, q] * w[q, j]", "y_acc[i, j] * r[i]"),
    "last": (lambda: scaled_product(lambda x, w, r, c: x * (w * c)), "x[i, q] * w[q, j]", "y_acc[i, j] * c[j]"),
    "two": (
        lambda: scaled_product(lambda x, w, r, c: x * r * (w * c)), "x[i, q] * w[q, j]", "y_acc[i, j] * (r[i] * c[j])",
    ),
    "divided": (lambda: scaled_product(lambda x, w, r, c: x / r * w), "x[i, q] * w[q, j]", "y_acc[i, j] / r[i]"),
    "constant": (lambda: scaled_product(lambda x, w, r, c: x * w * 0.125), "x[i, q] * w[q, j]", "y_acc[i, j] * 0.125"),
    "sum of scales": (
        lambda: scaled_product(lambda x, w, r, c: x * (r + c) * w), "x[i, q] * w[q, j]", "y_acc[i, j] * (r[i] + c[j])",
    ),
    "grouped": (
        lambda: weighted_rms_linear(lambda x, g, w, r: x * w * r * g),
        "cast(f32, x[i, q]) * cast(f32, g[q]) * cast(f32, w[q, j])", "y_acc[i, j] * r[i]",
    ),
    "through a map": (
        lambda: through_a_map(kept=False), "cast(f32, x[i, q]) * cast(f32, w[q, j])", "y_acc[i, j] * r[i]",
    ),
    "through a result": (
        lambda: through_a_map(kept=True), "cast(f32, x[i, q]) * cast(f32, w[q, j])", "y_acc[i, j] * r[i]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_is_summed_and_what_is_applied(form: str) -> None:
    make, summed, applied = FORMS[form]
    sch = Schedule(make())
    assert sch.hoist_factor("y") == "y_final"
    text = str(sch.program)
    assert f"y: y_acc[i, j] += {summed} init 0.0" in text and f"y_final: y[i, j] = {applied}\n" in text
    assert ("z" in sch.stages) == (form == "through a result")
    check_same(make(), sch.program)
    check_round_trips(sch, make())


def test_it_is_scheduled_like_any_other_sum() -> None:
    sch = Schedule(rms_linear())
    sch.hoist_factor("y")
    _, j0, *_ = sch.tile(sch.loops("y")[:2], [sch.param("BM", [2]), sch.param("BN", [4])])
    sch.fuse_at("y_final", j0)
    assert [s.name for s in stages(sch.program.body)] == ["ss", "y", "y_final"]
    check_same(rms_linear(), sch.program)


def test_the_proof_is_recorded() -> None:
    sch = Schedule(rms_linear())
    sch.hoist_factor("y")
    (d,) = sch.decisions
    assert (d.kind, d.subject, d.verdict) == ("hoist_factor", "y", "hoisted")
    text = "\n".join(d.details)
    assert "g = c1*r*c2" in text and "r = rsqrt(ss[i] / cast(f32, k) + 1e-06)" in text and "%" not in text
    for name in ("split: g = (c1*c2)*(r)  [both sides", "commute: φ*x + φ*y", "range: no sum of these leaves float32"):
        assert f"proved {name}" in text


def test_sums_of_float16_products_stay_in_float32() -> None:
    """|x w| <= 65504², and 2³¹ of them are below 3.4e38: nothing is assumed. float32 is not known to do."""
    half, single = Schedule(rms_linear()), Schedule(rms_linear(dtype="float32"))
    half.hoist_factor("y")
    single.hoist_factor("y")
    assert half.decisions[-1].ranges == () and half.decisions[-1].assumed == ()
    (p,) = single.decisions[-1].ranges
    assert p.text == "1.2e-38 < |x[i, q] * w[q, j]| < 3.4e+38 / k"
    assert [a.name for a in single.decisions[-1].assumed] == ["range(y)"]


def test_two_scales_may_not_underflow_together() -> None:
    sch = Schedule(scaled_product(lambda x, w, r, c: x * r * w * c, "float16"))
    sch.hoist_factor("y")
    assert [p.text for p in sch.decisions[-1].ranges] == ["1.2e-38 < |r[i] * c[j]| < 3.4e+38"]


def test_products_in_another_order_are_new_numbers() -> None:
    """x w g: (x g) w multiplies what the expression never does, with or without the factor."""
    x, g, w = placeholder((M, K), name="x"), placeholder((K,), name="g"), placeholder((K, N), name="w")
    r, q = placeholder((M,), name="r"), reduce_axis((0, K), "q")
    y = compute((M, N), lambda i, j: sum(x[i, q] * w[q, j] * r[i] * g[q], axis=q), "y")
    sch = Schedule(build(y, inputs=[x, g, w, r]))
    sch.hoist_factor("y")
    assert "1.2e-38 < |x[i, q] * g[q]| < 3.4e+38" in [p.text for p in sch.decisions[-1].ranges]


# --- refusals -------------------------------------------------------------------------------------


def refused(program: Program, stage: str = "y") -> str:
    sch = Schedule(program)
    before = sch.program
    with pytest.raises((FusionError, ScheduleError)) as error:
        sch.hoist_factor(stage)
    assert sch.program == before and not sch.trace
    return str(error.value)


def sums(value: Callable[[Expr, Expr], Expr], *, dtype: str = "float32", init: float | None = None) -> Program:
    """y[i] = Σ value(x[i, q], r[i]), x of `dtype`."""
    x, r, q = placeholder((M, K), dtype, "x"), placeholder((M,), dtype, "r"), reduce_axis((0, K), "q")
    y = compute((M,), lambda i: sum(value(x[i, q], r[i]), axis=q, init=init), "y")
    return build(y, inputs=[x, r], name="sums")


def steep() -> Program:
    """Σ x⁴ / (Σ x²)²: at most 1, where the sum of x⁴ alone leaves the range at ordinary x."""
    x, p, q = placeholder((M, K), name="x"), reduce_axis((0, K), "p"), reduce_axis((0, K), "q")
    ss = compute((M,), lambda i: sum(x[i, p] * x[i, p], axis=p), "ss")
    share = compute((M,), lambda i: 1.0 / (ss[i] * ss[i]), "share")
    y = compute((M,), lambda i: sum(x[i, q] * x[i, q] * (x[i, q] * share[i] * x[i, q]), axis=q), "y")
    return build(y, name="steep")


def shorter() -> Program:
    """Sums of x[i, q] r[i] over the q from i on: of row i ≥ k over none."""
    x, r = placeholder((M, K), name="x"), placeholder((M,), name="r")

    def value(i: Expr) -> Expr:
        q = reduce_axis((i, K), "q")
        return sum(x[i, q] * r[i], axis=q)

    return build(compute((M,), value, "y"), inputs=[x, r], name="shorter")


def test_a_rounding_holds_a_factor_fast() -> None:
    rounded = refused(rms_linear(lambda x, r, w: wide((x * r).astype("float16")) * w))
    assert "part of what is rounded to another dtype" in rounded and "rsqrt(ss[i]" in rounded
    # Multiplied in float16, and summed in float32.
    assert "part of what is rounded" in refused(sums(lambda x, r: (x * r).astype("float32"), dtype="float16"))


def test_no_factor() -> None:
    assert "every factor of x[i, q] * x[i, q] moves with `q`" in refused(sums(lambda x, r: x * x))
    assert "moves with `q`" in refused(sums(lambda x, r: x + r))
    # A mask may leave nothing of a row, of which a factor that is infinite would make NaN.
    assert "moves with `q`" in refused(sums(lambda x, r: select(x > 0, x * r, 0)))


def test_no_sum_that_it_can_be_taken_out_of() -> None:
    x, q = placeholder((M, K), name="x"), reduce_axis((0, K), "q")
    top = build(compute((M,), lambda i: max(x[i, q] * 2.0, axis=q), "y"))
    assert "`y` is a max" in refused(top)
    assert "`r` is a map" in refused(weighted_rms_linear(lambda x, g, w, r: x * r * w * g), "r")
    for dtype in ("float16", "int32"):
        assert f"`y` is summed in {dtype}" in refused(sums(lambda x, r: x * r, dtype=dtype))
    assert "does not start from 0" in refused(sums(lambda x, r: x * r, init=1.0))
    assert "may fold nothing" in refused(shorter())


def test_what_is_scheduled_is_left_alone() -> None:
    sch = Schedule(rms_linear())
    sch.split(sch.loops("y")[0], 4)
    with pytest.raises(ScheduleError, match="has been scheduled already"):
        sch.hoist_factor("y")


def test_what_is_fused_is_left_alone() -> None:
    """`out` would read y before the factor is applied."""
    sch = Schedule(rms_linear(stored="float16"))
    sch.fuse_at("out", sch.loops("y")[1])
    with pytest.raises(ScheduleError, match="`y` is in a nest with `out`"):
        sch.hoist_factor("y")


def test_a_map_that_bounds_loops_stays() -> None:
    """z is looked through, and says as well where the sums of t begin."""
    x, start = placeholder((M, K), name="x"), placeholder((K,), "int32", "start")
    r, q = placeholder((M,), name="r"), reduce_axis((0, K), "q")
    z = compute((K,), lambda k: start[k] * 2, "z")

    def tail(k: Expr) -> Expr:
        p = reduce_axis((z[k], N), "p")
        return sum(v[p], axis=p)

    v = placeholder((N,), name="v")
    scaled = compute((M, K), lambda i, k: x[i, k] * wide(z[k]) * r[i], "scaled")
    y = compute((M,), lambda i: sum(scaled[i, q], axis=q), "y")
    program = build([y, compute((K,), tail, "t")], inputs=[x, start, r, v])
    sch = Schedule(program)
    sch.hoist_factor("y")
    assert "z" in sch.stages and "scaled" not in sch.stages


def test_what_would_leave_the_range_at_ordinary_inputs() -> None:
    assert "grows with the power 4 of x" in refused(steep())
    # The scale of rms_norm makes 0 powers of x out of 1: that is assumed, not refused.
    Schedule(rms_linear(plain, dtype="float32")).hoist_factor("y")
