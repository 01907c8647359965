"""A bounded part of `qa.variety`, and that it would notice a wrong kernel."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
from qa import variety
from qa.variety_programs import CHOICES, MANTISSA, Axis, Extent, Fold, Node, Size, Spec, Tensor, draw
from tests.tiers import sampled

pytestmark = pytest.mark.uncached

SEEDS = range(1000, 1020)
PARTS = (SEEDS[:3], SEEDS[3:12], SEEDS[12:])


@pytest.mark.parametrize("seeds", sampled(PARTS, 3), ids=str)
def test_random_programs_compile_and_are_right(seeds: range) -> None:
    outcomes = [variety.run_one(seed) for seed in seeds]
    assert {o.kind for o in outcomes} <= {"right", "refused", "skipped"}, outcomes
    # What TVM does not take, or is of nothing, says nothing about Neptune.
    tried = [o for o in outcomes if o.kind != "skipped"]
    assert len(tried) >= len(outcomes) / 2, outcomes
    right = sum(o.kind == "right" for o in tried)
    assert right >= 0.9 * len(tried), outcomes


def test_every_kind_of_program_is_drawn() -> None:
    specs = [draw(seed) for seed in range(1000, 1200)]
    assert {s.source for s in specs} == {"te", "builder", "primfunc"}
    assert {"float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"} <= {
        d for s in specs for d in s.dtypes
    }
    assert {"sum", "prod", "max", "min", *CHOICES} == {t.fold.reducer for s in specs for t in s.stages if t.fold}
    outputs = [t for s in specs for t in s.outputs]
    assert any(not t.shape for t in outputs) and any(d.value == 0 for t in outputs for d in t.shape)
    assert any(len(s.outputs) > 1 for s in specs)
    assert {variety.TURNS[s.seed % len(variety.TURNS)] for s in specs} == set(variety.TEMPLATES)


def test_a_difference_is_noticed() -> None:
    """One lost element of a sum, and one unit of an integer, are reported."""
    seen = 0
    for seed in SEEDS:
        spec = draw(seed)
        if any(d.value == 0 for t in (*spec.inputs, *spec.stages) for d in t.shape):
            continue
        arrays, scalars = variety.arrays_of(spec)
        wanted = variety.Wanted(spec, arrays, scalars)
        for t in spec.outputs:
            wrong = np.array(wanted.near[t.name])
            if t.dtype == "bool":
                continue
            step = 1 if t.dtype not in MANTISSA else max(1.0, float(np.abs(wrong[np.isfinite(wrong)]).max(initial=0)))
            first = (0,) * wrong.ndim
            wrong[first] = wrong[first] + step if np.isfinite(wrong[first]) else step
            assert variety.compare(t, wanted.near[t.name], wanted) is None
            assert variety.compare(t, wrong, wanted) is not None
            seen += 1
    assert seen > 15


def length(n: int) -> Extent:
    return Extent(((1, Size("n", n, False)),))


def test_what_reads_a_long_sum_may_be_off_by_what_that_makes_of_the_sum() -> None:
    """The sigmoid of a sum of 31 in float16, added up in order; of one of 30 it is another number."""
    over, at = Axis("r0", length(31)), Node("axis", ("r0",), "int32")
    terms = Node("tanh", (Node("read", ("x0", at), "float16"),), "float16", 1.0, None)
    s0 = Tensor("s0", (), "float16", 31.0, None, value=terms, fold=Fold("sum", (over,)))
    wide = Node("cast", (Node("read", ("s0",), "float16"),), "float32")
    s1 = Tensor("s1", (), "float32", 1.0, None, value=Node("sigmoid", (wide,), "float32"))
    spec = Spec(0, "te", [Tensor("x0", (length(31),), "float16", 2.0, 2)], [s0, s1], {}, [s0, s1])
    wanted = variety.Wanted(spec, {"x0": np.full(31, -2.0)}, {})
    for count, right in ((31, True), (30, False)):
        total = np.float16(0)
        for _ in range(count):
            total = np.float16(total + np.float16(np.tanh(-2.0)))
        assert total != wanted.near["s0"]
        for t, got in ((s0, np.float64(total)), (s1, 1 / (1 + np.exp(-np.float64(total))))):
            assert (variety.compare(t, got, wanted) is None) == right


def test_what_a_fold_of_nothing_starts_from_excuses_nothing() -> None:
    """Beside 3.4e38, a minimum that is off by a thousandth is wrong."""
    i, r = (Node("axis", (name,), "int32") for name in ("i0", "r0"))
    first = Node("lt", (i, Node("const", (1,), "int32")), "bool")
    value = Node("read", ("x0", r), "float32", 2.0, 2)
    fold = Fold("min", (Axis("r0", length(4)),), first)
    s0 = Tensor("s0", (length(2),), "float32", 2.0, 2, axes=(Axis("i0", length(2)),), value=value, fold=fold)
    spec = Spec(0, "te", [Tensor("x0", (length(4),), "float32", 2.0, 2)], [s0], {}, [s0])
    wanted = variety.Wanted(spec, {"x0": np.array([1.5, 1.0, 2.0, 1.25])}, {})
    least = wanted.near["s0"]
    assert least[0] == 1.0 and least[1] > 1e38
    assert variety.compare(s0, least, wanted) is None
    assert variety.compare(s0, least * np.array([1.001, 1.0]), wanted) is not None
    assert variety.compare(s0, least * np.array([1.0, 1.001]), wanted) is not None


def test_no_length_is_negative() -> None:
    specs = [draw(seed) for seed in range(91000, 91300)]
    lengths = [d.value for s in specs for t in (*s.inputs, *s.stages) for d in t.shape]
    assert min(lengths) == 0
