"""The checks see the mistakes that a fusing compiler makes: each mutant of a right kernel is caught.

By the numeric criterion on hostile inputs (docs/design/numerics.md, "Numerics"), and by the exact check. Where one of
them accepts a mutant, its row says why: as a rule, because the results are equal in that check's arithmetic. Other
operators are mutated by `qa.mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from neptune import Kernel
from neptune.driver.build import Build
from neptune.ir.expr import Const, Expr, Load, Op, Var, maximum
from neptune.runtime.executable import Executable
from neptune.runtime.launching.launch import parse_target
from neptune.tile.ir import Local, Reduce, Scalar, TExpr
from neptune.verify.exact import ExactReport, check_exact
from neptune.verify.ranged import Ranged
from tests.examples import mutants as m
from tests.numerics.cases import attention_sizes, attention_subject, families
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

# --- the checks -----------------------------------------------------------------------------------

TABLES = {"loops": ATTENTION_LOOPS, "tiles": ATTENTION_TILES}


@cache
def subject() -> Subject:
    return attention_subject("prefill_causal")


@cache
def original() -> Build:
    # On llvm, loops go on from here to partial sums.
    return subject().kernel("interpret").build


@cache
def inputs() -> tuple[Families, ...]:
    """Hostile families, and scores that are negative throughout."""
    found: list[Families] = []
    for s_q, s_kv in ((21, 37), (35, 24)):
        given = families(subject().program, attention_sizes(s_q, s_kv))
        q, k, v = given["x30"]
        few = {n: given[n] for n in ("random", "x30", "x1000", "needle 15", "needle 16")}
        found.append(few | {"negative": [q.abs(), -k.abs(), v]})
    return tuple(found)


def form(build: Build, level: str) -> Any:
    return build.fused if level == "loops" else build.tiles


def build_with(level: str, changed: Any) -> Build:
    """A build with another fused program for "llvm", or other tiles for "interpret"."""
    if level == "loops":
        return replace(original(), fused=changed, target=parse_target("llvm"))
    return replace(original(), tiles=changed, target=parse_target("interpret"))


def passes_numbers(build: Build) -> bool:
    """Whether the criterion holds throughout; at the first failure, it does not."""
    kernel = Kernel(Executable(build.artifact(), build.loops), lambda: build)
    judged = (j for given in inputs() for j in judge(subject(), given, kernels={kernel.target: kernel}))
    return all(j.passes for j in judged)


def exact_report(of: Subject, changed: Any) -> ExactReport:
    return check_exact(of.program, changed, draws=8)


@pytest.mark.parametrize("level", TABLES)
def test_the_originals_pass_both_checks(level: str) -> None:
    made = form(original(), level)
    assert passes_numbers(build_with(level, made)) and exact_report(subject(), made).accepted


ROWS = [(level, title) for level, table in TABLES.items() for title in table]


@pytest.mark.parametrize("level, title", sampled(ROWS, 6))
def test_mutants_are_caught(level: str, title: str) -> None:
    mutant = TABLES[level][title]
    changed = mutant.make(form(original(), level))
    assert mutant.why or (mutant.numeric and mutant.exact)
    assert passes_numbers(build_with(level, changed)) != mutant.numeric
    report = exact_report(subject(), changed)
    assert report.verdict == ("rejected" if mutant.exact else "accepted"), str(report)


@pytest.mark.parametrize("level", sampled(TABLES, 2))
def test_a_shift_shows_in_the_range_of_floats_alone(level: str) -> None:
    """Without lse, no exact model sees what the maximum is: what is far from zero does (SHIFT)."""
    without = attention_subject("prefill_causal", lse=False)
    build = without.kernel("interpret").build
    title = "scale left out of the maximum"
    changed = TABLES[level][title].make(form(build, level))
    report = exact_report(without, changed)
    assert (report.verdict, report.model) == ("rejected", Ranged.name), str(report)
    wrong = replace(build, fused=changed) if level == "loops" else replace(build, tiles=changed)
    wrong = replace(wrong, target=parse_target("llvm" if level == "loops" else "interpret"))
    kernel = Kernel(Executable(wrong.artifact(), wrong.loops), lambda: wrong)
    found = list(judge(without, inputs()[0], kernels={kernel.target: kernel}))
    assert not all(j.passes for j in found)
