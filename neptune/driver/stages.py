"""What a compilation is at each of its stages, as frozen values: each pass makes the next one from the one before.

    Request ─▶ Prepared ─▶ Attempt ─▶ Fused ─▶ Lowered ─▶ Build
               what is     with one   as it    tiles and  what is
               scheduled   template   executes text       kept

Where a check tells that a stage is not what the expression says, there is no next one but a value that says why: the
automatic choice goes on with another template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from neptune.config import Config
from neptune.driver.cache import Request
from neptune.forms import Form, Made, forms_of
from neptune.ir.program import Program
from neptune.runtime.launching.launch import Target
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import Lowering
from neptune.tune.choose import Scheduled
from neptune.tune.family import Wishes
from neptune.tune.invariance import reduced_sizes
from neptune.tune.model.machine import Machine
from neptune.tune.params import resolve_params
from neptune.verify.draws import Shared
from neptune.verify.exact import ExactReport

EVERY_FORM = 2
"""The level of NEPTUNE_VERIFY from which (or with NEPTUNE_STRICT) the result of every primitive and of every tile pass
is verified, not the last one alone: 2 to 5 % of a compilation."""


@dataclass(frozen=True)
class Prepared:
    """A request, and the `definitions` that templates schedule: the expression as imported, but for forms of functions
    (`notes` says which).

    With `counting` templates are compared by the fastest of their forms, those of `others` among them. `notes` grow
    by what was rejected of earlier templates.
    """

    request: Request
    target: Target
    machine: Machine
    definitions: Program
    counting: bool
    notes: tuple[Decision, ...] = ()
    rejections: tuple[Decision, ...] = ()

    @property
    def loops(self) -> Program:
        """The expression as imported."""
        return self.request.loops

    @property
    def settings(self) -> Config:
        return self.request.settings

    @property
    def verifies_every_form(self) -> bool:
        return self.settings.strict or self.settings.verify >= EVERY_FORM

    @cached_property
    def wishes(self) -> Wishes:
        """What the caller says of sizes and parameters, and what was measured."""
        a = self.request
        deciding = reduced_sizes(a.loops) if a.batch_invariant else None
        return Wishes(a.shapes, a.bounds, a.params, deciding, a.known.samples, a.known.failed)

    @cached_property
    def others(self) -> tuple[Form, ...]:
        """The forms beside tiles that are asked for."""
        return forms_of(self.request.form, str(self.target))


@dataclass(frozen=True)
class Attempt:
    """What one template makes of the definitions."""

    prepared: Prepared
    scheduled: Scheduled


@dataclass(frozen=True)
class Fused(Attempt):
    """It as every target executes it: inits explicit, tiles local. `checks` are the exact checks so far, by what was
    checked; what they evaluate of the definitions is kept in `shared`."""

    program: Program
    checks: Mapping[str, ExactReport] = field(default_factory=dict)
    shared: list[Shared] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True)
class Lowered(Fused):
    """Its tile program, with the forms on the way to it, and the two programs for sizes at which index arithmetic
    leaves int32 (`wider`; None where it never does). `notes` are decisions of lowering; `addresses`
    and the Triton module under its `header` are text; `form` what was made beside tiles."""

    lowering: Lowering = field(kw_only=True)
    wider: tuple[Program, TileProgram] | None = None
    notes: tuple[Decision, ...] = ()
    addresses: str = ""
    header: str = ""
    text: str = ""
    form: Made | None = None

    @property
    def tiles(self) -> TileProgram:
        return self.lowering.tiles

    @cached_property
    def params(self) -> dict[str, int]:
        """The values of all free tunables, num_warps and num_stages: given, or chosen."""
        family, wishes = self.scheduled.family, self.prepared.wishes
        choice = None if family is None else family.choices[0].params
        return resolve_params(self.tiles, wishes.params, wishes.typical, self.prepared.machine, choice)


@dataclass(frozen=True)
class Differs:
    """A template's program is not the expression's: `what` names the differing form, `report` is the check's."""

    what: str
    report: ExactReport

    def text(self, by: str = "") -> str:
        """Describe the difference. `by` names the program and the template."""
        c = self.report.counterexample
        return f"the {self.what}{by} differs from the expression\n  {c}\n  in the {self.report.model}"


@dataclass(frozen=True)
class Uncounted:
    """The form for which a template was chosen is refused, for this reason."""

    why: str


@dataclass(frozen=True)
class Failed:
    """A pass or a check fails on what a template makes: a defect, in one line."""

    why: str
