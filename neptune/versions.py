"""The version of Neptune, and those of what a kernel is made with."""

from __future__ import annotations

import platform
import time
from functools import cache

__version__ = "0.1.0"
IMPORTED = time.time_ns()
"""When this process came to know Neptune: its files that change later are not the code that runs here."""
PACKAGES = ("torch", "triton")
TESTED = ("3.6",)
"""The versions of Triton that kernels were tested and measured with; others may compile them otherwise."""

EXTRAS = {
    "te": ("apache-tvm>=0.27",),
    "cli": ("click>=8.1", "rich>=13"),
    "tune": ("scikit-learn>=1.4",),
    "mirage": ("scipy>=1.9",),
    "ray": ("ray>=2.9",),
}
"""What some parts need beside what all do."""


def install(extra: str) -> str:
    """The command that installs what a part needs, by the packages' own names: ours is no project that pip knows.

    >>> install("cli")
    "pip install 'click>=8.1' 'rich>=13'"
    """
    return f"pip install {' '.join(map(repr, EXTRAS[extra]))}"


@cache
def versions(*others: str) -> dict[str, str | None]:
    """Python, Neptune, torch, Triton and `others` (names of distributions); None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "neptune": __version__}
    return found | {name: _version(name) for name in (*PACKAGES, *others)}


def untested() -> str | None:
    """What to say of a Triton that nothing was tested with; None where there is nothing to say."""
    present = versions()["triton"]
    if present is None or ".".join(present.split(".")[:2]) in TESTED:
        return None
    return f"this is Triton {present}, and Neptune was tested and measured with {', '.join(TESTED)}"


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
