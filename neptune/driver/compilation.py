"""A compilation, by the passes of `neptune.driver.passes`: what a request that the cache serves never imports."""

from __future__ import annotations

import time

from neptune import logs
from neptune.driver.build import REJECTED, Build
from neptune.driver.cache import Request
from neptune.driver.counted import Uncounted
from neptune.driver.device import machine_for
from neptune.driver.dump import dump_failure
from neptune.driver.outcome import built
from neptune.driver.passes import LOG, PIPELINE, Pass, Rejection, Work, choose_template
from neptune.errors import FusionError, InternalError, NeptuneError
from neptune.forms import forms_of
from neptune.runtime.launch import Target
from neptune.schedule.state import Decision
from neptune.tune.choose import Wishes
from neptune.tune.invariance import reduced_sizes


def compiled(asked: Request, target: Target) -> Build:
    """The Build of a request, made anew."""
    settings = asked.settings
    deciding = reduced_sizes(asked.loops) if asked.batch_invariant else None
    wishes = Wishes(asked.shapes, asked.bounds, asked.params, deciding, asked.samples, asked.failed)
    work = Work(asked.loops, asked.template, settings, wishes, machine_for(target), form=asked.form)
    work.others = forms_of(asked.form, str(target))
    work.levers, work.at, work.formed, work.counting = asked.levers, asked.at, asked.formed, asked.counting
    for form in work.others:
        form.ready()
    try:
        run_all(work)
        return built(work, asked, target)
    except BaseException as error:
        # An interrupted compilation is one that its user wants to look into.
        if settings.dump is not None and work.trail:
            dump_failure(settings.dump, work.loops.name, work.trail, error)
        raise


def run_all(work: Work) -> None:
    """Run every pass. Where a check rejects what the automatic choice made, the passes from `schedule` on are run again
    with the next template."""
    first = next(k for k, step in enumerate(PIPELINE) if step.run is choose_template)
    for step in PIPELINE[:first]:
        _run(step, work)
    before = len(work.trail)
    while True:
        try:
            for step in PIPELINE[first:]:
                _run(step, work)
            return
        except Rejection as rejection:
            _reject(work, rejection)
        except Uncounted as refused:
            why = f"the form for which it was chosen is refused: {refused}"
            work.rejections += (Decision("template", work.used, "not taken", why),)
            work.candidates, work.counting = None, False
        except NeptuneError:
            raise
        except Exception as error:
            _fails(work, error)
        del work.trail[before:]
        work.checks.clear()
        # Sizes that serve one template hold values of its tunables, which mean something else in another.
        work.shared.clear()


def _reject(work: Work, rejection: Rejection) -> None:
    """Take note of a template that a check rejected; raise where no other one is to be tried."""
    LOG.info("template %s: %s: %s", work.used, REJECTED, rejection.text(""))
    if work.settings.strict:
        raise InternalError(rejection.text(f" of `{work.loops.name}` (template `{work.used}`)")) from None
    if work.template is not None:
        raise FusionError(
            f"compile `{work.loops.name}` with template `{work.used}`",
            rejection.text(""),
            hint="another template, or none: then one is chosen",
        ) from None
    work.rejections += (Decision("template", work.used, REJECTED, rejection.text("")),)


def _fails(work: Work, error: Exception) -> None:
    """Take note of a template on which a pass or a check fails; raise where no other one is to be tried."""
    if work.template is not None or not work.used:
        raise error
    logs.defect(LOG, f"template {work.used} on `{work.loops.name}`", error)
    work.rejections += (Decision("template", work.used, REJECTED, f"{type(error).__name__}: {error}"),)


def _run(step: Pass, work: Work) -> None:
    start = time.perf_counter()
    made = step.run(work)
    if made is not None:
        work.saw(step.name, step.why, made)
    LOG.info("pass %s: %.1f ms", step.name, 1e3 * (time.perf_counter() - start))
