"""Which template schedules a program: a shipped one by name, the user's own function, or an automatic choice."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

from neptune.errors import FusionError, NeptuneError, ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, Update, stages
from neptune.runtime.chosen import Chosen
from neptune.runtime.facts import read_facts
from neptune.runtime.modules import parameters
from neptune.schedule.fuel import OutOfFuel
from neptune.schedule.state import Decision
from neptune.schedule.template import Template
from neptune.tile.fit import fits, params
from neptune.tile.pipeline import lower

AUTOMATIC = ("flash_attention", "softmax_online", "softmax_row", "stagewise")
"""Templates that an unspecified one is chosen from, in order of preference."""
SPLITS = "flash_decoding"
"""The template for few rows, preferred where typical sizes ask for it."""
Function: TypeAlias = Callable[[Any], None]
"""A Template, or a plain function over a Schedule."""
AnyTemplate: TypeAlias = "Template | Function | str | None"
LOG = logging.getLogger("neptune.compiler")


@cache
def shipped_templates() -> Mapping[str, Function]:
    """What `template=` takes by name: of each module of `neptune.templates`, the function of the same name."""
    from neptune import templates

    names = sorted(m.name for m in pkgutil.iter_modules(templates.__path__))
    modules = ((n, importlib.import_module(f"neptune.templates.{n}")) for n in names)
    # The other modules are helpers that templates share.
    return {n: getattr(module, n) for n, module in modules if callable(getattr(module, n, None))}


def shipped_template(name: str) -> Function:
    """A shipped template by name; ScheduleError lists them all."""
    known = shipped_templates()
    if name not in known:
        raise ScheduleError(f"template {name!r}", "no template of that name is shipped", legal=tuple(known))
    return known[name]


def named(template: Function | str) -> tuple[str, Function]:
    if isinstance(template, str):
        return template, shipped_template(template)
    if not callable(template) or inspect.isclass(template):
        raise ScheduleError(
            f"template {template!r}",
            f"this is {type(template).__name__}, not a template",
            legal=("a neptune.Template", "a function over a Schedule", *shipped_templates()),
        )
    if isinstance(template, Template):
        return template.name, template
    name = getattr(template, "__name__", type(template).__name__)
    _check_signature(name, template)
    return name, template


def _check_signature(name: str, template: Function) -> None:
    """Raise ScheduleError for what cannot be called with a Schedule alone, and for what would not run when called."""
    asked, legal = f"template `{name}`", ("def template(sch): …", "@neptune.template(BLOCK_M=[64, 128])")
    if any(is_kind(template) for is_kind in (inspect.isgeneratorfunction, inspect.iscoroutinefunction)):
        raise ScheduleError(asked, "it is a generator or a coroutine, of which a call does nothing", legal=legal)
    try:
        inspect.signature(template).bind(None)
    except TypeError as error:
        raise ScheduleError(asked, f"it cannot be called with a Schedule: {error}", legal=legal) from None
    except ValueError:  # a function written in C
        return


def apply(template: Template | Function, sch: Schedule, fuel: int | None) -> tuple[Decision, ...]:
    """Run a template, at most up to its fusion number `fuel`; what was not done is a Decision."""
    sch.fuel = fuel
    with suppress(OutOfFuel):
        template(sch)
    if sch.spent is None:
        return ()
    return (Decision("fuel", sch.spent.asked, "not performed, nor anything behind it", sch.spent.wrong),)


def automatic(
    program: Program, fuel: int | None = None, typical: Mapping[str, int] | None = None
) -> tuple[str, Schedule, tuple[Decision, ...]]:
    """The first shipped template that makes one kernel without temporaries, else the one that makes the fewest; of
    those whose tiles fit in registers, if there are any. With the reasons why the others were not taken; `fuel` as in
    `apply`.

    Where typical sizes say that the rows alone leave most of a GPU idle, the one that also splits what they fold.
    """
    passed: list[Decision] = []
    if typical and SPLITS in shipped_templates():
        sch, decision, spent_there = _split(program, fuel, typical)
        if sch is not None:
            return SPLITS, sch, (decision, *spent_there)
        passed.append(decision)
    spent: dict[str, tuple[Decision, ...]] = {}
    found: list[tuple[bool, int, int, int, str, Schedule]] = []
    for rank, name in enumerate(n for n in AUTOMATIC if n in shipped_templates()):
        sch = Schedule(program)
        try:
            spent[name] = apply(shipped_template(name), sch, fuel)
            check_settled(sch.program)
            # The last one serves every program.
            tiles = lower(sch.program, relaxed=name == AUTOMATIC[-1])
            facts, spills = read_facts(tiles), not fits(tiles)
        except NeptuneError as error:
            passed.append(Decision("template", name, "does not apply", str(error)))
            continue
        kernels, temporaries = len(facts.kernels), len(facts.temporaries)
        found.append((spills, temporaries, kernels, rank, name, sch))
        if (spills, temporaries, kernels) == (False, 0, 1):
            break
        through = f"{kernels} kernels through {', '.join(facts.temporaries) or 'no temporaries'}"
        wrong = ("too large tiles", "they do not fit in registers") if spills else ("not fused to one kernel", through)
        passed.append(Decision("template", name, *wrong))
    if not found:
        raise ScheduleError(
            f"choose a template for `{program.name}`",
            "\n".join(f"{d.subject}: {d.reason}" for d in passed) or "no template is shipped",
            legal=("template=<a function over a Schedule>", *shipped_templates()),
        )
    _, temporaries, kernels, _, name, sch = min(found, key=lambda x: x[:4])
    why = "the first that makes one kernel" if (temporaries, kernels) == (0, 1) else "the fewest temporaries"
    decisions = (*passed, Decision("template", name, "chosen", why), *spent[name])
    for d in decisions:
        LOG.info("template %s: %s: %s", d.subject, d.verdict, d.reason)
    return name, sch, decisions


def _split(
    program: Program, fuel: int | None, typical: Mapping[str, int]
) -> tuple[Schedule | None, Decision, tuple[Decision, ...]]:
    """The template that folds an axis in parts, where launches with typical sizes would choose more than one."""
    sch = Schedule(program)
    try:
        spent = apply(shipped_template(SPLITS), sch, fuel)
        check_settled(sch.program)
        tiles = lower(sch.program)
    except NeptuneError as error:
        return None, Decision("template", SPLITS, "does not apply", str(error)), ()
    sizes = {**params(tiles), **typical}
    try:
        chosen = Chosen(parameters(tiles), [k.grid for k in read_facts(tiles).kernels], {}, {}).typical(sizes)
    except KeyError as missing:
        return None, Decision("template", SPLITS, "not taken", f"no typical size was given for {missing}"), ()
    text = ", ".join(f"{n}={v}" for n, v in chosen.items())
    if not chosen or max(chosen.values()) == 1:
        return None, Decision("template", SPLITS, "not taken", f"rows alone fill a GPU: {text}"), ()
    return sch, Decision("template", SPLITS, "chosen", f"rows alone leave a GPU idle: {text}"), spent


def check_settled(program: Program) -> None:
    """Raise FusionError where fused stages still owe repairs, with what to do about each."""
    if not program.owes:
        return
    lines = [f"`{o.stage}` reads `{o.on}`, which loop `{o.loop}` still changes" for o in program.owes]
    # Only reductions are repaired: a map is settled by what reads it.
    folds = {x.name for x in stages(program.body) if isinstance(x.action, Update)}
    hints = dict.fromkeys(f'sch.rolling_update("{o.stage}", {o.loop})' for o in program.owes if o.stage in folds)
    raise FusionError(
        f"compile `{program.name}`",
        "\n".join(["fused stages still owe repairs:", *(f"  {x}" for x in lines)]),
        hint=f"{', '.join(hints) or 'rolling_update'} in place of fuse_at, or fuse_at a loop outside of that one",
    )
