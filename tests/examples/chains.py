"""Chains of reductions for fusion tests, and a check that a fused program says what the original does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from neptune.frontend import builder as te
from neptune.frontend.builder import Tensor, compute, exp, placeholder, reduce_axis, select, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.schedule.state import Loop
from neptune.tile.localize import localize
from neptune.verify.evaluate import evaluate

Cell = Callable[[Expr, Expr], Expr]
DEPTH = 4
TILES = {"BLOCK_M": 2, "BLOCK_N": 4}


def matrix(name: str, rows: str = "r", cols: str = "n") -> Tensor:
    return placeholder((var(rows), var(cols)), "float32", name)


def per_row(value: Cell, name: str = "t", fold: Callable[..., te.Reduction] = te.sum) -> Tensor:
    """name[i] = fold over j of value(i, j)."""
    j = reduce_axis((0, var("n")), "j")
    return compute((var("r"),), lambda i: fold(value(i, j), axis=j), name)


def cells(value: Cell, name: str) -> Tensor:
    """name[i, j] = value(i, j)."""
    return compute((var("r"), var("n")), lambda i, j: value(i, j), name)


def attention(form: str = "acc", causal: bool = False, cap: float | None = None) -> Program:
    """Attention of one head; `form` "p" is the textbook's (p = e / l, then Σ p v), "acc" divides at the end."""
    s_q, s_kv = var("s_q"), var("s_kv")
    q, k, v = (placeholder((n, DEPTH), "float32", x) for n, x in ((s_q, "q"), (s_kv, "k"), (s_kv, "v")))
    d, j = reduce_axis((0, DEPTH), "d"), reduce_axis((0, s_kv), "j")
    s = compute((s_q, s_kv), lambda i, j: te.sum(q[i, d] * k[j, d], axis=d), "s")

    def score_of(i: Expr, j: Expr) -> Expr:
        e = s[i, j] * 0.5 if cap is None else te.tanh(s[i, j] * (0.5 / cap)) * cap
        return select(j <= i + s_kv - s_q, e, float("-inf")) if causal else e

    score = compute((s_q, s_kv), score_of, "score")
    if form == "sigmoid":
        g = compute((s_q, s_kv), lambda i, j: te.sigmoid(score[i, j]), "g")
        o = compute((s_q, DEPTH), lambda i, e: te.sum(g[i, j] * v[j, e], axis=j), "o")
        return te.build(o, inputs=[q, k, v], name="sigmoid_attention")
    m = compute((s_q,), lambda i: te.max(score[i, j], axis=j), "m")
    e = compute((s_q, s_kv), lambda i, j: exp(score[i, j] - m[i]), "e")
    l = compute((s_q,), lambda i: te.sum(e[i, j], axis=j), "l")  # noqa: E741
    if form == "p":
        p = compute((s_q, s_kv), lambda i, j: e[i, j] / l[i], "p")
        o = compute((s_q, DEPTH), lambda i, e: te.sum(p[i, j] * v[j, e], axis=j), "o")
    else:
        acc = compute((s_q, DEPTH), lambda i, x: te.sum(e[i, j] * v[j, x], axis=j), "acc")
        o = compute((s_q, DEPTH), lambda i, e: select(l[i] > 0, acc[i, e] / l[i], 0), "o")
    return te.build(o, inputs=[q, k, v], name="attention")


def tiled(program: Program, stage: str) -> tuple[Schedule, Loop, Loop]:
    """A schedule with the first two loops of `stage` tiled and its rows on the grid; returns i0 and j0."""
    sch = Schedule(program)
    i, j = sch.loops(stage)[:2]
    i0, j0, _, _ = sch.tile([i, j], [sch.param("BLOCK_M", [2, 4]), sch.param("BLOCK_N", [4, 8])])
    sch.bind(i0, "grid.x")
    return sch, i0, j0


def _inputs(program: Program, sizes: dict[str, int], scale: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)

    def extent(d: Expr) -> int:
        assert isinstance(d, Const | Var)
        return int(d.value) if isinstance(d, Const) else sizes[d.name]

    return {b.name: rng.standard_normal(tuple(map(extent, b.shape))) * scale for b in program.inputs}


def check_same(original: Program, sch: Schedule, *sizes: dict[str, int], scales: Iterable[float] = (1, 40)) -> None:
    """Run both on random data, at these sizes; the fused program must be well-formed and owe nothing."""
    fused = sch.program
    verify(fused)
    assert not fused.owes
    fused = localize(decompose(fused)) if fused.tunables else fused
    for size in sizes:
        for scale in scales:
            given = _inputs(original, size, scale)
            want, have = evaluate(original, given, size), evaluate(fused, given, {**size, **TILES})
            for name in want:
                np.testing.assert_allclose(have[name], want[name], rtol=1e-9, atol=1e-12, err_msg=f"{name} at {size}")
