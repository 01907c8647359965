"""partition: no tile with something to do is left out, none is visited in vain, and clean ones are clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from neptune.frontend.builder import all_of, build, compute, exp, max, placeholder, reduce_axis, select, sum, var
from neptune.frontend.builder import min as lowest
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.expr import Expr, Select, conjuncts
from neptune.ir.program import For, If, Program, Seq, Stmt, for_loops, paths, stages, values, walk
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.ops.softmax import softmax
from neptune.schedule.primitives.partition import partition
from neptune.schedule.state import Loop, initial
from tests.examples.schedule_examples import check_same, outputs, row_sums
from tests.tiers import sampled

Mask = Callable[[Expr, Expr], Expr]
NEG_INF = float("-inf")
M, N = var("m"), var("n")
WINDOW = 5
EVALUATOR = Evaluator(Memory(Float64()))


def attention(mask: Mask | None) -> Program:
    """One head of depth 2, small enough to be enumerated; row i, key j."""
    q, k = placeholder((M, 2), name="q"), placeholder((N, 2), name="k")
    d, j = reduce_axis((0, 2), "d"), reduce_axis((0, N), "j")
    s = compute((M, N), lambda i, j: sum(q[i, d] * k[j, d], axis=d), "s")
    score = s if mask is None else compute((M, N), lambda i, j: select(mask(i, j), s[i, j], NEG_INF), "score")
    top = compute((M,), lambda i: max(score[i, j], axis=j), "top")
    p = compute((M, N), lambda i, j: exp(score[i, j] - top[i]), "p")
    l = compute((M,), lambda i: sum(p[i, j], axis=j), "l")  # noqa: E741
    return build(compute((M,), lambda i: l[i] + 0.0 * top[i], "o"), name="attention")


def causal(i: Expr, j: Expr) -> Expr:
    return j <= i + N - M


def window(i: Expr, j: Expr) -> Expr:
    return all_of(j <= i + N - M, i + N - M - j < WINDOW)


def only_recent(i: Expr, j: Expr) -> Expr:
    return i + N - M - j < WINDOW


MASKS: dict[str, Mask | None] = {"global": None, "causal": causal, "window": window, "recent": only_recent}


def visible(kind: str, i: int, j: int, m: int, n: int) -> bool:
    diagonal, recent = j <= i + n - m, i + n - m - j < WINDOW
    return {"global": True, "causal": diagonal, "window": diagonal and recent, "recent": recent}[kind]


def scheduled(kind: str) -> Schedule:
    sch = Schedule(attention(MASKS[kind]))
    i, j, _ = sch.loops("s")
    i0, j0, _, _ = sch.tile([i, j], [sch.param("BM", [4]), sch.param("BN", [4])])
    sch.bind(i0, "grid.x")
    if "score" in sch.stages:
        sch.fuse_at("score", j0)
    sch.fuse_at("top", j0)
    sch.rolling_update("l", j0)
    sch.fuse_at("o", i0)
    sch.partition(j0)
    verify(decompose(sch.program))
    return sch


PROGRAMS = {kind: scheduled(kind).program for kind in MASKS}


@dataclass(frozen=True)
class Piece:
    lo: Expr
    hi: Expr
    predicates: tuple[Expr, ...]


def pieces_of(program: Program) -> list[Piece]:
    """The pieces of the key loop, in program order, with the predicates on keys that are left in each."""
    (i0,) = [s for s in walk(program.body) if isinstance(s, For) and s.var == "i0"]
    parts = i0.body.stmts if isinstance(i0.body, Seq) else (i0.body,)
    found: list[Piece] = []
    for part in parts:
        if isinstance(part, For) and part.var == "j0":
            found.append(Piece(part.lo, part.hi, predicates(part)))
        elif isinstance(part, If):
            lo = part.pred.args[0]  # type: ignore[union-attr]
            found.append(Piece(lo, part.pred.args[1], predicates(part)))  # type: ignore[union-attr]
    return found


def predicates(s: Stmt) -> tuple[Expr, ...]:
    """The conjuncts in guards and selects that bound keys (rows are bounded by i < m in every piece)."""
    found: list[Expr] = []
    for stage in stages(s):
        found += conjuncts(stage.when)
        for v in values(stage.action):
            found += conjuncts(v.pred) if isinstance(v, Select) else []
    return tuple(c for c in dict.fromkeys(found) if "j1" in str(c))


def lengths() -> Iterator[tuple[int, int]]:
    for m in (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 64, 70):
        for n in (1, 2, 4, 7, 8, 15, 16, 20, 32, 47, 64, 69):
            yield m, n


@pytest.mark.parametrize("kind", list(MASKS))
@pytest.mark.parametrize(("bm", "bn"), sampled([(4, 2), (1, 1), (2, 4), (16, 4), (4, 4), (4, 16), (16, 16)], 3))
def test_tiles(kind: str, bm: int, bn: int) -> None:
    pieces = pieces_of(PROGRAMS[kind])
    visited = wasted = 0
    for m, n in lengths():
        i, j = np.arange(m)[:, None], np.arange(-(-n // bn) * bn)[None, :]
        seen: np.ndarray[Any, Any] = np.empty((m, j.size), bool)
        seen[...] = np.vectorize(visible)(kind, i, j, m, n) & (j < n)
        tiles = np.arange(-(-m // bm))
        sizes = {"m": m, "n": n, "BM": bm, "BN": bn, "i0": tiles}
        bounds = [[np.broadcast_to(EVALUATOR.run(e, sizes), tiles.shape) for e in (p.lo, p.hi)] for p in pieces]
        for i0 in tiles:
            env = {**sizes, "i0": i0}
            rows = seen[i0 * bm : (i0 + 1) * bm].reshape(-1, j.size // bn, bn)
            some, every = np.asarray(rows.any(axis=(0, 2))), np.asarray(rows.all(axis=(0, 2)))
            order: list[int] = []
            for piece, (los, his) in zip(pieces, bounds, strict=True):
                lo, hi = int(los[i0]), int(his[i0])
                order += range(lo, hi)
                if not piece.predicates:
                    assert all(every[t] for t in range(lo, hi)), f"not clean: {env}"
            assert order == sorted(set(order)), f"out of order or twice: {env} {order}"
            assert not order or (order[0] >= 0 and order[-1] < some.size), f"beyond the range: {env} {order}"
            assert set(np.flatnonzero(some)) <= set(order), f"left out: {env} {order}"
            visited += len(order)
            wasted += len(set(order) - set(np.flatnonzero(some)))
    assert visited and not wasted


def test_shapes() -> None:
    """How many pieces each mask takes, and that every one but the clean one checks its predicates."""
    assert {k: [bool(p.predicates) for p in pieces_of(p)] for k, p in PROGRAMS.items()} == {
        "global": [False, True],
        "causal": [False, True],
        "window": [True, False, True],
        "recent": [True, False, True],
    }
    assert any(isinstance(s, If) for s in walk(PROGRAMS["global"].body))
    assert not any(isinstance(s, If) for s in walk(PROGRAMS["causal"].body))


@pytest.mark.parametrize("kind", list(MASKS))
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 7), (7, 5), (8, 8), (3, 9), (6, 1)])
def test_results(kind: str, m: int, n: int) -> None:
    for bm, bn in ((2, 2), (4, 2), (2, 4)):
        sizes = {"m": m, "n": n, "BM": bm, "BN": bn}
        expected = outputs(attention(MASKS[kind]), sizes)["o"]
        np.testing.assert_allclose(outputs(PROGRAMS[kind], sizes)["o"], expected, rtol=1e-12)


def test_where_not_everything_absorbs_the_mask_nothing_is_skipped() -> None:
    """min does not absorb -inf: only the clean piece is told apart."""
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    t = compute((M, N), lambda i, j: select(j <= i, x[i, j], NEG_INF), "t")
    p = build(compute((M,), lambda i: lowest(t[i, j], axis=j), "y"))
    sch = Schedule(p)
    i, jj = sch.loops("t")
    _, j0, _, _ = sch.tile([i, jj], [2, 2])
    sch.fuse_at("y", j0)
    sch.partition(j0)
    assert "skipped" not in str(sch.decisions)
    check_same(p, sch.program)


def test_a_mask_on_an_output_is_not_skipped() -> None:
    x = placeholder((M, N), name="x")
    p = build(compute((M, N), lambda i, j: select(j <= i, x[i, j], NEG_INF), "t"))
    sch = Schedule(p)
    i, j = sch.loops("t")
    _, j0, _, _ = sch.tile([i, j], [2, 2])
    sch.partition(j0)
    check_same(p, sch.program)


def test_only_the_tail_becomes_an_if() -> None:
    sch = Schedule(row_sums())
    _, j = sch.loops("e")
    j0, _ = sch.split(j, 4)
    sch.fuse_at("r", j0)
    sch.partition(j0)
    (tail,) = [s for s in walk(sch.program.body) if isinstance(s, If)]
    assert len(stages(tail)) == 2
    check_same(row_sums(), sch.program)


def test_two_levels_of_tiles() -> None:
    for both in (False, True):
        sch = Schedule(row_sums())
        _, j = sch.loops("r")
        j0, _ = sch.split(j, 2)
        j00, j01 = sch.split(j0, 3)
        sch.partition(j00 if both else j01)
        check_same(row_sums(), sch.program)


def test_a_constant_mask_that_ends_beyond_the_range() -> None:
    """Keys < 9 are visible: the clean piece must end with the keys, where there are fewer (n divides, so no tail)."""
    text = str(_first_nine()).replace("scalar n: i32 lo 1", "scalar n: i32 lo 1 divisor 4")
    sch = Schedule(parse_program(text))
    _, j = sch.loops("t")
    j0, _ = sch.split(j, 4)
    sch.fuse_at("y", j0)
    sch.partition(j0)
    assert "skipped" in str(sch.decisions)
    for n in (4, 8, 12, 20):
        sizes = {"m": 3, "n": n}
        np.testing.assert_allclose(outputs(sch.program, sizes)["y"], outputs(_first_nine(), sizes)["y"])


def _first_nine() -> Program:
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    t = compute((M, N), lambda i, j: select(j < 9, x[i, j], NEG_INF), "t")
    return build(compute((M,), lambda i: max(t[i, j], axis=j), "y"))


def test_a_buffer_written_in_some_iterations_is_carried() -> None:
    """t is set in the first iteration only and read in all of them: no iteration may be skipped."""
    text = """\
