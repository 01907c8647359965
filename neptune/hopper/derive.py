"""From a TileProgram to its asynchronous form: each step of `neptune.hopper`, in order.

bodies    producer and consumers, on tiles; checked against the expression
forms     consumers, stages and tiles that fit, the best first
roles     rings, turns, waits; verified
generate  the text
check     the text's protocol, for all interleavings

Of a program of several kernels those that have the form take it, each with levers of its own; the others stay on tiles,
in the same module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neptune.errors import InternalError, Unsupported, of_kernel
from neptune.forms import Source, Wanted
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.bodies.write import bodies_of, role_bodies
from neptune.hopper.choice.memory import counts_of
from neptune.hopper.choice.wanted import ordered
from neptune.hopper.choice.wanted import times as times_of
from neptune.hopper.gluon.module import GluonText, generate
from neptune.hopper.hardware import TARGET
from neptune.hopper.ir import AsyncKernel, Finish, Issue, Levers, walk_async
from neptune.hopper.protocol.check import Report, check, together
from neptune.hopper.protocol.trials import trials
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, substitute, variables, walk
from neptune.runtime.hopper.data import Asynchronous, Roles
from neptune.runtime.parts import Parts
from neptune.tile.ir import LoadTile, TileKernel, TileProgram, stmt_exprs, walk_stmts
from neptune.tile.passes.short import shortened, taken_in
from neptune.tile.passes.util import free_name, names_in
from neptune.tile.scalars import in_kernel, var
from neptune.tune.defaults import defaults
from neptune.tune.parts import with_grids

TRIED = 4
"""Forms of a kernel that are compiled before none is found to do."""
LOG = logging.getLogger("neptune.codegen")
FREE = Wanted()
Differs = Callable[[TileProgram], "str | None"]


@dataclass(frozen=True)
class Part:
    """One kernel in this form: what its roles do."""

    bodies: RoleBodies
    kernel: AsyncKernel

    @property
    def levers(self) -> dict[str, int | str]:
        """The levers that were chosen, as plain numbers and words."""
        levers = self.kernel.levers
        return {**levers.tiles, "consumers": levers.consumers, "stages": levers.stages, "persistent": levers.persistent}

    def said(self) -> dict[str, Any]:
        """The facts that explain() shows of it."""
        needs = counts_of(self.bodies).needs(self.kernel.levers)
        most, least = self.kernel.levers.registers
        return {
            "name": self.kernel.name,
            "levers": self.levers,
            "tiles": [{"name": r.name, "stages": r.stages, "own": r.own} for r in self.kernel.rings],
            "late": list(self.bodies.late),
            "carried": _carried(self.kernel),
            "band": self.kernel.levers.band,
            "kept": list(self.bodies.kept),
            "short": taken_in(self.bodies.kernel),
            "shared_bytes": needs.shared,
            "registers": {"consumer": most, "producer": least, "estimate": round(needs.registers)},
        }


@dataclass(frozen=True)
class Draft:
    """One form of a program that is not checked yet: its kernels of this form, its text, and how launches choose
    numbers of parts (`chosen`)."""

    parts: tuple[Part, ...]
    text: GluonText
    chosen: tuple[Parts, ...] = ()

    @property
    def kernel(self) -> AsyncKernel:
        """The first kernel of this form."""
        return self.parts[0].kernel

    @property
    def levers(self) -> dict[str, int | str]:
        """Those of the first kernel."""
        return self.parts[0].levers

    def plain(self) -> Asynchronous:
        """The data that a kernel keeps of it; the verdict is for `neptune.hopper.validate.verdicts`."""
        kinds = zip(self.text.kernels, self.parts, strict=True)
        first, *others = (Roles(k, p.levers, p.kernel.levers.registers) for k, p in kinds)
        return Asynchronous(
            self.text.text,
            self.text.aligned,
            first.kernel,
            first.levers,
            TARGET,
            spans=self.text.spans,
            others=tuple(others),
            takes=self.text.takes,
            parts=self.chosen,
        )


@dataclass(frozen=True, kw_only=True)
class Derived(Draft):
    """A form with what the check of its protocol came to. `left` says of the other kernels why they stay on tiles,
    `times` what is predicted of its own in both forms."""

    protocol: Report
    left: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        """The facts that explain() shows of it."""
        return {
            "architecture": TARGET,
            "aligned": list(self.text.aligned),
            "kernels": [{**p.said(), "predicted": self.times.get(p.kernel.name)} for p in self.parts],
            "triton": [{"name": name, "why": why} for name, why in self.left.items()],
            "protocol": {"programs": self.protocol.programs, "actions": self.protocol.actions},
        }


def _carried(kernel: AsyncKernel) -> list[str]:
    """The sums to which products are in flight from one iteration to the next."""
    waits = [s for s in walk_async(kernel.consumer) if isinstance(s, Finish)]
    sums = {s.name for s in walk_async(kernel.consumer) if isinstance(s, Issue)}
    return list(dict.fromkeys(n for s in waits if not s.names for n in s.also if n in sums))


def derived(
    source: Source,
    wanted: Wanted = FREE,
    broken: Callable[[Derived], Mapping[str, str]] = lambda _: {},
    begin: Callable[[Draft], None] = lambda _: None,
) -> Derived | Unsupported:
    """The asynchronous form for sm_90: of each kernel that has one, of the first levers that fit.

    `broken` names the kernels of a form that compile to what will not do, with the reason: of these the next levers are
    tried, a few, before they stay on tiles; where none is left, the first form is the result. `begin` sees the first
    form before anything of it is checked: it may be compiled beside the checks. Unsupported with the reason of each
    kernel where there is no such form.
    """
    program, header, short = source.tiles, source.header, {t.stage for t in wanted.short}
    bodies, tried, left = _first(program, source.shapes, wanted)
    draft = _drafted(program, {n: order[0] for n, order in tried.items()}, header, short) if tried else None
    # What is wrong with it is said below, where each step has its turn.
    if isinstance(draft, Draft):
        begin(draft)
    refused = _other_functions(program, bodies, source.differs)
    left |= refused
    tried = {n: order for n, order in tried.items() if n not in refused}
    first = draft if isinstance(draft, Draft) and not refused else None
    best: Derived | None = None
    while tried:
        form = form_of(program, {n: order[0] for n, order in tried.items()}, header, first, short)
        first = None
        if isinstance(form, Unsupported):
            left[form.kernel] = form
            del tried[form.kernel]
            continue
        times = {p.kernel.name: times_of(wanted, program, p.bodies, p.kernel.levers) for p in form.parts}
        form = replace(form, times=times, left={name: refusal.why for name, refusal in left.items()})
        best = best or form
        bad = {n: why for n, why in broken(form).items() if n in tried}
        if not bad:
            return form
        left |= {n: Unsupported(f"what it compiles to is refused: {why}") for n, why in bad.items() if not tried[n][1:]}
        tried = {n: order[n in bad :] for n, order in tried.items() if n not in bad or order[1:]}
    return best or _none(left)


def _other_functions(
    program: TileProgram, bodies_of_kernels: Mapping[str, RoleBodies], differs: Differs
) -> dict[str, Unsupported]:
    """The kernels whose consumer computes another function than the expression, each beside those before it."""
    refused: dict[str, Unsupported] = {}
    for name, bodies in bodies_of_kernels.items():
        replaced = with_bodies(program, bodies, differs)
        if isinstance(replaced, Unsupported):
            refused[name] = replaced
        else:
            program = replaced
    return refused


def unsupported(source: Source, wanted: Wanted) -> Unsupported | None:
    """Why no kernel of a program has the form, before one is made; None where one may have it."""
    _, tried, left = _first(source.tiles, source.shapes, wanted)
    return None if tried else _none(left)


def _first(
    program: TileProgram, shapes: Mapping[str, int], wanted: Wanted
) -> tuple[dict[str, RoleBodies], dict[str, list[Levers]], dict[str, Unsupported]]:
    """The role bodies of kernels and the levers to try of each, and why others have none."""
    left: dict[str, Unsupported] = {}
    tried: dict[str, list[Levers]] = {}
    bodies: dict[str, RoleBodies] = {}
    for kernel in program.kernels:
        first = bodies_of(program, kernel, shapes)
        if isinstance(first, Unsupported):
            left[kernel.name] = first
            continue
        levers = _tried(first, program, wanted)
        if isinstance(levers, Unsupported):
            left[kernel.name] = levers
        else:
            bodies[kernel.name], tried[kernel.name] = first, levers
    return bodies, tried, left


def with_bodies(program: TileProgram, bodies: RoleBodies, differs: Differs) -> TileProgram | Unsupported:
    """The program with the kernel of a consumer in place of its own, checked against the expression; Unsupported where
    that is another function. Its tile sizes are its own."""
    assert bodies.symbolic is not None
    kernel = bodies.symbolic
    if len(program.kernels) > 1:
        taken = names_in(kernel) | program.globals.keys() | {t.name for t in program.tunables}
        own = {t.name: free_name(f"{t.name}_own", taken) for t in program.tunables if t.name in bodies.values}
        if tied := _tied(program, kernel, own.keys()):
            return tied
        env: dict[str, Expr] = {n: var(x) for n, x in own.items()}
        kernel = in_kernel(kernel, lambda e: substitute(e, env))
        tunables = (*program.tunables, *(replace(t, name=own[t.name]) for t in program.tunables if t.name in own))
        program = replace(program, tunables=tunables)
    replaced = replace(program, kernels=tuple(kernel if k.name == kernel.name else k for k in program.kernels))
    wrong = differs(replaced)
    if wrong is not None:
        return Unsupported(f"another order of its tiles is another function: {wrong}", kernel.name)
    return replaced


def _tied(program: TileProgram, kernel: TileKernel, own: Iterable[str]) -> Unsupported | None:
    """The reason why this kernel's tiles, or its loops, are tied to those of others; None where they are not."""
    sizes = {n for b in program.temporaries for d in b.shape for n in variables(d)}
    if tied := sorted(sizes & set(own)):
        return Unsupported(f"temporaries are as large as its tiles, by {tied[0]}", kernel.name)
    integers = {b.name for b in program.temporaries if not is_float(b.dtype)}
    for s in walk_stmts(kernel.body):
        for e in stmt_exprs(s):
            for x in walk(e):
                if isinstance(x, LoadTile) and x.buffer in integers and not x.dims:
                    # The check of the protocol runs this kernel alone.
                    return Unsupported(f"numbers that another kernel leaves in {x.buffer} steer it", kernel.name)
    return None


