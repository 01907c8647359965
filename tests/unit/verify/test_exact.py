"""Exact checks accept what is right and reject what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.expr import Cast, Const, Op, Select, rewrite
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import prefill_causal
from neptune.tile.ir import Assign, Iota, LoadTile, Local, Rearrange, Scalar, StoreTile, TExpr, TileProgram, map_stmt
from neptune.verify.exact import check_exact, exact_report
from neptune.verify.shrink import shrink
from tests.examples.tile_examples import attention, lit, map_, softmax
from tests.work import calls

HEAD = """  in inp: f32[m, n]
  out xsum: f32[m]
  temp xmax: f32[m]
  scalar m: i32
  scalar n: i32 lo 1
body:
  for i in [0, m):
"""
UNFUSED = f"""program xsum
{HEAD}    for j in [0, n):
      xmax: xmax[i] max= inp[i, j] init -3.4028234663852886e+38
    for j in [0, n):
      xsum: xsum[i] += exp(inp[i, j] - xmax[i]) init 0.0
"""
RESCALE = "repair: xsum[i] = xsum[i] * exp(prev[] - xmax[i])"
FUSED = f"""program xsum
{HEAD}    a: xmax[i] = -3.4028234663852886e+38
    b: xsum[i] = 0.0
    for j in [0, n):
      alloc prev: f32[] @tile
      save: prev[] = xmax[i]
      xmax: xmax[i] max= inp[i, j]
      {RESCALE}
      xsum: xsum[i] += exp(inp[i, j] - xmax[i])
"""


def check(original: str, transformed: str, **options: Any) -> Any:
    return check_exact(parse_program(original), parse_program(transformed), **options)


def test_a_rolling_update_is_accepted() -> None:
    report = check(UNFUSED, FUSED)
    assert report.accepted and report.model == "field pair" and report.compared > 0
    assert len(report.seeds) == len(report.sizes) == report.draws == 4
    assert report.bound == "4 draws, no bound"
    assert any(s["m"] != s["n"] for s in report.sizes)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "repair: xsum[i] = xsum[i] * exp(xmax[i] - prev[])",
        "repair: xsum[i] = xsum[i] * exp2(prev[] - xmax[i])",
        "repair: xsum[i] = xsum[i] + exp(prev[] - xmax[i])",
    ],
)
def test_a_missing_reversed_or_other_rescale_is_rejected(wrong: str) -> None:
    report = check(UNFUSED, FUSED.replace(f"      {RESCALE}\n", f"      {wrong}\n" if wrong else ""))
    assert report.verdict == "rejected"
    assert report.counterexample.output == "xsum"
    assert "output xsum[" in str(report)


def test_the_seed_of_a_counterexample_finds_it_again() -> None:
    wrong = FUSED.replace(RESCALE, "repair: xsum[i] = xsum[i]")
    first, second = (check(UNFUSED, wrong, seed=3).counterexample for _ in range(2))
    assert first == second


def test_the_true_maximum_decides_where_the_result_depends_on_it() -> None:
    body = "  in x: f32[n]\n  out y: f32[]\n  scalar n: i32 lo 1\nbody:\n  for i in [0, n):\n    "
    top = f"program top\n{body}y: y[] max= x[i] init -3.4028234663852886e+38\n"
    # max(x, x - 1) is x only for the true maximum
    same = f"program top\n{body}y: y[] max= max(x[i], x[i] - 1.0) init -3.4028234663852886e+38\n"
    report = check(top, same)
    assert report.accepted and report.model == "ordered rationals"
    assert report.notes[0] == "field pair: rejected"
    assert check(top, same.replace("- 1.0", "+ 1.0")).verdict == "rejected"
    assert check(top, same.replace("max(", "min(")).verdict == "rejected"


def test_programs_without_an_order_get_a_bound() -> None:
    body = "  in x: f32[n]\n  in w: f32[n]\n  out y: f32[]\n  scalar n: i32\nbody:\n"
    one = f"program mean\n{body}  for i in [0, n):\n    y: y[] += x[i] * 0.3 / w[0] init 0.0\n"
    two = f"program mean\n{body}  for i in [0, n):\n    y: y[] += x[i] init 0.0\n  z: y[] = y[] * 0.3 / w[0]\n"
    report = check(one, two)
    assert report.accepted
    assert "probability at most" in report.bound and "/2147471759" in report.bound
    wrong = check(one, two.replace("0.3", "0.30000001"))
    assert wrong.verdict == "rejected" and "no bound" in wrong.bound


@pytest.mark.parametrize("fold", ["max", "min", "+"])
@pytest.mark.parametrize("value", ["x[i, j]", "exp(exp(x[i, j]))"])
def test_uninitialised_memory_shows_through_every_fold(fold: str, value: str) -> None:
    """Maxima pass over NaN. Neither exact model has exponentials of exponentials: float64 decides."""
    text = f"""program p
  in x: f32[m, n]
  out o: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m):
    for j in [0, n):
      o: o[i] {fold}= {value} init 0.0
