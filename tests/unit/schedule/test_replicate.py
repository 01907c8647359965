"""replicate: a stage computed anew for every tile of an axis that it does not run over."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch

import neptune
from neptune.errors import NeptuneError, ScheduleError
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, rsqrt, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from tests.examples.random_schedules import attempt
from tests.examples.schedule_examples import check_round_trips, check_same
from tests.tiers import sampled

M, N, K = var("m"), var("n"), var("k")


def norm_linear(dtype: str = "float32", *, rounded: bool = False, gated: bool = False) -> Program:
    """y = rms(x) w with stages ss (Σ x²), r, c, y.

    `rounded`: the normalised x to its dtype, as a model in PyTorch does; `gated`: the product of two such."""
    x = placeholder((M, K), dtype, "x")
    weights = [placeholder((K, N), dtype, name) for name in ("w", "u")[: 1 + gated]]

    def at(i: Expr, p: Expr) -> Expr:
        return x[i, p].astype("float32")

    p = reduce_axis((0, K), "p")
    ss = compute((M,), lambda i: sum(at(i, p) * at(i, p), axis=p), "ss")
    r = compute((M,), lambda i: rsqrt(ss[i] / K.astype("float32") + 1e-6), "r")

    def normal(i: Expr, q: Expr) -> Expr:
        value = at(i, q) * r[i]
        return value.astype(dtype).astype("float32") if rounded else value

    def product(w: Expr, name: str) -> Expr:
        q = reduce_axis((0, K), "p")
        return compute((M, N), lambda i, j: sum(normal(i, q) * w[q, j].astype("float32"), axis=q), name)

    c, *others = (product(w, f"c{k}" if gated else "c") for k, w in enumerate(weights))
    y = compute((M, N), lambda i, j: (c[i, j] * others[0][i, j] if gated else c[i, j]).astype(dtype), "y")
    return build(y, inputs=[x, *weights], name="norm_linear")


def softmax_linear() -> Program:
    """c = softmax(x) w: stages m, e, l, c."""
    x, w = placeholder((M, K), name="x"), placeholder((K, N), name="w")
    a, b, q = (reduce_axis((0, K), "p") for _ in range(3))
    m = compute((M,), lambda i: max(x[i, a], axis=a), "mx")
    e = compute((M, K), lambda i, p: exp(x[i, p] - m[i]), "e")
    total = compute((M,), lambda i: sum(e[i, b], axis=b), "l")
    return build(compute((M, N), lambda i, j: sum(e[i, q] / total[i] * w[q, j], axis=q), "c"), name="softmax_linear")


def first_the_rows(sch: Schedule) -> None:
    """The statistic in a loop of its own, with tiles of its own, in front of the product."""
    bm, bn, bk, bs = (sch.param(f"BLOCK_{x}", [16, 32]) for x in "MNKS")
    sch.inline("r")
    i, j, p = sch.loops("c")
    i0, j0, *_ = sch.tile([i, j], [bm, bn])
    sch.replicate("ss", j0)
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    p0, p1 = sch.split(p, bk)
    sch.reorder(p0, *sch.loops("c")[2:4], p1)
    sch.compute_at("ss", j0)
    rows, depth = sch.loops("ss")[2:]
    outer, inner = sch.split(depth, bs)
    sch.reorder(outer, rows, inner)
    sch.fuse_at("y", j0)


def _beside(sch: Schedule, statistics: list[str], products: list[str]) -> None:
    """The statistics beside the products, in the same loop, with proved repairs: each input is read once."""
    bm, bn, bk = (sch.param(f"BLOCK_{x}", [16, 32]) for x in "MNK")
    j0, _ = sch.split(sch.loop(products[0], "j"), bn)
    for stage in reversed(statistics):
        tile = sch.replicate(stage, j0)
    first, *others = statistics
    i0, p0, *_ = sch.tile(sch.loops(first)[1:], [bm, bk])
    sch.bind([tile, i0], ["grid.y", "grid.x"])
    for stage in (*others, *products):
        sch.rolling_update(stage, p0)
    if "y" in sch.stages:
        sch.fuse_at("y", i0)


def beside(sch: Schedule) -> None:
    sch.inline("r")
    _beside(sch, ["ss"], [s for s in sch.stages if s.startswith("c")])


def rolled(sch: Schedule) -> None:
    sch.inline("e")
    _beside(sch, ["mx", "l"], ["c"])


def test_before_and_after() -> None:
    sch = Schedule(norm_linear())
    sch.inline("r")
    j0, _ = sch.split(sch.loop("c", "j"), 4)
    tile = sch.replicate("ss", j0)
    assert (tile.stage, tile.var) == ("ss", "j0") and [f.var for f in sch.loops("ss")] == ["j0", "i", "p"]
    text = str(sch.program)
    assert "temp ss: f32[(n + 3) // 4, m] @tile" in text and "ss: ss[j0, i] +=" in text and "rsqrt(ss[j0, i]" in text
    check_same(norm_linear(), sch.program)
    check_round_trips(sch, norm_linear())
    assert sch.decisions[-1].verdict == "once for each tile of `j` of `c`"


def test_a_chain_of_stages() -> None:
    """What reads it may be replicated first: then it is read in the same tile."""
    sch = Schedule(norm_linear())
    j0, _ = sch.split(sch.loop("c", "j"), sch.param("BN", [2, 4]))
    sch.replicate("r", j0)
    sch.replicate("ss", j0)
    text = str(sch.program)
    assert "r: r[j0, i] = rsqrt(ss[j0, i]" in text
    check_same(norm_linear(), sch.program)
    again = Schedule(norm_linear())
    j0, _ = again.split(again.loop("c", "j"), again.param("BN", [2, 4]))
    again.replicate("ss", again.replicate("r", j0))
    assert again.program == sch.program


def test_several_readers_and_single_elements() -> None:
    for split in (False, True):
        sch = Schedule(norm_linear(gated=True))
        sch.inline("r")
        loop = sch.loop("y", "j")
        sch.replicate("ss", sch.split(loop, 3)[0] if split else loop)
        check_same(norm_linear(gated=True), sch.program, tiles=(1,))


CASES: dict[str, tuple[Program, Callable[[Schedule], None]]] = {
    "in front": (norm_linear("float16", rounded=True), first_the_rows),
    "beside": (norm_linear("float16"), beside),
    "two products": (norm_linear("float16", gated=True), beside),
    "rolled": (softmax_linear(), rolled),
}


@pytest.mark.parametrize("case", CASES)
def test_any_size(case: str) -> None:
    program, template = CASES[case]
    sch = Schedule(program)
    template(sch)
    check_round_trips(sch, program)
    check_same(program, sch.program, tiles=(2, 4))


def _wanted(case: str, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    x, *weights = (t.double() for t in (x, *weights))
    if case == "rolled":
        return torch.softmax(x, -1) @ weights[0]
    x = x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-6)
    return (x @ weights[0]) * (x @ weights[1]) if len(weights) > 1 else x @ weights[0]


@pytest.mark.parametrize("case", sampled(CASES, 2))
def test_one_kernel_with_products(case: str) -> None:
    """RMSNorm or softmax, and a product, as one kernel on the matrix unit, which reads each input once in its loop."""
    program, template = CASES[case]
    kernel = neptune.compile(program, template, target="llvm")
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    assert kernel.source.count("tl.dot(") == len(kernel.inputs) - 1
    assert kernel.source.count("tl.load(x_base") == (2 if case == "in front" else 1)
    generator = torch.Generator().manual_seed(1)
    dtype = torch.float32 if case == "rolled" else torch.float16
    for m, n, k in ((37, 75, 100), (1, 1, 1), (16, 32, 64)):
        shapes = [(m, k), *[(k, n)] * (len(kernel.inputs) - 1)]
        tensors = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
        wanted = _wanted(case, *tensors)
        for target in ("llvm", "interpret"):
            found = kernel.for_target(target)(*tensors).double()
            assert ((found - wanted).norm() / wanted.norm()) < (1e-6 if case == "rolled" else 1e-3)


def test_it_compiles_for_gpus() -> None:
    kernel = neptune.compile(*CASES["beside"], target="cuda:90")
    (text,) = kernel.asm().values()
    assert ".target sm_90" in text and "mma" in text


@pytest.mark.parametrize("seed", sampled(range(12), 4))
def test_any_schedule_means_the_same(seed: int) -> None:
    for program in (norm_linear(), softmax_linear()):
        rng = random.Random(seed)
        sch = Schedule(program)
        sch.param("BM", [2, 4])
        for kind in ("inline", "inline", "tile", "split"):
            with suppress(NeptuneError):
                attempt(sch, rng, kind)
        done = 0
        for stage in reversed(sch.stages):
            for loop in rng.sample(loops := [f for s in sch.stages for f in sch.loops(s)], len(loops)):
                with suppress(ScheduleError):
                    sch.replicate(stage, loop)
                    done += 1
                    break
        for kind in ("split", "fuse_at", "compute_at", "roll", "tile", "compute_at", "bind", "partition", "fuse"):
            with suppress(NeptuneError):
                attempt(sch, rng, kind)
        if not sch.program.owes:
            check_same(program, sch.program, tiles=(2,))


def test_it_must_stay_on_chip() -> None:
    def apart(sch: Schedule) -> None:
        sch.inline("r")
        sch.replicate("ss", sch.loop("c", "j"))

    with pytest.raises(ScheduleError, match="keep `ss` on chip"):
        neptune.compile(norm_linear(), apart, target="llvm")


def tiled_product() -> Schedule:
    """c = x w in tiles of rows and columns, with t = Σ x² of rows for each tile of columns, and y = c / (1 + t)."""
    x, w, p = placeholder((M, K), name="x"), placeholder((K, N), name="w"), reduce_axis((0, K), "p")
    c = compute((M, N), lambda i, j: sum(x[i, p] * w[p, j], axis=p), "c")
    t = compute((M,), lambda i: sum(x[i, p] * x[i, p], axis=p), "t")
    u = compute((M,), lambda i: t[i] * 2.0, "u")
    return Schedule(build(compute((M, N), lambda i, j: c[i, j] / (1.0 + u[i]), "y"), name="product"))


def test_a_replica_joins_the_nest_whose_tiles_it_counts() -> None:
    sch = tiled_product()
    before = sch.program
    _, j0, p0, *_ = sch.tile(sch.loops("c"), [4, 2, 2])
    # A replica that only a replica reads counts the same tiles.
    sch.replicate("u", j0)
    sch.replicate("t", j0)
    sch.rolling_update("t", p0)
    assert [f.var for f in sch.loops("t")][:3] == ["i0", "j0", "p0"]
    sch.fuse_at("u", j0)
    sch.fuse_at("y", j0)
    assert len({sch.loops(s)[0].var for s in ("c", "t", "u", "y")}) == 1
    check_same(before, sch.program)
    check_round_trips(sch, before)
