"""What a kernel of a program is made with: the one value that rankers, the tuner, records and families pass around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

Key: TypeAlias = "tuple[str, str | None, tuple[tuple[str, int | str], ...]]"


def qualified(form: str, levers: Mapping[str, Any]) -> dict[str, Any]:
    """A form's parameters by the names that they have beside those of tiles.

    >>> qualified("asynchronous", {"consumers": 2})
    {'asynchronous.consumers': 2}
    """
    return {f"{form}.{n}": v for n, v in levers.items()}


@dataclass(frozen=True, eq=False)
class Choice:
    """A template and values for all parameters: tunables, num_warps and num_stages, what launches would choose
    otherwise (NUM_SPLITS), and, in another `form` than tiles, that one's, which have its name in front. These are
    `params` and `form` of `neptune.compile`.

    Two are equal where their keys are: the order of names says nothing.

    >>> a = Choice("matmul", {"num_warps": 4, "BLOCK_M": 64})
    >>> a == Choice("matmul", {"BLOCK_M": 64, "num_warps": 4}), a.key
    (True, ('matmul', None, (('BLOCK_M', 64), ('num_warps', 4))))
    >>> made = a.formed("asynchronous", {"consumers": 2})
    >>> print(made, made.values["asynchronous.consumers"], made.params == a.params)
    matmul num_warps=4 BLOCK_M=64 asynchronous consumers=2 2 True
    """

    template: str
    values: Mapping[str, Any]
    form: str | None = None

    @cached_property
    def key(self) -> Key:
        """What tells choices apart."""
        return self.template, self.form, tuple(sorted(self.values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def params(self) -> dict[str, int]:
        """The values that are not the form's."""
        return {n: v for n, v in self.values.items() if self.form is None or not n.startswith(f"{self.form}.")}

    @cached_property
    def levers(self) -> dict[str, int | str]:
        """The form's values, by the names that they have in it."""
        return {n.partition(".")[2]: v for n, v in self.values.items() if n not in self.params}

    @property
    def kind(self) -> str:
        """The template and the form: what the model is off by is that of its kind."""
        return self.template if self.form is None else f"{self.template} {self.form}"

    def formed(self, form: str, levers: Mapping[str, int | str]) -> Choice:
        """The same in another form than tiles."""
        return replace(self, values={**self.params, **qualified(form, levers)}, form=form)

    def without(self, names: frozenset[str]) -> Choice:
        """The same, where launches choose these numbers."""
        return replace(self, values={n: v for n, v in self.values.items() if n not in names})

    def plain(self) -> dict[str, Any]:
        """Plain values; `form` and `levers` of another form than tiles alone."""
        of = {} if self.form is None else {"form": self.form, "levers": dict(self.levers)}
        return {"template": self.template, "params": dict(self.params), **of}

    def __str__(self) -> str:
        def pairs(values: Mapping[str, Any]) -> list[str]:
            return [f"{n}={v}" for n, v in values.items()]

        return " ".join((self.template, *pairs(self.params), *([self.form] if self.form else ()), *pairs(self.levers)))
