"""Sums about means: what is solved and refused, that one pass says what two do, how exactly, and that it is checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import neptune
from bench.chains import fusing
from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, select, var
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, binary, cast, op
from neptune.ir.program import Program, stages
from neptune.ir.text.printer import print_expr
from neptune.verify.exact import check_exact
from tests.examples import mutants
from tests.examples.chains import cells, check_same, matrix, per_row, tiled
from tests.examples.moment_examples import COLUMNS, EXAMPLES, Example, count, linear, row
from tests.goldens import check_golden
from tests.tiers import sampled

pytestmark = pytest.mark.compared
ROW, COL = Var("i"), Var("j")
X, W, H = Load("x", (ROW, COL), "float32"), Load("w", (ROW, COL), "float32"), Load("h", (ROW, COL), "float16")
S, Q = Load("s", (ROW,), "float32"), Load("q", (ROW,), "float32")
LENGTH = Var("n")
N = cast(LENGTH, "float32")
MEAN = S / N
SUM = Predecessor(S, "sum", X)
SIZES = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8}, {"r": 2, "n": 3})


def ask(g: Expr, *preds: Predecessor, count: Expr = LENGTH, dtype: str = "float32") -> Repair:
    return solve(Query("o", "sum", dtype, g, preds or (SUM,), frozenset({"j"}), count))


def fused(example: Example, into: Program | None = None) -> tuple[Program, Schedule]:
    program = into or example.make()
    sch, _, j0 = tiled(program, example.first)
    for stage in example.sums:
        if stage != example.first:
            sch.rolling_update(stage, j0)
    return program, sch


# --- solving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("g", "h"),
    [
        ((X - MEAN) * (X - MEAN), "h0 = t0 + δ*(t1*(-2.0) + δ*folded), h1 = t1 - δ*folded"),
        (op("pow", X - MEAN, Const(2.0, "float32")), "h0 = t0 + δ*(t1*(-2.0) + δ*folded), h1 = t1 - δ*folded"),
        ((X - MEAN) * W, "h0 = t0 - δ*t1"),
        ((MEAN - X) * W, "h0 = t0 + δ*t1"),
        (W * X - W * MEAN, "h0 = t0 - δ*t1"),
        (W * ((X - MEAN) * (X - MEAN)), "h0 = t0 + δ*(t1*(-2.0) + δ*t2), h1 = t1 - δ*t2"),
        (
            op("pow", X - MEAN, Const(3.0, "float32")),
            "h0 = t0 + δ*(t1*(-3.0) + δ*(t2*3.0 - δ*folded)), h1 = t1 + δ*(t2*(-2.0) + δ*folded), h2 = t2 - δ*folded",
        ),
    ],
)
def test_the_vector_of_accumulators(g: Expr, h: str) -> None:
    r = ask(g)
    assert r.means and r.evidence.h == h
    names = {o.name for o in r.evidence.obligations}
    assert {"split", "update", "commute", "compose", "final", "defined"} <= names
    assert r.evidence.assumptions


def test_what_waits_is_taken_out_first() -> None:
    rstd = op("rsqrt", Q / N + 1e-5)
    gain, bias = Load("g", (COL,), "float32"), Load("b", (COL,), "float32")
    r = ask(((X - MEAN) * rstd * gain + bias) * W, SUM, Predecessor(Q, "sum", X * X, True))
    values = [print_expr(s.value) for s in r.slots]
    assert values == ["(x[i, j] - %shift0[]) * g[j] * w[i, j]", "g[j] * w[i, j]", "b[j] * w[i, j]"]
    assert print_expr(r.finish) == "%t0 * rsqrt(q[i] / cast(f32, n) + 1e-05) + %t2"


def test_means_and_what_follows_them() -> None:
    def running(g: Expr, *preds: Predecessor, count: Expr = LENGTH) -> str:
        r = ask(g, *preds, count=count)
        return print_expr(r.means[0].running)

    assert running((X - MEAN) * W) == "s[i] / cast(f32, %count)"
    assert running((X - S / 8.0) * W, SUM, count=Const(8, "int32")) == "s[i] / cast(f32, %count)"
    share = "s[i] * 0.125 * (cast(f32, %all) / cast(f32, %count))"
    assert running((X - S * 0.125) * W, SUM, count=Const(8, "int32")) == share
    inside = Predecessor(S, "sum", X / N)
    assert running((X - S) * W, inside) == "s[i] * (cast(f32, %all) / cast(f32, %count))"
    size = op("abs", W)
    above, below = Predecessor(S, "sum", size * X), Predecessor(Q, "sum", size)
    assert running((X - S / Q) * W, above, below) == "select(q[i] != 0.0, s[i] / q[i], %shift0[])"
    above, below = Predecessor(S, "sum", W * X), Predecessor(Q, "sum", W)
    text = "select(%count < %all, select(%q[] != 0.0, %s[] / %q[], %shift0[]), s[i] / q[i])"
    assert running((X - S / Q) * W, above, below) == text


@pytest.mark.parametrize(
    ("g", "preds", "reason"),
    [
        (op("abs", X - MEAN), (SUM,), "abs of a sum that mixes r and c"),
        (op("tanh", X - MEAN), (SUM,), "tanh mixes r and c"),
        (op("sin", X * S), (SUM,), "sin mixes r and c"),
        ((X - S / 8.0) * W, (SUM,), "it is not divided by the number of elements, n"),
        ((X - S / Load("len", (ROW,), "float32")) * W, (SUM,), "it is not divided by the number of elements, n"),
        (cast(cast(X - MEAN, "bfloat16"), "float32") * W, (SUM,), "it is rounded to bfloat16"),
        (cast((H - cast(MEAN, "float16")) * H, "float32"), (SUM,), "it is rounded to float16"),
        ((X - Q) * W, (Predecessor(Q, "max", X),), "it is no mean"),
        ((X - MEAN) * W, (Predecessor(S, "sum", X, True),), "it is no mean"),
        ((X - S / (Q + S)) * W, (SUM, Predecessor(Q, "sum", W)), "may pass through 0"),
        ((X - S / Q) * W, (SUM, Predecessor(Q, "sum", None)), "may pass through 0"),
        (1.0 / (X - MEAN), (SUM,), "r is added to what is folded"),
        (op("pow", X - MEAN, Const(9.0, "float32")), (SUM,), "pow is no polynomial in r of a low degree"),
        (op("exp", X - Q) * (X - MEAN), (SUM, Predecessor(Q, "max", X)), "by a factor and by a shift at once"),
    ],
)
def test_refused(g: Expr, preds: tuple[Predecessor, ...], reason: str) -> None:
    with pytest.raises(FusionError) as info:
        ask(g, *preds)
    message = str(info.value)
    assert reason in message and "%" not in message, message
    assert len(message.splitlines()) <= 20


def test_what_is_moved_from_elsewhere_stays_about_its_mean() -> None:
    """split_k moves the vectors of parts from the means that their accumulators are about."""
    query = Query("o", "sum", "float32", (X - MEAN) * (X - MEAN), (SUM,), frozenset({"j"}), LENGTH)
    moved, fixed = solve(query), solve(replace(query, fixed=True))
    assert not fixed.deferred and "abs" in print_expr(moved.finish)
    assert (fixed.slots, fixed.means, fixed.evidence) == (moved.slots, moved.means, moved.evidence)


def test_a_float16_accumulator_is_refused() -> None:
    with pytest.raises(FusionError, match="float16 is too narrow"):
        ask((H - cast(MEAN, "float16")) * H, dtype="float16")


def test_a_loop_that_is_no_tile_is_refused() -> None:
    program = EXAMPLES["variance"].make()
    sch = Schedule(program)
    _, j = sch.loops("sx")
    _, j1 = sch.split(j, 4)
    before = sch.program
    with pytest.raises(FusionError, match="needs the number of elements folded so far"):
        sch.rolling_update("q", j1)
    assert sch.program == before


# --- one pass says what two do ---------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_pass_is_two(name: str) -> None:
    program, sch = fused(EXAMPLES[name])
    check_same(program, sch, *SIZES)


def test_text() -> None:
    _, sch = fused(EXAMPLES["variance"])
    check_golden("moments.txt", str(sch.program))


def test_a_mean_is_followed_once() -> None:
    _, sch = fused(EXAMPLES["correlation"])
    names = [s.name for s in stages(sch.program.body)]
    assert [n for n in names if n.endswith("_running")] == ["sx_running", "sz_running"]


def masked(rows: bool) -> Program:
    """Variance of the elements that a mask selects: columns up to the row, or by an input."""
    x, keep = matrix("x"), matrix("keep")
    on = cells(lambda i, j: select(j <= i if rows else keep[i, j] > 0, 1.0, 0.0), "on")
    sw = per_row(lambda i, j: on[i, j], "sw")
    sx = per_row(lambda i, j: select(on[i, j] > 0, x[i, j], 0.0), "sx")
    m = row(lambda i: sx[i] / sw[i], "m")
    q = per_row(lambda i, j: select(on[i, j] > 0, (x[i, j] - m[i]) * (x[i, j] - m[i]), 0.0), "q")
    return build(row(lambda i: q[i] / sw[i], "y"), inputs=[x] if rows else [x, keep], name="masked")


@pytest.mark.parametrize("rows", [True, False])
def test_masks(rows: bool) -> None:
    program = masked(rows)
    sch, _, j0 = tiled(program, "on")
    for stage in ("sw", "sx", "q"):
        sch.rolling_update(stage, j0)
    # Where nothing is selected the expression says 0 / 0.
    sizes = SIZES if rows else ({"r": 3, "n": 40},)
    check_same(program, sch, *sizes)
    sch.partition(j0)
    check_same(program, sch, *sizes)


def several(symbolic: bool) -> Program:
    """Variance over two axes: of 3 columns each, or of as many as rows."""
    c = var("c") if symbolic else Const(3, "int32")
    x = te.placeholder((var("r"), var("n"), c), "float32", "x")
    a, b, a2, b2 = (te.reduce_axis((0, e), k) for e, k in ((var("n"), "a"), (c, "b"), (var("n"), "a2"), (c, "b2")))
    sx = te.compute((var("r"),), lambda i: te.sum(x[i, a, b], axis=[a, b]), "sx")
    m = row(lambda i: sx[i] / (var("n") * c).astype("float32"), "m")
    q = te.compute((var("r"),), lambda i: te.sum((x[i, a2, b2] - m[i]) * (x[i, a2, b2] - m[i]), axis=[a2, b2]), "q")
    return build(q, inputs=[x], name="several")


@pytest.mark.parametrize("symbolic", [True, False])
def test_several_axes(symbolic: bool) -> None:
    program = several(symbolic)
    sch, _, j0 = tiled(program, "sx")
    sch.rolling_update("q", j0)
    assert f"cast(f32, min(a0 * BLOCK_N + BLOCK_N, n) * {'c' if symbolic else '3'})" in str(sch.program)
    check_same(program, sch, *({**s, "c": 5} for s in SIZES))


def test_a_mean_that_is_rounded() -> None:
    """The mean in float16, on the way too: what is folded is about what is subtracted."""
    x = te.placeholder((var("r"), var("n")), "float16", "x")
    sx = per_row(lambda i, j: x[i, j].astype("float32"), "sx")
    m = row(lambda i: (sx[i] / count()).astype("float16"), "m")

    def value(i: Expr, j: Expr) -> Expr:
        d = x[i, j].astype("float32") - m[i].astype("float32")
        return d * d

    program = build(per_row(value, "q"), name="rounded")
    sch, _, j0 = tiled(program, "sx")
    sch.rolling_update("q", j0)
    assert "= cast(f32, cast(f16, sx[i0 * BLOCK_M + i1] / cast(f32, min(" in str(sch.program)
    check_same(program, sch, *SIZES)


# --- numbers ---------------------------------------------------------------------------------------


KINDS: dict[str, Callable[[torch.Tensor], object]] = {
    "plain": lambda x: None,
    "first element": lambda x: x[:, 0].fill_(1e8),
    "first tile": lambda x: x[:, :64].mul_(1e3),
    "last tile": lambda x: x[:, -64:].fill_(3e6),
    "constant": lambda x: x.fill_(12345.678),
    "large": lambda x: x.mul_(1e3),
}


def draw(example: Example, kind: str, r: int, n: int) -> list[torch.Tensor]:
    """Inputs with a mean of 1e4 standard deviations; weights that may be negative where the example allows it."""
    torch.manual_seed(len(kind) + n)
    x = torch.randn(r, n) + 1e4
    KINDS[kind](x)
    known = {
        "x": lambda: x,
        "z": lambda: 0.5 * x + torch.randn(r, n),
        "w": lambda: torch.randn(r, n) + 0.3,
        "m": lambda: torch.randn(n, COLUMNS),
        "g": lambda: torch.randn(n),
        "b": lambda: torch.randn(n),
    }
    return [known[name]() for name in example.inputs]


def error(got: torch.Tensor | tuple[torch.Tensor, ...], reference: torch.Tensor) -> float:
    assert isinstance(got, torch.Tensor)
    return float((got.double() - reference).norm() / reference.norm().clamp_min(1e-30))


@functools.cache
def compiled(name: str) -> neptune.Kernel:
    program = EXAMPLES[name].make()
    return neptune.compile(program, fusing(program), target="interpret")


SIMILAR = ("sample", "standardised", "covariance")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SIMILAR)) for n in EXAMPLES])
def test_kernels(name: str) -> None:
    """In one kernel and one pass, as exact as two passes."""
    example, kernel = EXAMPLES[name], compiled(name)
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    assert kernel.facts.traversals["x"] == (2 if name == "layer_norm" else 1)
    assert "h0 = t0" in kernel.explain() and "assumed, not proved" in kernel.explain()
    for kind in KINDS:
        for r, n in ((3, 300), (2, 1)):
            given = draw(example, kind, r, n)
            want = example.two_pass(*(t.double() for t in given))
            out = torch.full(want.shape, float("nan"))
            kernel(*given, out=out)
            # Of rows without variance only rounding errors are left to divide.
            if kind == "constant" or n == 1:
                size = float(torch.stack([t.abs().max() for t in given]).max())
                assert torch.isfinite(out).all() and (out.abs() <= size**3 * n * 1e-3 + want.abs()).all(), (kind, n)
                continue
            two = error(example.two_pass(*given), want)
            # A third power of what one element is far from the others has an error of its own.
            least = 1e-5 if name == "skewness" else 1e-6
            assert error(out, want) <= max(10 * two, least), (kind, n, error(out, want), two)


@pytest.mark.parametrize("name", ["variance", "skewness", "layer_norm_linear", "inertia"])
def test_llvm(name: str) -> None:
    """Within ten times the error of torch's two passes."""
    example = EXAMPLES[name]
    kernel = compiled(name).for_target("llvm")
    for kind in ("plain", "first element", "first tile", "last tile"):
        given = draw(example, kind, 3, 300)
        want = example.two_pass(*(t.double() for t in given))
        assert error(kernel(*given), want) <= max(10 * error(example.two_pass(*given), want), 3e-6), kind


