"""Verdicts: what is equal is said to be, what is wrong has a reason and a counterexample, and nothing is raised."""

from dataclasses import replace

import pytest

import neptune.mirage
from bench.mirage_programs import BENCHMARKS
from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Var
from neptune.ir.program import Program
from neptune.mirage.ir import SPLIT, Graph, Node, Output, Tensor
from neptune.mirage.verifier.verdict import Verdict, Verifier, verify
from neptune.verify.exact import ExactReport
from tests.unit.mirage import verified
from tests.unit.mirage.graphs import GRAPHS
from tests.unit.mirage.verified import kernel, n, one, program, swapped

PAIRS = {
    "rms": (verified.RMS, verified.RMS_FUSED),
    "attention": (verified.ATTENTION, verified.ATTENTION_SAFE),
    "split": (verified.ATTENTION, verified.split_attention(safe=True)),
    "lora": (verified.LORA, verified.LORA_FUSED),
    "gated": (verified.GATED, verified.GATED_FUSED),
}


@pytest.mark.parametrize("name", PAIRS)
def test_right_graphs_are_proved_and_admitted(name: str) -> None:
    expression, graph = PAIRS[name]
    found = verify(graph, expression)
    assert found and found.equal, str(found)
    tiers = ["fields", "float64", "bound", "proof", "domain", "gate"]
    assert {t.name: t.outcome for t in found.tiers} == dict.fromkeys(tiers, "accepted")
    assert found.bound is not None and found.bound <= -30
    assert found.tiers[0].draws == 64 and found.tiers[0].seeds == (0,)
    assert str(found).startswith("graph `graph`: equal to the expression\n  fields: accepted: agrees in 64 draws")


def _tier(verdict: Verdict, name: str) -> str:
    return next(t.outcome for t in verdict.tiers if t.name == name)


def test_an_unsafe_softmax_is_equal_and_not_admitted() -> None:
    """exp(S) in float16 leaves its range where the true result is 0.2; without `safe` the expression may do so too."""
    found = verify(verified.ATTENTION_FUSED, verified.ATTENTION)
    assert found.equal and not found.accepted and _tier(found, "gate") == "rejected"
    assert "not finite where the true result is" in found.why
    assert verify(verified.ATTENTION_FUSED, verified.ATTENTION, safe=False).accepted


@pytest.mark.parametrize(
    ("graph", "expression"),
    [
        (verified.FORGOTTEN, verified.ATTENTION),
        (verified.PUBLISHED, verified.QK_NORM),
        (swapped(verified.RMS_FUSED, y=n("y", "div", "product mean")), verified.RMS),
        (swapped(verified.RMS_FUSED, mean=n("mean", "scale", "squares", constant=verified.per("j"))), verified.RMS),
    ],
)
def test_wrong_graphs_have_a_counterexample(graph: Graph, expression: Graph) -> None:
    found = verify(graph, expression)
    assert not found and not found.equal and _tier(found, "fields") == "rejected"
    assert found.counterexample is not None and found.counterexample.output == "out"
    assert abs(found.counterexample.expected - found.counterexample.got) > 1e-6
    assert "and has to be" in str(found)
    again = verify(graph, expression)
    assert again.counterexample == found.counterexample


@pytest.mark.parametrize("per_program", [False, True])
def test_a_graph_that_counts_its_programs_or_iterations(per_program: bool) -> None:
    """Σ exp(s − s) over programs is their number, and over iterations theirs: right where there are two by chance."""
    sums = program("i k", "X:ik", "y:i", n("y", "sum", "X", "k"))
    body = [n("t", "sum", "x", "k"), n("s", "acc", "t", "k")]
    if per_program:
        body += [n("zero", "sub", "t t"), n("one", "exp", "zero"), n("many", "acc", "one", "k")]
        body += [n("twice", "mul", "s many"), n("v", "scale", "twice", constant=Const(0.5, "float32"))]
        after = [n("y", "sum", "V", "k", parts=SPLIT)]
        graph = one(sums, kernel("i k", "k", "x=X", "v", *body), *after)
    else:
        body += [n("zero", "sub", "s s"), n("o", "exp", "zero")]
        after = [n("all", "sum", "S", "k", parts=SPLIT), n("many", "sum", "O", "k", parts=SPLIT)]
        after += [n("twice", "mul", "all many"), n("y", "scale", "twice", constant=Const(0.5, "float32"))]
        graph = one(sums, kernel("i k", "k", "x=X", "s o", *body), *after)
    found = verify(graph, sums)
    assert not found.equal and found.counterexample is not None


