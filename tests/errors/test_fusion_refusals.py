"""Every refusal of the solver, each with the reason that is its own."""

import pytest

from neptune.errors import FusionError
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query
from neptune.ir.expr import Const, Expr, Load, Var, cast, op, select

ROW, COL = Var("i"), Var("j")
S, C = Load("s", (ROW, COL), "float32"), Load("c", (ROW, COL), "float32")
M, L = Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
P = Load("p", (ROW,), "float32")
MAX, SUM, MEAN = Predecessor(M, "max", S), Predecessor(L, "sum", op("exp", S)), Predecessor(L, "sum", S)
ABS = Predecessor(M, "max", op("abs", S))
HALF, MH, PH = Load("h", (ROW, COL), "float16"), Load("k", (ROW,), "float16"), Load("q", (ROW,), "float16")
MAX16, TWO16 = Predecessor(MH, "max", HALF), Const(2.0, "float16")
MOVING = Load("m", (COL,), "float32")
TWO = Const(2.0, "float32")


def exp(e: Expr) -> Expr:
    return op("exp", e)


def refused(g: Expr, *preds: Predecessor, reducer: str = "sum", dtype: str = "float32") -> str:
    with pytest.raises(FusionError) as info:
        solve(Query("o", reducer, dtype, g, preds, frozenset({"j"})))
    return str(info.value)


@pytest.mark.parametrize(
    ("g", "preds", "reason"),
    [
        (op("tanh", S - M), (MAX,), "tanh mixes r and c"),
        (exp(op("tanh", S - M)), (MAX,), "the exponent of exp is no sum of terms in r and terms in c"),
        (op("abs", S - L), (MEAN,), "abs of a sum that mixes r and c"),
        ((S - L) * (S - L), (MEAN,), "r is added to what is folded"),
        (op("pow", S - L, TWO), (MEAN,), "r is added to what is folded"),
        (op("sqrt", S * M), (MAX,), "sqrt of a product splits only where the sign of r is known"),
        (exp(S - L), (SUM,), "l is a sum: exp of it may overflow at an intermediate value"),
        (exp(S - op("log", L)), (SUM,), "no max or min bounds it"),
        (exp(C - M), (MAX,), "what m folds in does not bound it"),
        (exp(C - M), (Predecessor(M, "max", None),), "what m folds in at this position is unknown"),
        (exp(S - M), (Predecessor(M, "max", S, repaired=True),), "it may move both ways"),
        (exp(S * M), (MAX,), "the exponent of exp is no sum of terms in r and terms in c"),
        # A positive scale that varies: every factor would be another one.
        (exp((S - M) * exp(C)), (MAX,), "the exponent of exp is no sum of terms in r and terms in c"),
        (exp((S - M) * P), (MAX,), "the sign of p[i] is unknown"),
        (exp((S - M) * -1.0), (MAX,), "grows as m (max) is repaired"),
        (exp(S - M) + exp(S - 2.0 * M), (MAX,), "its two sides would have to be repaired by different factors"),
        (cast(cast(S / M * 127.0, "int8"), "float32"), (ABS,), "the cast float32 → int8 rounds in absolute steps"),
        (cast(cast(exp(S - M), "int32"), "float32"), (MAX,), "the cast float32 → int32 rounds in absolute steps"),
        (cast(cast(S / M, "float16"), "float32"), (ABS,), "may leave the range of float16"),
        (cast(cast(exp(S - M + P), "float16"), "float32"), (MAX,), "may leave the range of float16"),
        (cast(cast(exp(S - M) / L, "float16"), "float32"), (MAX, SUM), "below the smallest normal of float16"),
        # The element that attains the maximum may be hidden: exp(20) is no number of float16.
        (select(C > 0, cast(exp(HALF - MH + Const(20.0, "float16")), "float32"), 0), (MAX16,), "the range of float16"),
        (select(C > 0, cast(exp(HALF - MH + PH), "float32"), 0), (MAX16,), "may leave the range of float16"),
        (
            select(C > 0, cast(op("pow", exp(HALF - MH + Const(9.0, "float16")), TWO16), "float32"), 0),
            (MAX16,),
            "may leave the range of float16",
        ),
        (exp(S - M - C), (MAX,), "in the exponent of exp, which may overflow"),
        (exp(S - M + 200.0), (MAX,), "m leaves 200 in the exponent of exp, which may overflow"),
        (select(S > M, S, 0), (MAX,), "which branch is taken depends on r"),
        (select(ROW >= COL, S / M, 1), (ABS,), "the branches of select differ"),
        (select(ROW >= COL, S * exp(-M), 0), (MAX,), "may overflow where nothing is selected"),
        (op("pow", S * M, P), (MAX,), "the exponent of pow is no constant"),
        (exp(S - M) * Load("m", (COL,), "float32"), (MAX,), "m is read at more than one position"),
        (Load("x", (cast(M, "int32"),), "float32"), (MAX,), "r is used as an index"),
        (S * MOVING, (Predecessor(MOVING, "max", S),), "moves along the fused axis"),
    ],
)  # fmt: skip
def test_sums(g: Expr, preds: tuple[Predecessor, ...], reason: str) -> None:
    assert reason in refused(g, *preds)


@pytest.mark.parametrize(
    ("g", "reducer", "reason"),
    [
        (S * M, "max", "the sign of r is unknown"),
        (S * M, "min", "the sign of r is unknown"),
        (exp(S - M) * C, "max", "turns the identity of max into 0"),
        (exp(S - M) * op("abs", C), "min", "turns the identity of min into 0"),
        (S * M, "prod", "how many elements are folded is known inside the loop only"),
        (S * M, "argmax", "the sign of this factor is unknown"),
        (cast(S - M, "float16") * cast(C, "float16"), "max", "r is added to what is folded"),
    ],
)
def test_other_reducers(g: Expr, reducer: str, reason: str) -> None:
    assert reason in refused(g, MAX, reducer=reducer)


def test_accumulators() -> None:
    assert "the accumulator is int32" in refused(S * M, MAX, dtype="int32")
    assert "a float16 accumulator may overflow" in refused(S / L, SUM, dtype="float16")
