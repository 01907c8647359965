"""µGraphs: programs as kernel, block and thread graphs, found by search, proved, and compiled like everything else.

    for candidate in neptune.mirage.search(program, shapes=sizes, budget="10s"): …
    verdict = neptune.mirage.verify(graph, program)

Names are imported when they are first used.

Source: Wu et al., "Mirage: A Multi-Level Superoptimizer for Tensor Programs" (OSDI 2025).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune.mirage.verifier.verdict import Verdict, verify

__all__ = ["Verdict", "search", "verify"]

_HOME = {"Verdict": "neptune.mirage.verifier.verdict", "verify": "neptune.mirage.verifier.verdict"}


def __getattr__(name: str) -> Any:
    """PEP 562: the first use of a public name imports it. The search is a module that can be called."""
    if name == "search":
        return import_module("neptune.mirage.search")
    if name not in _HOME:
        raise AttributeError(f"module 'neptune.mirage' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
