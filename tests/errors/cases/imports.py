"""TVM's functions and TE's choices that are refused."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import te, tirx

import neptune
from neptune.errors import ExpressionError
from neptune.frontend.te import from_te
from neptune.frontend.tvmscript import from_tvmscript
from tests.errors.table import case
from tests.unit.frontend.test_te_choices import N, first_max, last_max, rows
from tests.unit.frontend.test_tvmscript import SUM, script

ONE = """
for i in range(8):
    with T.sblock("one"):
        v_i = T.axis.spatial(8, i)
        y[v_i] = x[v_i, 0]
"""
HEAD = 'x: T.Buffer((8, 4), "float32"), y: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float32")'


def _imported(body: str, head: str = HEAD) -> Callable[[], object]:
    return lambda: from_tvmscript(script(body, head))


REFUSED = {
    "partial": ONE.replace("range(8)", "range(7)"),
    "guard": SUM.replace('"SR", [i, j])', '"SR", [i, j])\n        T.where(j < 2)'),
    "twice": ONE + ONE,
    "in place": ONE.replace("x[v_i, 0]", "y[v_i] + 1.0"),
    "shifted": ONE.replace("y[v_i]", "y[7 - v_i]"),
    "half": ONE.replace("range(8)", "range(4)").replace("spatial(8", "spatial(4"),
    "no init": SUM.replace("        with T.init():\n            y[v_i] = T.float32(0)\n", ""),
    "other update": SUM.replace("y[v_i] + x[v_i, v_j]", "y[v_i] - x[v_i, v_j]"),
    "nested update": SUM.replace("y[v_i] + x", "y[v_i] + y[0] * x"),
    "two stores": ONE.replace("        y[v_i]", "        z[v_i] = x[v_i, 1]\n        y[v_i]"),
    "shared loop": ONE + '    with T.sblock("two"):\n        v_i = T.axis.spatial(8, i)\n        z[v_i] = x[v_i, 1]\n',
    "no block": "for i in range(8):\n    y[i] = x[i, 0]\n",
    "evaluate": ONE + 'T.evaluate(T.call_extern("int32", "f"))\n',
    "unwritten": "t = T.alloc_buffer((8, 4))\n" + ONE.replace("x[", "t["),
    "condition": ONE.replace("        y[v_i] = x[v_i, 0]", "        if v_i < 3:\n            y[v_i] = x[v_i, 0]"),
    "nothing": "t = T.alloc_buffer((8,))\n" + ONE.replace("y[", "t["),
    "function": ONE.replace("x[v_i, 0]", "T.nextafter(x[v_i, 0], x[v_i, 0])"),
}
for _name, _body in REFUSED.items():
    case(ExpressionError, f"script: {_name}")(_imported(_body))


def _one(*lines: str) -> str:
    """A loop around one block of these lines."""
    return "\n".join(["for i in range(8):", '    with T.sblock("one"):', *(f"        {x}" for x in lines)])


def _inner(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines())


ROOT = 'with T.sblock("root"):\n'
AXIS, STORE = "v_i = T.axis.spatial(8, i)", "y[v_i] = x[v_i, 0]"
RENAMED = 'w = T.match_buffer(x[0:8, 0:4], (8, 4), "float32")'
READ_Y = ONE.replace("one", "two").replace("y[v_i]", "z[v_i]").replace("x[v_i, 0]", "y[v_i]")
INIT = "        with T.init():\n            y[v_i] = T.float32(0)\n"
NO_INIT = SUM.replace(INIT, "")

SCRIPTS = {
    "a region renamed in the root": ROOT
    + '    w = T.match_buffer(x[0:8, 0:4], (8, 4), "float32")\n'
    + _inner(ONE.replace("x[", "w[")),
    "an init in the root": ROOT + "    with T.init():\n        y[0] = T.float32(0)\n" + _inner(ONE),
    "steps": ONE.replace("range(8)", "T.serial(0, 8, step=2)"),
    "a buffer of its own": _one(AXIS, "t = T.sblock_alloc_buffer((8,))", STORE),
    "a region renamed": _one(AXIS, RENAMED, "y[v_i] = w[v_i, 0]"),
    "an opaque axis": _one("v_i = T.axis.opaque(8, i)", STORE),
    "a reduction around others": _one(
        "v_i = T.axis.reduce(8, i)",
        "for j in range(1):",
        "    with T.sblock('two'):",
        "        v_j = T.axis.spatial(1, j)",
        "        y[v_i + v_j] = x[v_i, 0]",
    ),
    "an init of a map": _one(AXIS, "with T.init():", "    y[v_i] = T.float32(0)", STORE),
    "an axis too many": SUM.replace('"SR"', '"SS"').replace("y[v_i] + x", "x").replace(INIT, ""),
    "an init that changes": SUM.replace("T.float32(0)", "x[v_i, v_j]"),
    "reduced after it was stored": ONE + SUM,
    "an init of something else": SUM.replace("            y[v_i] = T.float32(0)", "            z[v_i] = T.float32(0)"),
    "reduced after it was read": ONE + READ_Y + NO_INIT,
    "a vector": ONE.replace("x[v_i, 0]", "T.Shuffle([x[v_i, 0]], [0])"),
}
for _name, _body in SCRIPTS.items():
    case(ExpressionError, f"script: {_name}")(_imported(_body))

STRIDED = 'x = T.match_buffer(h, (8, 4), "float32", strides=(8, 1))\n' + ONE
case(ExpressionError, "script: strides")(_imported(STRIDED, 'h: T.handle, y: T.Buffer((8,), "float32")'))
case(ExpressionError, "script: a handle")(_imported(ONE, f"{HEAD}, h: T.handle"))


@case(ExpressionError)
def a_module_without_a_function():
    neptune.compile(tvm.IRModule({}), target="llvm")


@case(ExpressionError)
def a_function_without_that_input():
    from_tvmscript(script(SUM), inputs=["c"])


# --- TE ------------------------------------------------------------------------------------------


@case(ExpressionError)
def te_several_values():
    x = te.placeholder((N,), "float32", name="x")
    from_te(list(te.compute((N,), lambda i: (x[i], x[i] + 1.0), name="y")))


@case(ExpressionError)
def te_argmax_that_keeps_the_last():
    from_te(rows(last_max)[0])


@case(ExpressionError)
def te_argmax_of_another_index():
    from_te(rows(first_max, index=lambda i, k, x: N - k)[0])


@case(ExpressionError)
def te_argmax_that_starts_from_an_index():
    from_te(rows(first_max, lambda s, t: (tirx.const(5, s), te.min_value(t)))[0])
