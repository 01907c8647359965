"""split_k of sums about a mean: parts keep vectors about their own means, and the global folds move them (Chan)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

import neptune
from neptune.errors import FusionError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const, Expr, Load, Op, Var, loads
from neptune.ir.program import Program, stages
from neptune.templates.flash_decoding import flash_decoding
from neptune.tile.arrange import arrange, started
from neptune.tile.localize import localize
from neptune.verify.exact import check_exact
from tests.examples.chains import check_same
from tests.examples.moment_examples import EXAMPLES
from tests.examples.mutants import change
from tests.unit.fusion.test_moments import draw, error

pytestmark = pytest.mark.compared
SIZES = [{"r": r, "n": n, "NUM_SPLITS": s} for r, n in ((1, 1), (3, 11), (2, 8)) for s in (1, 2, 3, 9)]
"""Among them more parts than there are tiles: some have no elements."""


@cache
def scheduled(name: str) -> Schedule:
    sch = Schedule(EXAMPLES[name].make())
    flash_decoding(sch)
    return sch


@cache
def compiled(name: str) -> neptune.Kernel:
    params = {"BLOCK_M": 16, "BLOCK_N": 32}
    return neptune.compile(EXAMPLES[name].make(), "flash_decoding", target="llvm", params=params)


@cache
def split(name: str) -> Program:
    """Split and nothing else, in the form that the exact check takes."""
    sch = Schedule(EXAMPLES[name].make())
    for stage in [s for s in sch.stages if s in ("mx", "mz", "rstd")]:
        sch.inline(stage)
    sch.split_k(sch.loops("sx")[-1], "NUM_SPLITS", 2)
    return localize(arrange(started(sch.program)), strict=False)


# --- what it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["variance", "skewness", "layer_norm_linear", "covariance"])
def test_parts_say_what_the_whole_does(name: str) -> None:
    check_same(EXAMPLES[name].make(), scheduled(name), *SIZES)


def test_a_vector_is_folded_once_and_combined_in_one_kernel() -> None:
    """In a part the accumulators are one vector; the combination goes through the parts for the mean, and once more."""
    names = [s.name for s in stages(scheduled("layer_norm_linear").program.body)]
    assert "y_split_1" not in names and {"y_split", "y_1_split", "y_2_split"} <= {*names}
    made = compiled("layer_norm_linear")
    assert len(made.facts.kernels) == 2
    assert made.facts.traversals == {"x": 1, "w": 1, "g": 1, "b": 1}
    assert [x.trips for x in made.facts.kernels[1].loops] == ["(NUM_SPLITS + 127) // 128"] * 2
    assert {r.verdict for r in made.build.checks.values()} <= {"accepted"}


def test_proofs_are_those_of_one_pass() -> None:
    (q,) = (d for d in scheduled("variance").decisions if (d.kind, d.subject) == ("split_k", "q"))
    assert q.verdict == "repaired on the right"
    for name in ("split", "update", "commute", "compose", "final", "rest"):
        assert any(x.startswith(f"proved {name}:") for x in q.details), name
    assert q.finite == ("x",) and any("finite numbers" in x for x in q.details)


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["variance", "layer_norm_linear"])
def test_no_worse_than_two_passes(name: str) -> None:
    """A mean of 1e4 standard deviations; an outlier in one part; parts without elements."""
    example = EXAMPLES[name]
    k = compiled(name).for_target("interpret")
    for kind in ("plain", "first element") if name == "variance" else ("plain",):
        given = draw(example, kind, 3, 300)
        want = example.two_pass(*(t.double() for t in given))
        two = error(example.two_pass(*given), want)
        for number in (1, 4, 15):
            out = torch.full(want.shape, float("nan"))
            k(*given, out=out, params={"NUM_SPLITS": number})
            assert error(out, want) <= max(10 * two, 1e-6), (kind, number)


# --- mutants ----------------------------------------------------------------------------------------


def _mean_ignored(e: Expr) -> Expr | None:
    """T0 of the parts added up, as if all had one mean."""
    return e.args[0] if isinstance(e, Op) and e.name == "add" and isinstance(e.args[0], Load) else None


def _reversed(e: Expr) -> Expr | None:
    """δ the other way round."""
    if isinstance(e, Op) and e.name == "sub" and [x.buffer for x in loads(e)] == ["sx", "sx_split"]:
        return Op("sub", (e.args[1], e.args[0]), e.dtype)
    return None


def _one_too_many(e: Expr) -> Expr | None:
    """A part without elements is counted as one."""
    if isinstance(e, Op) and e.name == "max" and e.args[1] == Const(0, "int32"):
        return Op("max", (e.args[0], Const(1, "int32")), e.dtype)
    return None


def _all_for_each(e: Expr) -> Expr | None:
    """The number of all elements for that of a part."""
    return Var("n") if isinstance(e, Op) and e.name == "max" and e.args[1] == Const(0, "int32") else None


def _other_mean(e: Expr) -> Expr | None:
    """A part's vector about a share of the sum that is no mean of it."""
    return Var("n") if isinstance(e, Op) and e.name == "max" and e.args[1] == Const(1, "int32") else None


MUTANTS: dict[str, tuple[str, str, Callable[[Expr], Expr | None]]] = {
    "the mean ignored": ("variance", "q", _mean_ignored),
    # Of squares alone it makes no difference: about the mean of a part Σ (x - ρ) is 0.
    "a step reversed": ("standardised", "y", _reversed),
    "an empty part counted": ("variance", "q", _one_too_many),
    "all counted for each": ("variance", "q", _all_for_each),
    "another mean": ("variance", "q_split", _other_mean),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_combination_is_rejected(name: str) -> None:
    of, stage, mutate = MUTANTS[name]
    original = EXAMPLES[of].make()
    finite = frozenset({"x", "w"})
    assert check_exact(original, split(of), draws=8, finite=finite).accepted
    wrong = change(split(of), stage, mutate)
    assert check_exact(original, wrong, draws=8, finite=finite).verdict == "rejected"


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weighted", "inertia"])
def test_weights_that_may_be_nothing_in_a_part(name: str) -> None:
    sch = Schedule(EXAMPLES[name].make())
    sch.inline("m")
    before = str(sch.program)
    with pytest.raises(FusionError, match="may be 0 in a part"):
        sch.split_k(sch.loops("sw")[-1], "NUM_SPLITS")
    assert str(sch.program) == before
