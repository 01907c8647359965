"""The forms that a caller may ask for, and the verdict on the one that a kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neptune.errors import TargetError, Unsupported
from neptune.forms import AUTO, FORMS, TRITON, Form, Made, Source, Wanted, forms_of
from neptune.kernel import Kernel
from neptune.runtime.artifact import AT, Artifact
from neptune.runtime.launching.launch import Target, gpu_target

DECIDES = "decides"
"""What is said of a form by which a template was chosen."""


# --- what is asked for -----------------------------------------------------------------------------


def form_for(form: str | None, target: Target, usual: str | None, promised: bool) -> str | None:
    """The form to make where a caller says `form`: "auto" by default where the GPU here has one beside tiles, else
    tiles alone. `usual` is what settings say instead. Where something is `promised` of bits a form that is taken for
    its speed is no default: it rounds differently."""
    here = target.kind == "cuda" and not promised and bool(forms_of(AUTO, str(gpu_target())))
    return checked_form(form or usual or (AUTO if here else None), target)


def checked_form(form: str | None, target: Target) -> str | None:
    """The form to make for a target: "auto" is none where the target has no other. TargetError for a form that is none,
    or that the target does not have."""
    legal = (TRITON, *FORMS, AUTO)
    if form is not None and form not in legal:
        raise TargetError(f"compile with form={form!r}", "there is no such form", legal=legal)
    wanted, here = forms_of(form), [f for f in forms_of(form) if str(target) in f.targets]
    if form != AUTO and len(here) < len(wanted):
        raise TargetError(
            f"compile for {target} with form={form!r}",
            wanted[0].reason,
            legal=wanted[0].targets,
            hint='form="triton", which runs everywhere',
        )
    return form if here else None


def in_two(params: Any, levers: Any, form: str | None, template: Any) -> tuple[Any, dict[str, Any]]:
    """The values of a request: those of tiles and launches, which are checked where there are some, and those of the
    `form` that is asked for. TargetError for a value that it does not have, for a parameter that no form has, and where
    no form was asked for that has any.

    A form's have its name in front, or none where the template declares no such one; one that is a plain function is
    not known to.

        {"BLOCK_M": 64, "consumers": 2, "asynchronous.stages": 3}   →   {"BLOCK_M": 64}, {"consumers": 2, "stages": 3}
    """
    if not isinstance(levers or {}, Mapping):
        raise TargetError(f"compile with levers={levers!r:.60}", "levers is a mapping of names to values")
    own = {n: v for n, v in params.items() if _is_of_form(n, template)} if isinstance(params, Mapping) else {}
    left = {n: v for n, v in params.items() if n not in own} if own else params
    every = {n: values for f in forms_of(form if form in FORMS else AUTO) for n, values in f.levers.items()}
    settled: dict[str, Any] = {}
    for name, value in (*own.items(), *(levers or {}).items()):
        request, plain = f"compile with {name}={value!r:.60}", str(name).rpartition(".")[2]
        if form not in (*FORMS, AUTO):
            forms = " and ".join(f"the {name} form" for name in FORMS)
            raise TargetError(request, f"this is a parameter of {forms}, and form is {form!r}", legal=tuple(FORMS))
        if plain not in every:
            raise TargetError(request, f"there is no parameter {plain!r} of a form", legal=tuple(every))
        if not any(type(value) is type(v) and value == v for v in every[plain]):
            raise TargetError(request, f"{plain} is not {value!r}", legal=tuple(map(str, every[plain])))
        if settled.setdefault(plain, value) != value:
            raise TargetError(request, f"it is {settled[plain]!r}, too", legal=(f"one value of {plain}",))
    return left, settled


def _is_of_form(name: Any, template: Any) -> bool:
    if not isinstance(name, str):
        return False
    form, dot, _ = name.partition(".")
    if dot:
        return form in FORMS
    declared = getattr(template, "tunables", None)
    known = template is None or isinstance(template, str) or (isinstance(declared, Mapping) and name not in declared)
    return known and any(name in f.levers for f in forms_of(AUTO))


def made_of(form: Form, source: Source, choice: Wanted) -> Made | Unsupported:
    """A form of a program, or why it has none: also where it does not have one of the parameters."""
    if other := [n for n in choice.levers if n not in form.levers]:
        return Unsupported(f"it has no parameter {other[0]!r}", legal=tuple(form.levers))
    return form.fits(source, choice) or form.lower(source, choice)


def refused(name: str, form: Form, misfit: Unsupported) -> TargetError:
    """The error for a program without the form that was asked for."""
    request, hint = f"compile `{name}` with form={form.name!r}", misfit.hint or 'form="triton", which runs'
    return TargetError(request, str(misfit), legal=misfit.legal, hint=hint)


# --- what was made ---------------------------------------------------------------------------------


def with_verdict(kernel: Kernel, *, forced: bool = False) -> Kernel:
    """The kernel with the verdict on its other form, if it has one: whole, where the target that it is for is here.

    One that is `forced` runs though tiles are faster.
    """
    artifact = kernel.executable.artifact
    form = artifact.form
    if form is None or form.name not in FORMS:
        return kernel
    record = FORMS[form.name]().validate(kernel.executable)
    if record == form.record and forced == form.forced:
        return kernel
    return kernel.keeping(replace(artifact, form=replace(form, record=record, forced=forced)))


def decided(artifact: Artifact) -> bool:
    """True where the cache tells whether a kernel's other form runs, or it has none."""
    form = artifact.form
    return form is None or form.name not in FORMS or FORMS[form.name]().decided(form)


def sharing(kernel: Kernel, choice: Mapping[str, Any]) -> Kernel:
    """Another variant of a kernel, whose values on tiles are other ones, with the same other form: at its sizes either
    may be the faster."""
    on_tiles = kernel.with_params(choice["params"])
    explanation = on_tiles.executable.artifact.unjudged(choice.get(AT)).explanation
    return on_tiles.keeping(replace(kernel.executable.artifact, explanation=explanation))


def in_vain(kernel: Kernel) -> bool:
    """True where a template was chosen for a form that the verdict refuses."""
    artifact = kernel.executable.artifact
    if artifact.form is None or not artifact.form.faults:
        return False
    return any(d["verdict"] == DECIDES for d in artifact.explanation["decisions"])
