"""The evaluator on float64 and on TilePrograms: what programs mean, and what they must not do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from neptune.errors import Unsupported
from neptune.ir.evaluate import loops
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.evaluate.memory import joint_shape, spread
from neptune.ir.evaluate.parallel import classify
from neptune.ir.expr import Const, Load, Op, Var, rewrite
from neptune.ir.program import For, Program, walk
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import prefill_causal
from neptune.tile.ir import Full, Iota, LoadTile, Local, Scalar, TileProgram, map_stmt
from neptune.verify.evaluate import evaluate
from neptune.verify.field import FieldPair
from neptune.verify.tiles import Traits
from tests.examples.strategies import programs
from tests.examples.tile_examples import softmax
from tests.work import calls


def program(text: str) -> Program:
    return parse_program(text)


def run(text: str, inputs: dict[str, Any], **sizes: int) -> Any:
    return evaluate(program(text), inputs, sizes)["y"]


def kinds(text: str) -> dict[str, str]:
    return {s.var: classify(s) for s in walk(program(text).body) if isinstance(s, For)}


RAGGED = """program ragged
  in x: f32[n]
  in start: i32[m + 1]
  out y: f32[m]
  scalar m: i32
  scalar n: i32
body:
  for i in [0, m):
    for j in [start[i], start[i + 1]):
      y: y[i] += x[j] init 0.0
"""
SCAN = """program scan
  in x: f32[n]
  out y: f32[n]
  scalar n: i32
body:
  for i in [0, n):
    s: y[i] = select(i > 0, y[i - 1], 0.0) + x[i]
"""
HISTOGRAM = """program histogram
  in x: i32[n]
  out y: f32[4]
  scalar n: i32
body:
  for k in [0, 4):
    z: y[k] = 0.0
  for i in [0, n):
    s: y[x[i]] += 1.0
"""
TILED = """program tiled
  in x: f32[n]
  out y: f32[n]
  scalar n: i32
  tunable B in {2, 4}
