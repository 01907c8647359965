"""Errors end at the user's own line, wherever Neptune is entered."""

from __future__ import annotations

import traceback
from types import FunctionType
from typing import Any

import pytest

import neptune
from neptune.errors import NeptuneError
from neptune.frontend import builder
from neptune.fusion.schedule import Schedule, replay
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.schedule.template import Template
from neptune.schedule.trace import Step, trace_from_json
from tests.kernel_examples import rows_fused, rows_program

WITHOUT_ERRORS = {
    *("as_code", "decisions", "program", "stages", "trace", "combinations"),
    *("explain", "inputs", "name", "outputs", "params", "scalars", "source", "specialisations", "target", "facts"),
    # Operators: of what is no operand they say so in a TypeError, as Python's own do.
    *("eq", "ne", "maximum", "minimum", "ceildiv"),
}


def entries() -> dict[str, Any]:
    """Everything that users call, by name."""
    found = {f"builder.{n}": getattr(builder, n) for n in builder.__all__ if n not in WITHOUT_ERRORS}
    for kind in (neptune.Kernel, Schedule, Template):
        names = {n for c in kind.__mro__ if c.__module__.startswith("neptune") for n in vars(c) if n[0] != "_"}
        found |= {f"{kind.__name__}.{n}": getattr(kind, n, None) for n in names - WITHOUT_ERRORS}
    names = ("compile", "load", "template")
    found |= {n: getattr(neptune, n) for n in names}
    return found | {"replay": replay, "trace_from_json": trace_from_json, "matmul": matmul, "attention": prefill_causal}


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_entry_is_a_boundary(name: str) -> None:
    entry = getattr(entries()[name], "func", entries()[name])
    if isinstance(entry, FunctionType):
        # What `public` wraps is behind __wrapped__.
        assert any(f.__code__.co_filename == neptune.boundary.__file__ for f in unwrapped(entry)), name


def unwrapped(f: Any) -> list[Any]:
    return [f, *unwrapped(f.__wrapped__)] if hasattr(f, "__wrapped__") else [f]


@pytest.mark.parametrize(
    "act",
    [
        lambda: neptune.load("/nowhere"),
        lambda: neptune.template(BLOCK=[16])(lambda sch: None),
        lambda: neptune.template(BLOCK=[])(lambda sch, block: None),
        lambda: neptune.template(BLOCK=3)(lambda sch, block: None),
        lambda: neptune.template(choices={"fast": 1})(lambda sch, fast: None),
        lambda: neptune.template(choices=["fast"])(lambda sch, fast: None),
        lambda: neptune.template(BLOCK=[16])(3),
        lambda: neptune.template(BLOCK=[24])(lambda sch, block: None)(Schedule(rows_program())),
        lambda: neptune.template(BLOCK=[16])(lambda sch, block: None)("sch"),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").save(3),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").report("/nowhere/x.html"),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").report(3),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").for_target("tpu"),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").asm("tpu"),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").asm(90),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").resources("llvm"),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm").ir(["loops"]),
        lambda: neptune.compile(rows_program(), rows_fused, target="llvm")(1, 2),
        lambda: neptune.load("/nowhere", 3),
        lambda: Schedule("rows"),
        lambda: trace_from_json(None),
        lambda: trace_from_json('{"format": "neptune-trace", "version": 1, "steps": [["split", 1.5]]}'),
        lambda: replay(rows_program(), (Step("split", ()),)),
        lambda: replay(rows_program(), "x"),
        lambda: replay("x", ()),
        lambda: builder.argmax(1.0, "axis"),
        lambda: builder.top_k(1.0, 99, builder.reduce_axis((0, 4))),
        lambda: builder.stack([]),
        lambda: matmul(activation="gelu2"),
    ],
)
def test_the_last_frame_is_the_users(act: Any) -> None:
    with pytest.raises(NeptuneError) as caught:
        act()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not [f for f in frames if "/neptune/" in f.filename and "/tests/" not in f.filename], frames
    assert len(str(caught.value).splitlines()) <= 12