program p
  in x: f32[n]
  out y: f32[]
  temp t: f32[]
  temp s: f32[n]
  scalar n: i32 lo 1
body:
  for j in [0, n):
    t: t[] = 2.0 when j < 1
    s: s[j] = select(j < 3, x[j], -inf)
    y: y[] max= s[j] * t[] init -3.0e38
"""
    state = partition(initial(parse_program(text)), Loop("s", "j"))
    for n in (1, 2, 5):
        found, expected = (outputs(p, {"n": n})["y"] for p in (state.program, parse_program(text)))
        np.testing.assert_allclose(found, expected)


def test_facts_and_stage_names() -> None:
    program = PROGRAMS["causal"]
    clean = next(s for s in walk(program.body) if isinstance(s, For) and s.var == "j0" and s.facts)
    assert len(clean.facts) == 2
    names = [[s.name for s in stages(x)] for x in walk(program.body) if isinstance(x, For) and x.var == "j0"]
    assert names[0] == names[1]


def test_inits_stand_before_the_pieces() -> None:
    for path, stage in paths(PROGRAMS["global"].body):
        if stage.name in ("top_init", "l_init"):
            assert not any(f.var == "j0" for f in for_loops(path))


def test_partition_of_two_nests_in_one_kernel() -> None:
    sch = Schedule(softmax())
    i, j = sch.loops("m")
    _, j0, _, _ = sch.tile([i, j], [2, 2])
    sch.rolling_update("l", j0)
    sch.partition(j0)
    for rows, cols in ((1, 1), (3, 5), (4, 4)):
        sizes = {"rows": rows, "cols": cols}
        np.testing.assert_allclose(outputs(sch.program, sizes)["y"], outputs(softmax(), sizes)["y"], rtol=1e-12)
