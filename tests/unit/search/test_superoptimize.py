"""Programs as graphs: found, verified, kept, refused; the template's kernel wherever there is no better one."""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import neptune
from bench import stub_driver
from bench.mirage_programs import BENCHMARKS
from neptune.errors import FusionError, NeptuneError
from neptune.frontend.builder import build, compute, if_then_else, placeholder, reduce_axis, var
from neptune.frontend.builder import sum as fold
from neptune.ir.program import Program
from neptune.mirage import partition
from neptune.mirage.ir import Graph
from neptune.mirage.optimize import Goal, Lowering, Progress, candidate_of, predicted
from neptune.mirage.printer import print_graph
from neptune.mirage.reference import reference
from neptune.mirage.verifier.candidates import Candidates
from neptune.records.record import Discovery, structure_of
from neptune.records.store import Store
from neptune.report.search import Way
from neptune.search import case as search_case
from neptune.search import in_parts, timed, whole
from neptune.search import superoptimize as of
from neptune.search.whole import off_unit
from neptune.tune.model.machine import DEFAULT
from tests.unit.mirage.graphs import rms_norm_gain

SIZES = {"m": 16, "k": 4096, "n": 4096}


def scaled(masked: bool = False, names: str = "xwy") -> Program:
    """(x / Σ x) w: the division can wait behind the product."""
    m, k, n = var("m"), var("k"), var("n")
    x, w = placeholder((m, k), "float16", names[0]), placeholder((k, n), "float16", names[1])
    p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")
    s = compute((m,), lambda i: fold(x[i, q].astype("float32"), axis=q), "s")

    def normed(i, p):  # type: ignore[no-untyped-def]
        z = x[i, p].astype("float32") / s[i]
        return if_then_else(i < p, z, 0.0) if masked else z

    z = compute((m, k), lambda i, p: normed(i, p).astype("float16"), "z")
    c = compute((m, n), lambda i, j: fold(z[i, p].astype("float32") * w[p, j].astype("float32"), axis=p), "c")
    y = compute((m, n), lambda i, j: c[i, j].astype("float16"), names[2])
    return build(y, name="scaled")


def predicting(monkeypatch: pytest.MonkeyPatch, us: Callable[[neptune.Kernel], float | None]) -> None:
    """With other predictions of kernels."""
    for module in (of, whole, in_parts):
        monkeypatch.setattr(module, "predicted_us", us)


def slow_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the model thought little of the template's kernel."""
    predicting(monkeypatch, lambda k: 1e3 if k.graph is None else search_case.predicted_us(k))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(folder))
    slow_template(monkeypatch)
    yield


def made(**options: object) -> neptune.Kernel:
    asked: dict[str, object] = {"budget": "60s", "max_block_ops": 6, "max_kernels": 1} | options
    return neptune.superoptimize(scaled(), shapes=SIZES, target="interpret", **asked)  # type: ignore[arg-type]


def test_a_graph_is_found_computes_the_program_and_says_so() -> None:
    kernel = made()
    assert kernel.graph is not None and len(kernel.graph.kernels) == len(kernel.facts.kernels) == 1
    ops = [n.op for n in kernel.graph.kernels[0].nodes]
    assert ops.index("matmul") < ops.index("div")
    text = kernel.explain()
    for said in ("graph: found by search", "predicted: graph", "template ", "verified", "algebra", "kernel fused0"):
        assert said in text, said
    said = kernel.explain(json=True)["search"]
    tiers, numbers = {t["name"]: t["verdict"] for t in said["tiers"]}, said["numbers"]
    checks = kernel.explain(json=True)["checks"]
    assert checks and {f"exact, {what}" for what in checks} == {n for n in tiers if n.startswith("exact, ")}
    assert all(tiers[f"exact, {what}"].startswith("accepted") for what in ("fused program", "tile program"))
    assert "no false accept: equal when written out" in tiers["bound"] and "inf" not in tiers["bound"]
    assert numbers["states"] > 0 and numbers["verified"] > 0 and numbers["tries"] > numbers["states"]
    x, w = (
        torch.from_numpy(np.random.default_rng(k).uniform(0.5, 1, s)).half() for k, s in ((0, (5, 70)), (1, (70, 33)))
    )
    exact = (x.double() / x.double().sum(1, keepdim=True)) @ w.double()
    assert float((kernel(x, w).double() - exact).norm() / exact.norm()) < 1e-3


