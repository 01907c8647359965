"""A compilation, by the passes of `neptune.driver.passes`: what a request that the cache serves never imports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neptune.base import logs
from neptune.driver.build import REJECTED, Build, built
from neptune.driver.cache import Request
from neptune.driver.device import machine_for
from neptune.driver.passes import LOG, LOWERING, PREPARATION, Pass, attempts
from neptune.driver.stages import Attempt, Differs, Failed, Lowered, Prepared, Uncounted
from neptune.errors import FusionError, InternalError, NeptuneError
from neptune.report.dump import dump_failure
from neptune.report.snapshots import Snapshot
from neptune.runtime.launching.launch import Target
from neptune.schedule.state import Decision


def compiled(request: Request, target: Target) -> Build:
    """The Build of a request, made anew."""
    prepared = Prepared(request, target, machine_for(target), request.loops, request.counting)
    for form in prepared.others:
        form.ready()
    trail: list[Snapshot] = []
    try:
        return built(run_all(prepared, trail), trail)
    except BaseException as error:
        # An interrupted compilation is one that its user wants to look into.
        if request.settings.dump is not None and trail:
            dump_failure(request.settings.dump, request.loops.name, trail, error)
        raise


def run_all(prepared: Prepared, trail: list[Snapshot]) -> Lowered:
    """Run every pass. Where a check rejects what the automatic choice made, it goes on with the next template; where
    the form for which that was chosen is refused, it begins anew without forms."""
    prepared = _run(PREPARATION, prepared, trail)
    before, left = len(trail), attempts(prepared, trail)
    while (attempt := next(left, None)) is not None:
        lowered = _lowered(replace(attempt, prepared=prepared), trail)
        if isinstance(lowered, Lowered):
            return lowered
        del trail[before:]
        prepared = replace(prepared, rejections=(*prepared.rejections, _rejection(attempt, lowered)))
        if isinstance(lowered, Uncounted):
            prepared = replace(prepared, counting=False)
            left = attempts(prepared, trail)
    reasons = "\n".join(f"  {d.subject}: {d.reason}" for d in prepared.rejections)
    raise InternalError(f"what each template makes of `{prepared.loops.name}` was rejected by a check\n{reasons}")


def _lowered(attempt: Attempt, trail: list[Snapshot]) -> Lowered | Differs | Uncounted | Failed:
    """What becomes of a template's schedule, or why it is not taken; an error where no other one is to be tried."""
    try:
        lowered: Lowered | Differs | Uncounted = _run(LOWERING, attempt, trail)
        return lowered
    except NeptuneError:
        raise
    except Exception as error:
        if attempt.prepared.request.template is not None:
            raise
        logs.defect(LOG, f"template {attempt.scheduled.template} on `{attempt.prepared.loops.name}`", error)
        return Failed(f"{type(error).__name__}: {error}")


def _rejection(attempt: Attempt, why: Differs | Uncounted | Failed) -> Decision:
    """Take note of a template that is not taken; raise where no other one is to be tried."""
    prepared, name = attempt.prepared, attempt.scheduled.template
    if isinstance(why, Uncounted):
        return Decision("template", name, "not taken", f"the form for which it was chosen is refused: {why.why}")
    if isinstance(why, Failed):
        return Decision("template", name, REJECTED, why.why)
    LOG.info("template %s: %s: %s", name, REJECTED, why.text())
    if prepared.settings.strict:
        raise InternalError(why.text(f" of `{prepared.loops.name}` (template `{name}`)"))
    if prepared.request.template is not None:
        raise FusionError(
            f"compile `{prepared.loops.name}` with template `{name}`",
            why.text(),
            hint="another template, or none: then one is chosen",
        )
    return Decision("template", name, REJECTED, why.text())


def _run(passes: Sequence[Pass], stage: Any, trail: list[Snapshot]) -> Any:
    """Run passes, up to one that says why there is no next stage; what each has made is in the trail."""
    for step in passes:
        start = time.perf_counter()
        stage = step.run(stage)
        if isinstance(stage, Differs | Uncounted):
            return stage
        shown = step.shows(stage)
        if shown is not None:
            trail += shown if isinstance(shown, tuple) else (Snapshot(step.name, step.name, step.why, shown),)
        LOG.info("pass %s: %.1f ms", step.name, 1e3 * (time.perf_counter() - start))
    return stage
