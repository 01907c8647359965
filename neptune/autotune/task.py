"""What is tuned: a program, what templates and forms make of it, and what a default kernel would take.

task_of(softmax()).default({"rows": 4096, "cols": 1024})  →  the Trial that the model puts first at these sizes
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from neptune import config
from neptune.autotune.reference import TEMPLATE
from neptune.autotune.space import Form, Sizes, Trial, forms_of, like, predicted
from neptune.base.choice import Choice, qualified
from neptune.driver.device import machine_for
from neptune.driver.fingerprint import fingerprint
from neptune.driver.forms import checked_form, in_two
from neptune.driver.imports import imported
from neptune.driver.pipeline import kernel_or_why, target_for
from neptune.errors import NeptuneError, NeptunePerformanceWarning, unless_refused
from neptune.forms import AUTO, TRITON
from neptune.forms import forms_of as other_forms
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.kernel.variants import Variant
from neptune.runtime.launching.launch import Target, gpu_target, parse_target
from neptune.tune.choose import AnyTemplate, shipped_templates
from neptune.tune.model.machine import Machine
from neptune.tune.params import checked_params, space_of
from neptune.tune.subject import tiles_of

NO_GPU = "there is no GPU here: the model chose, nothing was measured"


@dataclass(frozen=True)
class Task:
    """What is tuned: a program, the forms that templates make of it, and what a default kernel would take at some
    sizes (in another form than tiles, its tile sizes are among the levers). `given` are values that the caller fixed,
    `settled` those of other forms' parameters, `own` arguments of a call, `names` what records call the templates,
    `numbers` the numbers of parts that may be other ones than launches choose."""

    loops: Program
    target: Target
    forms: tuple[Form, ...]
    chosen: Callable[[Sizes], Choice]
    reference: Callable[[], Kernel]
    machine: Machine
    given: Mapping[str, int]
    names: Mapping[str, str]
    own: Sequence[Any] | None = None
    numbers: frozenset[str] = frozenset()
    settled: Mapping[str, Any] = field(default_factory=dict)

    def kernel(self, choice: Choice) -> Kernel | NeptuneError:
        """The kernel of a candidate, or why there is none: a check rejects its template, say."""
        form = next(f for f in self.forms if f.template == choice.template)
        if choice.form is not None:
            return form.others[choice.form](choice)
        kernel = form.kernel()
        return kernel if isinstance(kernel, NeptuneError) else kernel.with_params(choice.params)

    def default(self, sizes: Sizes, others: Sequence[Trial] = ()) -> Trial:
        """What the model takes at some sizes; one in another form than tiles is among these."""
        own = self.chosen(sizes)
        if own.form is not None and (taken := like(self.forms, others, own)) is not None:
            return taken
        form = next(f for f in self.forms if f.template == own.template)
        (trial,) = predicted(form, [own.params], sizes, self.machine)
        return trial

    def unmeasurable(self, here: bool = True) -> str:
        """Why nothing can be measured, `here` or on other machines; "" where it can."""
        if not here:
            return "" if self.target.on_gpu else f"target {self.target} runs on no GPU: nothing was measured"
        present = gpu_target()
        if present is None or not self.target.on_gpu:
            return NO_GPU if present is None else f"target {self.target} runs on no GPU: nothing was measured"
        if self.target.kind == present.kind and self.target.arch in ("", present.arch):
            return ""
        return f"the GPU here is {present}, not {self.target}: nothing was measured"


def task_of(
    expr: Any,
    template: AnyTemplate = None,
    target: str | None = None,
    params: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    form: str | None = None,
) -> Task:
    """The task of an expression; arguments as in `neptune.compile`."""
    loops, where = imported(expr, None, None), target_for(target, config.read())
    on_tiles, settled = in_two(params, None, form, template)
    given = checked_params(loops, on_tiles)
    also = other_forms(checked_form(form, where), str(where))
    every = {**given, **{n: v for f in also for n, v in qualified(f.name, settled).items()}}

    compiled = partial(_compiled, loops, target=str(where), bounds=bounds)

    def other(t: AnyTemplate, choice: Choice) -> Kernel | NeptuneError:
        return compiled(t, params=choice.values, form=choice.form)

    @cache
    def default(sizes: tuple[tuple[str, int], ...]) -> Choice:
        kernel = compiled(template, params=every, shapes=dict(sizes), form=AUTO if also else TRITON)
        return choice_of_variant(unless_refused(kernel).chosen(**dict(sizes)), given)

    forms = forms_of(loops, template, compiled, {f.name: other for f in also})
    return Task(
        loops,
        where,
        forms,
        lambda sizes: default(tuple(sizes.items())),
        lambda: unless_refused(compiled(TEMPLATE)),
        machine_for(where),
        given,
        _recorded(forms, template),
        # With bounds all launches have the number of the largest sizes.
        numbers=frozenset() if bounds else numbers_of(forms) - given.keys(),
        settled=settled,
    )


def _compiled(loops: Program, template: AnyTemplate, **options: Any) -> Kernel | NeptuneError:
    """The kernel of a template, without records and on tiles unless `options` say so, or why there is none."""
    with warnings.catch_warnings():
        # The kernel that comes of it says what makes it slow.
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        return kernel_or_why(loops, template, **{"form": TRITON, "records": False, **options})


def choice_of_variant(variant: Variant, given: Mapping[str, int]) -> Choice:
    """What a variant is made with, with the values that are `given`: in its other form, with the levers and tiles of
    that, where it has one that is not known not to run."""
    own, form = Choice(variant.template, {**variant.params, **given}), variant.kernel.executable.artifact.form
    return own if form is None or form.faults else own.formed(form.name, form.levers)


def numbers_of(forms: Sequence[Form]) -> frozenset[str]:
    """The numbers of parts that launches of any form choose."""
    return frozenset(n for f in forms for n in space_of(f.tiles).parts)


def _recorded(forms: Sequence[Form], template: AnyTemplate) -> Mapping[str, str]:
    """What records call the templates: a shipped one by its name, the caller's own with a digest of what it does."""
    if template is None or isinstance(template, str):
        return {f.template: f.template for f in forms}
    digest = fingerprint(template)
    return {} if digest is None else {f.template: f"{f.template}-{digest[:12]}" for f in forms}