def test_a_second_call_searches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = made()

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(whole, "Optimizer", nothing)
    again = made()
    assert again.graph is not None and first.graph is not None
    assert print_graph(again.graph) == print_graph(first.graph)
    assert "searched: nothing, since a record has the graph" in again.explain()
    # Sizes of another bucket, other bounds and no records are other requests.
    with pytest.raises(AssertionError, match="searched again"):
        made(max_block_ops=7)
    with pytest.raises(AssertionError, match="searched again"):
        made(records=False)


def test_a_wrong_graph_of_a_record_is_not_taken(folder: Path) -> None:
    made()
    store = Store(folder)
    (line, *_) = [d for d in _all(store) if d.graph]
    wrong = line.graph.replace(" = div(", " = mul(")
    assert wrong != line.graph
    kept = {k: getattr(line, k) for k in ("structure", "device", "sizes", "params", "versions", "numbers")}
    store.append(Discovery(**kept, graph=wrong))
    try:
        kernel = made()
        assert kernel.graph is None and "that of a record is refused: differs" in kernel.explain()
    finally:
        store.rewrite(lambda lines: lines[:-1])


def _all(store: Store) -> list[Discovery]:
    from neptune.records.record import parse

    return [d for d in map(parse, store.lines()) if isinstance(d, Discovery)]


def test_without_time_the_template_serves() -> None:
    for budget, why in (("0s", "the budget is 0"), ("0.001s", "the time was over before the first one")):
        kernel = made(budget=budget, records=False)
        assert kernel.graph is None and f"graph: none, since {why}" in kernel.explain()


def test_an_interrupt_leaves_the_best_so_far() -> None:
    def told(at: Progress) -> None:
        raise KeyboardInterrupt

    kernel = made(progress=told, records=False)
    assert kernel.graph is not None or "it was interrupted before the first one" in kernel.explain()


def test_an_interrupted_search_is_no_answer_to_a_longer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    times = 0

    def interrupts(at: Progress) -> None:
        nonlocal times
        times += 1
        raise KeyboardInterrupt

    made(progress=interrupts)
    made(progress=interrupts)
    assert times == 2


