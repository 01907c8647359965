"""Exact checks are made once in a process: the same programs, with the same options, get the report that they got.

A check is a function of its arguments alone: its seeds are fixed. It goes on from the sizes that the checks before it
of the same compilation have left, which therefore count as arguments here. Where one of these was known and a later
one is not, it is made after all: a report is what it would be in a process of its own, whatever ran before.

What was not accepted is never kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.program import Program
from neptune.ir.text.printer import print_program
from neptune.tile.ir import TileProgram
from neptune.tile.printer import print_tile_program
from neptune.verify.exact import ExactReport

AT_ONCE = 8
"""Compilations that may be under way at a time: one within another."""
Check = Callable[..., ExactReport | EvaluationError]


@dataclass
class _Compilation:
    """The checks of a compilation so far: their keys, and those that were not made."""

    shared: list[Any]
    keys: tuple[Any, ...] = ()
    skipped: list[Callable[[], object]] = field(default_factory=list)


class Once:
    """`check`, made once; stands for `neptune.verify.pieces.check` in the compiler."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.known: dict[Any, ExactReport] = {}
        self._under_way: OrderedDict[int, _Compilation] = OrderedDict()

    def __call__(self, original: Program, made: Program | TileProgram, **options: Any) -> ExactReport | EvaluationError:
        shared = options.get("shared")
        at = self._at(shared)
        if at is None:
            return self.check(original, made, **options)
        key = (*at.keys, _text(original), _text(made), repr({n: v for n, v in options.items() if n != "shared"}))
        if (known := self.known.get(key)) is not None:
            at.skipped.append(lambda: self.check(original, made, **options))
        else:
            for skipped in at.skipped:
                skipped()
            at.skipped.clear()
            known = self.check(original, made, **options)
            if isinstance(known, EvaluationError) or not known.accepted:
                # The compiler may go on with another template, from nothing.
                del self._under_way[id(shared)]
                return known
            self.known[key] = known
        at.keys = key
        return known

    def _at(self, shared: list[Any] | None) -> _Compilation | None:
        """Where the compilation is that shares this; None where it was not followed from its first check."""
        if shared is None:
            return None
        at = self._under_way.get(id(shared))
        if at is None and not shared:
            at = self._under_way[id(shared)] = _Compilation(shared)
            if len(self._under_way) > AT_ONCE:
                self._under_way.popitem(last=False)
        return at


def _text(program: Program | TileProgram) -> tuple[str, str, int]:
    """All of the program: its text, the parameters, which tiles' text leaves out, and a hash of the whole."""
    text = print_tile_program(program) if isinstance(program, TileProgram) else print_program(program)
    parameters = (program.inputs, program.outputs, program.temporaries, program.scalars, program.tunables)
    return text, repr(parameters), hash(program)