def task_of_kernel(kernel: Kernel, args: Sequence[Any], sizes: Sizes) -> Task:
    """The task of a kernel at the sizes of a call: every shipped template, where its own is one and nothing was
    promised of bits; else values of its own. Where it has another form, candidates in such forms, too."""
    loops, where = kernel.executable.loops, parse_target(kernel.target)
    bounds = kernel.executable.artifact.bounds
    own = kernel.chosen(**sizes)
    if own.template in shipped_templates() and not kernel.executable.artifact.explanation.get("promises"):
        has = any(k.executable.artifact.form is not None for k in (kernel, own.kernel))
        task = task_of(loops, target=str(where), bounds=bounds, form=AUTO if has else TRITON)
        if any(f.template == own.template for f in task.forms):
            return replace(task, chosen=lambda _: choice_of_variant(own, {}), own=args)
    artifact = own.kernel.executable.artifact
    # In another number of parts there are other bits.
    free = not bounds and not artifact.explanation.get("promises")
    form = Form(own.template, tiles_of(artifact), lambda: own.kernel)
    shipped = own.template in shipped_templates()
    names = {own.template: own.template} if shipped else {}
    reference = task_of(loops, TEMPLATE, target=str(where), bounds=bounds)
    return replace(
        reference,
        forms=(form,),
        chosen=lambda _: Choice(own.template, own.params),
        reference=lambda: unless_refused(reference.forms[0].kernel()),
        names=names,
        own=args,
        numbers=numbers_of((form,)) - artifact.params.keys() if free else frozenset(),
    )
