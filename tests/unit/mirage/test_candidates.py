"""Tier 1: what draws accept and reject, how many count, and fingerprints."""

from dataclasses import replace

import numpy as np
import pytest

from neptune.mirage.ir import Graph
from neptune.mirage.verifier.candidates import DRAWS, ENOUGH, FEW, Candidates, best
from tests.unit.mirage import verified as v
from tests.unit.mirage.test_evaluate import RIGHT, WRONG

TIERS = {id(r): Candidates(r) for r in (v.RMS, v.ATTENTION, v.LORA, v.GATED, v.QK_NORM)}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_right_graphs_are_accepted_and_wrong_ones_rejected(name: str) -> None:
    reference, graph = (RIGHT | WRONG)[name]
    outcome = TIERS[id(reference)].outcome(graph)
    assert outcome.accepted == (name in RIGHT), outcome
    if outcome.accepted:
        assert outcome.draws == DRAWS and outcome.counted >= DRAWS // 4
    else:
        assert "differs" in str(outcome)


def elementwise(*body: str) -> Graph:
    """A graph of elementwise nodes "z = op a b" on X and Y."""
    nodes = (v.n(x.split()[0], x.split()[2], " ".join(x.split()[3:])) for x in body)
    return v.program("i", "X:i Y:i", f"{body[-1].split()[0]}:i", *nodes)


AXIOMS = {
    "x(y/x²) = y/x": (("a = sqr X", "b = div Y a", "z = mul X b"), ("z = div Y X",)),
    "x(y + x) = xy + x²": (("a = add X Y", "z = mul X a"), ("a = mul X Y", "b = sqr X", "z = add a b")),
    "(x/y)/x = x/(yx)": (("a = div X Y", "z = div a X"), ("a = mul Y X", "z = div X a")),
    "eˣeʸ = eˣ⁺ʸ": (("a = exp X", "b = exp Y", "z = mul a b"), ("a = add X Y", "z = exp a")),
    "eˣ/eʸ = eˣ⁻ʸ": (("a = exp X", "b = exp Y", "z = div a b"), ("a = sub X Y", "z = exp a")),
    "√x√y = √(xy)": (("a = sqrt X", "b = sqrt Y", "z = mul a b"), ("a = mul X Y", "z = sqrt a")),
    "x/√x = √x": (("a = sqrt X", "z = div X a"), ("z = sqrt X",)),
    "1/√x·y = y/√x": (("a = rsqrt X", "z = mul a Y"), ("a = sqrt X", "z = div Y a")),
    "silu x = x·sigmoid x": (("z = silu X",), ("a = sigmoid X", "z = mul X a")),
    "max(x, y) = max(y, x)": (("z = maximum X Y",), ("z = maximum Y X",)),
    "min(x, y) = min(y, x)": (("z = minimum X Y",), ("z = minimum Y X",)),
    "min(x, y) = −max(−x, −y)": (
        ("z = minimum X Y",),
        ("a = neg X", "b = neg Y", "c = maximum b a", "z = neg c"),
    ),
    "min(min(x, y), x/y) = min(x, min(y, x/y))": (
        ("a = div X Y", "b = minimum X Y", "z = minimum b a"),
        ("a = div X Y", "b = minimum Y a", "z = minimum X b"),
    ),
    "x/y + y/x = (x² + y²)/(xy)": (
        ("a = div X Y", "b = div Y X", "z = add a b"),
        ("a = sqr X", "b = sqr Y", "c = add a b", "d = mul X Y", "z = div c d"),
    ),
}
NEIGHBOURS = {
    "x(y/x²) ≠ xy": (("a = sqr X", "b = div Y a", "z = mul X b"), ("z = mul X Y",)),
    "x(y + x) ≠ xy + x": (("a = add X Y", "z = mul X a"), ("a = mul X Y", "z = add a X")),
    "(x/y)/x ≠ x/(y/x)": (("a = div X Y", "z = div a X"), ("a = div Y X", "z = div X a")),
    "eˣeʸ ≠ eˣ + eʸ": (("a = exp X", "b = exp Y", "z = mul a b"), ("a = exp X", "b = exp Y", "z = add a b")),
    "eˣ/eʸ ≠ eʸ⁻ˣ": (("a = exp X", "b = exp Y", "z = div a b"), ("a = sub Y X", "z = exp a")),
    "√x√y ≠ √(x + y)": (("a = sqrt X", "b = sqrt Y", "z = mul a b"), ("a = add X Y", "z = sqrt a")),
    "x/√x ≠ 1/√x": (("a = sqrt X", "z = div X a"), ("z = rsqrt X",)),
    "√x ≠ −√x": (("z = sqrt X",), ("a = sqrt X", "z = neg a")),
    "√(x²) ≠ x": (("a = sqr X", "z = sqrt a"), ("a = add X X", "z = sub a X")),
    "silu x ≠ sigmoid x": (("z = silu X",), ("z = sigmoid X",)),
    "sigmoid x ≠ sigmoid −x": (("z = sigmoid X",), ("a = neg X", "z = sigmoid a")),
    "min(x, y) ≠ max(x, y)": (("z = minimum X Y",), ("z = maximum X Y",)),
    "min(x, y) ≠ −max(x, y)": (("z = minimum X Y",), ("a = maximum X Y", "z = neg a")),
    "max(x, y) ≠ x": (("z = maximum X Y",), ("a = add X Y", "z = sub a Y")),
}


