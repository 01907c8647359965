"""What pickles of kernels named that were written before `neptune.kernel` stood at the root: they are refused.

This room knows no Kernel that it could make of them.
"""

from __future__ import annotations

from typing import NoReturn

from neptune.base.boundary import public
from neptune.errors import RecordError


@public
def _unpickled(packed: object) -> NoReturn:
    raise RecordError(
        "unpickle a kernel",
        "an earlier version of Neptune wrote it",
        hint="kernel.save(path) with that version, and neptune.load(path) with this one; or compile it again",
    )
