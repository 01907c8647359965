"""What runs a kernel in another form than tiles, from data alone: which tensors it serves, how it is launched, and
whether it may run at all. `neptune.forms` has what makes a form.

A kernel has one such form at most, beside the modules of tiles, which run wherever the form does not. A form is a row
of FORMS, by its name: the class that reads its data back. Nothing here imports what compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from neptune.runtime.calls.addressing import Json, Tensors
from neptune.runtime.hopper.data import Asynchronous
from neptune.runtime.parts import Parts


class FormData(Protocol):
    """The data of one form, which a kernel keeps: a frozen dataclass. Its module is a `text` whose launch function
    takes what that of tiles takes, in as many tensors and scalars."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """Of the form, in FORMS."""

    @property
    def text(self) -> str:
        """The module."""

    @property
    def wants(self) -> str:
        """What all tensors are that it serves, for people."""

    @property
    def architecture(self) -> str:
        """The target that it is for, as text: "cuda:90"."""

    @property
    def levers(self) -> Mapping[str, int | str]:
        """What was chosen of it, tile sizes among it."""

    @property
    def parts(self) -> tuple[Parts, ...]:
        """How its launches choose numbers; () where they do as those of tiles."""

    @property
    def record(self) -> Mapping[str, Any] | None:
        """The verdict on what was compiled, as plain data: None where there is none yet."""

    @property
    def timed(self) -> tuple[Mapping[str, int], float] | None:
        """Sizes at which it was timed beside tiles, and its time relative to theirs; None where it was not."""

    @property
    def forced(self) -> bool:
        """True where it runs though tiles are faster."""

    @property
    def faults(self) -> tuple[str, ...] | None:
        """Why it does not run; () where it does, None where there is no verdict on it."""

    def runs(self) -> bool:
        """True where it has a verdict with which it may run."""

    def settings(self) -> tuple[str | None, ...]:
        """What else `runs` depends on, and may change while a process runs."""

    def serves(self, of: Tensors) -> bool:
        """True for tensors that it takes; others go to the modules of tiles."""

    def values(self, params: Mapping[str, int]) -> dict[str, int]:
        """The tunables, warps and stages that its launch function takes."""

    def values_of_one(self, of_one: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
        """Those of single launches, by the name of their function."""

    def verdict(self) -> Json | None:
        """What explain() says of the verdict; None where there is none."""

    def as_json(self) -> Json:
        """All but the text, as plain data."""

    @classmethod
    def read(cls, j: Mapping[str, Any], text: str, declarations: str) -> FormData:
        """The form of what `as_json` gave, of a kernel with these `declarations`; LookupError, TypeError or ValueError
        for other data."""


FORMS: dict[str, type[FormData]] = {Asynchronous.name: Asynchronous}
"""The forms whose data can be read, by name."""
