"""Spills, told at the first launch: how many registers a kernel takes is known once it is compiled for the GPU here.

The model's estimate keeps what spills out of a family (`neptune.tune.occupancy`); where it is wrong, the user is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from neptune.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning

WORD = 4
MOST = 1024
"""Bytes a thread: a few words around a loop cost nothing, a tile that goes to memory and back does."""


def tell(compiled: Iterable[Any]) -> None:
    """A NeptunePerformanceWarning for each binary that Triton has loaded whose threads spill more than MOST bytes."""
    for c in compiled:
        spilled = WORD * int(getattr(c, "n_spills", 0) or 0)
        if spilled > MOST:
            said = (
                f"kernel `{c.name}` spills {spilled} bytes a thread, with {c.n_regs} registers: its tiles do not fit; "
                "try: smaller tiles or more warps by params=, or kernel.tune, which measures others"
            )
            warnings.warn(NeptunePerformanceWarning(said), stacklevel=frames_of_package() + 1)