def test_an_interrupt_while_graphs_are_compared_leaves_the_best_of_those_that_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tried = whole.predicted, []

    def interrupts(*args: object) -> object:
        tried.append(args)
        if len(tried) == 1 or not isinstance(tried[0], whole.Lowering):
            tried[0] = real(*args)  # type: ignore[arg-type, call-overload]
            return tried[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(whole, "predicted", interrupts)
    kernel = made(records=False)
    assert kernel.graph is not None


def test_the_template_takes_none_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its kernel takes to compile, the search has its time."""
    compiles, searches, left = of.compile, whole.Optimizer, []

    def slowly(*args: object, **options: object) -> neptune.Kernel:
        time.sleep(0.3)
        return compiles(*args, **options)  # type: ignore[arg-type]

    def timed(goal: of.Goal, deadline: float, *rest: object) -> whole.Optimizer:
        left.append(deadline - time.process_time())
        return searches(goal, deadline, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(of, "compile", slowly)
    monkeypatch.setattr(whole, "Optimizer", timed)
    made(budget="0.4s", records=False)
    assert left[0] > 0.2


def test_when_the_time_is_over_no_further_graph_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[object]()

    def refused(case: search_case.Case, template: object, over: bool) -> FusionError:
        tried.append(template)
        case.clock = search_case.Clock(0.0 if over else 60.0)
        return FusionError("compile", "a check rejects it")

    monkeypatch.setattr(search_case.Case, "kernel", lambda case, way: refused(case, way, True))
    text = made(records=False).explain()
    assert len(tried) == 1 and "a check rejects it" in text and "not compiled, since the time was over" in text
    tried.clear()
    monkeypatch.setattr(search_case.Case, "kernel", lambda case, way: refused(case, way, False))
    text = made(records=False).explain()
    assert len(tried) > 1 and "the time was over" not in text


def test_what_each_step_took_is_said() -> None:
    kernel = made(records=False)
    took = {t["step"]: t["seconds"] for t in kernel.explain(json=True)["search"]["took"]}
    kinds = [step.split(", ")[-1] for step in took]
    assert kinds == ["compiled", "search", "lowering", "verified", "compiled"] and all(s >= 0 for s in took.values())
    assert "  took: template, compiled in " in kernel.explain()


def in_parts_of(monkeypatch: pytest.MonkeyPatch, names: str = "xwy", **options: object) -> neptune.Kernel:
    """A program that has no graph as a whole, where the model thinks little of the template's kernel."""
    predicting(monkeypatch, lambda k: 1.0 if k.executable.artifact.template == "scaled_parts" else 1e3)
    given: dict[str, object] = {"budget": "20s"} | options
    return neptune.superoptimize(scaled(True, names), shapes=SIZES, target="interpret", **given)  # type: ignore[arg-type]


def test_a_program_that_has_no_graph_is_served_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = in_parts_of(monkeypatch, records=False)
    text = kernel.explain()
    assert kernel.graph is None and "graph: of " in text and "z: a kernel a stage" in text and "c … y: a graph" in text
    assert "parts, searched in " in text and "parts, verified in " in text and "parts, compiled in " in text
    # None of it is taken where the template is no slower.
    predicting(monkeypatch, lambda k: 1.0)
    kernel = neptune.superoptimize(scaled(True), shapes=SIZES, target="interpret", budget="5s", records=False)
    why = kernel.explain().partition("graph: ")[2].partition("predicted:")[0]
    assert "neither as a whole" in why and "`z`" in why


def test_parts_have_records_by_their_structure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    first = in_parts_of(monkeypatch).explain(json=True)["search"]
    assert first["numbers"]["parts_searched"] > 1 and first["numbers"]["parts_of_records"] == 0

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(partition, "Optimizer", nothing)
    # Buffers of other names make the same structure.
    again = in_parts_of(monkeypatch, "abo")
    said = again.explain(json=True)["search"]
    assert "nothing, since a record" in again.explain() and said["numbers"]["parts_searched"] == 0
    x, w = (torch.from_numpy(np.random.default_rng(k).uniform(0.5, 1, (9, 9))).half() for k in (0, 1))
    exact = torch.triu(x.double() / x.double().sum(1, keepdim=True), 1) @ w.double()
    assert float((again(x, w).double() - exact).norm() / exact.norm()) < 1e-3
    with pytest.raises(AssertionError, match="searched again"):
        in_parts_of(monkeypatch, budget="1000s", max_block_ops=7)
    # A wrong graph of a record is refused, and its stages are kernels of their own.
    Store(tmp_path).rewrite(lambda lines: [line.replace(b" = matmul(", b" = add(") for line in lines])
    wrong = in_parts_of(monkeypatch).explain()
    assert "c … y: a graph" not in wrong


def test_parts_for_which_there_is_no_time_are_kernels_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = in_parts_of(monkeypatch, budget="0.001s", records=False)
    assert kernel.graph is None and "nor has any part of it" in kernel.explain()
    real, seen = in_parts.Verifier.verdict, []

    def slowly(self: in_parts.Verifier, graph: Graph) -> object:
        seen.append(graph)
        cases[0].clock = search_case.Clock(0.0)
        return real(self, graph)

    def of_case(case: search_case.Case, why: str) -> search_case.Optimized:
        cases[:] = [case]
        return searched(case, why)

    cases, searched = list[search_case.Case](), in_parts.kernel_of_parts
    monkeypatch.setattr(in_parts, "kernel_of_parts", of_case)
    monkeypatch.setattr(in_parts.Verifier, "verdict", slowly)
    text = in_parts_of(monkeypatch, records=False).explain()
    assert len(seen) == 1 and "not verified, since the time was over" in text and "c … y: a graph" in text


def test_where_the_template_is_no_worse_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    predicting(monkeypatch, lambda k: 1.0)
    kernel = made(records=False)
    assert kernel.graph is None and "none that is predicted to be faster than the template" in kernel.explain()


def test_as_a_template_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "Bounds", lambda *_: of.Goal.__dataclass_fields__["bounds"].default_factory(6, 1))  # type: ignore[misc]
    monkeypatch.setattr(of, "EVERY", 0.0)
    kernel = neptune.compile(scaled(), "mirage", shapes=SIZES, target="interpret", records=False)
    assert kernel.graph is not None and "mirage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [{"budget": "soon"}, {"max_block_ops": 0}, {"max_kernels": "2"}, {"workers": -1}, {"seed": -1}]
)
def test_what_is_no_request(wrong: dict[str, object]) -> None:
    with pytest.raises(NeptuneError, match="superoptimize with"):
        made(**wrong)


def test_what_is_said_is_saved_with_the_kernel(tmp_path: Path) -> None:
    kernel = made()
    kernel.save(tmp_path / "scaled")
    loaded = neptune.load(tmp_path / "scaled", "interpret")
    assert loaded.graph == kernel.graph and "graph: found by search" in loaded.explain()


