"""Neptune: schedules in Python, fused reductions with proved repairs, Triton kernels out.

    import neptune
    kernel = neptune.compile(expr, "flash_attention")
    o = kernel(q, k, v)

Names are imported when they are first used: `import neptune` loads neither torch, Triton, SymPy nor TVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neptune.versions import __version__ as __version__

if TYPE_CHECKING:
    from neptune import functional as functional
    from neptune.autotune.tuner import autotune
    from neptune.driver.jit import jit
    from neptune.driver.pipeline import compile
    from neptune.errors import (
        ExpressionError,
        FusionError,
        InternalError,
        NeptuneError,
        NeptunePerformanceWarning,
        RecordError,
        ScheduleError,
        ShapeError,
        TargetError,
    )
    from neptune.fusion.schedule import Schedule
    from neptune.graph.fuse import fuse
    from neptune.ir.program import Program
    from neptune.kernel import Kernel, load
    from neptune.schedule.template import Template, template
    from neptune.search.superoptimize import superoptimize

__all__ = [
    "ExpressionError",
    "FusionError",
    "InternalError",
    "Kernel",
    "NeptuneError",
    "NeptunePerformanceWarning",
    "Program",
    "RecordError",
    "Schedule",
    "ScheduleError",
    "ShapeError",
    "TargetError",
    "Template",
    "autotune",
    "compile",
    "fuse",
    "jit",
    "load",
    "superoptimize",
    "template",
]

_HOME = {
    "Kernel": "neptune.kernel",
    "Program": "neptune.ir.program",
    "Schedule": "neptune.fusion.schedule",
    "Template": "neptune.schedule.template",
    "autotune": "neptune.autotune",
    "compile": "neptune.driver.pipeline",
    "fuse": "neptune.graph.fuse",
    "jit": "neptune.driver.jit",
    "load": "neptune.kernel",
    "superoptimize": "neptune.search.superoptimize",
    "template": "neptune.schedule.template",
}


def __getattr__(name: str) -> Any:
    """PEP 562: the first use of a public name imports it."""
    if name == "functional":
        return import_module("neptune.functional")
    if name not in __all__:
        raise AttributeError(f"module 'neptune' has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "neptune.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "functional"})
