"""Fusions that cannot be proved."""

from __future__ import annotations

from collections.abc import Callable

from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, exp, log, placeholder, pow, reduce_axis, select, sin, tanh, var
from neptune.fusion.prove import Unproved
from neptune.fusion.repairs import repair
from neptune.fusion.repairs.roles import ObligationRecord
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ops.softmax import softmax
from tests.errors.table import case
from tests.examples.chains import attention, cells, matrix, per_row

Value = Callable[[Expr, Expr], Expr]
Fold = Callable[..., te.Reduction]


def over(value: Value, fold: Fold = te.sum, of: str = "max") -> Program:
    """t[i] = fold over j of value(x[i, j], m[i]), m being the max, the sum or the largest |·| of x."""
    x = matrix("x")
    folds: dict[str, Fold] = {"max": te.max, "sum": te.sum, "abs": _abs_max}
    m = per_row(lambda i, j: x[i, j], "m", folds[of])
    return build(per_row(lambda i, j: value(x[i, j], m[i]), fold=fold), name="p")


def _abs_max(e: Expr, axis: te.Axis) -> te.Reduction:
    return te.max(te.abs(e), axis=axis)


def grouped(fold_rows: bool) -> Program:
    """m = max over k and j of x[i, k, j]; t keeps k, or folds it too and reads a map u of x."""
    shape = (var("r"), var("g"), var("n"))
    x = placeholder(shape, "float32", "x")
    k, j = reduce_axis((0, var("g")), "k"), reduce_axis((0, var("n")), "j")
    m = compute((var("r"),), lambda i: te.max(x[i, k, j], axis=[k, j]), "m")
    u = compute(shape, lambda i, k, j: x[i, k, j] * 2.0, "u")
    if fold_rows:
        t = compute((var("r"),), lambda i: te.sum(exp(x[i, k, j] - m[i]) * u[i, k, j], axis=[k, j]), "t")
    else:
        t = compute((var("r"), var("g")), lambda i, k: te.sum(exp(x[i, k, j] - m[i]), axis=j), "t")
    return build(t, name="grouped")


def roll(program: Program, target: str = "t", into: str = "m", loop: int = 1) -> None:
    sch = Schedule(program)
    sch.rolling_update(target, sch.loops(into)[loop])


def _no_repair(value: Value, fold: Fold = te.sum, of: str = "max") -> Callable[[], object]:
    return lambda: roll(over(value, fold, of))


case(FusionError, "tanh")(_no_repair(lambda c, r: tanh(c - r)))
case(FusionError, "moments")(_no_repair(lambda c, r: (c - r / 8.0) * (c - r / 8.0), of="sum"))
case(FusionError, "abs")(_no_repair(lambda c, r: te.abs(c - r), of="sum"))
case(FusionError, "int8")(_no_repair(lambda c, r: (c / r * 127.0).astype("int8").astype("float32"), of="abs"))
case(FusionError, "unknown_sign")(_no_repair(lambda c, r: c * r, te.max))
case(FusionError, "exp_of_a_sum")(_no_repair(lambda c, r: exp(c - r), of="sum"))
case(FusionError, "not_bounded")(_no_repair(lambda c, r: exp(c * 2.0 - r)))
case(FusionError, "product")(_no_repair(lambda c, r: c * r, te.prod))
case(FusionError, "mean_absolute_deviation")(_no_repair(lambda c, r: te.abs(c - r / n_of()), of="sum"))
case(FusionError, "sine")(_no_repair(lambda c, r: sin(c * r)))
case(FusionError, "not_absorbed")(_no_repair(lambda c, r: exp(c - r) * sin(c), te.max))
case(FusionError, "domain_of_log")(_no_repair(lambda c, r: log(exp(c) + r), te.max))
case(FusionError, "power_of_unknown_sign")(_no_repair(lambda c, r: pow(c, r), te.prod))
case(FusionError, "masked_product")(_no_repair(lambda c, r: select(c < 0.0, 1.0, exp(c) * exp(r)), te.prod))
case(FusionError, "two_powers")(_no_repair(lambda c, r: pow(exp(c), r) * exp(c), te.prod))