TEMPLATE_US = 20.0


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, *us: float) -> neptune.Kernel:
    """What a search gives with a GPU on which kernels are launched and nothing runs; `us` are the times of the
    template and of graphs, in the order in which they are timed (the last one stands for all further ones)."""
    left = list(us)

    def samples(self: object, call: Callable[[], object]) -> list[float]:
        call()
        return [left.pop(0) if len(left) > 1 else left[0]] * 3

    monkeypatch.setattr(timed, "captured", lambda call: call)
    monkeypatch.setattr(timed.GpuCalls, "samples", samples)
    with stub_driver.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return neptune.superoptimize(
            scaled(), shapes=SIZES, target="cuda:90", budget="60s", max_block_ops=6, max_kernels=1
        )


def test_where_the_gpu_is_at_hand_the_times_decide_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    kernel = on_a_gpu(monkeypatch, TEMPLATE_US, 12.0, 9.5, 11.0)
    assert kernel.graph is not None
    said = kernel.explain(json=True)["search"]
    assert (said["found"]["measured"], said["template"]["measured"]) == (9.5, TEMPLATE_US)
    assert said["numbers"]["timed"] >= 3 and "(measured 9.5 µs)" in kernel.explain()
    kept = Store(tmp_path).find(structure_of(scaled()), "H200")
    own = [r for r in kept if r.template.startswith("mirage-")]
    assert len(own) == said["numbers"]["timed"] - 1 and len({r.template for r in own}) == len(own)
    assert min(r.us[0] for r in own) == 9.5 and own[1].us == (9.5, 9.5, 9.5)
    (beside,) = [r for r in kept if r not in own and r.us == (TEMPLATE_US,) * 3]
    assert beside.template in kernel.explain(json=True)["search"]["template"]["name"] and beside.sizes == SIZES
    # A record has the times, too, and nothing is timed again.
    again = on_a_gpu(monkeypatch, 1e6)
    assert again.graph == kernel.graph and "searched: nothing" in again.explain()
    assert "(measured 9.5 µs)" in again.explain() and "(measured 20.0 µs)" in again.explain()


def test_what_the_gpu_refuses_or_is_slower_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    # What was not timed is no answer where it can be.
    bounds = {"max_block_ops": 6, "max_kernels": 1, "safe": 1}
    untimed = Discovery(
        structure=structure_of(scaled()), device="H200", sizes=SIZES, params=bounds, graph="", versions={},
        numbers={"exhausted": 1},
    )  # fmt: skip
    Store(tmp_path).append(untimed)
    real, seen = timed.Stopwatch.graph, list[Graph]()

    def first_refused(self: timed.Stopwatch, graph: Graph, kernel: neptune.Kernel) -> float:
        seen.append(graph)
        if len(seen) == 1:
            raise RuntimeError("out of resources")
        return real(self, graph, kernel)

    monkeypatch.setattr(timed.Stopwatch, "graph", first_refused)
    kernel = on_a_gpu(monkeypatch, 5.0, 5.0)
    assert kernel.graph is None and "graph: none that is measured to be faster than the template" in kernel.explain()
    assert len(seen) > 1 and "out of resources" in kernel.explain()
    again = on_a_gpu(monkeypatch, 1e6)
    assert again.graph is None and "measured to be faster than the template, as a record says" in again.explain()


def _gained(dtype: str) -> Lowering | str:
    """x·g without its norm, for a product: it has the range of a product of two of its dtype, or less by no proof."""
    benchmark = BENCHMARKS["RMSNorm-gain"]
    program, graph = benchmark.program(dtype), rms_norm_gain()
    goal = Goal(reference(program), benchmark.sizes(8), DEFAULT)
    graph = replace(graph, inputs=goal.reference.inputs, outputs=graph.outputs)
    return predicted(candidate_of(graph, Candidates(goal.reference).outcome(graph), goal), program, goal)


def test_a_graph_whose_product_would_be_one_of_float32_is_refused() -> None:
    assert _gained("float16") == "`acc` multiplies float32 by float16 widened to float32, at the rate of float32"


def test_a_product_of_16_bits_is_on_the_matrix_unit_and_nothing_is_said_of_it() -> None:
    way = _gained("bfloat16")
    assert isinstance(way, Lowering), way
    assert not list(off_unit([way], Way("template", 1e3)))
