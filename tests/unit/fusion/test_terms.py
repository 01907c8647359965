"""Sums taken apart: nothing is lost, signs and casts stay where they are."""

from __future__ import annotations

from neptune.fusion.repairs.terms import additive, summands, without
from neptune.ir.expr import Expr, Load, Var, cast, op, walk
from neptune.ir.text.printer import print_expr

S, T, M, L, W = (Load(n, (Var("i"),), "float32") for n in "stmlw")


def reads(e: Expr) -> bool:
    return M in walk(e) or L in walk(e)


def test_terms_have_signs_and_scales() -> None:
    e = op("neg", cast((S - M / W) * 0.5, "float16")) - cast(L, "float16")
    found = [
        (print_expr(leaf), negative, [(n, print_expr(by)) for n, by in scale])
        for leaf, negative, scale in additive(e, reads)
    ]
    assert found == [
        ("s[i]", True, [("mul", "0.5")]),
        ("m[i]", False, [("div", "w[i]"), ("mul", "0.5")]),
        ("l[i]", True, []),
    ]
    # A product of two that read r is one term, and so is what is divided by one.
    assert [leaf for leaf, _, _ in additive(M * L + W / M, reads)] == [M * L, W / M]


def test_a_sum_without_some_of_its_terms() -> None:
    for e, left in (
        (S - M, "s[i]"),
        (M - S, "-s[i]"),
        (M + S, "s[i]"),
        (op("neg", S - M) + T, "-s[i] + t[i]"),
        (S + (M - L), "s[i]"),
        (S - 2.0 * M, "s[i] - 2.0 * m[i]"),
    ):
        rest = without(e, {M, L})
        assert rest is not None and print_expr(rest).replace("neg(s[i])", "-s[i]") == left
    assert without(M - L, {M, L}) is None


def test_summands_keep_their_form() -> None:
    e = cast((S * M + T) * L, "float64") / cast(W, "float64")
    assert [print_expr(x) for x in summands(e, reads, 32)] == [
        "cast(f64, s[i] * m[i] * l[i]) / cast(f64, w[i])",
        "cast(f64, t[i] * l[i]) / cast(f64, w[i])",
    ]
    for whole in ((S + M) * (T + L), cast(S * M + T, "bfloat16"), op("exp", S - M)):
        assert summands(whole, reads, 32) == [whole]
    assert summands(S - M * T, reads, 32) == [S, op("neg", M * T)]
