"""Maps between a reduction and its predecessors are computed once inside the loop, not again where they are read."""

from __future__ import annotations

import pytest

from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Op, walk
from neptune.ir.program import Program, stages, values


def attention(weight: str) -> Program:
    """Textbook weights exp(s - m) / l, rounded to `weight` before the product."""
    rows, cols = var("rows"), var("cols")
    s, v = placeholder((rows, cols), "float32", "s"), placeholder((cols, 16), weight, "v")
    j = reduce_axis((0, cols), "j")
    m = compute((rows,), lambda i: max(s[i, j], axis=j), "m")
    p = compute((rows, cols), lambda i, j: exp(s[i, j] - m[i]), "p")
    l = compute((rows,), lambda i: sum(p[i, j], axis=j), "l")  # noqa: E741
    dot = compute(
        (rows, 16),
        lambda i, c: sum((p[i, j] / l[i]).astype(weight).astype("float32") * v[j, c].astype("float32"), axis=j),
        "o",
    )
    return build(dot, inputs=[s, v], name="attention")


@pytest.mark.parametrize("weight", ["float32", "bfloat16", "float16"])
def test_an_exponential_is_written_once(weight: str) -> None:
    """For float16 that 1/l may wait rests on the bound of `p`, which is known where `p` came in."""
    sch = Schedule(attention(weight))
    j0, _ = sch.split(sch.loops("m")[1], 16)
    for stage in ("l", "o"):
        sch.rolling_update(stage, j0)
    inside = [x for s in stages(sch.program.body) for e in values(s.action) for x in walk(e)]
    assert [x.name for x in inside if isinstance(x, Op)].count("exp") == 2
    assert "deferred: mul 1.0 / l[i], applied once behind the loop" in sch.decisions[-1].details
