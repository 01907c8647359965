"""Why a kernel has no asynchronous form, in a user's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Refusal(Exception):
    """The form does not fit this kernel, or these levers do not. By default the other form runs, and explain() says
    why; where the form was asked for, the caller makes an error of it.

    `why` is what is the matter with the stage, loop or tensor `where`; `fits` and `legal` what would have been taken;
    `hint` what to try, `kernel` the kernel that has no form, where that is said.
    """

    def __init__(
        self,
        why: str,
        where: str = "",
        fits: str = "",
        *,
        legal: Sequence[str] = (),
        hint: str | None = None,
        kernel: str = "",
    ) -> None:
        self.why, self.where, self.hint, self.kernel = why, where, hint, kernel
        self.legal = (*((fits,) if fits else ()), *legal)
        super().__init__(why)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" if self.where else self.why


@contextmanager
def of_kernel(name: str) -> Iterator[None]:
    """Refusals are of this kernel."""
    try:
        yield
    except Refusal as refusal:
        refusal.kernel = name
        raise