def form_of(
    program: TileProgram,
    levers: Mapping[str, Levers],
    header: str = "",
    draft: Draft | None = None,
    short: Collection[str] = (),
) -> Derived | Unsupported:
    """The form in which the kernels of these names have these levers. Unsupported, which names the kernel, where the
    text says too little of what it does, InternalError where its protocol is wrong. `draft` is of these levers, if
    there is one. In the stages of `short` functions are single instructions."""
    start = time.perf_counter()
    drafted = draft or _drafted(program, levers, header, short)
    if isinstance(drafted, InternalError):
        raise drafted
    if isinstance(drafted, Unsupported):
        return drafted
    kernels = [p.kernel for p in drafted.parts]
    # Each kernel by launches of its own, of which other kernels do nothing.
    reports = [check(drafted.text.text, trials(program, k, alone=len(program.kernels) > 1)) for k in kernels]
    for k, report in zip(kernels, reports, strict=True):
        if report.unread:
            why = f"what its roles do is not known before they run: {report.unread}"
            return Unsupported(why, k.name, kernel=k.name)
        if not report.ok:
            raise InternalError(f"the roles of `{k.name}` do not keep in step\n{report}")
        LOG.info("asynchronous form of `%s`: %s", k.name, report)
    LOG.info("asynchronous form of `%s`: %.0f ms", program.name, 1e3 * (time.perf_counter() - start))
    return Derived(drafted.parts, drafted.text, drafted.chosen, protocol=together(reports))