def n_of() -> Expr:
    """The length of the rows, as a float."""
    return var("n").astype("float32")


def choose(value: Callable[[Expr, Expr], Expr], where: Callable[[Expr, Expr], Expr] | None = None) -> Program:
    """best[i] = argmax over j of value(x[i, j], m[i]), m being the max of x."""
    x, j = matrix("x"), reduce_axis((0, var("n")), "j")
    m = per_row(lambda i, k: x[i, k], "m", te.max)

    def pick(i: Expr) -> te.Reduction:
        return te.argmax(value(x[i, j], m[i]), axis=j, where=None if where is None else where(x[i, j], m[i]))

    return build(list(compute((var("r"),), pick, "best")), name="p")


@case(FusionError)
def choice_that_may_make_equal():
    roll(choose(lambda c, r: te.maximum(c, r)), "best")


@case(FusionError)
def choice_of_several_values():
    roll(choose(lambda c, r: exp(c - r) * sin(c)), "best")


@case(FusionError)
def choice_under_a_condition_that_changes():
    roll(choose(lambda c, r: c, lambda c, r: c < r), "best")


@case(FusionError)
def whether_there_is_an_element():
    lines = ["program p", "  in x: f32[r, n, n]", "  out t: f32[r]", "  temp m: f32[r]", "  scalar r: i32 lo 1"]
    nest = "  for i in [0, r):\n    for j in [0, n):\n      for k in [0, j):\n"
    body = nest + "        m: m[i] += exp(x[i, j, k]) init 0.0\n"
    body += nest + "        t: t[i] max= tanh(x[i, j, k] - m[i]) init -3.4028234663852886e+38\n"
    roll(parse_program("\n".join([*lines, "  scalar n: i32 lo 0", "body:", body])), loop=2)


@case(FusionError)
def a_map():
    roll(softmax(), "e")


@case(FusionError)
def inside_already():
    roll(softmax(), "m")


@case(FusionError)
def starts_elsewhere():
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    five = per_row(lambda i, j: exp(x[i, j] - m[i]), fold=lambda e, axis: te.sum(e, axis=axis, init=5.0))
    roll(build(five, name="p"))


@case(FusionError)
def predecessor_starts_at_infinity():
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], "m", lambda e, axis: te.max(e, axis=axis, init=float("inf")))
    roll(build(per_row(lambda i, j: exp(x[i, j] - m[i])), name="p"))


@case(FusionError)
def earlier_iterations():
    roll(grouped(False))


@case(FusionError)
def earlier_iterations_of_an_inner_loop():
    roll(grouped(False), loop=2)


@case(FusionError)
def follows_what_is_itself_repaired():
    x, w = matrix("x"), matrix("w")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    top = per_row(lambda i, j: exp(x[i, j] - m[i]) * te.abs(w[i, j]), name="top", fold=te.max)
    sch = Schedule(build(per_row(lambda i, j: exp(te.abs(w[i, j]) - top[i])), name="p"))
    sch.rolling_update("top", sch.loops("m")[1])
    sch.rolling_update("t", sch.loops("m")[1])


@case(FusionError)
def no_common_axis():
    x, w = matrix("x"), matrix("w")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    roll(build(per_row(lambda i, j: w[i, j] / l[i]), name="p"), into="l")


@case(FusionError)
def predecessor_elsewhere():
    sch = Schedule(grouped(True))
    sch.fuse_at("u", sch.loops("m")[1])
    sch.rolling_update("t", sch.loops("u")[2])


@case(FusionError)
def another_row():
    x = matrix("x")
    l = per_row(lambda i, j: exp(x[i, j]), name="l")  # noqa: E741
    roll(build(per_row(lambda i, j: x[i, j] / l[var("r") - 1 - i]), name="p"), into="l")


