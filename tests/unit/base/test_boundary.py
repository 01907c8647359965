"""Errors end at the user's own line, wherever Neptune is entered."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

import neptune
from neptune.frontend import builder
from neptune.fusion.schedule import Schedule, replay
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.schedule.template import Template
from neptune.schedule.trace import trace_from_json

WITHOUT_ERRORS = {
    *("as_code", "decisions", "program", "stages", "trace", "combinations"),
    *(
        "explain",
        "inputs",
        "keeping",
        "name",
        "outputs",
        "params",
        "saying",
        "scalars",
        "source",
        "specialisations",
        "target",
        "facts",
    ),
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
        assert any(f.__code__.co_filename == neptune.base.boundary.__file__ for f in unwrapped(entry)), name


def unwrapped(f: Any) -> list[Any]:
    return [f, *unwrapped(f.__wrapped__)] if hasattr(f, "__wrapped__") else [f]