def test_graphs_that_are_no_graphs_of_the_expression() -> None:
    """A verdict with the reason, and no error."""
    wrong = {
        "it reads `A`": (verified.LORA_FUSED, verified.RMS),
        "no accumulator is on its way": (_with(saves="xw"), verified.RMS),
        "its `X` has 1 dimensions": (program("i", "X:i W:i", "y:i", n("y", "mul", "X W")), verified.RMS),
        "it has 2 outputs": (
            replace(verified.RMS_FUSED, outputs=(*verified.RMS_FUSED.outputs, Output("z", ("i", "j"), "float16", "Y"))),
            verified.RMS,
        ),
        "its `X` is float32": (
            replace(verified.RMS_FUSED, inputs=tuple(replace(t, dtype="float32") for t in verified.RMS.inputs)),
            verified.RMS,
        ),
        "has `u`": (
            program(
                "i k j", "X:ik W:kj", "out:ij", n("t", "scale", "X", constant=Var("u")), n("out", "matmul", "t W", "k")
            ),
            verified.RMS,
        ),
        "there is no operator `summ`": (
            swapped(verified.RMS, sum=n("sum", "summ", "xx", "k")),
            verified.RMS,
        ),
        "is 4 long": (replace(verified.RMS_FUSED, axes=verified.RMS.axes | {"k": Const(4, "int32")}), verified.RMS),
    }
    for why, (graph, expression) in wrong.items():
        found = verify(graph, expression)
        assert not found.equal and why in found.why, (why, found.why)


def _with(saves: str) -> Graph:
    kernel = verified.RMS_FUSED.kernels[0]
    return verified.RMS_FUSED.with_steps(replace(kernel, saves=(replace(kernel.saves[0], value=saves),)))


def test_a_graph_may_call_axes_and_sizes_what_it_likes() -> None:
    text = {"i": "rows", "k": "depth", "j": "columns"}
    graph = verified.RMS_FUSED
    kernel = graph.kernels[0]

    def node(x: Node) -> Node:
        constant = None if x.constant is None else verified.per("depth_size")
        return replace(x, axis=text.get(x.axis, x.axis), constant=constant)

    renamed = replace(
        graph,
        axes={text[a]: Var(f"{text[a]}_size") for a in graph.axes},
        inputs=tuple(replace(t, axes=tuple(text[a] for a in t.axes)) for t in graph.inputs),
        steps=(replace(kernel, grid=("rows", "columns"), loop="depth", body=tuple(map(node, kernel.nodes))),),
        outputs=tuple(replace(o, axes=tuple(text[a] for a in o.axes)) for o in graph.outputs),
    )
    found = verify(renamed, verified.RMS)
    assert found.accepted and _tier(found, "proof") == "accepted", str(found)
    transposed = replace(renamed, inputs=(renamed.inputs[0], Tensor("W", ("columns", "depth"), "float16")))
    assert not verify(transposed, verified.RMS).equal


TWO = program("i k", "X:ik", "s:i", n("s", "sum", "X", "k"), n("m", "max", "X", "k"))
BOTH = replace(TWO, outputs=(Output("sums", ("i",), "float32", "s"), Output("tops", ("i",), "float32", "m")))


def test_outputs_are_matched_in_any_order_and_the_order_is_honoured() -> None:
    other = (Output("first", ("i",), "float32", "m"), Output("second", ("i",), "float32", "s"))
    found = verify(replace(BOTH, outputs=other), BOTH)
    assert found.equal and found.order == (1, 0)
    assert [(o.name, o.value) for o in found.graph.outputs] == [("sums", "s"), ("tops", "m")]
    assert "its outputs 1, 0 are sums, tops" in str(found)
    # Under the expression's own names a graph says which is which, and these are wrong.
    swapped_names = tuple(replace(a, value=b.value) for a, b in zip(BOTH.outputs, BOTH.outputs[::-1], strict=True))
    assert not verify(replace(BOTH, outputs=swapped_names), BOTH).equal
    assert verify(replace(BOTH, outputs=BOTH.outputs[::-1]), BOTH).equal


