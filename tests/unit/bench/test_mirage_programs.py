"""The benchmarks of µGraphs compute what they say, at the sizes of the paper's scripts and at any other."""

from __future__ import annotations

import numpy as np
import pytest

from bench.mirage_programs import BATCHES, BENCHMARKS, DTYPES, Benchmark
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.text.printer import print_buffer
from neptune.verify.evaluate import evaluate

SMALL = {"heads": 2, "queries": 3, "keys": 5, "depth": 4, "m": 3, "k": 7, "n": 5, "r": 2, "rows": 3, "cols": 7}

every = pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=str)


def small(benchmark: Benchmark, scale: float = 1.0) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    rng, sizes = np.random.default_rng(7), {s: SMALL[s] for s in benchmark.symbols}
    shapes = {b.name: tuple(sizes[d.name] for d in b.shape) for b in benchmark.program().inputs}
    given = {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}
    return {name: x.astype("float16").astype("float64") for name, x in given.items()}, sizes


@every
@pytest.mark.parametrize("scale", [1e-3, 1.0, 8.0])
def test_a_program_gives_the_reference(benchmark: Benchmark, scale: float) -> None:
    given, sizes = small(benchmark, scale)
    for program in (benchmark.program(), benchmark.program(**sizes)):
        (y,) = evaluate(program, given, sizes if program.scalars else {}).values()
        np.testing.assert_allclose(y, benchmark.reference(*given.values()), rtol=1e-11)


@every
@pytest.mark.parametrize(("dtype", "worst"), [("float16", 4e-3), ("bfloat16", 3e-2)])
def test_with_its_roundings_it_stays_near(benchmark: Benchmark, dtype: str, worst: float) -> None:
    given, sizes = small(benchmark)
    (y,) = evaluate(benchmark.program(dtype), given, sizes, Rounded()).values()
    assert 0 < np.abs(y - benchmark.reference(*given.values())).max() < worst * np.abs(y).max()


def test_sizes_are_those_of_the_scripts() -> None:
    asked = [(b, BENCHMARKS[b].program("bfloat16", **BENCHMARKS[b].sizes(8))) for b in ("GQA", "RMSNorm", "nTrans")]
    assert {b: [print_buffer(x) for x in p.inputs] for b, p in asked} == {
        "GQA": ["q: bf16[16, 256, 64]", "k: bf16[16, 64, 4096]", "v: bf16[16, 4096, 64]"],
        "RMSNorm": ["x: bf16[16, 4096]", "w: bf16[4096, 6144]"],
        "nTrans": ["x: bf16[64, 4096]", "h: bf16[64, 4096]", "alpha: bf16[64, 4096]"],
    }


@every
def test_every_setup_has_a_program(benchmark: Benchmark) -> None:
    for b in BATCHES:
        for dtype in DTYPES:
            program = benchmark.program(dtype, **benchmark.sizes(b))
            assert not program.scalars
            assert program.outputs[0].dtype == dtype
    assert {s.name for s in benchmark.program().scalars} == set(benchmark.symbols)