@pytest.mark.parametrize("law", [*AXIOMS, *NEIGHBOURS])
def test_axioms_and_their_false_neighbours(law: str) -> None:
    left, right = (AXIOMS | NEIGHBOURS)[law]
    reference, graph = elementwise(*left), elementwise(*right)
    assert Candidates(reference).accept(graph) == (law in AXIOMS)


def test_folds_belong_to_their_axis() -> None:
    """Σ_k x·y = (Σ_k x)·y where y does not vary along k, and not where it does."""
    right = v.program("i k", "X:ik Y:i", "z:i", v.n("p", "mul", "X Y"), v.n("z", "sum", "p", "k"))
    moved = replace(right, steps=(v.n("t", "sum", "X", "k"), v.n("z", "mul", "t Y")))
    assert Candidates(right).accept(moved)
    wrong = v.program("i k", "X:ik Y:k", "z:i", v.n("p", "mul", "X Y"), v.n("z", "sum", "p", "k"))
    summed = replace(wrong, steps=(v.n("t", "sum", "X", "k"), v.n("u", "sum", "Y", "k"), v.n("z", "mul", "t u")))
    assert not Candidates(wrong).accept(summed)


def test_a_graph_without_values_is_not_accepted() -> None:
    """x/(x − x) never counts, so nothing speaks against it, and nothing for it."""
    reference = elementwise("a = mul X Y", "z = add a X")
    nowhere = elementwise("a = sub X X", "b = div Y a", "z = add b X")
    outcome = Candidates(reference).outcome(nowhere)
    assert (outcome.accepted, outcome.counted, outcome.why) == (False, 0, FEW)


def test_graphs_without_meaning_or_with_other_outputs_are_verdicts() -> None:
    tier = TIERS[id(v.RMS)]
    kernel = v.RMS_FUSED.kernels[0]
    beside = v.one(v.RMS, replace(kernel, loads=(replace(kernel.loads[0], whole=("k",)), kernel.loads[1])))
    assert "different parts of axis `k`" in tier.outcome(beside).why
    assert "other outputs" in tier.outcome(replace(v.RMS, outputs=())).why
    turned = replace(v.RMS.outputs[0], axes=("i", "k"), value="normed")
    assert "other axes" in tier.outcome(replace(v.RMS, outputs=(turned,))).why


def test_draws_that_count_are_looked_for() -> None:
    """Six radicands lie behind an element of QKNorm: of 64 draws one counts, of those kept many."""
    outcome = TIERS[id(v.QK_NORM)].outcome(v.QK_NORM_FUSED)
    assert outcome.counted >= DRAWS // 4
    known = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [1, 1]], bool)
    assert best(known, 3).tolist() == [4, 0, 3]
    assert 0 < ENOUGH <= DRAWS // 4


def test_a_seed_decides_the_draws() -> None:
    a, b, c = (Candidates(v.LORA, seed=s) for s in (1, 1, 2))
    x, y, z = (t._all.expected["out"].p for t in (a, b, c))
    assert (x == y).all() and (x != z).any()
