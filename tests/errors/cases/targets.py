"""What no target takes, and targets that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import neptune
from neptune.autotune import present
from neptune.autotune.calibrate import calibrate
from neptune.base.boundary import public
from neptune.codegen.compile import WORKER, compile_offline
from neptune.errors import ExpressionError, ScheduleError, TargetError
from neptune.frontend.builder import build, compute, placeholder
from neptune.fusion.schedule import Schedule
from neptune.hopper.gluon import versions
from neptune.hopper.validate.compile import compile_gluon
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.linear import matmul as product
from neptune.ops.scaled import rms_linear
from neptune.ops.softmax import softmax
from neptune.runtime.calls.addressing import KernelParameters
from neptune.runtime.launching import launch
from neptune.templates.flash_attention import flash_attention
from neptune.tile.pipeline import lower
from tests.errors.table import case
from tests.examples.float8_programs import scaled_matmul
from tests.examples.kernel_examples import rows_fused, rows_program
from tests.examples.schedule_examples import matmul
from tests.unit.autotune.test_calibrate import Planted
from tests.unit.frontend.test_choices import both_tiled, two_axes
from tests.unit.fusion.test_split_k import pairs


def nothing(sch: Schedule) -> None:
    """A template that leaves everything as it is."""


def _lowered(text: str) -> Callable[[], object]:
    """Where `neptune.compile` is refused this, it keeps more loops instead and kernel.explain() shows the message."""
    return lambda: public(lower)(parse_program(text))


def _scheduled(program: neptune.Program, template: Any) -> Callable[[], object]:
    def act() -> None:
        sch = Schedule(program)
        template(sch)
        public(lower)(sch.program)

    return act


def _for(target: Any) -> Callable[[], object]:
    return lambda: neptune.compile(rows_program(), rows_fused, target=target)


case(TargetError, "no_such_target")(_for("metal"))
case(TargetError, "a_target_that_is_a_number")(_for(90))


@case(TargetError)
def no_architecture():
    neptune.compile(rows_program(), rows_fused, target="llvm").asm()


@case(TargetError)
def no_gpu(monkeypatch):
    monkeypatch.setattr(launch, "gpu_target", lambda: None)
    kernel = neptune.compile(rows_program(), rows_fused, target="cuda:90")
    # The arguments are looked at first, so they have to seem to be on a GPU.
    kernel.executable.signature = neptune.runtime.calls.arguments.Signature(rows_program(), "cpu")
    kernel(torch.zeros(4, 6), torch.zeros(6), 1.0, 0)


@case(TargetError)
def another_gpu(monkeypatch):
    monkeypatch.setattr(launch, "gpu_target", lambda: launch.Target("cuda", "80"))
    kernel = neptune.compile(rows_program(), rows_fused, target="cuda:90")
    kernel.executable.signature = neptune.runtime.calls.arguments.Signature(rows_program(), "cpu")
    kernel(torch.zeros(4, 6), torch.zeros(6), 1.0, 0)


@case(TargetError)
def a_target_that_nothing_runs(monkeypatch):
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    monkeypatch.delitem(launch.LAUNCHERS, "llvm")
    kernel(torch.zeros(4, 6), torch.zeros(6), 1.0, 0)


@case(TargetError)
def offline_for_no_gpu():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    compile_offline(kernel.source, kernel.build.tiles, "cpu")


@case(TargetError)
def no_such_capability():
    neptune.compile(rows_program(), rows_fused, target="llvm").asm("cuda:1")


@case(TargetError)
def a_dtype_that_a_gpu_does_not_have():
    neptune.compile(scaled_matmul("float8_e4m3fn"), target="cuda:80")


@case(TargetError, quotes=True)
def tiles_that_are_too_large():
    large = {"BLOCK_M": 1 << 16, "BLOCK_N": 1 << 16}
    neptune.compile(rows_program(), rows_fused, target="llvm", params=large).asm("cuda:90")


@case(TargetError)
def the_compiler_aborts(monkeypatch):
    def died(*_: object) -> object:
        raise EOFError

    monkeypatch.setattr(WORKER, "request", died)
    neptune.compile(rows_program(), rows_fused, target="llvm").asm("cuda:90")


@case(TargetError)
def without_tvm(monkeypatch):
    import sys

    kernel = neptune.compile(_fresh(), nothing, target="llvm")
    monkeypatch.setitem(sys.modules, "tvm", None)
    kernel(torch.zeros(3))


@case(TargetError)
def tvm_without_llvm(monkeypatch):
    import tvm

    kernel = neptune.compile(_fresh(), nothing, target="llvm")
    monkeypatch.setattr(tvm, "get_global_func", lambda *_, **__: None)
    kernel(torch.zeros(3))


@case(TargetError)
def a_triton_without_gluon(monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.1.0")
    monkeypatch.setattr(versions, "missing", lambda: f"there is no {versions.GLUON}")
    public(compile_gluon)("", KernelParameters("attention_kernel", {}, {}, ()))


@case(TargetError)
def a_form_that_is_none():
    neptune.compile(rows_program(), rows_fused, target="cuda:90", form="gluon")


@case(TargetError)
def a_form_of_another_gpu():
    neptune.compile(rows_program(), rows_fused, target="cuda:80", form="asynchronous")


@case(TargetError)
def the_assembly_of_a_form_that_is_not_there():
    neptune.compile(rows_program(), rows_fused, target="cuda:90").asm(form="asynchronous")


@case(TargetError)
def a_form_that_does_not_fit():
    neptune.compile(rows_program(), rows_fused, target="cuda:90", form="asynchronous")


@case(TargetError)
def a_lever_that_is_none():
    neptune.compile(rows_program(), rows_fused, target="cuda:90", form="asynchronous", params={"asynchronous.warps": 4})


@case(TargetError)
def levers_that_are_no_mapping():
    neptune.compile(rows_program(), rows_fused, target="cuda:90", form="asynchronous", levers=3)


@case(TargetError)
def a_value_that_a_lever_does_not_have():
    neptune.compile(
        rows_program(), rows_fused, target="cuda:90", form="asynchronous", params={"asynchronous.consumers": 4}
    )


@case(TargetError)
def levers_of_a_form_that_was_not_asked_for():
    neptune.compile(rows_program(), rows_fused, target="cuda:90", params={"asynchronous.stages": 3})


@case(TargetError)
def a_parameter_of_a_form_with_two_values():
    own = {"stages": 3, "asynchronous.stages": 4}
    neptune.compile(product(), "matmul", target="cuda:90", form="asynchronous", params=own)


@case(TargetError)
def stages_that_overflow_shared_memory():
    _asynchronous(prefill_causal(depth=128), "flash_attention", {"BLOCK_N": 128}, stages=6)


@case(TargetError)
def consumers_that_overflow_registers():
    _asynchronous(prefill_causal(depth=128), "flash_attention", {"BLOCK_N": 128}, consumers=3)


@case(TargetError)
def a_result_that_fits_over_no_tile():
    _asynchronous(product(), "matmul", own_out=False)


@case(TargetError)
def tiles_ahead_where_all_come_in_loops():
    _asynchronous(product(), "matmul", ahead=True)


@case(TargetError)
def tiles_ahead_of_programs_of_one_group():
    _asynchronous(prefill_causal(depth=64), "flash_attention", ahead=True, persistent="once")


@case(TargetError)
def tiles_ahead_under_a_result():
    _asynchronous(prefill_causal(depth=64), "flash_attention", ahead=True, own_out=False)


@case(TargetError)
def columns_that_no_form_has():
    _asynchronous(prefill_causal(depth=64), "flash_attention", {"BLOCK_N": 512})


@case(TargetError)
def kernels_none_of_which_has_the_form():
    _asynchronous(rms_linear(), "stagewise")


def _asynchronous(program, template, params=None, **levers):
    neptune.compile(program, template, target="cuda:90", form="asynchronous", params={**(params or {}), **levers})


def _fresh() -> neptune.Program:
    """A program that no other test compiles, for compiled texts are remembered."""
    return parse_program(
        "program q\n  in x: f32[n]\n  out y: f32[n]\n  scalar n: i32 lo 1\nbody:\n"
        "  for i in [0, n):\n    y: y[i] = x[i] * 1.234567"
    )


@case(ExpressionError)
def layout():
    prefill_causal(layout="sbhd")


@case(ExpressionError)
def dtype():
    prefill_causal(dtype="int8")


# --- what has no tile form -------------------------------------------------------------------------


def _init_apart(sch: Any) -> None:
    stage = "c" if "c" in sch.stages else "best"
    sch.decompose_reduction(stage, sch.loops(stage)[0])
    i0, _ = sch.split(sch.loops(stage)[0], 4)
    sch.bind(i0, "grid.x")


case(TargetError, "a_depth_beyond_all_tiles")(_scheduled(prefill_global(depth=2048), flash_attention))
case(TargetError, "a_sum_in_memory")(_scheduled(matmul(), _init_apart))
case(TargetError, "a_choice_in_memory")(_scheduled(build(two_axes(2)), _init_apart))
case(TargetError, "rounds_over_two_axes")(_scheduled(build(two_axes(2)), both_tiled))


@case(TargetError)
def a_tile_of_too_many_elements():
    x = placeholder((256, 256), "float32", "x")
    public(lower)(build(compute((256, 256), lambda i, j: x[i, j] + 1.0, "y")))


@case(TargetError)
def a_choice_of_negative_indices():
    text = (
        "program p\n  in x: f32[n]\n  out a: f32[]\n  out b: i32[]\n  scalar n: i32 lo 1\nbody:\n"
        "  for j in [0, n):\n    s: a[], b[] argmax= x[j], j - 1 init -inf, 2147483647"
    )
    sch = Schedule(parse_program(text))
    sch.split(sch.loops("s")[0], 16)
    public(lower)(sch.program)


@case(TargetError)
def a_range_that_the_kernel_computes():
    text = (
        "program p\n  in w: i32[m, 4]\n  in x: f32[n]\n  out y: f32[m, 4]\n  temp c: i32[m, 4]\n"
        "  scalar m: i32 lo 1\n  scalar n: i32 lo 1\nbody:\n  for g in [0, m) grid.x:\n"
        "    for i in [0, 4):\n      c: c[g, i] = w[g, i]\n"
        "    for i in [0, 4):\n      for j in [0, c[g, i]):\n        y: y[g, i] += x[j] init 0.0"
    )
    neptune.compile(parse_program(text), nothing, target="llvm")


SIZES = "  scalar m: i32 lo 1\n  scalar n: i32 lo 1\nbody:\n"
X = "program p\n  in x: f32[m, n]\n  out y: f32[m, n]\n  temp t: f32[m]\n" + SIZES
ON_CHIP = "program p\n  in x: f32[4]\n  out y: f32[4, 4]\nbody:\n  alloc t: f32[4] @tile\n"
FILL = "  for i in [0, 4):\n    a: t[i] = x[i]\n"

case(TargetError, "one_tile_at_two_places")(
    _lowered(ON_CHIP + FILL + "  for a in [0, 4):\n    for b in [0, 4):\n      b: y[a, b] = t[a] - t[b]")
)
case(TargetError, "a_tile_of_a_size")(
    _lowered(
        "program p\n  in x: f32[n]\n  out y: f32[n]\n  scalar n: i32 lo 1\nbody:\n  alloc t: f32[n] @tile\n"
        "  for i in [0, n):\n    a: t[i] = x[i]\n  for i in [0, n):\n    b: y[i] = t[i]"
    )
)
case(TargetError, "an_element_of_a_tile")(
    _lowered(ON_CHIP + FILL + "  for a in [0, 4):\n    for b in [0, 4):\n      b: y[a, b] = t[0] - t[b]")
)
case(TargetError, "stored_and_read_back")(
    _lowered(
        X + "  for i in [0, m) grid.x:\n    for j in [0, n):\n"
        "      t: t[i] = x[i, j] when j < 1\n      y: y[i, j] = t[i] + x[i, j]"
    )
)
case(TargetError, "grid_beside")(
    _lowered(
        X + "  for i in [0, m) grid.x:\n    t: t[i] = x[i, 0]\n"
        "    for j in [0, n) grid.y:\n      y: y[i, j] = x[i, j] + t[i]"
    )
)
case(ScheduleError, "different_ranges")(
    _lowered(
        "program p\n  in x: f32[m]\n  out y: f32[m]\n  temp t: f32[m, 8]\n  scalar m: i32 lo 1\nbody:\n"
        "  for i in [0, m) grid.x:\n    for j in [0, 8):\n      t: t[i, j] = x[i]\n"
        "    for k in [0, 4):\n      y: y[i] += t[i, k] init 0.0"
    )
)
case(ScheduleError, "a_neighbour")(
    _lowered(X + "  for i in [0, m) grid.x:\n    t: t[i] = x[i, 0]\n    y: y[i, 0] = t[i - 1] when 0 < i")
)
case(ScheduleError, "in_front_of_the_tile")(
    _lowered(
        "program p\n  in x: f32[m]\n  out y: f32[m]\n  temp t: f32[m]\n  scalar m: i32 lo 1\nbody:\n"
        "  for i in [0, m // 4) grid.x:\n    for j in [0, 4):\n      t: t[i*4 + j] = x[i*4 + j]\n"
        "    for j in [0, 4):\n      y: y[i*4 + j] = t[i*4 + 2 - j]"
    )
)


def _parts_in_a_tile(sch: Schedule) -> None:
    part = sch.split_k(sch.loops("best")[-1], 4)
    sch.bind([part, sch.loop(part.stage, "i")], ["grid.y", "grid.x"])
    sch.bind(sch.loop("best", "i"), "grid.x")


case(TargetError, "lists_in_a_tile")(_scheduled(pairs(3), _parts_in_a_tile))


@case(TargetError)
def a_launcher_where_nothing_is_launched():
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    kernel(torch.zeros(3, 5), launcher=torch.library.wrap_triton)


@case(TargetError)
def calibrate_while_others_use_the_gpu():
    public(calibrate)(Planted(jitter=0.5))


@case(TargetError)
def calibrate_without_a_gpu(monkeypatch):
    monkeypatch.setattr(present, "gpu_target", lambda: None)
    public(present.Present)()


@case(TargetError)
def calibrate_another_gpu(monkeypatch):
    monkeypatch.setattr(present, "gpu_target", lambda: launch.Target("hip", "gfx942"))
    public(present.Present)()
