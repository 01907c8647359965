"""What a kernel of a program is made with: the one value that rankers, the tuner, records and families pass around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

Key: TypeAlias = "tuple[str, tuple[tuple[str, int], ...], str | None, tuple[tuple[str, int | str], ...]]"


@dataclass(frozen=True, eq=False)
class Choice:
    """A template and values for its parameters: tunables, num_warps and num_stages, and what launches would choose
    otherwise (NUM_SPLITS). In another `form` than tiles it has that one's levers, too.

    Two are equal where their keys are: the order of names says nothing.

    >>> a = Choice("matmul", {"num_warps": 4, "BLOCK_M": 64})
    >>> a == Choice("matmul", {"BLOCK_M": 64, "num_warps": 4}), a.key
    (True, ('matmul', (('BLOCK_M', 64), ('num_warps', 4)), None, ()))
    >>> print(a.formed("asynchronous", {"consumers": 2}))
    matmul num_warps=4 BLOCK_M=64 asynchronous consumers=2
    """

    template: str
    params: Mapping[str, int]
    form: str | None = None
    levers: Mapping[str, int | str] = field(default_factory=dict)

    @cached_property
    def key(self) -> Key:
        """What tells choices apart."""
        return self.template, tuple(sorted(self.params.items())), self.form, tuple(sorted(self.levers.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def values(self) -> dict[str, int | str]:
        """Parameters and levers by name."""
        return {**self.params, **self.levers}

    @property
    def kind(self) -> str:
        """The template and the form: what the model is off by is that of its kind."""
        return self.template if self.form is None else f"{self.template} {self.form}"

    def formed(self, form: str, levers: Mapping[str, int | str]) -> Choice:
        """The same in another form than tiles."""
        return replace(self, form=form, levers=levers)

    def without(self, names: frozenset[str]) -> Choice:
        """The same, where launches choose these numbers."""
        return replace(self, params={n: v for n, v in self.params.items() if n not in names})

    def plain(self) -> dict[str, Any]:
        """Plain values; `form` and `levers` of another form than tiles alone."""
        of = {} if self.form is None else {"form": self.form, "levers": dict(self.levers)}
        return {"template": self.template, "params": dict(self.params), **of}

    def __str__(self) -> str:
        def pairs(values: Mapping[str, Any]) -> list[str]:
            return [f"{n}={v}" for n, v in values.items()]

        return " ".join((self.template, *pairs(self.params), *([self.form] if self.form else ()), *pairs(self.levers)))
