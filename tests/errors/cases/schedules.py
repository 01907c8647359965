"""Schedule primitives, templates and params that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neptune
from neptune.errors import FusionError, NeptuneError, ScheduleError, ShapeError
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import prefill_causal
from neptune.ops.norm import layer_norm
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.state import Loop
from neptune.schedule.trace import OutOfFuel
from tests.errors.table import case
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program
from tests.examples.schedule_examples import gram, maps, matmul, row_max, row_sums


def _called(make: Callable[[], Schedule], call: Callable[[Schedule], object]) -> Callable[[], object]:
    return lambda: call(make())


ROW, COL, DOT = (Loop("c", v) for v in "ijp")

HALF: Any = 2.5


def bound() -> Schedule:
    sch = Schedule(matmul())
    sch.bind(ROW, "grid.x")
    return sch


def fused() -> Schedule:
    sch = Schedule(matmul())
    sch.fuse_at("d", COL)
    return sch


def cut() -> Schedule:
    sch = Schedule(matmul())
    p0, _ = sch.split(DOT, 4)
    sch.partition(p0)
    return sch


def plain() -> Schedule:
    return Schedule(matmul())


def rolled() -> Schedule:
    sch = Schedule(softmax())
    sch.rolling_update("l", Loop("m", "j"))
    return sch


def halves() -> Schedule:
    return Schedule(maps())


PRIMITIVES: list[tuple[Callable[[], Schedule], Callable[[Schedule], object], str]] = [
    (plain, lambda s: s.loops("cc"), "unknown stage `cc`"),
    (plain, lambda s: s.stage("zzz"), "unknown stage `zzz`"),
    (plain, lambda s: s.split(Loop("c", "z"), 2), "unknown loop `z` of stage `c`"),
    (plain, lambda s: s.fuse_at("e", ROW), "unknown stage `e`"),
    (rolled, lambda s: s.inline("m_prev"), "`m_prev`"),
    (plain, lambda s: s.param("BM", []), "powers of two"),
    (plain, lambda s: s.param("BM", [48]), "powers of two"),
    (plain, lambda s: s.param("m", [2]), "`m` is taken"),
    (plain, lambda s: s.param("i", [2]), "`i` is taken"),
    (plain, lambda s: s.param("c", [2]), "`c` is taken"),
    (plain, lambda s: s.param("a b", [2]), "no plain identifier"),
    (plain, lambda s: s.param("for", [2]), "no plain identifier"),
    (plain, lambda s: s.split(ROW, 0), "split(`i` of `c`, 0)"),
    (plain, lambda s: s.split(ROW, -4), "at least one iteration"),
    (plain, lambda s: s.split(ROW, Var("BM")), "`BM` is not a tunable of this schedule"),
    (plain, lambda s: s.split(ROW, HALF), "a factor of 2.5"),
    (plain, lambda s: s.split(ROW, True), "a factor of True"),
    (bound, lambda s: s.split(ROW, 2), "bound to grid.x"),
    (cut, lambda s: s.split(Loop("c", "p0"), 2), "in pieces"),
    (plain, lambda s: s.tile([ROW, COL], [2]), "2 loops and 1 factors"),
    (plain, lambda s: s.tile([], []), "one factor per loop"),
    (plain, lambda s: s.tile([ROW, Loop("d", "j")], [2, 2]), "different stages"),
    (plain, lambda s: s.tile([ROW, ROW], [2, 2]), "unknown loop `i`"),
    (plain, lambda s: s.cover(ROW, "m"), "`m` is taken"),
    (bound, lambda s: s.cover(ROW, "WIDE"), "bound to grid.x"),
    (plain, lambda s: s.reorder(), "no loop is named"),
    (plain, lambda s: s.reorder(ROW, ROW), "named twice"),
    (plain, lambda s: s.reorder(ROW, Loop("d", "j")), "`j` is not around stage `c`"),
    (fused, lambda s: s.reorder(DOT, ROW), "not perfectly nested"),
    (bound, lambda s: s.reorder(COL, ROW), "`i` is bound to grid.x"),
    (plain, lambda s: s.bind(DOT, "grid.x"), "loop `i` outside of it runs serially"),
    (bound, lambda s: s.bind(ROW, "grid.y"), "bound to grid.x already"),
    (plain, lambda s: s.bind(ROW, "grid.w"), "'grid.w' is not a grid axis"),
    (plain, lambda s: s.bind([ROW, COL, DOT], ["grid.x", "grid.y", "grid.z"]), "`c` reduces over `p`"),
    (plain, lambda s: s.bind([ROW, COL], ["grid.x"]), "1 grid axes, not 2"),
    (bound, lambda s: s.reverse(COL), "one iteration after the other"),
    (plain, lambda s: s.inline("c"), "inline(`c`)"),
    (plain, lambda s: s.inline("d"), "`d` is an output"),
    (plain, lambda s: s.fuse_at("d", DOT), "does not run over loop `p`"),
    (fused, lambda s: s.fuse_at("d", COL), "inside `j` already"),
    (plain, lambda s: s.fuse_at("c", Loop("d", "i")), "`d` reads `c` before that place"),
    (halves, lambda s: s.fuse_at("w", Loop("t", "i")), "reads `u`"),
    (cut, lambda s: s.fuse_at("d", Loop("c", "p0")), "in pieces"),
    (plain, lambda s: s.partition(ROW), "no predicate under `i`"),
    (bound, lambda s: s.partition(ROW), "spread over the grid"),
    (cut, lambda s: s.partition(Loop("c", "p0")), "in pieces"),
    (plain, lambda s: s.privatize("d", ROW), "`d` is a map"),
    (plain, lambda s: s.privatize("c", ROW), "`c` does not reduce over `i`"),
    (plain, lambda s: s.privatize("c", DOT), "no reduction loop inside `p`"),
]
for _make, _call, _name in PRIMITIVES:
    case(ScheduleError, f"primitive: {_name}")(_called(_make, _call))


def program(body: str, *declared: str) -> Program:
    """A program over x: f32[n] and y: f32[n], with what else is declared."""
    head = ["program p", "  in x: f32[n]", "  out y: f32[n]", *(f"  {d}" for d in declared), "  scalar n: i32 lo 1"]
    return parse_program("\n".join([*head, "body:", body]))


TRIANGLE = "  for i in [0, n):\n    for j in [0, i + 1):\n      y: y[i] += x[j] init 0.0"


@case(ScheduleError)
def a_loop_given_as_text():
    Schedule(matmul()).split("i", 16)


@case(ScheduleError)
def an_argument_too_few():
    Schedule(matmul()).split(Loop("c", "i"))


@case(ScheduleError)
def an_axis_that_no_loop_runs():
    sch = Schedule(matmul())
    sch.split(sch.loops("c")[0], 4)
    sch.loop_of("c", "i")


@case(ScheduleError)
def a_tile_that_should_cover_a_tile():
    sch = Schedule(figure1())
    j0, _ = sch.split(sch.loops("xmax")[1], sch.param("B", [16]))
    sch.cover(j0, "WIDE")


@case(ScheduleError)
def reorder_against_a_range():
    sch = Schedule(program(TRIANGLE))
    i, j = sch.loops("y")
    sch.reorder(j, i)


@case(ScheduleError)
def reorder_of_what_is_handed_on():
    text = """program p
  in x: f32[m, n]
  out a: f32[]
  out b: f32[]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m):
    for j in [0, n):
      a: a[] max= x[i, j] init -3.0
      b: b[] += a[] * x[i, j] init 0.0