body:
  for i0 in [0, (n + (B - 1)) // B) grid.x:
    alloc t: f32[B] @tile
    for i1 in [0, B):
      a: t[i1] = x[i0 * B + i1] * 2.0 when i0 * B + i1 < n
    for i1 in [0, B):
      b: y[i0 * B + i1] = t[i1] when i0 * B + i1 < n
"""


def attention64(q: Any, k: Any, v: Any, scale: float) -> Any:
    n, m = q.shape[-2], k.shape[-2]
    s = np.where(np.tri(n, m, m - n, bool), q @ k.swapaxes(-1, -2) * scale, -np.inf)
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e300))
    total = p.sum(-1, keepdims=True)
    return np.where(total > 0, p @ v / np.where(total > 0, total, 1), 0)


@pytest.mark.parametrize(("s_q", "s_kv"), [(5, 9), (9, 5), (1, 1)])
def test_attention_is_attention_also_where_rows_see_no_key(s_q: int, s_kv: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, n, 16)) for n in (s_q, s_kv, s_kv))
    sizes = {"batch": 2, "heads": 3, "s_q": s_q, "s_kv": s_kv}
    got = evaluate(prefill_causal(depth=16), {"q": q, "k": k, "v": v}, sizes)["o"]
    np.testing.assert_allclose(got, attention64(q, k, v, 0.25), rtol=1e-12, atol=1e-14)


def test_the_work_for_a_larger_attention_does_not_grow_with_its_size() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 256, 64)) for _ in range(3))
    sizes = {"batch": 1, "heads": 2, "s_q": 256, "s_kv": 256}
    made: list[Any] = []
    assert calls(lambda: made.append(evaluate(prefill_causal(depth=64), {"q": q, "k": k, "v": v}, sizes)["o"])) < 40_000
    np.testing.assert_allclose(made[0], attention64(q, k, v, 0.125), rtol=1e-12, atol=1e-14)


def test_grids_are_cut_into_pieces_without_changing_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((1, 2, 7, 8)) for n in "qkv"}
    sizes = {"batch": 1, "heads": 2, "s_q": 7, "s_kv": 7}
    whole = evaluate(prefill_causal(depth=8), inputs, sizes)["o"]
    monkeypatch.setattr(loops, "GRID_LIMIT", 20)
    np.testing.assert_allclose(evaluate(prefill_causal(depth=8), inputs, sizes)["o"], whole, rtol=1e-13)


def test_bounds_may_depend_on_integers_in_memory() -> None:
    x = np.arange(6.0)
    assert run(RAGGED, {"x": x, "start": [0, 2, 2, 6]}, m=3, n=6).tolist() == [1.0, 0.0, 14.0]


def test_loops_that_carry_something_run_in_order() -> None:
    assert kinds(SCAN) == {"i": "serial"}
    assert run(SCAN, {"x": np.arange(4.0)}, n=4).tolist() == [0.0, 1.0, 3.0, 6.0]
    assert kinds(HISTOGRAM) == {"k": "lane", "i": "serial"}
    assert run(HISTOGRAM, {"x": [1, 1, 3]}, n=3).tolist() == [0.0, 2.0, 0.0, 1.0]


def test_tiles_are_independent_and_their_buffers_private() -> None:
    assert kinds(TILED) == {"i0": "lane", "i1": "lane"}
    assert run(TILED, {"x": np.arange(5.0)}, n=5, B=2).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_places_that_differ_by_a_repeated_term_are_told_apart() -> None:
    text = """program shift
  in x: f32[n]
  out y: f32[n + 2]
  scalar n: i32
  scalar a: i32
body:
  for i in [0, n + 2):
    z: y[i] = 0.0
  for i in [0, n):
    s: y[i + a] = y[i + a + a] + x[i]
"""
    assert classify([s for s in walk(program(text).body) if isinstance(s, For)][1]) == "serial"


def test_overlapping_tiles_are_not_independent() -> None:
    overlap = TILED.replace("in [0, B):\n      b:", "in [0, B + 1):\n      b:")
    assert overlap != TILED
    assert kinds(overlap)["i0"] == "serial"


def test_out_of_bounds_under_a_true_guard_is_an_error() -> None:
    unguarded = TILED.replace(" * 2.0 when i0 * B + i1 < n", "")
    with pytest.raises(EvaluationError, match="read of x out of bounds: index 5 of axis 0, extent 5"):
        run(unguarded, {"x": np.arange(5.0)}, n=5, B=2)


def test_the_branch_that_is_not_taken_does_not_matter() -> None:
    text = """program choice
  in x: f32[n]
  out y: f32[n]
  scalar n: i32
body:
  for i in [0, n):
    s: y[i] = select(i < 1, 1.0, x[i - 1] / x[i])
"""
    assert run(text, {"x": np.array([0.0, 2.0])}, n=2).tolist() == [1.0, 0.0]
    with pytest.raises(EvaluationError, match="index -1"):
        run(text.replace("i < 1", "i < 0"), {"x": np.array([1.0, 2.0])}, n=2)


def test_a_sum_of_nothing_is_its_init_and_a_maximum_of_minus_infinity_the_identity() -> None:
    text = """program nothing
  in x: f32[n]
  out y: f32[]
  scalar n: i32
body:
  for i in [0, n):
    s: y[] += x[i] init 3.0 when i > 5
"""
    assert run(text, {"x": np.ones(2)}, n=2) == 3.0
    top = text.replace("+= x[i] init 3.0", "max= x[i] init -inf")
    assert run(top, {"x": np.ones(2)}, n=2) == -np.inf


def test_uninitialised_memory_shows() -> None:
    text = TILED.replace("a: t[i1] = x[i0 * B + i1] * 2.0 when i0 * B + i1 < n", "a: t[i1] = 1.0 when i1 < 1")
    assert np.isnan(run(text, {"x": np.ones(4)}, n=4, B=2)[1])
    with pytest.raises(EvaluationError, match=r"output y\[1\] depends on uninitialised memory"):
        evaluate(program(text), {"x": np.ones(4)}, {"n": 4, "B": 2}, FieldPair())


def test_rounded_rounds_every_node_and_the_sums() -> None:
    text = """program sums
  in x: f16[n]
  out y: f16[]
  scalar n: i32
body:
  for i in [0, n):
    s: y[] += x[i] init 0.0:f16
"""
    x = np.full(8, 1 / 3)
    rounded = evaluate(program(text), {"x": x}, {"n": 8}, Rounded())["y"]
    assert rounded == np.float16(8 * np.float64(np.float16(1 / 3))) != 8 * x[0]
    big = np.array([2048.0, 1.0])  # 2049 is no float16
    assert evaluate(program(text), {"x": big}, {"n": 2}, Rounded())["y"] == 2048.0


def field_run(p: Program, serial: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(model, outputs or the kind of error) of a random program, in lockstep or one iteration at a time."""
    model, rng = FieldPair(3), np.random.default_rng(1)
    inputs = {"x": model.draw(rng, (3, 4)), "idx": rng.integers(0, 3, 4), "h": model.draw(rng, ())}
    sizes = {"m": 3, "n": 4, "alpha": model.draw(rng, ()), "BLOCK": 2, "WIDE": 8}
    with monkeypatch.context() as patch:
        if serial:
            patch.setattr(loops, "classify", lambda loop: "serial")
        try:
            return model, evaluate(p, inputs, sizes, model)[p.outputs[0].name]
        except EvaluationError as error:
            return model, type(error)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(p=programs())
def test_lockstep_is_one_iteration_at_a_time(p: Program) -> None:
    patch = pytest.MonkeyPatch()
    try:
        model, one = field_run(p, True, patch)
        _, other = field_run(p, False, patch)
    except Unsupported:
        assume(False)
    if isinstance(one, type) or isinstance(other, type):
        assert one is other
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
    else:
        assert not model.differs(one, other).any() and np.array_equal(one.tag, other.tag)


# --- tiles --------------------------------------------------------------------------------------


def test_a_tile_program_is_softmax() -> None:
    x = np.random.default_rng(0).standard_normal((5, 6))
    got = evaluate(softmax(), {"x": x}, {"rows": 5, "cols": 6, "BLOCK_R": 2, "BLOCK_C": 8})["y"]
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-12)


