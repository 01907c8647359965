"""split_k and write_directly: the texts of what they make, that this says what the original said, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neptune.errors import ScheduleError
from neptune.frontend import builder as te
from neptune.frontend.builder import (
    argmax,
    build,
    compute,
    exp,
    log,
    placeholder,
    reduce_axis,
    rsqrt,
    top_k,
    var,
)
from neptune.fusion.schedule import Schedule, replay
from neptune.ir.expr import Const, Expr, Load, Op, Select, Var, binary
from neptune.ir.expr import walk as walk_expr
from neptune.ir.program import For, Program, Stage, stages, walk
from neptune.ir.text.parser import parse_program
from neptune.templates.flash_decoding import flash_decoding
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import Branch, Dot, StoreTile, stmt_exprs, walk_stmts
from neptune.tile.localize import localize
from neptune.tile.pipeline import lower
from neptune.verify.exact import check_exact
from tests.examples.chains import attention, cells, check_same, matrix, per_row
from tests.examples.mutants import change, drop
from tests.goldens import check_golden

R, N = var("r"), var("n")
NUMBERS = (1, 2, 3, 9)
"""Numbers of parts: one, some, and more than there are tiles."""
SIZES = [{"r": r, "n": n, "NUM_SPLITS": s} for r, n in ((1, 1), (3, 11), (2, 8)) for s in NUMBERS]


def log_sum_exp() -> Program:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    l = per_row(lambda i, j: exp(x[i, j] - m[i]), "l")  # noqa: E741
    return build(compute((R,), lambda i: m[i] + log(l[i]), "lse"), name="log_sum_exp")


def softmax() -> Program:
    x = matrix("x")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    e = cells(lambda i, j: exp(x[i, j] - m[i]), "e")
    l = per_row(lambda i, j: e[i, j], "l")  # noqa: E741
    return build(cells(lambda i, j: e[i, j] / l[i], "y"), name="softmax")


def normalised_linear() -> Program:
    x, w = matrix("x"), placeholder((N, 4), "float32", "w")
    j = reduce_axis((0, N), "j")
    ss = per_row(lambda i, j: x[i, j] * x[i, j], "ss")
    y = cells(lambda i, j: x[i, j] * rsqrt(ss[i] / N.astype("float32") + 1e-5), "y")
    o = compute((R, 4), lambda i, c: te.sum(y[i, j] * w[j, c], axis=j), "o")
    return build(o, inputs=[x, w], name="normalised_linear")


def scaled_linear() -> Program:
    x, w = matrix("x"), placeholder((N, 4), "float32", "w")
    j = reduce_axis((0, N), "j")
    top = per_row(lambda i, j: te.abs(x[i, j]), "top", te.max)
    y = cells(lambda i, j: x[i, j] / top[i], "y")
    o = compute((R, 4), lambda i, c: te.sum(y[i, j] * w[j, c], axis=j), "o")
    return build(o, inputs=[x, w], name="scaled_linear")


def cosine() -> Program:
    x, y = matrix("x"), matrix("y")
    xx, yy = (per_row(lambda i, j, t=t: t[i, j] * t[i, j], n) for t, n in ((x, "xx"), (y, "yy")))
    xy = per_row(lambda i, j: x[i, j] * y[i, j], "xy")
    return build(compute((R,), lambda i: xy[i] * rsqrt(xx[i] * yy[i]), "c"), inputs=[x, y], name="cosine")


def row(fold: Callable[..., te.Reduction], name: str) -> Program:
    x = matrix("x")
    return build(per_row(lambda i, j: x[i, j], name, fold), name=f"row_{name}")


def started_at_one() -> Program:
    return parse_program(str(row(te.sum, "s")).replace("init 0.0", "init 1.0"))


def pairs(k: int = 1) -> Program:
    x = matrix("x")
    j = reduce_axis((0, N), "j")
    best = compute((R,), lambda i: argmax(x[i, j], axis=j) if k == 1 else top_k(x[i, j], k, axis=j), "best")
    return build(best, name="best")


def best_above() -> Program:
    x = matrix("x")
    l = per_row(lambda i, j: exp(x[i, j]), "l")  # noqa: E741
    j = reduce_axis((0, N), "j")
    return build(compute((R,), lambda i: argmax(x[i, j] / l[i], axis=j), "best"), name="best_above")


CHAINS: dict[str, tuple[Callable[[], Program], str]] = {
    "log_sum_exp": (log_sum_exp, "m"),
    "softmax": (softmax, "m"),
    "normalised_linear": (normalised_linear, "ss"),
    "scaled_linear": (scaled_linear, "top"),
    "cosine": (cosine, "xx"),
    "sum": (lambda: row(te.sum, "s"), "s"),
    "max": (lambda: row(te.max, "m"), "m"),
    "min": (lambda: row(te.min, "m"), "m"),
    "sum from one": (started_at_one, "s"),
    "argmax": (pairs, "best"),
    "argmax of a quotient": (best_above, "l"),
    "three best": (lambda: pairs(3), "best"),
}


def split(program: Program, stage: str, multiple_of: int = 1, parts: str | int = "NUM_SPLITS") -> Schedule:
    sch = Schedule(program)
    sch.split_k(sch.loops(stage)[-1], parts, multiple_of)
    return sch


# --- what it makes ----------------------------------------------------------------------------------


def test_the_programs() -> None:
    sch = split(log_sum_exp(), "m")
    parts = [("split", sch.program)]
    sch = Schedule(log_sum_exp())
    flash_decoding(sch)
    parts.append(("flash_decoding", sch.program))
    check_golden("split_k.txt", "\n".join(f"# {title}\n{program}" for title, program in parts))


@pytest.mark.parametrize("name", CHAINS)
def test_a_split_chain_says_what_the_whole_one_does(name: str) -> None:
    make, stage = CHAINS[name]
    for multiple_of in (1, 4):
        sch = split(make(), stage, multiple_of)
        check_same(make(), sch, *SIZES)
        report = check_exact(make(), localize(arrange(started(sch.program)), strict=False))
        assert report.accepted, report


@pytest.mark.parametrize("form", ["acc", "p", "sigmoid"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(form: str, causal: bool) -> None:
    program = attention(form, causal)
    sch = split(program, "o" if form != "acc" else "m", 4)
    sizes = [{"s_q": q, "s_kv": k, "NUM_SPLITS": s} for q, k in ((1, 1), (5, 11), (7, 3)) for s in (1, 3, 5)]
    check_same(program, sch, *sizes, scales=(1,))


def test_a_number_of_parts_may_be_constant() -> None:
    sch = split(log_sum_exp(), "m", parts=3)
    assert not any(s.upto for s in sch.program.scalars)
    check_same(log_sum_exp(), sch, *({"r": 2, "n": n} for n in (1, 2, 7)))


def test_the_number_of_parts_is_no_argument_and_is_read_back() -> None:
    sch = split(log_sum_exp(), "m", 4)
    (scalar,) = (s for s in sch.program.scalars if s.upto is not None)
    assert scalar.name == "NUM_SPLITS" and str(scalar.lo) == "1"
    assert parse_program(str(sch.program)) == sch.program


def test_tiles_of_a_part_are_tiles_of_the_whole() -> None:
    """No select, no guard and no offset is added: a part's loop starts where the part does."""
    sch = Schedule(log_sum_exp())
    block = sch.param("BLOCK_N", [4])
    part = sch.split_k(sch.loops("m")[-1], "NUM_SPLITS", block)
    j0, _ = sch.split(sch.loop(part.stage, "j"), block)
    (node,) = [s for s in stages(sch.program.body) if s.name == part.stage]
    assert str(node.when is not None) and "NUM_SPLITS" not in repr(node)
    loop = next(s for s in walk(sch.program.body) if isinstance(s, For) and s.var == j0.var)
    assert loop.lo != Const(0, "int32")
    check_same(log_sum_exp(), sch, *({"r": 2, "n": n, "NUM_SPLITS": s} for n in (1, 9) for s in (1, 2, 5)))


