"""What makes a kernel slow, told where it is compiled: as warnings, or with `strict` as one error."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING

from neptune.base.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning, ScheduleError

if TYPE_CHECKING:
    from neptune.kernel import Kernel


def warn(kernel: Kernel) -> None:
    """Emit a NeptunePerformanceWarning for each of `kernel.warnings`, at the user's line."""
    for remark in kernel.warnings:
        warning = NeptunePerformanceWarning(f"kernel `{kernel.name}`: {remark}")
        warnings.warn(warning, stacklevel=frames_of_package() + 1)


@cache
def say_of_levers() -> None:
    """Warn once that levers have another name by now."""
    message = "`levers` is a former name: give them among `params`, such as params={'consumers': 2}"
    warnings.warn(message, FutureWarning, stacklevel=frames_of_package() + 1)


def refuse(kernel: Kernel) -> None:
    """Raise ScheduleError where a kernel has warnings: all of them."""
    if remarks := kernel.warnings:
        raise ScheduleError(
            f"compile `{kernel.name}` with strict=True",
            "\n".join(map(str, remarks)),
            hint="what each line says, or strict=False, which warns",
        )


def check_granted(kernel: Kernel, assume: tuple[str, ...]) -> None:
    """Raise ScheduleError for the name of an assumption that the kernel does not make."""
    names = [a["name"] for a in kernel.explain(json=True).get("assumptions", ())]
    for name in assume:
        if name not in names:
            wrong = f"explain() lists {'no such assumption' if names else 'no assumption'} of this kernel"
            raise ScheduleError(
                f"compile `{kernel.name}` with assume={name!r}", wrong, legal=tuple(dict.fromkeys(names)), kind="assume"
            )
