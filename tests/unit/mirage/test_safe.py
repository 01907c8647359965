"""Safe softmax: large scores, what is not repaired, and what explain() says."""

import numpy as np
import pytest
import torch

import neptune
from bench.mirage_programs import BENCHMARKS, gqa64
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.lower import lowered
from neptune.mirage.lowering.definitions import definitions
from neptune.mirage.lowering.safe import safe
from neptune.mirage.reference import reference
from neptune.ops.parts import wide
from neptune.ops.softmax import softmax

from .graphs import GRAPHS, with_kernel


@pytest.fixture(scope="module")
def attention() -> neptune.Kernel:
    program = BENCHMARKS["GQA"].program()
    return neptune.compile(program, template=lowered(GRAPHS["GQA"](), program).template, target="interpret")


@pytest.mark.parametrize("scale", [1.0, 4.0, 20.0])
def test_scores_of_hundreds_give_finite_results(attention: neptune.Kernel, scale: float) -> None:
    drawn = np.random.default_rng(1)
    given = [torch.tensor(drawn.standard_normal(s)).half() for s in ((2, 19, 24), (2, 24, 33), (2, 33, 24))]
    given[0] *= scale
    want = gqa64(*(x.double().numpy() for x in given))
    got = attention(*given).double().numpy()
    assert np.isfinite(got).all()
    # Rounded scores of hundreds differ in their last digits, exponentials of them by as much.
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_one_key_far_above_the_others_is_all_there_is(attention: neptune.Kernel) -> None:
    q, k, v = torch.zeros(1, 3, 8), torch.zeros(1, 8, 70), torch.randn(1, 70, 8)
    q[..., 0], k[0, 0, 66] = 100.0, 100.0
    got = attention(q.half(), k.half(), v.half())
    assert torch.equal(got, v.half()[:, 66:67].expand(1, 3, 8))


def test_explain_says_what_was_shifted(attention: neptune.Kernel) -> None:
    assert "exp: shifted (safe softmax)" in attention.explain()


def test_without_it_explain_says_where_scores_overflow() -> None:
    program = BENCHMARKS["GQA"].program()
    made = lowered(GRAPHS["GQA"](), program, safe=False)
    said = [d for d in made.decisions if d.kind == "safe softmax"]
    assert [d.verdict for d in said] == ["off"] and "above 88.7" in said[0].reason
    assert "max=" not in str(made.definitions)


def _sums(name: str, *nodes: str) -> tuple[Graph, Program]:
    """A graph of x[i, j] that folds j, with a program of the same signature."""
    x, j = placeholder((var("m"), var("n")), "float16", "x"), reduce_axis((0, var("n")), "j")
    y = compute((var("m"),), lambda i: sum(exp(wide(x[i, j])), axis=j), "t")
    program = build(compute((var("m"),), lambda i: y[i].astype("float16"), "y"), name=name)
    return with_kernel(reference(program), "i", "j", *nodes), program


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (["e = exp(x)", "z = acc_sum(e) over j"], "would change with the maximum"),
        (["e = exp(x)", "s = add(e, x)", "z = acc_sum(s) over j"], "in different ways"),
        (["e = exp(x)", "l = acc_sum(e) over j", "z = sigmoid(l)"], "another function of the maximum"),
        (["e = exp(x)", "s = exp(e)", "z = acc_sum(s) over j"], "another function of the maximum"),
    ],
)
def test_what_depends_on_the_maximum_is_left_alone(nodes: list[str], why: str) -> None:
    graph, program = _sums("p", *nodes)
    made = safe(definitions(graph, program))
    assert made.program == definitions(graph, program).program
    assert [d.verdict for d in made.decisions] == ["not repaired"] and why in made.decisions[0].reason


@pytest.mark.parametrize(
    "nodes",
    [
        # Degrees 2 - 2, and 1/2 - 1/2.
        ["ee = sqr(e)", "q = acc_sum(ee) over j", "ss = sqr(s)", "z = div(q, ss)"],
        ["ee = sqr(e)", "q = acc_sum(ee) over j", "r = sqrt(q)", "z = div(s, r)"],
    ],
)
def test_degrees_are_counted(nodes: list[str]) -> None:
    graph, program = _sums("p", "e = exp(x)", "s = acc_sum(e) over j", *nodes)
    made = safe(definitions(graph, program))
    assert "max=" in str(made.program) and [d.verdict for d in made.decisions] == ["shifted"]


def test_an_exponential_of_what_is_bounded_stays() -> None:
    graph, program = _sums("p", "t = sigmoid(x)", "e = exp(t)", "z = acc_sum(e) over j")
    assert not safe(definitions(graph, program)).decisions


def test_a_program_with_a_maximum_of_its_own_stays_as_it_is() -> None:
    program = softmax()
    made = definitions(reference(program), program)
    assert "max=" in str(made.program) and safe(made) == made