def test_decisions_and_replay() -> None:
    sch = split(log_sum_exp(), "m")
    verdicts = {d.subject: d.verdict for d in sch.decisions}
    assert verdicts == {"m": "combined", "l": "repaired on the right"}
    assert any(x.startswith("proved update") for d in sch.decisions for x in d.details)
    assert replay(log_sum_exp(), sch.trace).program == sch.program
    assert "sch.split_k(" in sch.as_code()


def test_what_is_read_elsewhere_stays_whole() -> None:
    """The exponentials that the result is made of are those of the whole row; the parts have their own."""
    sch = split(softmax(), "m")
    assert {"e", "e_split", "y"} <= set(sch.stages)


# --- one part ---------------------------------------------------------------------------------------


def test_one_part_writes_the_results() -> None:
    sch = Schedule(attention())
    flash_decoding(sch)
    tiles = lower(sch.program)
    local, combine = tiles.kernels
    stored = [(s.buffer, b) for b in local.body if isinstance(b, Branch) for s in walk_stmts(b.body)
              if isinstance(s, StoreTile)]  # fmt: skip
    assert [b for b, _ in stored] == ["o", "m_split", "l_split", "acc_split"]
    assert all(isinstance(b.pred, Op) and Var("NUM_SPLITS") in b.pred.args for _, b in stored)
    assert all(isinstance(s, Branch) for s in combine.body)