@case(FusionError)
def a_reduction_between():
    x, q = matrix("x"), placeholder((3,), "float32", "q")
    d = reduce_axis((0, 3), "d")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    e = cells(lambda i, j: exp(x[i, j] - m[i]), "e")
    c = compute((var("r"), var("n")), lambda i, j: te.sum(e[i, j] * q[d], axis=d), "c")
    sch = Schedule(build(per_row(lambda i, j: c[i, j]), name="p"))
    loop = sch.loops("m")[1]
    sch.fuse_at("e", loop)
    sch.fuse_at("c", loop)
    sch.rolling_update("t", loop)


@case(FusionError)
def another_loop():
    roll(attention("p"), "o", "s", 2)


@case(FusionError)
def an_init_on_its_own():
    x, w = matrix("x"), matrix("w")
    a = per_row(lambda i, j: w[i, j], name="a")
    m = per_row(lambda i, j: x[i, j], name="m", fold=te.max)
    sch = Schedule(build([a, per_row(lambda i, j: exp(x[i, j] - m[i]))], name="p"))
    j0, _ = sch.split(sch.loops("a")[1], 4)
    sch.partition(j0)
    sch.rolling_update("t", sch.loops("m")[1])


HEAD = """program p
  in x: f32[r, n]
  out t: f32[r]
  temp m: f32[r]
  temp e: f32[r, n]
  scalar r: i32 lo 1
  scalar n: i32 lo 0
body:
  for i in [0, r):
    for j in [0, n):
      m: m[i] max= x[i, j] init -3.4028234663852886e+38
"""


@case(FusionError)
def guarded():
    body = "  for i in [0, r):\n    for j in [0, n):\n      t: t[i] += exp(x[i, j] - m[i]) init 0.0 when j < 3\n"
    roll(parse_program(HEAD + body))


@case(FusionError)
def a_map_that_cannot_be_inlined():
    body = (
        "  for i in [0, r):\n    for j in [0, n):\n      e: e[i, j // 2 * 2] = exp(x[i, j] - m[i])\n"
        "  for i in [0, r):\n    for j in [0, n):\n      t: t[i] += e[i, j] init 0.0\n"
    )
    roll(parse_program(HEAD + body))


@case(FusionError)
def may_overflow_where_empty():
    body = "  for i in [0, r):\n    for j in [0, n):\n      t: t[i] += exp(x[i, j] - m[i]) * exp(m[i]) init 0.0\n"
    roll(parse_program(HEAD + body))


@case(FusionError)
def read_too_early():
    x = matrix("x")
    t = per_row(lambda i, j: x[i, j])
    u = compute((var("r"),), lambda i: t[i] * 2.0, "u")
    roll(build([u, per_row(lambda i, j: x[i, j], "m", te.max)], name="p"))


def _centred() -> Program:
    """Σ (x - mean)²."""
    x, n = matrix("x"), var("n").astype("float32")
    s = per_row(lambda i, j: x[i, j], "s")
    return build(per_row(lambda i, j: (x[i, j] - s[i] / n) * (x[i, j] - s[i] / n)), name="centred")


@case(FusionError)
def elements_not_in_order():
    sch = Schedule(_centred())
    _, j1 = sch.split(sch.loops("s")[1], 4)
    sch.rolling_update("t", j1)


@case(FusionError)
def moments_not_proved(monkeypatch):
    def unproved(*_: object) -> Unproved:
        return Unproved(ObligationRecord("update", "h0(ψ(c, ρ)) = ψ0(c, ρ + δ)", "SymPy: the sides differ"))

    # As below: nothing is known that gets there.
    monkeypatch.setattr(repair, "prove", unproved)
    roll(_centred(), into="s")


@case(FusionError)
def not_proved(monkeypatch):
    def unproved(*_: object) -> Unproved:
        return Unproved(ObligationRecord("update", "h(g(r, c), r, r') = g(r', c)", "SymPy: the sides differ"))

    # Nothing is known that the solver finds and the prover refuses: this is what it would look like.
    monkeypatch.setattr(repair, "prove", unproved)
    roll(softmax(dtype="float16"), "l")