"""
    Schedule(parse_program(text)).reorder(Loop("a", "j"), Loop("a", "i"))


@case(ScheduleError)
def bind_a_loop_that_hands_on():
    sch = Schedule(program("  for i in [0, n):\n    t: t[i] = x[i]\n    y: y[i] = t[i * 2]", "temp t: f32[n]"))
    sch.bind(sch.loops("t")[0], "grid.x")


@case(ScheduleError)
def bind_a_loop_that_writes_one_place():
    sch = Schedule(program("  for i in [0, n):\n    y: y[0] = x[i]"))
    sch.bind(sch.loops("y")[0], "grid.x")


@case(ScheduleError)
def inline_what_changes_before_it_is_read():
    body = "".join(f"  for i in [0, n):\n    {s}\n" for s in ("e: e[i] = m[i]", "m: m[i] = x[i]", "y: y[i] = e[i]"))
    Schedule(program(body, "temp m: f32[n]", "temp e: f32[n]")).inline("e")


@case(ScheduleError)
def inline_what_is_shifted():
    body = "  for i in [0, n):\n    e: e[i // 2] = x[i]\n  for i in [0, n):\n    y: y[i] = e[i // 2]"
    Schedule(program(body, "temp e: f32[n]")).inline("e")


@case(ScheduleError)
def inline_what_depends_on_more():
    body = "  for i in [0, n):\n    for j in [0, n):\n      e: e[i] = x[j]\n  for i in [0, n):\n    y: y[i] = e[i]"
    Schedule(program(body, "temp e: f32[n]")).inline("e")


@case(ScheduleError)
def inline_what_is_guarded():
    body = "  for i in [0, n):\n    e: e[i] = x[i] when i < 3\n  for i in [0, n):\n    y: y[i] = e[i]"
    Schedule(program(body, "temp e: f32[n]")).inline("e")


# --- fuse_at -------------------------------------------------------------------------------------


@case(ScheduleError)
def fuse_a_read_at_an_offset():
    sch = Schedule(gram())
    sch.fuse_at("g", sch.loops("s")[0])


@case(ScheduleError)
def fuse_before_a_producer():
    Schedule(row_sums()).fuse_at("y", Loop("e", "i"))


@case(ScheduleError)
def fuse_a_reduction_over_the_grid():
    sch = Schedule(row_sums())
    i, j = sch.loops("e")
    sch.reorder(j, i)
    sch.bind(j, "grid.x")
    sch.fuse_at("r", j)


@case(ScheduleError)
def fuse_away_from_a_repair():
    sch = Schedule(softmax())
    i, j = sch.loops("m")
    sch.rolling_update("l", j)
    sch.fuse_at("l", i)


@case(ScheduleError)
def fuse_what_is_inside_through_another_stage():
    sch = Schedule(maps())
    i, _ = sch.loops("t")
    sch.fuse_at("t", i)


@case(ScheduleError)
def fuse_the_only_stage():
    sch = Schedule(row_max())
    sch.fuse_at("y", Loop("y", "i"))


@case(ScheduleError)
def fuse_behind_pieces():
    m, n = var("m"), var("n")
    q, j = placeholder((m, n), name="q"), reduce_axis((0, n), "j")
    s = compute((m, n), lambda i, j: q[i, j], "s")
    r = compute((m,), lambda i: sum(exp(s[i, j]), axis=j), "r")
    sch = Schedule(build([r, compute((m, n), lambda i, j: s[i, j] + r[i], "y")]))
    i, jj = sch.loops("s")
    j0, _ = sch.split(jj, 2)
    sch.fuse_at("r", j0)
    sch.partition(j0)
    sch.fuse_at("y", i)


@case(ScheduleError)
def fuse_where_a_reader_comes_before_the_end():
    body = (
        "  for u in [0, n):\n    for v in [0, n):\n      r: r[v] += x[u, v] init 0.0\n"
        "  for i in [0, n):\n    for j in [0, n):\n      e: e[i, j] = x[i, j]\n"
        "    for k in [0, n):\n      y: y[i, k] = r[k] + e[i, k]"
    )
    head = (
        "program p\n  in x: f32[n, n]\n  out y: f32[n, n]\n  temp r: f32[n]\n  temp e: f32[n, n]\n  scalar n: i32 lo 1"
    )
    Schedule(parse_program(f"{head}\nbody:\n{body}")).fuse_at("r", Loop("e", "j"))


# --- privatize -----------------------------------------------------------------------------------


@case(ScheduleError)
def privatize_an_inner_loop():
    sch = Schedule(row_sums())
    _, j1 = sch.split(sch.loops("r")[1], 6)
    j10, _ = sch.split(j1, 2)
    sch.privatize("r", j10)


@case(ScheduleError)
def privatize_with_another_start():
    sch = Schedule(
        program("  for i in [0, n):\n    for j in [0, n):\n      for k in [0, n):\n        y: y[i] += x[j] init 1.0")
    )
    sch.privatize("y", sch.loops("y")[1])


@case(ScheduleError)
def privatize_a_ragged_range():
    sch = Schedule(
        program(
            "  for i in [0, n):\n    for j in [0, i + 1):\n      for k in [0, n):\n        y: y[i] += x[j] init 0.0"
        )
    )
    sch.privatize("y", sch.loops("y")[1])


@case(ScheduleError)
def privatize_below_a_ragged_range():
    body = "  for j in [0, n):\n    for k in [0, n):\n      for i in [0, k + 1):\n        y: y[i] += x[j] init 0.0"
    sch = Schedule(program(body))
    sch.privatize("y", sch.loops("y")[0])


@case(ScheduleError)
def privatize_among_other_stages():
    body = (
        "  for i in [0, n):\n    for j in [0, n):\n      for k in [0, n):\n"
        "        t: t[j, k] = x[k]\n        y: y[i] += x[k] init 0.0"
    )
    sch = Schedule(program(body, "temp t: f32[n, n]"))
    sch.privatize("y", sch.loops("y")[1])


# --- templates -----------------------------------------------------------------------------------


@case(ScheduleError)
def a_template_that_is_not_shipped():
    neptune.compile(softmax(), "flashattention", target="llvm")


@case(ScheduleError)
def a_template_that_is_a_number():
    neptune.compile(softmax(), 3, target="llvm")


@case(ScheduleError)
def a_template_without_its_chain():
    neptune.compile(rows_program(), "flash_attention", target="llvm")


@case(ScheduleError)
def a_chain_without_rows():
    n = var("n")
    x, j = placeholder((n,), name="x"), reduce_axis((0, n), "j")
    m = compute((), lambda: neptune.frontend.builder.max(x[j], axis=j), "m")
    neptune.compile(compute((), lambda: sum(exp(x[j] - m[()]), axis=j), "l"), "flash_attention", target="llvm")


@case(ScheduleError)
def a_mistake_in_a_template():
    def mine(sch: Any) -> None:
        sch.loops("scroe")

    neptune.compile(prefill_causal(depth=16), mine, target="llvm")


@case(FusionError)
def repairs_that_are_still_owed():
    def naive(sch: Any) -> None:
        _, j = sch.loops("xmax")
        sch.fuse_at("xexp", j)
        sch.fuse_at("xsum", j)

    neptune.compile(figure1(), naive, target="llvm")


@case(OutOfFuel)
def a_fusion_without_fuel():
    sch = Schedule(figure1())
    sch.fuel = 0
    sch.rolling_update("xsum", sch.loops("xmax")[1])


# --- params, sizes and settings --------------------------------------------------------------------


def _compiled(**options: Any) -> Callable[[], object]:
    return lambda: neptune.compile(rows_program(), rows_fused, target="llvm", **options)


case(ScheduleError, "params_of_another_kind")(_compiled(params=3))
case(ScheduleError, "params_unknown")(_compiled(params={"BLOCK_K": 16}))
case(ScheduleError, "params_zero")(_compiled(params={"BLOCK_M": 0}))
case(ScheduleError, "params_odd")(_compiled(params={"BLOCK_M": 48}))
case(ScheduleError, "params_large")(_compiled(params={"num_warps": 64}))
case(ScheduleError, "params_of_no_kernel")(_compiled(params={"combine.num_warps": 1}))


@case(ScheduleError)
def other_params_of_another_kind():
    neptune.compile(softmax(), "softmax_row", target="llvm").with_params(3)


@case(ScheduleError)
def other_params_that_are_odd():
    neptune.compile(softmax(), "softmax_row", target="llvm").with_params(BLOCK_M=48)


case(ShapeError, "bounds_of_another_kind")(_compiled(bounds=3))
case(ShapeError, "bounds_unknown")(_compiled(bounds={"rows": 4}))
case(ShapeError, "shapes_zero")(_compiled(shapes={"m": 0}))


@case(ScheduleError)
def params_of_a_tile_that_covers():
    neptune.compile(softmax(), "softmax_row", target="llvm", params={"BLOCK_N": 64})


def _with(variable: str, value: str) -> Callable[..., object]:
    def act(monkeypatch: Any) -> None:
        monkeypatch.setenv(variable, value)
        neptune.compile(rows_program(), rows_apart, target="llvm")

    return act


case(NeptuneError, "setting_verify")(_with("NEPTUNE_VERIFY", "9"))
case(NeptuneError, "setting_form")(_with("NEPTUNE_FORM", "asynchronous"))
case(NeptuneError, "setting_tiered")(_with("NEPTUNE_TIERED", "later"))
case(NeptuneError, "setting_fuel")(_with("NEPTUNE_FUSION_FUEL", "many"))
case(NeptuneError, "setting_logs")(_with("NEPTUNE_LOGS", "+fuson"))


@case(NeptuneError)
def setting_dump(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEPTUNE_DUMP", str(tmp_path / "file"))
    neptune.compile(rows_program(), rows_apart, target="llvm")


# --- what is asked of the kernel ---------------------------------------------------------------------


@case(ScheduleError)
def strict_and_slow():
    neptune.compile(softmax(), "stagewise", target="llvm", strict=True)


@case(ScheduleError)
def batch_invariant_with_a_tile_of_all_rows():
    def covered(sch: Any) -> None:
        i, j = sch.loops("t")
        sch.cover(i, "ROWS")
        sch.split(j, sch.param("BLOCK_N", [16]))

    neptune.compile(rows_program(), covered, target="llvm", batch_invariant=True)


@case(ScheduleError)
def an_assumption_that_is_not_made():
    neptune.compile(layer_norm("float32"), "softmax_online", target="llvm", assume=("finite(y)",))


@case(ScheduleError)
def an_assumption_where_all_is_proved():
    neptune.compile(softmax(), "softmax_online", target="llvm", assume=("finite(x)",))


ROWS_FROM_MEMORY = """program rows
  in x: f32[n, m]
  in row: i32[n]
  out o: f32[n, m]
  temp t: f32[n]
  scalar n: i32
  scalar m: i32
body:
  for i in [0, n):
    for j in [0, m):
      t: t[i] max= x[i, j] init -inf
  for i in [0, n):
    for j in [0, m):
      o: o[row[i], j] = x[i, j] - t[i]
"""


@case(ScheduleError)
def a_grid_over_a_range_of_each_row():
    text = (
        str(program(TRIANGLE)).replace("y: f32[n]", "y: f32[n, n]").replace("y[i] += x[j] init 0.0", "y[i, j] = x[j]")
    )
    sch = Schedule(parse_program(text))
    sch.bind(Loop("y", "i"), "grid.y")
    sch.bind(Loop("y", "j"), "grid.x")


@case(ScheduleError)
def a_fused_stage_that_writes_rows_from_memory():
    sch = Schedule(parse_program(ROWS_FROM_MEMORY))
    sch.bind(Loop("t", "i"), "grid.x")
    sch.fuse_at("o", Loop("t", "i"))