def test_half_precision_inputs() -> None:
    kernel = neptune.compile(linear(True, "float16"), target="interpret")
    torch.manual_seed(3)
    x, w = (torch.randn(5, 200) + 30).half(), torch.randn(200, COLUMNS).half()
    g, b = torch.randn(200), torch.randn(200)
    two_pass = EXAMPLES["layer_norm_linear"].two_pass
    want = two_pass(x.double(), w.double(), g.double(), b.double())
    assert error(kernel(x, w, g, b), want) <= max(10 * error(two_pass(x.float(), w.float(), g, b), want), 1e-6)


def test_a_standard_deviation_is_never_nan() -> None:
    """Rounding may leave less than nothing of a sum of squares: at the end it is at least 0."""
    kernel = compiled("deviation")
    torch.manual_seed(0)
    for scale in (1.0, 1e3, 1e9):
        x = torch.randn(64, 1).mul(scale).expand(64, 333).contiguous()
        out = kernel(x)
        assert isinstance(out, torch.Tensor) and torch.isfinite(out).all()


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("name", ["variance", "deviation"])
def test_what_is_not_finite_makes_its_row_nan(name: str, target: str) -> None:
    """Also where the sum of squares is kept from being negative."""
    kernel = compiled(name).for_target(target)
    torch.manual_seed(0)
    x = torch.randn(5, 70)
    x[0, 3], x[1, 69], x[2, 0], x[3] = math.nan, math.inf, -math.inf, -math.inf
    y = kernel(x)
    assert isinstance(y, torch.Tensor)
    assert y[:4].isnan().all() and torch.isfinite(y[4])


