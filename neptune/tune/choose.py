"""The template that schedules a program: a shipped one by name, the user's own function, or an automatic choice."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from neptune.errors import FusionError, NeptuneError, ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, stages
from neptune.schedule.fuel import OutOfFuel
from neptune.schedule.state import Decision
from neptune.schedule.template import Template
from neptune.tile.pipeline import Lowering, lowering
from neptune.tune.defaults import defaults, fits
from neptune.tune.facts import read_facts
from neptune.tune.machine import DEFAULT, Machine
from neptune.tune.params import space_of
from neptune.tune.parts import typical_parts
from neptune.tune.rank import ranked

PREDICTED = (
    "flash_attention",
    "flash_decoding",
    "softmax_row",
    "softmax_online",
    "matmul",
    "matmul_split",
    "stagewise",
)
"""Templates that are compared by the times that the cost model predicts, where all typical sizes are known."""
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
    """Return the templates that `template=` takes by name: from each module the function of the same name."""
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


@dataclass(frozen=True)
class Candidate:
    """A template that schedules a program, with the schedule, the tiles by which it was judged, and the reasons why
    earlier templates were not taken."""

    template: str
    schedule: Schedule
    lowered: Lowering
    decisions: tuple[Decision, ...]


def automatic(
    program: Program, fuel: int | None = None, typical: Mapping[str, int] | None = None
) -> tuple[str, Schedule, tuple[Decision, ...]]:
    """The first of `candidates`: (template, schedule, decisions)."""
    first = next(candidates(program, fuel, typical))
    return first.template, first.schedule, first.decisions


def candidates(
    program: Program,
    fuel: int | None = None,
    typical: Mapping[str, int] | None = None,
    machine: Machine = DEFAULT,
    given: Mapping[str, int] | None = None,
) -> Iterator[Candidate]:
    """Shipped templates that schedule a program, best first; each is made when it is asked for. `fuel` as in `apply`.

    Where all `typical` sizes are known, all are made, and come in the order of the times that the cost model predicts
    for the machine, with the values of parameters that are `given` where a template has them. Else:

    Those that make one kernel without temporaries come first, in order of preference, then the others: those whose
    tiles fit in registers, and of these those with the fewest temporaries and kernels. Where typical sizes say that
    the rows alone leave most of a GPU idle, the template that also splits what they fold stands in front.
    ScheduleError where no template applies.
    """
    passed: list[Decision] = []
    if typical and all(s.name in typical for s in program.scalars):
        predicted = _predicted(program, fuel, typical, machine, given or {}, passed)
        if predicted:
            yield from predicted
            return
    if typical and SPLITS in shipped_templates():
        split = _split(program, fuel, typical)
        if isinstance(split, Candidate):
            yield split
        else:
            passed.append(split)
    others: list[tuple[tuple[bool, int, int], Candidate]] = []
    applies = False
    for name in (n for n in AUTOMATIC if n in shipped_templates()):
        try:
            # The last one serves every program.
            made = lowered(name, program, fuel, strict=name != AUTOMATIC[-1])
            facts, spills = read_facts(made.lowered.tiles), not fits(made.lowered.tiles)
        except NeptuneError as error:
            passed.append(Decision("template", name, "does not apply", str(error)))
            continue
        applies = True
        kernels, temporaries = len(facts.kernels), len(facts.temporaries)
        cost = (spills, temporaries, kernels)
        if cost == (False, 0, 1):
            yield _chosen(made, "the first that makes one kernel", passed)
            continue
        through = f"{kernels} kernels through {', '.join(facts.temporaries) or 'no temporaries'}"
        wrong = ("too large tiles", "they do not fit in registers") if spills else ("not fused to one kernel", through)
        passed.append(Decision("template", name, *wrong))
        others.append((cost, made))
    if not applies:
        raise ScheduleError(
            f"choose a template for `{program.name}`",
            "\n".join(f"{d.subject}: {d.reason}" for d in passed) or "no template is shipped",
            legal=("template=<a function over a Schedule>", *shipped_templates()),
        )
    for (_, *fused), made in sorted(others, key=lambda x: x[0]):
        why = "the first that makes one kernel" if fused == [0, 1] else "the fewest temporaries"
        yield _chosen(made, why, passed)


def _predicted(
    program: Program,
    fuel: int | None,
    typical: Mapping[str, int],
    machine: Machine,
    given: Mapping[str, int],
    passed: list[Decision],
) -> list[Candidate]:
    """Templates that apply, the fastest by the cost model first; those that do not are noted in `passed`."""
    made: list[tuple[float, Candidate]] = []
    for name in (n for n in PREDICTED if n in shipped_templates()):
        try:
            one = lowered(name, program, fuel, strict=name != AUTOMATIC[-1])
        except NeptuneError as error:
            passed.append(Decision("template", name, "does not apply", str(error)))
            continue
        tiles = one.lowered.tiles
        # Values that are not legal are refused when the parameters of the chosen one are resolved.
        if best := ranked(tiles, typical, machine, space_of(tiles).ranked(given)):
            made.append((best[0].prediction.us, one))
    made.sort(key=lambda m: m[0])
    found: list[Candidate] = []
    for k, (us, one) in enumerate(made):
        others = ", ".join(f"{c.template} {t:.0f} µs" for t, c in made if c is not one)
        why = f"predicted {us:.1f} µs on {machine.name}" + (f"; others: {others}" if others else "")
        slower = [Decision("template", c.template, "not taken", f"predicted {t:.1f} µs") for t, c in made[k + 1 :]]
        found.append(_chosen(one, why, [*passed, *slower]))
    if not found:
        passed.clear()
    return found


def lowered(asked: Function | str, program: Program, fuel: int | None = None, *, strict: bool = True) -> Candidate:
    """A template with what it makes of a program; NeptuneError where it does not apply."""
    name, template = named(asked)
    sch = Schedule(program)
    spent = apply(template, sch, fuel)
    check_settled(sch.program)
    return Candidate(name, sch, lowering(sch.program, strict=strict), spent)


def _chosen(made: Candidate, why: str, passed: list[Decision]) -> Candidate:
    decisions = (*passed, Decision("template", made.template, "chosen", why), *made.decisions)
    for d in decisions:
        LOG.info("template %s: %s: %s", d.subject, d.verdict, d.reason)
    return replace(made, decisions=decisions)


def _split(program: Program, fuel: int | None, typical: Mapping[str, int]) -> Candidate | Decision:
    """The template that folds an axis in parts, where launches with typical sizes would choose more than one; else why
    it is not taken."""
    try:
        made = lowered(SPLITS, program, fuel)
    except NeptuneError as error:
        return Decision("template", SPLITS, "does not apply", str(error))
    tiles = made.lowered.tiles
    try:
        numbers = typical_parts(tiles, {**defaults(tiles), **typical})
    except KeyError as missing:
        return Decision("template", SPLITS, "not taken", f"no typical size was given for {missing}")
    except ZeroDivisionError:
        return Decision("template", SPLITS, "not taken", "a size is divided by a typical size of 0")
    text = ", ".join(f"{n}={v}" for n, v in numbers.items())
    if not numbers or max(numbers.values()) == 1:
        return Decision("template", SPLITS, "not taken", f"rows alone fill a GPU: {text}")
    chosen = Decision("template", SPLITS, "chosen", f"rows alone leave a GPU idle: {text}")
    return replace(made, decisions=(chosen, *made.decisions))


def check_settled(program: Program) -> None:
    """Raise FusionError where fused stages still owe repairs, with what to do about each."""
    if not program.owes:
        return
    lines = [f"`{o.stage}` reads `{o.on}`, which loop `{o.loop}` still changes" for o in program.owes]
    # Only reductions are repaired: a map is settled by what reads it.
    folds = {x.name for x in stages(program.body) if x.folds}
    hints = dict.fromkeys(f'sch.rolling_update("{o.stage}", {o.loop})' for o in program.owes if o.stage in folds)
    raise FusionError(
        f"compile `{program.name}`",
        "\n".join(["fused stages still owe repairs:", *(f"  {x}" for x in lines)]),
        hint=f"{', '.join(hints) or 'rolling_update'} in place of fuse_at, or fuse_at a loop outside of that one",
    )
