"""The template that schedules a program: a shipped one by name, the user's own function, or an automatic choice."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from math import isfinite
from typing import Any, TypeAlias

from neptune.base import logs
from neptune.errors import FusionError, NeptuneError, ScheduleError, or_refusal, refused_by
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, stages
from neptune.schedule.state import Decision
from neptune.schedule.template import Rewriting, Template
from neptune.schedule.trace import OutOfFuel
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import Lowering, lowering
from neptune.tune.defaults import fits
from neptune.tune.family import Family, Wishes, choose
from neptune.tune.gains import OtherForm
from neptune.tune.invariance import varying
from neptune.tune.model.facts import read_facts
from neptune.tune.model.machine import DEFAULT, Machine
from neptune.tune.params import space_of
from neptune.tune.points import points

AUTOMATIC = (
    "flash_attention",
    "flash_decoding",
    "packed_attention",
    "packed_decoding",
    "softmax_online",
    "softmax_row",
    "matmul",
    "matmul_split",
    "norm_linear",
    "norm_linear_rolling",
    "stagewise",
)
"""Templates that an unspecified one is chosen from. The last serves every program."""
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
    """A template and its name, from either; ScheduleError for anything else."""
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
    request, legal = f"template `{name}`", ("def template(sch): …", "@neptune.template(BLOCK_M=[64, 128])")
    if any(is_kind(template) for is_kind in (inspect.isgeneratorfunction, inspect.iscoroutinefunction)):
        raise ScheduleError(request, "it is a generator or a coroutine, of which a call does nothing", legal=legal)
    try:
        inspect.signature(template).bind(None)
    except TypeError as error:
        raise ScheduleError(request, f"it cannot be called with a Schedule: {error}", legal=legal) from None
    except ValueError:  # a function written in C
        return


def brought(template: Template | Function, program: Program) -> Program:
    """The definitions that a template schedules: those of the program, unless it brings its own."""
    if not isinstance(template, Rewriting) or template.rewritten is None:
        return program
    if (template.rewritten.inputs, template.rewritten.outputs) != (program.inputs, program.outputs):
        request, wrong = f"template `{template.name}`", f"it computes another program than `{program.name}`"
        hint = "a graph with the inputs and outputs of this program"
        raise ScheduleError(request, wrong, hint=hint, kind="rewriting")
    return template.rewritten


def apply(template: Template | Function, sch: Schedule, fuel: int | None) -> tuple[Decision, ...]:
    """Run a template, at most up to its fusion number `fuel`; what was not done is a Decision."""
    sch.fuel = fuel
    refusal = refused_by(template, sch)
    if refusal is not None and not isinstance(refusal, OutOfFuel):
        raise refusal
    if sch.spent is None:
        return ()
    return (Decision("fuel", sch.spent.asked, "not performed, nor anything behind it", sch.spent.wrong),)


@dataclass(frozen=True)
class Scheduled:
    """A template that schedules a program, with the schedule, the tiles by which it was judged (None where nobody has),
    and the reasons why earlier templates were not taken. `family` are the choices for all sizes, the first of which
    this one is."""

    template: str
    schedule: Schedule
    lowered: Lowering | None
    decisions: tuple[Decision, ...]
    family: Family | None = None

    @property
    def tiles(self) -> TileProgram:
        """Those by which it was judged."""
        assert self.lowered is not None
        return self.lowered.tiles

    @property
    def by_form(self) -> bool:
        """True where another template is faster on tiles, and this one in another form."""
        known = None if self.family is None else self.family.counted
        return known is not None and known.decides(self.template)


def automatic(
    program: Program, fuel: int | None = None, typical: Mapping[str, int] | None = None
) -> tuple[str, Schedule, tuple[Decision, ...]]:
    """The first of `candidates`: (template, schedule, decisions)."""
    first = next(candidates(program, fuel, Wishes(typical or {})))
    return first.template, first.schedule, first.decisions


def candidates(
    program: Program,
    fuel: int | None = None,
    wishes: Wishes | None = None,
    machine: Machine = DEFAULT,
    form: OtherForm | None = None,
) -> Iterator[Scheduled]:
    """Shipped templates that schedule a program, best first: each is what the family of those that are left takes at
    the typical sizes. `fuel` as in `apply`; it does not change which template is taken, so that runs with more and less
    of it are prefixes of one schedule.

    Families are chosen by the times that the cost model predicts for the machine (`neptune.tune.family`), and of which
    another `form` tells that it is faster. Where it
    predicts none, those come first whose tiles fit in registers, and of these those with the fewest temporaries and
    kernels. ScheduleError where no template applies.
    """
    wishes = wishes or Wishes()
    if fuel is None:
        yield from _ranked(program, None, AUTOMATIC, wishes, machine, form)
        return
    for full in _ranked(program, None, AUTOMATIC, wishes, machine, form):
        yield from islice(_ranked(program, fuel, (full.template,), wishes, machine), 1)


def _ranked(
    program: Program,
    fuel: int | None,
    names: Sequence[str],
    wishes: Wishes,
    machine: Machine,
    form: OtherForm | None = None,
) -> Iterator[Scheduled]:
    """`candidates` among the templates of these names. ScheduleError where none applies without a limit of `fuel`."""
    known = shipped_templates()
    applying, refused = _applying(program, fuel, tuple((n, known[n]) for n in names if n in known))
    passed = list(refused)
    if not applying and fuel is None:
        wrong = "\n".join(f"{d.subject}: {d.reason}" for d in passed) or "no template is shipped"
        legal = ("template=<a function over a Schedule>", *shipped_templates())
        raise ScheduleError(f"choose a template for `{program.name}`", wrong, legal=legal, kind="no_template")
    scheduled = _following(_taking(applying, wishes.params, passed), wishes.deciding, passed)
    predicted = dict(scheduled)
    while predicted:
        best = _best(program, predicted, wishes, machine, form)
        if best is None:
            # Where the model fails on one of them, the others are still compared.
            able = {
                n: c for n, c in predicted.items() if len(predicted) > 1 and _best(program, {n: c}, wishes, machine)
            }
            if not able or len(able) == len(predicted):
                break
            predicted = able
            continue
        family, why = best
        name = family.choices[0].template
        del predicted[name]
        yield replace(_chosen(scheduled.pop(name), why, passed), family=family)
    for one in sorted(scheduled.values(), key=_structure):
        yield _chosen(one, "the fewest temporaries and kernels", passed)


def _best(
    program: Program,
    scheduled: Mapping[str, Scheduled],
    wishes: Wishes,
    machine: Machine,
    form: OtherForm | None = None,
) -> tuple[Family, str] | None:
    """The family of some candidates, and why its first choice is; None where nothing is predicted."""
    try:
        sizes = points(program, wishes.typical, wishes.bounds)
        family = choose({n: s.tiles for n, s in scheduled.items()}, sizes, machine, wishes, form)
        if family is None:
            return None
        return family, _why(family, sizes[0], machine)
    except NeptuneError:
        raise
    except Exception as error:
        logs.defect(LOG, f"the cost model on `{program.name}` by {', '.join(scheduled)}", error)
        return None


@lru_cache(maxsize=8)
def _applying(
    program: Program, fuel: int | None, templates: tuple[tuple[str, Function], ...]
) -> tuple[Mapping[str, Scheduled], tuple[Decision, ...]]:
    """The templates that apply, by name, and why others do not: the same for all targets, sizes and parameters."""
    applying: dict[str, Scheduled] = {}
    passed: list[Decision] = []
    for name, template in templates:
        try:
            result = lowered_or_why(template, program, fuel, strict=name != AUTOMATIC[-1])
        except Exception as error:
            logs.defect(LOG, f"template {name} on `{program.name}`", error)
            passed.append(Decision("template", name, "fails", f"{type(error).__name__}: {error}"))
            continue
        if isinstance(result, NeptuneError):
            passed.append(Decision("template", name, "does not apply", result.text))
        else:
            applying[name] = replace(result, template=name)
    return applying, tuple(passed)


def _taking(every: Mapping[str, Scheduled], params: Mapping[str, int], passed: list[Decision]) -> dict[str, Scheduled]:
    """The candidates that take these parameters; all of them where none does, so that one says what is legal."""
    able = {n: c for n, c in every.items() if not params or space_of(c.tiles).takes(params)}
    if able:
        others = (n for n in every if n not in able)
        passed += [Decision("template", n, "not taken", "it does not take these parameters") for n in others]
    return able or dict(every)


def _following(
    every: Mapping[str, Scheduled], deciding: frozenset[str] | None, passed: list[Decision]
) -> dict[str, Scheduled]:
    """The candidates in which nothing follows from other sizes; all of them where none does, so that one says why."""
    if deciding is None:
        return dict(every)
    why = {n: ", ".join(varying(c.tiles, deciding)) for n, c in every.items()}
    able = {n: c for n, c in every.items() if not why[n]}
    if able:
        passed += [Decision("template", n, "not taken", why[n]) for n in every if why[n]]
    return able or dict(every)


def _structure(one: Scheduled) -> tuple[bool, int, int]:
    try:
        facts = read_facts(one.tiles)
        return not fits(one.tiles), len(facts.temporaries), len(facts.kernels)
    except Exception as error:
        logs.defect(LOG, f"what the tiles of template {one.template} take", error)
        return True, sys.maxsize, 0


def _why(family: Family, sizes: Mapping[str, int], machine: Machine) -> str:
    """The prediction, and those of other templates."""
    best = family.choices[0].template
    others = sorted((us, n) for n, us in family.others.items() if n != best and isfinite(us))
    where = f" at {', '.join(f'{n}={v}' for n, v in sizes.items())}" if sizes else ""
    text = f"predicted {family.us():.1f} µs{_of_form(family, best)} on {machine.name}{where}"
    if family.samples:
        text += f", corrected by {sum(len(s.us) for s in family.samples)} records"
    rivals = ", ".join(f"{n} {us:.0f} µs{_of_form(family, n)}" for us, n in others)
    return text + (f"; others: {rivals}" if others else "")


def _of_form(family: Family, template: str) -> str:
    """What a time is of, where it is not that on tiles."""
    known = family.counted
    if known is None or template not in known.us:
        return ""
    return f" in the {known.name} form ({known.on_tiles[template]:.0f} µs on tiles)"


def lowered(asked: Function | str, program: Program, fuel: int | None = None, *, strict: bool = True) -> Scheduled:
    """A template with what it makes of a program; NeptuneError where it does not apply."""
    name, template = named(asked)
    sch = Schedule(brought(template, program))
    spent = apply(template, sch, fuel)
    check_settled(sch.program)
    return Scheduled(name, sch, lowering(sch.program, strict=strict), spent)


def lowered_or_why(
    template: Function | str, program: Program, fuel: int | None = None, *, strict: bool = True
) -> Scheduled | NeptuneError:
    """What `lowered` gives, or why the template does not apply: a template is code of anybody's, which raises."""
    return or_refusal(lowered, template, program, fuel, strict=strict)


def _chosen(scheduled: Scheduled, why: str, passed: list[Decision]) -> Scheduled:
    decisions = (*passed, Decision("template", scheduled.template, "chosen", why), *scheduled.decisions)
    for d in decisions:
        LOG.info("template %s: %s: %s", d.subject, d.verdict, d.reason)
    return replace(scheduled, decisions=decisions)


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
