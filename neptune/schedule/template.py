"""Templates: schedules as functions, with what may be varied declared beside them.

    @template(BLOCK_M=[128, 64], BLOCK_N=[64, 128], choices={"by_columns": [False, True]})
    def tiled(sch, block_m, block_n, by_columns):
        i0, j0, *_ = sch.tile(sch.loops("y"), [block_m, block_n])
        …

A *tunable* is a tile size: one application of the function serves all its values, which are constants of the
kernel. Its argument, the name in lower case, is the param itself. A *choice* is structural: each of its values
runs the function anew (`combinations`). The first candidate of each is the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from neptune.base.boundary import public
from neptune.errors import ScheduleError
from neptune.ir.program import Program
from neptune.schedule.state import Decision


@dataclass(frozen=True)
class Template:
    """A schedule function with its declared tunables and structural choices; call it with a Schedule.

    `tunables`: name → powers of two; `choices`: name → values. `params=` of `compile` may give a tunable any
    other power of two. Raises ScheduleError where the function's arguments are not what is declared.
    """

    name: str
    schedule: Callable[..., None]
    tunables: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    doc: str = ""

    def __post_init__(self) -> None:
        request = f"template `{self.name}`"
        if not callable(self.schedule):
            raise ScheduleError(
                request, f"{self.schedule!r:.40} is no function", legal=("a function of sch and params",)
            )
        for options in (self.tunables, self.choices):
            if not isinstance(options, Mapping):
                wrong = f"{options!r:.40} is no mapping of names to candidates"
                raise ScheduleError(request, wrong, legal=('{"fast": [True, False]}',))
        names = [*(n.lower() for n in self.tunables), *self.choices]
        if len(set(names)) < len(names):
            raise ScheduleError(request, "two of its tunables and choices have one name", legal=sorted(set(names)))
        for name, values in {**self.tunables, **self.choices}.items():
            if not isinstance(values, list | tuple) or not values:
                what = "" if isinstance(values, list | tuple) else f": {values!r} is no list of them"
                raise ScheduleError(request, f"`{name}` has no candidates{what}", legal=(f"{name}=[64, 128]",))
        try:
            inspect.signature(self.schedule).bind(None, **dict.fromkeys(names))
        except TypeError as error:
            wrong = f"its function does not take what is declared: {error}"
            raise ScheduleError(request, wrong, legal=[f"({', '.join(['sch', *names])})"]) from None

    @public
    def __call__(self, sch: Any) -> None:
        """Apply it to a Schedule: declare the tunables, then run the function with the default choices."""
        if not hasattr(sch, "param"):
            raise ScheduleError(
                f"template `{self.name}` of {type(sch).__name__}",
                "a template is called with a Schedule",
                hint="neptune.compile(expr, template), or template(neptune.Schedule(program))",
            )
        params = {n.lower(): sch.param(n, candidates) for n, candidates in self.tunables.items()}
        self.schedule(sch, **params, **{n: values[0] for n, values in self.choices.items()})

    @public
    def with_choices(self, **chosen: Any) -> Template:
        """The template with some of its choices made: `matmul.with_choices(grouped=True)`."""
        variants: dict[str, tuple[Any, ...]] = {}
        for name, value in chosen.items():
            request = f"template `{self.name}` with {name}={value!r}"
            if name not in self.choices:
                raise ScheduleError(request, "it has no such choice", legal=tuple(self.choices))
            if value not in self.choices[name]:
                raise ScheduleError(request, "this is none of its values", legal=[repr(v) for v in self.choices[name]])
            # The candidate itself: templates ask `is True`, and 1 == True.
            variants[name] = (next(v for v in self.choices[name] if v == value),)
        return replace(self, choices={**self.choices, **variants})

    def combinations(self) -> Iterator[Template]:
        """One template for every combination of structural choices, the defaults first."""
        for values in product(*self.choices.values()):
            yield self.with_choices(**dict(zip(self.choices, values, strict=True)))


@dataclass(frozen=True)
class Rewriting(Template):
    """A template that computes a program by other definitions, which it brings: those of a µGraph.

    `rewritten` has the program's inputs and outputs; what the schedule makes of it is checked against the program
    itself. `text` is all that the template depends on, `notes` what explain() says of the definitions.
    """

    rewritten: Program | None = None
    text: str = ""
    notes: tuple[Decision, ...] = ()


# A mistake in a declaration ends at the line that makes it.
Template.__init__ = public(Template.__init__)  # type: ignore[method-assign]


@public
def template(
    *, choices: Mapping[str, Sequence[Any]] | None = None, **tunables: Sequence[int]
) -> Callable[[Callable[..., None]], Template]:
    """Make a Template of a function; its docstring's first line says what it does.

    >>> @template(BLOCK=[16, 32])
    ... def rows(sch, block):
    ...     "Tiles of rows."
    >>> rows.name, rows.tunables["BLOCK"], rows.doc
    ('rows', (16, 32), 'Tiles of rows.')
    """

    @public
    def made(fn: Callable[..., None]) -> Template:
        doc = (inspect.getdoc(fn) or "").split("\n")[0]
        return Template(
            getattr(fn, "__name__", type(fn).__name__), fn, _candidates(tunables), _candidates(choices), doc
        )

    return made


def _candidates(given: Any) -> Any:
    """Lists as tuples; what is no list of candidates is left for `Template` to refuse."""
    if not isinstance(given or {}, Mapping):
        return given
    return {n: tuple(v) if isinstance(v, list) else v for n, v in (given or {}).items()}