def test_direct_results_are_checked() -> None:
    """A direct result that forgets to divide is seen where there is one part, though there only."""
    sch = Schedule(log_sum_exp())
    flash_decoding(sch)
    fused = localize(arrange(started(sch.program)), strict=False)
    report = check_exact(log_sum_exp(), fused)
    assert report.accepted
    assert {s["NUM_SPLITS"] == 1 for s in report.sizes} == {True, False}
    wrong = change(fused, "lse_direct", lambda e: e.args[0] if isinstance(e, Op) and e.name == "log" else None)
    report = check_exact(log_sum_exp(), wrong)
    assert report.verdict == "rejected" and report.counterexample is not None
    assert report.counterexample.sizes["NUM_SPLITS"] == 1


def test_no_select_stands_between_products() -> None:
    sch = Schedule(attention())
    flash_decoding(sch)
    nodes = [x for s in walk_stmts(lower(sch.program).kernels[0].body) for e in stmt_exprs(s) for x in walk(e)]
    selects = [x for x in nodes if isinstance(x, Select)]
    # One -inf at the score of the last tile, a select of the expression's own, and the maximum in units of its own.
    assert len(selects) == 3
    assert not any(isinstance(y, Dot) for x in nodes if isinstance(x, Select) for y in walk_expr(x))


# --- mutants ----------------------------------------------------------------------------------------


def fused() -> Program:
    return localize(arrange(started(split(log_sum_exp(), "m", 2).program)), strict=False)


def without_factor(program: Program) -> Program:
    """A combination that ignores that the maxima of the parts differ."""
    return change(program, "l", lambda e: e.args[0] if isinstance(e, Op) and e.name == "mul" else None)


def with_own_maximum(program: Program) -> Program:
    """A factor that compares the part's maximum with itself."""

    def fn(e: Expr) -> Expr | None:
        if isinstance(e, Op) and e.name == "sub" and isinstance(e.args[0], Load) and e.args[0].buffer == "m_split":
            return Op("sub", (e.args[0], e.args[0]), e.dtype)
        return None

    return change(program, "l", fn)


def _loops(program: Program, stage: str, fn: Callable[[For], For]) -> Program:
    """The innermost loop around a stage changed."""

    def fix(s: object) -> object:
        if isinstance(s, For):
            inside = [x.name for x in walk(s.body) if isinstance(x, Stage)]
            if inside == [stage]:
                return fn(s) if not isinstance(s.body, For) else replace(s, body=fix(s.body))
            return replace(s, body=fix(s.body))
        parts = getattr(s, "stmts", None)
        if parts is not None:
            return replace(s, stmts=tuple(fix(p) for p in parts))  # type: ignore[type-var]
        body = getattr(s, "body", None)
        return s if body is None else replace(s, body=fix(body))  # type: ignore[type-var]

    body = fix(program.body)
    assert body != program.body
    return program.with_body(body)  # type: ignore[arg-type]


def overlapping(program: Program) -> Program:
    """Parts that reach one element into the next."""

    def longer(f: For) -> For:
        assert isinstance(f.hi, Op) and f.hi.name == "min"
        return replace(f, hi=binary("min", binary("add", f.hi.args[0], 1), f.hi.args[1]))

    return _loops(program, "l_split", longer)


def a_part_missing(program: Program) -> Program:
    return _loops(program, "l", lambda f: replace(f, lo=Const(1, "int32")))


def a_last_part_missing(program: Program) -> Program:
    return _loops(program, "l", lambda f: replace(f, hi=binary("sub", f.hi, 1)))


@pytest.mark.parametrize(
    "mutate",
    [without_factor, with_own_maximum, overlapping, a_part_missing, a_last_part_missing, lambda p: drop(p, "m")],
    ids=["no factor", "own maximum", "overlap", "first part", "last part", "no maximum"],
)
def test_a_wrong_combination_is_rejected(mutate: Callable[[Program], Program]) -> None:
    assert check_exact(log_sum_exp(), fused(), draws=8).accepted
    assert check_exact(log_sum_exp(), mutate(fused()), draws=8).verdict == "rejected"


def test_loops_over_parts_of_an_axis() -> None:
    """They are cut by what the parts are a multiple of; they are no grid, and no tile of their own."""
    sch = Schedule(log_sum_exp())
    block = sch.param("BLOCK_N", [4])
    part = sch.split_k(sch.loops("m")[-1], "NUM_SPLITS", block)
    j = sch.loop(part.stage, "j")
    with pytest.raises(ScheduleError, match="no multiple of"):
        sch.split(j, 3)
    with pytest.raises(ScheduleError, match="not a size that is known"):
        sch.cover(j, "WHOLE")
    with pytest.raises(ScheduleError, match="part of an axis"):
        sch.fuse(sch.loops(part.stage)[1], j)
    with pytest.raises(ScheduleError, match="depends on"):
        sch.reorder(j, part)
    with pytest.raises(ScheduleError, match="loop over parts"):
        sch.write_directly(j)
