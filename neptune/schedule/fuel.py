"""Log lines of primitives, and the limit on the number of fusions a schedule performs (NEPTUNE_FUSION_FUEL).

Every prefix of a schedule is a schedule: what is not fused yet keeps a kernel of its own. A fusion that is at
fault can so be found by bisection, without touching the template.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from neptune.errors import FusionError
from neptune.schedule.state import Decision

FUSIONS = frozenset(
    {
        "fuse_at",
        "compute_at",
        "reverse_compute_at",
        "rolling_update",
        "split_k",
        "write_directly",
        "privatize",
        "hoist_factor",
        "inline",
    }
)
"""Primitives that count: those that change what is computed where."""
SCHEDULE, FUSION = logging.getLogger("neptune.schedule"), logging.getLogger("neptune.fusion")


class OutOfFuel(FusionError):
    """A fusion that NEPTUNE_FUSION_FUEL does not allow any more."""


def spend(fuel: int | None, done: Iterable[str], primitive: str, call: object) -> OutOfFuel | None:
    """Return the exception to raise if `primitive` is a fusion and `done` names `fuel` fusions already."""
    if fuel is None or primitive not in FUSIONS:
        return None
    count = sum(p in FUSIONS for p in done)
    if count < fuel:
        return None
    return OutOfFuel(
        str(call), f"this is fusion {count + 1}, and NEPTUNE_FUSION_FUEL={fuel}", hint="unset NEPTUNE_FUSION_FUEL"
    )


def tell(primitive: str, call: object, decisions: Iterable[Decision]) -> None:
    """Log a call, and what was decided in it."""
    logger = FUSION if primitive in FUSIONS else SCHEDULE
    logger.info("%s", call)
    for d in decisions:
        logger.info("  %s: %s: %s", d.subject, d.verdict, d.reason)
        for line in d.details:
            logger.debug("    %s", line)