@pytest.mark.parametrize("signed", [False, True])
def test_a_row_that_is_masked_throughout_has_no_mean(signed: bool) -> None:
    """Its mean is 0/0, which the expression does not look at. Weights of any sign are followed by their sizes."""
    x, w = matrix("x"), matrix("w")

    def weight(i: Expr, j: Expr) -> Expr:
        return w[i, j] if signed else te.select(te.abs(w[i, j]) > 0, 1.0, 0.0)

    sw = per_row(weight, "sw")
    swx = per_row(lambda i, j: weight(i, j) * x[i, j], "swx")
    m = row(lambda i: swx[i] / sw[i], "m")

    def square(i: Expr, j: Expr) -> Expr:
        return te.select(te.abs(w[i, j]) > 0, weight(i, j) * (x[i, j] - m[i]) * (x[i, j] - m[i]), 0)

    program = build(per_row(square, "q"), inputs=[x, w], name="masked")
    kernel = neptune.compile(program, target="llvm")
    assert len(kernel.facts.kernels) == 1 and kernel.facts.traversals["x"] == 1
    torch.manual_seed(0)
    xs, ws = torch.randn(3, 300) + 4, torch.randn(3, 300).abs()
    ws[0], ws[1, :256] = 0, 0
    by = (ws if signed else (ws > 0).float()).double()
    mean = ((by * xs).sum(1) / by.sum(1)).nan_to_num()[:, None]
    want = (by * (xs - mean) ** 2).sum(1)
    torch.testing.assert_close(kernel(xs, ws), want.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
def test_compiles(target: str) -> None:
    (found,) = compiled("layer_norm_linear").resources(target)
    assert not found.spill_bytes


# --- checked ---------------------------------------------------------------------------------------


def swap(old: str, new: str) -> Callable[[Expr], Expr | None]:
    """An operator in place of another one."""
    return lambda e: binary(new, *e.args) if isinstance(e, Op) and e.name == old else None


def more(e: Expr) -> Expr | None:
    """Numbers of elements that are off by one."""
    return Cast(binary("add", e.arg, 1), e.dtype) if isinstance(e, Cast) else None


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("variance", lambda p: mutants.drop(p, "q_repair")),
        ("variance", lambda p: mutants.drop(p, "q_1_repair")),
        ("variance", lambda p: mutants.drop(p, "sx_shift")),
        ("variance", lambda p: mutants.change(p, "q_repair", more)),
        ("variance", lambda p: mutants.change(p, "q_1_repair", more)),
        ("variance", lambda p: mutants.change(p, "q_1_repair", swap("sub", "add"))),
        ("variance", lambda p: mutants.change(p, "sx_shift", swap("sub", "add"))),
        ("variance", lambda p: mutants.change(p, "q_final", swap("add", "sub"))),
        # What rounding leaves of a mean is taken out at the end: there any mean will do.  Not so here.
        ("standardised", lambda p: mutants.drop(p, "sx_running")),
        ("standardised", lambda p: mutants.change(p, "sx_running", more)),
        ("standardised", lambda p: mutants.drop(p, "y_repair")),
        ("standardised", lambda p: mutants.change(p, "y_repair", swap("sub", "add"))),
        ("layer_norm_linear", lambda p: mutants.change(p, "y_2", swap("mul", "sub"))),
        ("inertia", lambda p: mutants.drop(p, "q_repair")),
        ("covariance", lambda p: mutants.drop(p, "cov_1_repair")),
    ],
)
def test_mistakes_are_found(name: str, mutate: Callable[[Program], Program]) -> None:
    program, sch = fused(EXAMPLES[name])
    whole = decompose(sch.program)
    tunables = {"BLOCK_M": [2], "BLOCK_N": [2]}
    finite = frozenset(n for d in sch.decisions for n in d.finite)
    assert check_exact(program, whole, tunables=tunables, finite=finite).accepted
    assert check_exact(program, mutate(whole), tunables=tunables, finite=finite).verdict == "rejected"


def test_what_is_taken_to_be_finite() -> None:
    taken = {name: {n for d in fused(EXAMPLES[name])[1].decisions for n in d.finite} for name in EXAMPLES}
    assert taken["variance"] == {"x"} and taken["standardised"] == {"w", "x"}
    # What is added at the end may be infinite.
    assert taken["layer_norm_linear"] == {"g", "w", "x"}
    _, sch = fused(EXAMPLES["standardised"])
    assert "assumed, not proved: w, x: finite numbers" in sch.decisions[-1].details
