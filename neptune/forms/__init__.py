"""Forms of a kernel beside tiles: what one does where a kernel is compiled, and the table of those that there are.

A form is one room, and a row of FORMS: its name, and what loads the object that implements `Form`. Everything else
asks that object and branches on no name. What runs a form is data, and has a row in `neptune.runtime.forms`.

    FORMS["asynchronous"]().lower(Source(tiles), Wanted({"consumers": 2}))   →  Made(…), or Unsupported with the reason

To import this table imports nothing that compiles: a form's object does, when it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from neptune.errors import Unsupported
from neptune.tune.model.machine import DEFAULT, Machine

if TYPE_CHECKING:
    from neptune.ir.analysis.forms import Taken
    from neptune.runtime.executable import Executable
    from neptune.runtime.forms import FormData
    from neptune.tile.ir import TileProgram
    from neptune.tune.gains import Asked

TRITON = "triton"
"""Tiles alone."""
AUTO = "auto"
"""A form of the target where a kernel has one that is not known to be slower, without an error where it has none."""


@dataclass(frozen=True)
class Source:
    """What a form is made of: a program of tiles, the `header` of its text, typical `shapes`, which never matter for
    correctness, and `differs`, which says how another tile program differs from the expression (None: it does not)."""

    tiles: TileProgram
    header: str = ""
    shapes: Mapping[str, int] = field(default_factory=dict)
    differs: Callable[[TileProgram], str | None] = lambda _: None


@dataclass(frozen=True)
class Wanted:
    """What is asked of a form: `levers` by name, tile sizes among `params`; and what the model is asked: at which
    `sizes` (None: nothing is), on which machine, whether the form must be `ahead` of tiles, which have the values
    `on_tiles`. In the stages of `short` functions may be single instructions."""

    levers: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] | None = None
    machine: Machine = DEFAULT
    on_tiles: Mapping[str, int] = field(default_factory=dict)
    ahead: bool = False
    short: tuple[Taken, ...] = ()


@dataclass(frozen=True)
class Made:
    """One form of a program: what a kernel keeps of it, what its explanation holds (plain values), and the levers and
    tile sizes that were taken."""

    data: FormData
    said: Mapping[str, Any]
    levers: Mapping[str, Any]
    tiles: Mapping[str, int]


@dataclass(frozen=True)
class Time:
    """Microseconds of a program that has its form wherever that is predicted to be faster; infinite where it never is.
    `close` says that it may be, as far as predictions are off."""

    us: float
    close: bool


@dataclass(frozen=True)
class RoleResources:
    """What the roles of a kernel take: registers of a thread of each consumer and of the producer, as the code leaves
    them to it, consumers of a program, stages of the tiles that loops load, and barriers in shared memory."""

    consumer: int
    producer: int
    consumers: int
    stages: int
    barriers: int


@dataclass(frozen=True)
class Inspected:
    """A compiled kernel of a form: its assembly, and what it takes (`neptune.report.resources`)."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix: str | None
    warnings: tuple[str, ...]
    roles: RoleResources | None
    asm: str


class Point(Protocol):
    """Tile sizes and levers that a tuner may try."""

    @property
    def tiles(self) -> Mapping[str, int]: ...

    @property
    def levers(self) -> Mapping[str, Any]: ...


class Space(Protocol):
    """What of a form fits a program and a machine, in the order in which a compilation would take it; what is predicted
    to be slower than the best by a factor of no more than `close` stays in that order."""

    @property
    def every(self) -> Sequence[Point]: ...

    @property
    def close(self) -> float: ...

    def us(self, point: Any, on_tiles: Mapping[str, int], whole: float) -> float:
        """Microseconds of the program at a point; on tiles, with the values `on_tiles`, it takes `whole`."""


class Form(Protocol):
    """A form. `targets` are those that have it, as text, what names none of their kinds among them ("cuda:90", "cuda");
    `reason` says to a user why others have not. `levers` are what a caller may settle, and the values of each: a word,
    a number or a bool. No method raises where a program does not fit: that is a value."""

    name: str
    targets: tuple[str, ...]
    reason: str
    levers: Mapping[str, tuple[Any, ...]]

    def fits(self, of: Source, choice: Wanted) -> Unsupported | None:
        """Why a program has no such form, as far as is known before one is made; None where it may have one."""

    def lower(self, of: Source, choice: Wanted) -> Made | Unsupported:
        """The form of a program, or why it has none."""

    def time(self, of: Source, choice: Wanted, at: Sequence[Asked]) -> Sequence[Time]:
        """What is predicted at each of some sizes, the first of which count most, before a form is made."""

    def tile_names(self, tiles: TileProgram) -> frozenset[str]:
        """The tile sizes that the form chooses itself."""

    def space(
        self, tiles: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
    ) -> Space:
        """What a tuner may try at some sizes, with the tile sizes that are `given`."""

    def validate(self, kernel: Executable) -> Mapping[str, Any] | None:
        """The record of the verdict on the form of a kernel (`FormData.record`), with all that is found out here; None
        where there is nothing to say yet."""

    def decided(self, data: FormData) -> bool:
        """True where the verdict is known, and nothing would be run for it."""

    def explain(self, said: Mapping[str, Any]) -> Iterator[str]:
        """The section of an explanation, from `Made.said`, which has the "verdict" by now."""

    def inspect(self, data: FormData) -> Sequence[Inspected]:
        """The kernels of this form, compiled. Raises TargetError where the compiler refuses."""

    def ready(self) -> None:
        """Have start what is needed later, and takes long to."""


@cache
def _loaded(module: str) -> Form:
    form: Form = import_module(module).FORM
    return form


FORMS: dict[str, Callable[[], Form]] = {"asynchronous": lambda: _loaded("neptune.hopper.form")}
"""What loads each form, by its name, in the order in which they are asked. Their objects are light."""


def forms_of(form: str | None, target: str | None = None) -> tuple[Form, ...]:
    """The forms that a name stands for: itself, all of a target (None: of any) for "auto", none for tiles alone."""
    if form != AUTO:
        return (FORMS[form](),) if form in FORMS else ()
    every = (load() for load in FORMS.values())
    return tuple(f for f in every if target is None or target in f.targets)
