"""The result of a compilation, from what its passes have left behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from neptune import logs
from neptune.codegen.partial_sums import in_partial_sums
from neptune.driver import cache
from neptune.driver.build import Build
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.runtime.launch import Target
from neptune.tune.outlook import Rival, of_family, of_ranking
from neptune.tune.params import resolve_params

if TYPE_CHECKING:
    from neptune.driver.passes import Work

LOG = logging.getLogger("neptune.compiler")
REPAIRS = frozenset({"rolling_update", "split_k", "privatize"})


def built(work: Work, asked: cache.Request, target: Target) -> Build:
    """The Build of a compilation that has run all of its passes."""
    params = params_of(work)
    return Build(
        loops=work.loops,
        scheduled=_before_repairs(work.definitions, work.schedule),
        # Tiles are summed in trees; loops, which run as they are on a CPU, are not.
        fused=in_partial_sums(work.fused) if target.kind == "llvm" else work.fused,
        tiles=work.tiles,
        header=work.header,
        target=target,
        template=work.used,
        params=params,
        trace=tuple(str(s) for s in work.schedule.trace),
        decisions=(*work.rejections, *work.forms, *work.choice, *work.schedule.decisions),
        checks=work.checks,
        bounds=asked.bounds,
        shapes=asked.shapes,
        trail=tuple(work.trail),
        family=work.family,
        own=work.own,
        rivals=_rivals(work, asked, params),
        at=asked.at,
        deterministic=asked.deterministic,
        deciding=work.wishes.deciding,
        assume=asked.assume,
        form=work.made,
        wider=work.wider,
        pinned=tuple(asked.params),
    )


def params_of(work: Work) -> dict[str, int]:
    """The values of all free tunables, num_warps and num_stages: given, or chosen."""
    choice = None if work.family is None else work.family.choices[work.own].params
    return resolve_params(work.tiles, work.wishes.params, work.wishes.typical, work.machine, choice)


def _rivals(work: Work, asked: cache.Request, params: Mapping[str, int]) -> tuple[Rival, ...]:
    """What else was compared when the template or its parameters were chosen."""
    if work.family is not None:
        return of_family(work.family, work.own)
    try:
        return of_ranking(work.used, work.tiles, params, asked.params, asked.shapes, work.machine)
    except Exception as error:
        logs.defect(LOG, f"the cost model on `{work.loops.name}`", error)
        return ()


def _before_repairs(program: Program, sch: Schedule) -> Program:
    """The program as tiled and fused by the template up to its first repair."""
    before = program
    for step in sch.trace:
        if step.primitive in REPAIRS:
            return before
        before = step.program or before
    return before