"""
    assert check(text, text).accepted
    assert check(text, text.replace(" init 0.0", "")).verdict == "rejected"


def test_uninitialised_memory_and_bad_reads_are_counterexamples() -> None:
    report = check(UNFUSED, FUSED.replace("    b: xsum[i] = 0.0\n", ""))
    assert report.verdict == "rejected" and "uninitialised" in report.counterexample.message
    report = check(UNFUSED, FUSED.replace("save: prev[] = xmax[i]", "save: prev[] = xmax[i + 1]"))
    assert "out of bounds" in report.counterexample.message


def test_custom_inputs_serve_programs_that_index_with_integers() -> None:
    head = "  in x: f32[n]\n  in at: i32[m]\n  out y: f32[m]\n  scalar m: i32\n  scalar n: i32\nbody:\n"
    one = f"program gather\n{head}  for i in [0, m):\n    y: y[i] = x[at[i]] * 2.0\n"
    two = one.replace("x[at[i]] * 2.0", "x[at[i]] + x[at[i]]")

    def last(rng: np.random.Generator, sizes: Any) -> dict[str, Any]:
        return {"at": np.full(sizes["m"], sizes["n"] - 1)}

    assert check(one, two, inputs=last).accepted
    assert check(one, two).accepted
    assert check(one, two.replace("+ x[at[i]]", "+ x[0]"), inputs=last).verdict == "rejected"


# --- tile programs ------------------------------------------------------------------------------

SOFTMAX = """program softmax
  in x: f16[rows, cols]
  out y: f16[rows, cols]
  temp top: f32[rows]
  temp total: f32[rows]
  scalar rows: i32 lo 1
  scalar cols: i32 lo 1
body:
  for i in [0, rows):
    for j in [0, cols):
      top: top[i] max= cast(f32, x[i, j]) init -3.4028234663852886e+38
    for j in [0, cols):
      total: total[i] += exp(cast(f32, x[i, j]) - top[i]) init 0.0
    for j in [0, cols):
      y: y[i, j] = cast(f16, exp(cast(f32, x[i, j]) - top[i]) / total[i])
