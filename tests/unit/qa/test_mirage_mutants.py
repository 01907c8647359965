"""Mutants: changes of every kind, each once, the same for a seed, and the verifier against float64 on them."""

from itertools import islice

from neptune.mirage.ir import Graph
from neptune.mirage.renamed import aligned
from neptune.mirage.types import fault
from neptune.mirage.verifier.indexed import prove_equal
from neptune.mirage.verifier.verdict import Counterexample, Verifier, counterexample
from qa.mirage_mutants import KINDS, mutants
from tests.unit.mirage import verified
from tests.unit.mirage.graphs import rms_norm_linear


def test_every_kind_of_change() -> None:
    found = list(mutants(rms_norm_linear()))
    assert {m.kind for m in found} == set(KINDS)
    assert len({(m.graph.inputs, m.graph.steps, m.graph.outputs) for m in found}) == len(found)
    kernels = [m.graph.kernels[0] for m in found]
    assert {k.loop for k in kernels} == {"i", "j", "k", None}
    assert ("i",) in {k.grid for k in kernels} and ("i", "j", "k") in {k.grid for k in kernels}
    assert any(load.whole for k in kernels for load in k.loads)
    assert {n.op for k in kernels for n in k.nodes} >= {"acc_max", "rsqrt", "add", "cast"}


def test_mutants_of_two_changes_are_the_same_for_a_seed() -> None:
    first, again, other = ([m.change for m in mutants(rms_norm_linear(), 200, seed)] for seed in (0, 0, 1))
    assert len(first) == 200 and first == again and first != other
    singles = [m.change for m in mutants(rms_norm_linear())]
    assert first[: len(singles)] == singles


def test_what_differs_in_float64_is_rejected_by_the_fields_and_not_proved() -> None:
    """Mutants of one change of the norm's kernel, of the safe softmax, of keys that are split, and of two sums."""
    _check(verified.RMS, verified.RMS_FUSED, None)
    _check(verified.ATTENTION, verified.ATTENTION_SAFE, None)
    _check(verified.ATTENTION, verified.split_attention(safe=True), None)
    _check(verified.LORA, verified.LORA_FUSED, 400)


def _check(expression: object, graph: object, count: int | None) -> None:
    verifier = Verifier(expression)  # type: ignore[arg-type]
    tried = 0
    for m in islice(mutants(graph), count):  # type: ignore[arg-type]
        fitted = fault(m.graph) or aligned(m.graph, verifier.expression)
        found = counterexample(fitted, verifier.expression, seed=7) if isinstance(fitted, Graph) else fitted
        if found is not None and not isinstance(found, Counterexample):
            assert not verifier.verdict(m.graph).equal, m.change
            continue
        if found is not None:
            assert not verifier.candidates.accept(fitted), m.change
            assert not prove_equal(fitted, verifier.expression).proved, m.change
            tried += 1
    assert tried > 20