def test_what_fields_cannot_follow_a_proof_may() -> None:
    """The fields' maximum is of an arbitrary order, in which max(x / 2) is not max(x) / 2."""
    half = Const(0.5, "float32")
    one = program("i k", "X:ik", "y:i", n("h", "scale", "X", constant=half), n("y", "max", "h", "k"))
    other = program("i k", "X:ik", "y:i", n("h", "max", "X", "k"), n("y", "scale", "h", constant=half))
    found = verify(other, one)
    assert found.equal and _tier(found, "fields") == "rejected" and _tier(found, "proof") == "accepted"


def test_what_no_tier_decides_is_not_accepted() -> None:
    """√(x²)·√(x²) and x·|x|·… agree in float64 where all inputs are positive, and that is no reason to accept."""
    one = program("i", "X:i", "y:i", n("a", "sqr", "X"), n("y", "sqrt", "a"))
    other = program("i", "X:i", "y:i", n("a", "sqrt", "X"), n("y", "sqr", "a"))
    found = verify(other, one)
    assert not found.equal


def test_the_expression_may_be_a_program() -> None:
    benchmark = BENCHMARKS["RMSNorm"].program()
    assert isinstance(benchmark, Program)
    found = verify(GRAPHS["RMSNorm"](), benchmark)
    assert found.accepted and _tier(found, "proof") == "accepted", str(found)
    assert _tier(found, "exact") == "accepted"


def test_a_graph_is_admitted_as_it_is_lowered() -> None:
    """Attention without a maximum is repaired on its way to the compiler, and only with `safe`."""
    benchmark, graph = BENCHMARKS["GQA"].program(), GRAPHS["GQA"]()
    found = verify(graph, benchmark)
    assert found.accepted and "as it is lowered" in found.tiers[-1].text, str(found)
    # Neither the expression nor the graph is finite there, and the verdict lists where.
    unsafe = verify(graph, benchmark, safe=False)
    assert unsafe.accepted and "not finite on inputs" in unsafe.tiers[-1].text, str(unsafe)


def test_an_exact_check_may_reject() -> None:
    """Of what a graph was compiled to, by whoever compiles it."""
    report = ExactReport("model of tiles", 1, (4,), ({"m": 2},), "rejected", 3, None, "1 draw")
    found = verify(verified.LORA_FUSED, verified.LORA, exact=lambda _: {"tiles": report})
    assert not found.equal and "an exact check rejects it" in found.why and _tier(found, "exact, tiles") == "rejected"
    assert verify(
        verified.LORA_FUSED, verified.LORA, exact=lambda _: {"tiles": replace(report, verdict="accepted")}
    ).equal


def test_what_is_not_compiled_is_not_decided_by_exact_checks() -> None:
    def refused(_: Graph) -> dict[str, ExactReport]:
        raise ScheduleError("keep `sum1` on chip", "its length is unknown")

    found = verify(verified.LORA_FUSED, verified.LORA, exact=refused)
    assert found.equal and _tier(found, "exact") == "undecided"
    assert "it is not compiled: keep `sum1` on chip" in str(found)


def test_it_is_there_under_the_name_of_the_package() -> None:
    assert neptune.mirage.verify is verify
    assert not hasattr(neptune.mirage, "falsify")


def test_a_verifier_serves_many_graphs() -> None:
    verifier = Verifier(verified.RMS, draws=8, seed=3)
    assert verifier.verdict(verified.RMS_FUSED).equal
    assert not verifier.verdict(verified.RMS_FUSED.with_steps(*_transposed())).equal
    assert verifier.verdict(verified.RMS).tiers[0].seeds == (3,)


def _transposed() -> tuple[Node, ...]:
    return (*verified.RMS.steps[:4], n("normed", "mul", "X root"), verified.RMS.steps[5])  # type: ignore[return-value]


def test_a_graph_that_differs_at_infinities_alone_says_so() -> None:
    """x·(w + a·b) for x·w + (x·a)·b."""
    benchmark = BENCHMARKS["LoRA"].program()
    lora = GRAPHS["LoRA"]()
    ab = n("ab", "matmul", "a b", lora.inputs[2].axes[1])
    graph = lora.with_steps(ab, n("s", "add", "ab w"), n("y", "matmul", "x s", lora.inputs[0].axes[1]))
    found = verify(graph, benchmark)
    assert found.equal and _tier(found, "proof") == "accepted", str(found)
    assert next(t.text for t in found.tiers if t.name == "exact").startswith("of finite inputs, accepted")
