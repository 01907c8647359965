"""Graphs as kernels: one compile a graph, against float64 and by what explain() says."""

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import neptune
from bench.mirage_programs import BENCHMARKS
from neptune.frontend import builder
from neptune.fusion.schedule import replay
from neptune.kernel import Kernel
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.lower import lowered
from neptune.mirage.reference import reference
from neptune.ops.parts import wide
from neptune.tune.choose import lowered as scheduled

from .graphs import GRAPHS, SPLITS, with_kernel

ATTENTION = {"heads": 2, "queries": 37, "keys": 70, "depth": 24}
PRODUCT = {"m": 37, "k": 150, "n": 70}
SIZES = {
    "GQA": ATTENTION,
    "QKNorm": ATTENTION,
    "QKNorm-both": ATTENTION,
    "RMSNorm": PRODUCT,
    "RMSNorm-gain": PRODUCT,
    "GatedMLP": PRODUCT,
    "LoRA": {**PRODUCT, "r": 9},
    "nTrans": {"rows": 5, "cols": 100},
}
"""No size is a multiple of a tile."""
SUBNORMAL = 6e-8
"""The least number of float16."""


@cache
def kernel(name: str, split: bool = False) -> Kernel:
    program, graph = BENCHMARKS[name].program(), (SPLITS if split else GRAPHS)[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", neptune.NeptunePerformanceWarning)
        return neptune.compile(program, template=lowered(graph, program).template, target="interpret")


def close(name: str, made: Kernel, given: list[torch.Tensor]) -> bool:
    """True where results are those of float64, to what float16 holds."""
    with np.errstate(over="ignore"):
        want = BENCHMARKS[name].reference(*(x.double().numpy() for x in given))
    got = made(*given).double().numpy()
    inside = np.abs(want) < 60000
    return bool((np.abs(got - want)[inside] <= 2e-3 * np.abs(want[inside]).max() + SUBNORMAL).all())


def inputs(name: str, scale: float = 1.0) -> list[torch.Tensor]:
    drawn = np.random.default_rng(0)
    shapes = [[SIZES[name][d.name] for d in b.shape] for b in BENCHMARKS[name].program().inputs]
    return [torch.tensor(drawn.standard_normal(s) * scale).half() for s in shapes]


@pytest.mark.parametrize("name", SIZES)
def test_a_graph_of_one_kernel_is_one_kernel_and_reads_each_input_once(name: str) -> None:
    text = kernel(name).explain()
    assert "1 kernel, no global temporaries" in text
    passes = text.split("passes over each input: ")[1].splitlines()[0]
    assert {p.split("=")[1] for p in passes.split(", ")} == {"1"}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("name", SIZES)
def test_results_are_those_of_float64(name: str, scale: float) -> None:
    assert close(name, kernel(name), inputs(name, scale))


@pytest.mark.parametrize("parts", [1, 3, 6])
@pytest.mark.parametrize(("name", "kernels"), [("GQA", 2), ("GatedMLP", 2), ("RMSNorm", 3)])
def test_parts_of_an_axis_are_folded_by_one_kernel_and_combined_by_another(name: str, kernels: int, parts: int) -> None:
    """Of RMSNorm another kernel folds the same axis, and is cut with it."""
    made = kernel(name, split=True)
    assert f"\n{kernels} kernels, " in made.explain()
    assert close(name, made.with_params(NUM_SPLITS=parts), inputs(name))


def test_a_function_of_a_value_and_a_number() -> None:
    """max(x·w, 0): an opaque node with a number in the place of its last argument."""
    (m, k), n = (builder.var(s) for s in "mk"), 33
    x, w = builder.placeholder((m, k), "float16", "x"), builder.placeholder((k, n), "float16", "w")
    p = builder.reduce_axis((0, k), "p")
    c = builder.compute((m, n), lambda i, j: builder.sum(wide(x[i, p]) * wide(w[p, j]), axis=p), "c")
    program = builder.build(builder.compute((m, n), lambda i, j: builder.maximum(c[i, j], 0.0).astype("float16"), "y"))
    g = GraphBuilder.like(reference(program))
    with g.kernel("fused", grid="i j", loop="p") as block:
        a, b = (block.load(t) for t in g.tensors)
        block.save("y", a.matmul(b, "p").acc().opaque("max", constant=0.0))
    made = neptune.compile(program, template=lowered(g.graph(), program).template, target="interpret")
    u, v = (
        torch.from_numpy(np.random.default_rng(s).standard_normal(d)).half() for s, d in ((0, (5, 70)), (1, (70, n)))
    )
    exact = (u.double() @ v.double()).clamp(min=0.0)
    assert (exact == 0.0).any() and float((made(u, v).double() - exact).norm() / exact.norm()) < 1e-3


def test_a_minimum_is_computed_by_one_instruction() -> None:
    """Proofs read -max(-x, -y) of min(x·w, x·v); the kernel computes a minimum."""
    (m, k), n = (builder.var(s) for s in "mk"), 33
    x = builder.placeholder((m, k), "float16", "x")
    w, v = (builder.placeholder((k, n), "float16", name) for name in "wv")

    def times(b, name):
        p = builder.reduce_axis((0, k), "p")
        return builder.compute((m, n), lambda i, j: builder.sum(wide(x[i, p]) * wide(b[p, j]), axis=p), name)

    c, d = times(w, "c"), times(v, "d")
    lesser = builder.compute((m, n), lambda i, j: builder.minimum(d[i, j], c[i, j]).astype("float16"), "y")
    program = builder.build(lesser)
    g = GraphBuilder.like(reference(program))
    with g.kernel("fused", grid="i j", loop="p") as block:
        a, *others = (block.load(t) for t in g.tensors)
        first, second = (a.matmul(b, "p").acc() for b in others)
        block.save("y", first.minimum(second))
    made = neptune.compile(program, template=lowered(g.graph(), program).template, target="interpret")
    body = made.source.partition("\n@triton.jit")[2]
    assert "minimum(" in body and "maximum(" not in body and "-" not in body.partition("minimum(")[2].partition("\n")[0]
    u, *b = (
        torch.from_numpy(np.random.default_rng(s).standard_normal(d)).half()
        for s, d in enumerate(((5, 70), (70, n), (70, n)))
    )
    exact = torch.minimum(*(u.double() @ t.double() for t in b))
    assert float((made(u, *b).double() - exact).norm() / exact.norm()) < 1e-3


def test_a_graph_of_another_program_is_refused() -> None:
    program = BENCHMARKS["GatedMLP"].program()
    other = lowered(GRAPHS["GatedMLP"](), program).template
    with pytest.raises(neptune.ScheduleError, match="another program"):
        neptune.compile(BENCHMARKS["RMSNorm"].program(), template=other, target="interpret")


def test_graphs_are_told_apart_by_the_key_of_the_cache_and_one_graph_is_found_again(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    program = BENCHMARKS["nTrans"].program()
    graphs = [GRAPHS["nTrans"](), GRAPHS["nTrans"](), replace(GRAPHS["nTrans"](), name="other")]
    counts = []
    for graph in graphs:
        neptune.compile(program, template=lowered(graph, program).template, target="interpret")
        counts.append(len([*tmp_path.rglob("*.json")]) or len([p for p in tmp_path.rglob("*") if p.is_file()]))
    assert counts[0] == counts[1] < counts[2]


def test_kernels_of_graphs_are_saved_tuned_and_run_on_every_target(tmp_path: Path) -> None:
    given, program = inputs("nTrans"), BENCHMARKS["nTrans"].program()
    template = lowered(GRAPHS["nTrans"](), program).template
    want = kernel("nTrans")(*given)
    kernel("nTrans").save(tmp_path / "saved")
    assert torch.equal(neptune.load(tmp_path / "saved")(*given), want)
    assert (neptune.compile(program, template, target="llvm")(*given) - want).abs().max() <= 1e-3
    tuned = neptune.autotune(program, template, target="interpret", shapes={"rows": 4, "cols": 64}, budget="1s")
    assert torch.allclose(tuned(*given), want, atol=1e-3)
    sch = neptune.Schedule(template.rewritten)
    template(sch)
    assert "sch.fuse_at(" in sch.as_code() and replay(template.rewritten, sch.trace).program == sch.program


@pytest.mark.parametrize(("name", "matrix"), [("LoRA", "wgmma"), ("QKNorm", "wgmma"), ("nTrans", None)])
def test_default_tiles_of_symbolic_sizes_fit_in_registers(name: str, matrix: str | None) -> None:
    (found,) = kernel(name).resources("cuda:90")
    assert (found.matrix, found.spill_bytes) == (matrix, 0)


@pytest.mark.parametrize(
    ("name", "tile", "long"), [("RMSNorm", "BLOCK_P", True), ("GatedMLP", "BLOCK_P", True), ("GQA", "BLOCK_J", False)]
)
def test_long_tiles_are_for_loops_whose_products_read_tensors(name: str, tile: str, long: bool) -> None:
    """Scores of 256 keys are held by threads, which spilled 744 bytes of them on sm_90."""
    (of,) = (t for t in kernel(name).build.tiles.tunables if t.name == tile)
    assert (256 in of.candidates) == long


def test_a_norm_that_the_expression_rounds_is_rounded_and_another_is_not() -> None:
    said = {d.subject: d for d in kernel("QKNorm").build.decisions if d.kind == "rounding"}
    assert "expression rounds it at `v_norm`" in said["acc_b"].reason
    gain = {d.subject: d.verdict for d in kernel("RMSNorm-gain").build.decisions if d.kind == "rounding"}
    assert gain["mul"] == "stays float32" and gain["x_norm"] == "dropped"


def test_bfloat16_has_the_range_of_float32() -> None:
    program = BENCHMARKS["RMSNorm-gain"].program("bfloat16")
    graph = GRAPHS["RMSNorm-gain"]()
    graph = replace(
        graph,
        inputs=tuple(replace(t, dtype="bfloat16") for t in graph.inputs),
        outputs=tuple(replace(out, dtype="bfloat16") for out in graph.outputs),
    )
    said = {d.subject: d.verdict for d in lowered(graph, program).decisions if d.kind == "rounding"}
    assert said["mul"] == "to bfloat16"


@pytest.mark.parametrize("name", ["RMSNorm", "GQA"])
def test_library_operators_are_kernels(name: str) -> None:
    program = BENCHMARKS[name].program()
    made = neptune.compile(program, lowered(reference(program), program).template, target="interpret")
    assert len(made.facts.kernels) > 3
    assert close(name, made, inputs(name))


def test_a_grid_over_columns_of_values_has_no_fold_of_scores_computed_twice() -> None:
    program, graph = BENCHMARKS["GQA"].program(), GRAPHS["GQA"]()
    (fused,) = graph.kernels
    wide = graph.with_steps(replace(fused, grid=("h", "i", "d")))
    tiles = [scheduled(lowered(g, program).template, program).tiles for g in (graph, wide)]
    assert [[a.var for a in t.kernels[0].grid] for t in tiles] == [["h", "i0"]] * 2


def test_a_fold_that_is_complete_for_a_tile_already_stands_behind_the_loop() -> None:
    program = BENCHMARKS["LoRA"].program()
    nodes = ["xa = matmul(x, a) over p", "up = matmul(xa, b) over e", "low = acc(up) over p"]
    nodes += ["xw = matmul(x, w) over p", "c = acc(xw) over p", "z = add(c, low)"]
    graph = with_kernel(reference(program), "i, j", "p", *nodes)
    tiles = scheduled(lowered(graph, program).template, program).tiles
    assert len(tiles.kernels) == 1