"""


def rewritten(tiles: TileProgram, fn: Callable[[TExpr], TExpr | None]) -> TileProgram:
    (kernel,) = tiles.kernels
    body = tuple(map_stmt(s, lambda e: rewrite(e, fn)) for s in kernel.body)
    return replace(tiles, kernels=(replace(kernel, body=body),))


def test_a_softmax_of_tiles_is_accepted() -> None:
    assert check_exact(parse_program(SOFTMAX), softmax()).accepted


def test_a_dropped_mask_is_rejected() -> None:
    original = parse_program(SOFTMAX)
    loads = rewritten(softmax(), lambda e: replace(e, mask=None) if isinstance(e, LoadTile) else None)
    assert "out of bounds" in str(check_exact(original, loads).counterexample)
    columns = rewritten(softmax(), lambda e: e.then if isinstance(e, Select) else None)
    report = check_exact(original, columns, draws=8)
    assert report.verdict == "rejected" and "output y[" in str(report)


def guarded(tiles: TileProgram) -> TileProgram:
    """Attention that gives 0 in rows without a key."""
    (kernel,) = tiles.kernels
    store = kernel.body[-1]
    assert isinstance(store, StoreTile)
    total = Rearrange(Local("l", ("m",), "float32"), "m -> m 1")
    acc = Local("acc", ("m", "d"), "float32")
    value = Select(map_("gt", total, lit(0.0)), map_("div", acc, total), lit(0.0))
    body = (*kernel.body[:-1], replace(store, value=Cast(value, "float16")))
    return replace(tiles, kernels=(replace(kernel, body=body),))


def test_the_check_of_causal_attention_is_a_bounded_amount_of_work() -> None:
    original, tiles = prefill_causal(depth=128), guarded(attention(128))
    reports: list[Any] = []
    assert calls(lambda: reports.append(check_exact(original, tiles))) < 2_000_000
    assert reports[0].accepted, str(reports[0])


def test_wrong_attentions_are_rejected() -> None:
    original, tiles = prefill_causal(depth=64), guarded(attention(64))
    assert check_exact(original, attention(64)).verdict == "rejected"  # rows without keys are 0/0

    def wider(e: TExpr) -> TExpr | None:
        return replace(e, name="lt") if isinstance(e, Op) and e.name == "le" else None

    def hotter(e: TExpr) -> TExpr | None:
        return lit(0.25) if e == lit(1 / math.sqrt(64)) else None

    def unscaled(e: TExpr) -> TExpr | None:
        return Local("l", ("m",), "float32") if isinstance(e, Op) and e.name == "mul" and e.dims == ("m",) else None

    for change in (wider, hotter, unscaled):
        assert check_exact(original, rewritten(tiles, change)).verdict == "rejected", change.__name__


# --- shrinking ----------------------------------------------------------------------------------


def test_shrinking_replaces_a_depth_everywhere() -> None:
    original, tiles = shrink(prefill_causal(depth=128), attention(128))
    assert "128" not in str(original) and isinstance(tiles, TileProgram)
    assert tiles.inputs[0].shape[-1] == original.inputs[0].shape[-1] == Const(2, "int32")
    assert dict(tiles.kernels[0].axes)["d"] == Const(2, "int32")


def test_shrinking_leaves_a_constant_that_means_something_else() -> None:
    text = "program p\n  in x: f32[64]\n  out y: f32[32]\nbody:\n  for i in [0, 32):\n    y: y[i] = x[i + 32] + x[i]\n"
    program = parse_program(text)
    (small,) = shrink(program)
    assert isinstance(small, Program)
    assert small.outputs == program.outputs
    report = check_exact(program, parse_program(text.replace("x[i + 32] + x[i]", "x[i] + x[i + 32]")))
    assert report.accepted
    assert check_exact(program, parse_program(text.replace("x[i + 32]", "x[i + 31]"))).verdict == "rejected"


def test_shrinking_leaves_a_depth_that_tiles_are_offset_by() -> None:
    tiles = attention(64)
    (kernel,) = tiles.kernels
    offset = map_("add", Scalar(Const(64, "int32")), Iota("d"))
    (small,) = shrink(replace(tiles, kernels=(replace(kernel, body=(*kernel.body, Assign("x", offset))),)))
    assert small.inputs[0].shape[-1] == Const(64, "int32")


def test_a_rejection_by_shrinking_alone_is_not_one() -> None:
    head = "program p\n  in x: f32[96]\n  out y: f32[96]\nbody:\n"
    whole = f"{head}  for i in [0, 96):\n    y: y[i] = x[i] * 2.0\n"
    pieces = f"{head}  for i in [0, 64):\n    y: y[i] = x[i] * 2.0\n"
    pieces += "  for i in [0, 32):\n    y: y[i + 64] = x[i + 64] * 2.0\n"
    assert "96" not in str(shrink(parse_program(whole), parse_program(pieces))[1])
    report = check(whole, pieces)
    assert report.accepted and not any("made small" in note for note in report.notes)


def test_an_original_that_cannot_be_run_is_an_answer_and_for_who_checks_an_error() -> None:
    program = parse_program("program p\n" + HEAD.replace("xsum", "y") + "    y: y[i] = inp[i, n]\n")
    found = exact_report(program, program)
    assert isinstance(found, EvaluationError) and "read of inp out of bounds" in str(found)
    with pytest.raises(EvaluationError, match="read of inp out of bounds"):
        check_exact(program, program)