def _drafted(
    program: TileProgram, levers: Mapping[str, Levers], header: str, short: Collection[str]
) -> Draft | Unsupported | InternalError:
    """A form, or why one of its kernels has none, or what is wrong with its roles: any step of them may say so."""
    try:
        parts = tuple(_part(program, k, levers[k.name], short) for k in program.kernels if k.name in levers)
        kernels = [p.kernel for p in parts]
        grids = {k.name: tuple(g.extent for g in k.grid) for k in kernels}
        chosen = with_grids(program, grids, {k.name: k.levers.tiles for k in kernels})
        return Draft(parts, generate(program, *kernels, params=defaults(program), header=header), chosen)
    except (Unsupported, InternalError) as wrong:
        return wrong


def _part(program: TileProgram, kernel: TileKernel, levers: Levers, short: Collection[str]) -> Part:
    with of_kernel(kernel.name):
        again = role_bodies(program, kernel, levers)
        again = replace(again, kernel=shortened(again.kernel, short))
        with_roles = roles(again, program, replace(levers, tiles=dict(again.values)))
    verify_async(with_roles, program)
    return Part(again, with_roles)


def _none(left: Mapping[str, Unsupported]) -> Unsupported:
    """Why no kernel of a program has the form: the reason of the only one, or of each."""
    if len(left) == 1:
        return next(iter(left.values()))
    by_reason: dict[str, list[str]] = {}
    for name, refusal in left.items():
        by_reason.setdefault(refusal.why if refusal.where == name else str(refusal), []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
    legal = dict.fromkeys(x for refusal in left.values() for x in refusal.legal)
    hint = next((r.hint for r in left.values() if r.hint), None)
    return Unsupported(f"none of its {len(left)} kernels has it: {reasons}", legal=tuple(legal), hint=hint)


def _tried(bodies: RoleBodies, program: TileProgram, wanted: Wanted) -> list[Levers] | Unsupported:
    """The first of all forms that fit and hold as many registers, a few: what spills in one does in the others."""
    first: dict[tuple[int, float], Levers] = {}
    counts = counts_of(bodies)
    order = ordered(bodies, program, wanted)
    if isinstance(order, Unsupported):
        return order
    for levers in order:
        first.setdefault((levers.consumers, counts.needs(levers).registers), levers)
    return list(first.values())[:TRIED]
