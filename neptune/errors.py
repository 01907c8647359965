"""Exceptions for everything a user can cause, one family (docs/design/checks.md, "Errors end at the user's line").

A message is one screen: what was asked, what is wrong, where, what is legal here, what to try.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from neptune.base.codes import kind_of

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class NeptuneError(Exception):
    """Base of all errors a user can cause.

    `asked` is the request in the user's words; `wrong` what is the matter; `where` the IR line or the
    argument; `legal` the choices that would have been accepted; `hint` what to try next. `text` is all of them, and
    the message also has the `code` of its kind, which follows from the class and the module, or from the word `kind`
    (neptune/base/codes.py).
    """

    def __init__(
        self,
        asked: str,
        wrong: str,
        *,
        where: str | None = None,
        legal: Sequence[str] = (),
        hint: str | None = None,
        kind: str | None = None,
    ) -> None:
        self.asked, self.wrong, self.where, self.legal, self.hint = asked, wrong, where, tuple(legal), hint
        self.kind: str = kind or sys._getframe(1).f_globals.get("__name__", "")
        known = kind_of(type(self), self.kind)
        self.code = None if known is None else known.code
        lines = [asked]
        lines += ["  " + line for line in wrong.splitlines()]
        if self.legal:
            lines.append("  legal here: " + ", ".join(self.legal))
        if hint:
            lines.append("  try: " + hint)
        if where:
            first, *rest = where.splitlines()
            lines += ["  at: " + first, *("      " + line for line in rest)]
        self.text = "\n".join(lines)
        super().__init__(self.text if self.code is None else f"{self.text}\n  code: {self.code}")


class ExpressionError(NeptuneError):
    """The input expression says something that Neptune does not take."""


class ScheduleError(NeptuneError):
    """A schedule request that names nothing, or is not legal where it was made."""


class FusionError(NeptuneError):
    """A fusion that was asked for and cannot be proved."""


class ShapeError(NeptuneError):
    """A call with the wrong arguments: count, rank, dtype, device, sizes, strides."""


class TargetError(NeptuneError):
    """A target that cannot be compiled for or run on."""


class RecordError(NeptuneError):
    """A saved kernel or a tuning record that is damaged or foreign."""


def unless_refused(answer: Answer | NeptuneError) -> Answer:
    """An answer that is none of why there is none; that is raised."""
    if isinstance(answer, NeptuneError):
        raise answer
    return answer


def or_refusal(call: Callable[Given, Answer], *args: Given.args, **options: Given.kwargs) -> Answer | NeptuneError:
    """What a call returns, or why it refuses, for those who can do without."""
    try:
        return call(*args, **options)
    except NeptuneError as refusal:
        return refusal


def refused_by(call: Callable[Given, object], *args: Given.args, **options: Given.kwargs) -> NeptuneError | None:
    """Why a call refuses; None where it does not, whatever it returns."""

    def called() -> None:
        call(*args, **options)

    return or_refusal(called)


class Unsupported(Exception):
    """What a part of Neptune does not handle, which is no error yet: others may, or the other form runs.

        bodies = answered(role_bodies, program, kernel, levers)    →  RoleBodies(…), or Unsupported("it has no product")

    It is raised where a recursion finds it, and is a value from the entry of that recursion on (`answered`): users
    never see it raised. `why` is what is the matter with the stage, loop, tensor or function `where`, in a user's
    words; `fits` and `legal` are what would have been taken, `hint` what to try; `node` is the expression or graph node
    that it is of, and `kernel` the name of a kernel, where either is known.
    """

    def __init__(
        self,
        why: str,
        where: str = "",
        fits: str = "",
        *,
        legal: Sequence[str] = (),
        hint: str | None = None,
        node: Any = None,
        kernel: str = "",
    ) -> None:
        self.why, self.where, self.hint, self.node, self.kernel = why, where, hint, node, kernel
        self.legal = (*((fits,) if fits else ()), *legal)
        super().__init__(why)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" if self.where else self.why


def answered(call: Callable[Given, Answer], *args: Given.args, **options: Given.kwargs) -> Answer | Unsupported:
    """What a call returns, or what it does not support: anything within it may find that out."""
    try:
        return call(*args, **options)
    except Unsupported as why:
        # A value that is kept holds no frames.
        return why.with_traceback(None)


@contextmanager
def of_kernel(name: str) -> Iterator[None]:
    """What is not supported within is so of this kernel."""
    try:
        yield
    except Unsupported as why:
        why.kernel = name
        raise


class NeptunePerformanceWarning(UserWarning):
    """A kernel is right, and slower than it need be: one entry of `kernel.warnings`, told when it is compiled."""


class InternalError(Exception):
    """A defect of Neptune itself; the message says how to report it. `wrong` is what is the matter."""

    def __init__(self, message: str) -> None:
        self.wrong = message
        super().__init__(
            f"{message}\n  This is a defect in Neptune, not in your program. "
            "Please report it with the program text (kernel.ir('loops')) and the template."
        )