def unmasked(tiles: TileProgram) -> TileProgram:
    """The program with the masks of its loads dropped."""
    (kernel,) = tiles.kernels

    def drop(e: Any) -> Any:
        return rewrite(e, lambda x: replace(x, mask=None) if isinstance(x, LoadTile) else None)

    return replace(tiles, kernels=(replace(kernel, body=tuple(map_stmt(s, drop) for s in kernel.body)),))


def test_a_tile_load_without_its_mask_reads_out_of_bounds() -> None:
    sizes = {"rows": 5, "cols": 6, "BLOCK_R": 2, "BLOCK_C": 8}
    with pytest.raises(EvaluationError, match="read of x out of bounds"):
        evaluate(unmasked(softmax()), {"x": np.ones((5, 6))}, sizes)


def test_missing_values_are_named() -> None:
    with pytest.raises(EvaluationError, match="no value given for the tunable B"):
        run(TILED, {"x": np.ones(2)}, n=2)
    with pytest.raises(EvaluationError, match="input x has shape"):
        run(SCAN, {"x": np.ones(3)}, n=2)


def test_one_shape_for_indices_and_values() -> None:
    """What an access broadcasts to: copies that do not share what is written, of every dtype and rank."""
    x = np.arange(3)
    assert spread(x, (3,)) is x
    for part in (x, np.array([1.5]), np.array(True), np.array([[Fraction(1, 3)]], object)):
        whole = spread(part, (2, 3))
        assert whole.dtype == part.dtype and (whole == np.broadcast_to(part, (2, 3))).all()
        whole[0, 0] = whole[1, 2]
        assert part.shape != (2, 3)
    assert x.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="broadcast"):
        spread(x, (2, 4))
    shapes: list[list[tuple[int, ...]]] = [[], [()], [(), (3,)], [(2, 1), (3,), ()], [(0,), (1,)]]
    assert [joint_shape(s) for s in shapes] == [np.broadcast_shapes(*s) for s in shapes]
    with pytest.raises(ValueError, match="broadcast"):
        joint_shape([(2,), (3,)])


def test_dims_of_tiles_are_joined_once() -> None:
    """Each program of a grid evaluates the same expressions: what follows from their form is known from the first."""
    tiles = softmax()

    def work(rows: int) -> int:
        sizes = {"rows": rows, "cols": 3, "BLOCK_R": 1, "BLOCK_C": 4}
        return calls(lambda: evaluate(tiles, {"x": np.ones((rows, 3))}, sizes))

    work(1)
    assert work(9) - work(8) < 1000


def test_places_of_tiles_are_known_by_what_they_depend_on() -> None:
    """An index is computed again where a variable in it has another value, and only there."""
    at = Var("i0") * Var("BLOCK") + Var("n")
    one, same = (Op("add", (Scalar(at), Iota("m")), "int32") for _ in range(2))
    traits = Traits()
    assert traits.place(one) == traits.place(same) == (0, ("BLOCK", "i0", "n"))
    assert traits.place(Op("lt", (one, Scalar(at)), "bool")) == (1, ("BLOCK", "i0", "n"))
    # What reads memory or tiles, and floats beside literals, has no place.
    assert traits.place(Op("add", (Local("t", ("m",), "int32"), Iota("m")), "int32")) is None
    assert (
        traits.place(Scalar(Load("length", (), "int32"))) is None and traits.place(Scalar(Var("x", "float32"))) is None
    )
    assert traits.place(Full(Scalar(Const(0.5, "float32")), ("m",), "float32")) == (2, ())
    load = LoadTile("x", (one,), None, 0.0, ("m",), "float32")
    assert traits.place(load) == (3, ("BLOCK", "i0", "n"))
    assert traits.place(replace(load, index=(Local("t", ("m",), "int32"),))) is None
