"""Measurements that correct the model's choice: the tuner, and what it keeps.

`neptune.autotune` is this package and the tuner in one, since users call it by that name:

    kernel = neptune.autotune(prefill_causal(), shapes=[{"batch": 1, "heads": 32, "s_q": 8192, "s_kv": 8192}])

`autotune.tuner` has its arguments.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neptune.base.boundary import public

if TYPE_CHECKING:
    from neptune.kernel import Kernel


class _Callable(ModuleType):
    """A package that can be called: importing a part of it binds its name in `neptune` to the package."""

    @public
    def __call__(self, *args: Any, **named: Any) -> Kernel:
        """`neptune.autotune.tuner.autotune`."""
        from neptune.autotune.tuner import autotune

        return autotune(*args, **named)


sys.modules[__name__].__class__ = _Callable
autotune = sys.modules[__name__]
