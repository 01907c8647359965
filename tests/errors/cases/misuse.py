"""Things of the wrong kind, and programs that only look like what is taken."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import neptune
from bench import stub_driver
from neptune.errors import ExpressionError, RecordError, ScheduleError, ShapeError, TargetError
from neptune.frontend.builder import compute, placeholder, var
from neptune.frontend.tvmscript import from_tvmscript
from neptune.fusion.schedule import Schedule, replay
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from tests.errors.table import case
from tests.examples.kernel_examples import rows_program
from tests.unit.frontend.test_tvmscript import script

# --- templates and schedules -----------------------------------------------------------------------


def generator(sch: Any) -> Any:
    """A call of it does nothing."""
    yield sch


def of_two(sch: Any, loop: Any) -> None:
    """It wants more than a Schedule."""


@case(ScheduleError)
def a_template_that_is_a_generator():
    neptune.compile(rows_program(), generator, target="llvm")


@case(ScheduleError)
def a_template_of_two_arguments():
    neptune.compile(rows_program(), of_two, target="llvm")


@case(ScheduleError)
def a_template_of_no_function():
    neptune.Template("rows", "rows")  # type: ignore[arg-type]


@case(ScheduleError)
def choices_that_are_a_list():
    neptune.Template("rows", of_two, {}, ["fast"])  # type: ignore[arg-type]


@case(ScheduleError)
def a_template_of_a_program():
    importlib.import_module("neptune.templates.softmax_row").softmax_row(softmax())


@case(ScheduleError)
def a_schedule_of_a_name():
    Schedule("softmax")  # type: ignore[arg-type]


@case(RecordError)
def a_trace_that_is_a_name():
    replay(softmax(), "softmax")  # type: ignore[arg-type]


@case(ScheduleError)
def a_product_summed_in_small_steps():
    neptune.compile(prefill_causal(depth=64), "flash_attention", target="llvm", params={"BLOCK_N": 8})


# --- kernels -----------------------------------------------------------------------------------------


@case(RecordError)
def a_report_of_a_loaded_kernel(tmp_path):
    neptune.compile(softmax(), "softmax_row", target="llvm").save(tmp_path / "kernel")
    neptune.load(tmp_path / "kernel", target="llvm").report(tmp_path / "report.html")


@case(ShapeError)
def a_launcher_that_is_none():
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    kernel(torch.zeros(3, 4), launcher="wrap_triton")


@case(ShapeError)
def a_fake_tensor():
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    with FakeTensorMode():
        fake = torch.empty(3, 4)
    kernel(fake)


@case(ShapeError)
def out_in_a_graph_that_torch_records(monkeypatch):
    # make_fx itself would leave its frames behind the user's line.
    monkeypatch.setattr("neptune.kernel.traced.becomes_graph", lambda: True)
    kernel, x = neptune.compile(softmax(), "softmax_row", target="llvm"), torch.zeros(3, 4)
    with FlopCounterMode(display=False):
        kernel(x, out=torch.empty_like(x))


@case(TargetError)
def more_shared_memory_than_there_is(monkeypatch):
    # Triton asks the driver once, and keeps the answer.
    monkeypatch.setattr("triton.compiler.compiler.max_shared_mem", lambda device: 1024)
    q = torch.zeros(1, 1, 64, 64, dtype=torch.float16)
    with stub_driver.installed():
        kernel = neptune.compile(prefill_causal(depth=64), "flash_attention", target="cuda")
        kernel(q, q, q)


@case(ExpressionError)
def a_read_beyond_the_end():
    n = var("n")
    x = placeholder((n,), "float32", "x")
    neptune.compile(compute((n,), lambda i: x[i + 1], "y"), target="llvm")


# --- PrimFuncs that store two results -------------------------------------------------------------------

HEAD = 'x: T.Buffer((8, 4), "float32"), a: T.Buffer((8,), "int32"), b: T.Buffer((8,), "float32")'
INIT = ["a[v_i] = -1", "b[v_i] = T.float32(-3.4028234663852886e+38)"]
NEW = [
    "p: T.let[T.int32] = T.if_then_else(b[v_i] >= x[v_i, v_k], a[v_i], v_k)",
    "q: T.let[T.float32] = T.if_then_else(b[v_i] >= x[v_i, v_k], b[v_i], x[v_i, v_k])",
]
STORES = ["a[v_i] = p", "b[v_i] = q"]


def choosing(init: list[str], new: list[str], stores: list[str], before: str = "", head: str = HEAD) -> Any:
    """An argmax of rows as a PrimFunc, made of these lines."""
    lines = ["for i, k in T.grid(8, 4):", '    with T.sblock("best"):']
    lines += ['        v_i, v_k = T.axis.remap("SR", [i, k])', "        with T.init():"]
    lines += [f"            {x}" for x in init] + [f"        {x}" for x in (*new, *stores)]
    return from_tvmscript(script(before + "\n".join(lines), head))


WIDER = HEAD.replace("b: T.Buffer((8,)", "b: T.Buffer((9,)")
EARLY = 'for i in range(8):\n    with T.sblock("early"):\n        v_i = T.axis.spatial(8, i)\n        a[v_i] = 0\n'
ITSELF = [x.replace("x[v_i, v_k]", "b[v_k]") for x in NEW]
SUMS = ["p: T.let[T.int32] = a[v_i] + v_k", "q: T.let[T.float32] = b[v_i] + x[v_i, v_k]"]
PAIRS: dict[str, Callable[[], object]] = {
    "two results of different length": lambda: choosing(INIT, NEW, STORES, head=WIDER),
    "two sums in one block": lambda: choosing(INIT, SUMS, STORES),
    "a choice among its own results": lambda: choosing(INIT, ITSELF, STORES),
    "an init of one of two results": lambda: choosing(INIT[:1], NEW, STORES),
    "a choice written before": lambda: choosing(INIT, NEW, STORES, before=EARLY),
}
for _name, _act in PAIRS.items():
    case(ExpressionError, _name)(_act)


# --- what is no expression --------------------------------------------------------------------------


@case(ExpressionError)
def nothing_to_compile():
    neptune.compile(None)


@case(ExpressionError)
def a_name_to_compile():
    neptune.compile("softmax")


@case(ExpressionError)
def a_function_to_compile():
    neptune.compile(rows_program)


@case(ExpressionError)
def a_list_of_functions_to_compile():
    neptune.compile([rows_program])


@case(ExpressionError)
def a_tensor_of_torch_to_compile():
    neptune.compile(torch.ones(3))


@case(ExpressionError)
def a_module_of_torch_to_compile():
    neptune.compile(torch.nn.Softmax())


@case(ExpressionError)
def an_expression_to_compile():
    neptune.compile(var("n") * 2)


@case(ExpressionError)
def a_dict_to_compile():
    neptune.compile({"x": 1})
