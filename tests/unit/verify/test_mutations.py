"""The checks see the mistakes that a fusing compiler makes: each mutant of a right kernel is caught.

By the numeric criterion on hostile inputs (docs/design.md, "Numerics"), and by the exact check. Where one of them
accepts a mutant, its row says why: as a rule, because the results are equal in that check's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from neptune import Kernel
from neptune.driver.build import Build
from neptune.ir.expr import Const, Expr, Load, Op, Select, Var, maximum
from neptune.runtime.executable import Executable
from neptune.runtime.launch import parse_target
from neptune.tile.ir import Local, Reduce, Scalar, TExpr
from neptune.verify.exact import ExactReport, check_exact
from neptune.verify.ranged import Ranged
from tests.examples import mutants as m
from tests.numerics.cases import attention_sizes, attention_subject, families, figure1_subject
from tests.numerics.harness import Families, Subject, judge
from tests.tiers import sampled

INF = float("inf")
LOWEST = -3.4028234663852886e38
FORGOTTEN = "the first rescale, by exp(lowest - m) = 0, forgets what a finite sum started from"
NOT_USED = "what is read past the end is masked behind the load; but it must not be read"
SHIFT = "what is subtracted from all scores of a row cancels, but for overflow and underflow"


@dataclass(frozen=True)
class Mutant:
    """A mistake, and which checks see it."""

    make: Callable[[Any], Any]
    numeric: bool = True
    exact: bool = True
    why: str = ""


# --- parts of mistakes ----------------------------------------------------------------------------


def number(value: float) -> Const:
    return Const(float(value), "float32")


def local(name: str, *index: str) -> Load:
    return Load(name, tuple(Var(i) for i in index), "float32")


def short(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo, hi - 1


def long(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo, hi + 1


def late(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo + 1, hi


def overlap(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return maximum(lo - 1, 0), hi


def numerator(e: Expr) -> Expr | None:
    return e.args[0] if isinstance(e, Op) and e.name == "div" else None


SCALE = number(0.25)
SCORE = local("score", "i1", "j1")
EARLY_P = Op("exp", (SCORE - local("m_prev", "i1"),), "float32")
LOG2E = Op("log2e", (), "float32")
LN2 = Op("ln2", (), "float32")
LOG2E_SCALE = Op("mul", (SCALE, LOG2E), "float32")
NO_LOG2E = m.scalars(m.put(LOG2E_SCALE, SCALE))
KEY_TAIL = "j0 * BLOCK_N + j1 < s_kv"
COLUMN_TAIL = "n // BLOCK_N * BLOCK_N + j1 < n"


def without(factor: Expr) -> m.TileRewrite:
    """A product loses a scalar factor."""
    return lambda e: e.args[0] if isinstance(e, Op) and e.name == "mul" and e.args[1] == Scalar(factor) else None


def early_sum(e: TExpr) -> TExpr | None:
    """The sum of p becomes that of p before the new maximum."""
    if isinstance(e, Reduce) and e.reducer == "sum":
        return Op("div", (e, Local("m_rescale", ("i1",), "float32")), "float32")
    return None


def causal_only(e: TExpr) -> TExpr | None:
    return e.args[0] if isinstance(e, Op) and e.name == "and" else None


def unmasked(e: TExpr) -> TExpr | None:
    return e.then if isinstance(e, Select) else None


# --- the mistakes ---------------------------------------------------------------------------------

ATTENTION_LOOPS = {
    "clean piece loses its last tile": Mutant(lambda p: m.piece(p, "j0", 0, short)),
    "masked piece loses its last tile": Mutant(lambda p: m.piece(p, "j0", 1, short)),
    "clean piece starts late": Mutant(lambda p: m.piece(p, "j0", 0, late)),
    "masked piece starts late": Mutant(lambda p: m.piece(p, "j0", 1, late)),
    "pieces overlap": Mutant(lambda p: m.piece(p, "j0", 1, overlap)),
    "clean piece goes on too long": Mutant(lambda p: m.piece(p, "j0", 0, long)),
    "l is not rescaled": Mutant(lambda p: m.drop(p, "l_repair")),
    "acc is not rescaled": Mutant(lambda p: m.drop(p, "acc_repair")),
    "l is rescaled after the sum": Mutant(lambda p: m.swap(p, "l_repair", "l")),
    "rescale reversed": Mutant(lambda p: m.change(p, "m_rescale", m.reverse)),
    "l sums p before the new maximum": Mutant(lambda p: m.change(p, "l", m.put(local("p", "i1", "j1"), EARLY_P))),
    "mask excludes the diagonal": Mutant(lambda p: m.change(p, "score", m.rename("le", "lt"))),
    "mask includes one key more": Mutant(lambda p: m.change(p, "score", m.one_more)),
    "no tail mask": Mutant(lambda p: m.unguard(p, ("p", "l"), KEY_TAIL)),
    "acc starts from 1": Mutant(
        lambda p: m.change(p, "acc_init", m.put(number(0), number(1))), numeric=False, exact=False, why=FORGOTTEN
    ),
    "acc starts from inf": Mutant(lambda p: m.change(p, "acc_init", m.put(number(0), number(INF)))),
    "l starts from 1": Mutant(lambda p: m.change(p, "l_init", m.put(number(0), number(1)))),
    "m starts from 0": Mutant(lambda p: m.change(p, "m_init", m.put(number(LOWEST), number(0)))),
    "m starts from -inf": Mutant(lambda p: m.change(p, "m_init", m.put(number(LOWEST), number(-INF)))),
    "no final division": Mutant(lambda p: m.change(p, "o", numerator)),
    "scale left out of the maximum": Mutant(lambda p: m.change(p, "m", m.put(SCORE, SCORE * 4.0))),
    "scale left out": Mutant(lambda p: m.change(p, "score", m.put(SCALE, number(1)))),
    "exp2 for exp in p": Mutant(lambda p: m.change(p, "p", m.rename("exp", "exp2"))),
    "exp2 for exp in the rescale": Mutant(lambda p: m.change(p, "m_rescale", m.rename("exp", "exp2"))),
    "exp2 for exp in both": Mutant(
        lambda p: m.change(m.change(p, "m_rescale", m.rename("exp", "exp2")), "p", m.rename("exp", "exp2"))
    ),
}


ATTENTION_TILES = {
    "clean piece loses its last tile": Mutant(lambda t: m.tile_piece(t, 0, short)),
    "masked piece loses its last tile": Mutant(lambda t: m.tile_piece(t, 1, short)),
    "clean piece starts late": Mutant(lambda t: m.tile_piece(t, 0, late)),
    "masked piece starts late": Mutant(lambda t: m.tile_piece(t, 1, late)),
    "pieces overlap": Mutant(lambda t: m.tile_piece(t, 1, overlap)),
    "clean piece goes on too long": Mutant(lambda t: m.tile_piece(t, 0, long)),
    "l is not rescaled": Mutant(lambda t: m.tile_change(t, "l", m.without_factor("m_rescale"))),
    "acc is not rescaled": Mutant(lambda t: m.tile_drop(t, "acc_repair")),
    "rescale reversed": Mutant(lambda t: m.tile_change(t, "m_rescale", m.tile_reverse)),
    "l sums p before the new maximum": Mutant(lambda t: m.tile_change(t, "l", early_sum)),
    "mask excludes the diagonal": Mutant(lambda t: m.tile_change(t, "score", m.tile_rename("le", "lt"))),
    "mask includes one key more": Mutant(lambda t: m.tile_change(t, "score", m.tile_one_more)),
    "no tail mask in the scores": Mutant(
        lambda t: m.tile_change(t, "score", causal_only),
        numeric=False,
        exact=False,
        why="a key past the end is one that the causal mask hides from every row there is",
    ),
    "no tail mask in the load of k": Mutant(
        lambda t: m.tile_change(t, "k", m.without_mask),
        numeric=False,
        why=NOT_USED,
    ),
    "no tail mask in the load of v": Mutant(lambda t: m.tile_change(t, "v", m.without_mask)),
    "acc starts from 1": Mutant(
        lambda t: m.tile_change(t, "acc", m.start_from(1)), numeric=False, exact=False, why=FORGOTTEN
    ),
    "acc starts from inf": Mutant(lambda t: m.tile_change(t, "acc", m.start_from(INF))),
    "l starts from 1": Mutant(lambda t: m.tile_change(t, "l", m.start_from(1))),
    "m starts from 0": Mutant(lambda t: m.tile_change(t, "m", m.start_from(0))),
    "m starts from -inf": Mutant(lambda t: m.tile_change(t, "m", m.start_from(-INF))),
    "no final division": Mutant(lambda t: m.tile_change(t, "o", m.without_factor("inv_l"))),
    "scale left out of the maximum": Mutant(lambda t: m.tile_change(t, "m", without(LOG2E_SCALE))),
    "scale left out of p": Mutant(lambda t: m.tile_change(t, "p", without(LOG2E_SCALE))),
    "log2e left out of p": Mutant(lambda t: m.tile_change(t, "p", NO_LOG2E)),
    "log2e left out of both": Mutant(lambda t: m.tile_change(m.tile_change(t, "p", NO_LOG2E), "m", NO_LOG2E)),
    "ln2 left out of lse": Mutant(lambda t: m.tile_change(t, "lse", m.scalars(m.put(LN2, number(1))))),
}

FIGURE1_LOOPS = {
    "clean piece loses its last tile": Mutant(lambda p: m.piece(p, "j0", 0, short)),
    "clean piece starts late": Mutant(lambda p: m.piece(p, "j0", 0, late)),
    "tail dropped": Mutant(m.drop_last_tile),
    "no tail mask in the maximum": Mutant(lambda p: m.unguard(p, ("xmax",), COLUMN_TAIL)),
    "no tail mask in the sum": Mutant(lambda p: m.unguard(p, ("xsum",), COLUMN_TAIL)),
    "xsum is not rescaled": Mutant(lambda p: m.drop(p, "xsum_repair")),
    "xsum is rescaled after the sum": Mutant(lambda p: m.swap(p, "xsum_repair", "xsum")),
    "rescale reversed": Mutant(lambda p: m.change(p, "xmax_rescale", m.reverse)),
    "xsum starts from 1": Mutant(lambda p: m.change(p, "xsum_init", m.put(number(0), number(1)))),
    "xmax starts from 0": Mutant(lambda p: m.change(p, "xmax_init", m.put(number(LOWEST), number(0)))),
    "xmax starts from -inf": Mutant(lambda p: m.change(p, "xmax_init", m.put(number(LOWEST), number(-INF)))),
    "exp2 for exp in xexp": Mutant(lambda p: m.change(p, "xexp", m.rename("exp", "exp2"))),
    "exp2 for exp in the rescale": Mutant(lambda p: m.change(p, "xmax_rescale", m.rename("exp", "exp2"))),
}

FIGURE1_TILES = {
    "clean piece loses its last tile": Mutant(lambda t: m.tile_piece(t, 0, short)),
    "clean piece starts late": Mutant(lambda t: m.tile_piece(t, 0, late)),
    "tail dropped": Mutant(m.tile_drop_last),
    "no tail mask in the maximum": Mutant(lambda t: m.tile_change(t, "xmax", unmasked)),
    "no tail mask in the sum": Mutant(lambda t: m.tile_change(t, "xsum_tile", unmasked)),
    "no mask in the load": Mutant(lambda t: m.tile_change(t, "inp", m.without_mask), numeric=False, why=NOT_USED),
    "xsum is not rescaled": Mutant(lambda t: m.tile_change(t, "xsum_tile", m.without_factor("xmax_rescale"))),
    "rescale reversed": Mutant(lambda t: m.tile_change(t, "xmax_rescale", m.tile_reverse)),
    "xsum starts from 1": Mutant(lambda t: m.tile_change(t, "xsum_tile", m.start_from(1))),
    "xmax starts from 0": Mutant(lambda t: m.tile_change(t, "xmax", m.start_from(0))),
    "xmax starts from -inf": Mutant(lambda t: m.tile_change(t, "xmax", m.start_from(-INF))),
    "log2e left out of xexp": Mutant(lambda t: m.tile_change(t, "xexp", without(LOG2E))),
    "log2e left out of the rescale": Mutant(lambda t: m.tile_change(t, "xmax_rescale", without(LOG2E))),
}


# --- the checks -----------------------------------------------------------------------------------

TABLES = {
    ("attention", "loops"): ATTENTION_LOOPS,
    ("attention", "tiles"): ATTENTION_TILES,
    ("figure1", "loops"): FIGURE1_LOOPS,
    ("figure1", "tiles"): FIGURE1_TILES,
}


@cache
def subject_of(name: str) -> Subject:
    return attention_subject("prefill_causal") if name == "attention" else figure1_subject("softmax_online")


@cache
def build_of(name: str) -> Build:
    return subject_of(name).kernel("llvm").build


@cache
def inputs_of(name: str) -> tuple[Families, ...]:
    """Hostile families, and scores that are negative throughout."""
    program = subject_of(name).program
    found: list[Families] = []
    if name == "figure1":
        for axis, additive in ((-1, ()), (-1, ("inp",)), (-2, ("inp",))):
            given = families(program, {"m": 6, "n": 37}, axis=axis, additive=additive)
            found.append(given | {"negative": [-1 - 30 * given["random"][0].abs()]})
    else:
        for s_q, s_kv in ((21, 37), (35, 24)):
            given = families(program, attention_sizes(s_q, s_kv))
            q, k, v = given["x30"]
            few = {n: given[n] for n in ("random", "x30", "x1000", "needle 15", "needle 16")}
            found.append(few | {"negative": [q.abs(), -k.abs(), v]})
    return tuple(found)


def build_with(name: str, level: str, changed: Any) -> Build:
    """A build with another fused program for "llvm", or other tiles for "interpret"."""
    if level == "loops":
        return replace(build_of(name), fused=changed, target=parse_target("llvm"))
    return replace(build_of(name), tiles=changed, target=parse_target("interpret"))


def passes_numbers(subject: Subject, name: str, build: Build) -> bool:
    """Whether the criterion holds throughout; at the first failure, it does not."""
    kernel = Kernel(Executable(build.artifact(), build.loops), lambda: build)
    judged = (j for given in inputs_of(name) for j in judge(subject, given, kernels={kernel.target: kernel}))
    return all(j.passes for j in judged)


def exact_report(subject: Subject, changed: Any) -> ExactReport:
    return check_exact(subject.program, changed, draws=8 if len(subject.program.inputs) > 1 else 16)


@pytest.mark.parametrize("name, level", TABLES)
def test_the_originals_pass_both_checks(name: str, level: str) -> None:
    original = build_of(name).fused if level == "loops" else build_of(name).tiles
    assert passes_numbers(subject_of(name), name, build_with(name, level, original))
    assert exact_report(subject_of(name), original).accepted


ROWS = [(name, level, title) for (name, level), table in TABLES.items() for title in table]


@pytest.mark.parametrize("name, level, title", sampled(ROWS, 4))
def test_mutants_are_caught(name: str, level: str, title: str) -> None:
    subject, build, mutant = subject_of(name), build_of(name), TABLES[name, level][title]
    changed = mutant.make(build.fused if level == "loops" else build.tiles)
    assert mutant.why or (mutant.numeric and mutant.exact)
    assert passes_numbers(subject, name, build_with(name, level, changed)) != mutant.numeric
    report = exact_report(subject, changed)
    assert report.verdict == ("rejected" if mutant.exact else "accepted"), str(report)


@pytest.mark.parametrize("level", ["loops", "tiles"])
def test_a_shift_shows_in_the_range_of_floats_alone(level: str) -> None:
    """Without lse, no exact model sees what the maximum is: what is far from zero does (SHIFT)."""
    subject = attention_subject("prefill_causal", lse=False)
    build = subject.kernel("llvm").build
    title = "scale left out of the maximum"
    changed = TABLES["attention", level][title].make(build.fused if level == "loops" else build.tiles)
    report = exact_report(subject, changed)
    assert (report.verdict, report.model) == ("rejected", Ranged.name), str(report)
    wrong = replace(build, fused=changed) if level == "loops" else replace(build, tiles=changed)
    wrong = replace(wrong, target=parse_target("llvm" if level == "loops" else "interpret"))
    kernel = Kernel(Executable(wrong.artifact(), wrong.loops), lambda: wrong)
    found = list(judge(subject, inputs_of("attention")[0], kernels={kernel.target: kernel}))
    assert not all(j.passes for j in found)
