"""Can this machine compile and run kernels?  Versions, targets, the GPU, and what to do about each problem."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import neptune
from neptune.base.codes import INSTALL_TE
from neptune.versions import EXTRAS, TESTED, install, untested

REQUIRED = {"torch": "2.6", "triton": "3.6", "numpy": "2", "sympy": "1.13", "einops": "0.8"}
TRACKER = "neptune"
"""The distribution of an experiment tracker whose package has the name of ours."""
OPTIONAL = {name: (least, extra) for extra in ("te", "cli") for name, least in (p.split(">=") for p in EXTRAS[extra])}
GPU_TARGETS = ("cuda:80", "cuda:90", "hip:gfx942")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do where `good` is false; `required` findings decide
    whether the machine can be used at all, and of `optional` ones nothing is broken where they are not there."""

    subject: str
    found: str
    good: bool
    remedy: str = ""
    required: bool = False
    optional: bool = False

    @property
    def mark(self) -> str:
        """ "ok", "missing", "no" of what is broken, or "optional" of what nobody needs."""
        return "ok" if self.good else "missing" if self.required else "optional" if self.optional else "no"


def examine() -> list[Finding]:
    """Everything about this machine that matters, packages first; compiles one tiny kernel per target."""
    packages = list(_packages())
    # Without its packages nothing below could say more than that.
    if any(f.required and not f.good for f in packages):
        return packages
    return [
        *packages,
        _triton(),
        folder_shared(Path(neptune.__file__).parent),
        _settings(),
        _cache(),
        *_targets(),
        _gpu(),
    ]


def usable(findings: list[Finding]) -> bool:
    """Return True if every requirement is met and a kernel can run on some target."""
    runs = [f for f in findings if f.subject in ("run on llvm", "run on interpret", "run on the GPU")]
    return all(f.good for f in findings if f.required) and any(f.good for f in runs)


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """The report as plain values."""
    return {"usable": usable(findings), "findings": [asdict(f) for f in findings]}


# --- packages ------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("python", python, sys.version_info >= (3, 10), "install Python 3.10 or later", required=True)
    for name, least in REQUIRED.items():
        yield _package(name, least, f"pip install '{name}{'>=' + least if least else ''}'", required=True)
    for name, (least, extra) in OPTIONAL.items():
        yield _package(name, least, install(extra), required=False)


def _triton() -> Finding:
    """Whether kernels were tested with this Triton; others are used all the same."""
    wrong = untested()
    tested = f"pip install 'triton=={TESTED[-1]}.*', where kernels behave oddly"
    return Finding("tested with triton", wrong or ", ".join(TESTED), wrong is None, tested if wrong else "")


def folder_shared(folder: Path) -> Finding:
    """The folder that `import neptune` takes, and whether files of the other package of that name lie in it: pip lets
    either write over the other without a word."""
    fact = f"import neptune takes {folder}"
    strangers = sorted(_strangers(folder))
    if not strangers:
        return Finding("package", fact, True)
    some = ", ".join(strangers[:3]) + (", …" if strangers[3:] else "")
    remedy = (
        f"pip uninstall {TRACKER} && pip install --force-reinstall . in a checkout of ours; "
        'python -c "import neptune; print(neptune.__file__)" tells which one is imported'
    )
    wrong = f"{fact}, where files of the experiment tracker `{TRACKER}` lie, too: {some}"
    return Finding("package", wrong, False, remedy, required=True)


def _strangers(folder: Path) -> Iterator[str]:
    """What the tracker's distribution has put into a folder."""
    with suppress(PackageNotFoundError):
        theirs = (Path(str(f.locate())).resolve() for f in distribution(TRACKER).files or ())
        here = folder.resolve()
        yield from {f.relative_to(here).parts[0] for f in theirs if f.is_relative_to(here)}


def _package(name: str, least: str, remedy: str, *, required: bool) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding(name, "not installed", False, remedy, required, optional=not required)
    good = _numbers(installed) >= _numbers(least)
    return Finding(
        name, installed if good else f"{installed}, older than {least}", good, "" if good else remedy, required
    )


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" → (2, 13, 0)."""
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])


def _settings() -> Finding:
    """The NEPTUNE_ variables that are set, and whether they mean something."""
    from neptune import config
    from neptune.base import logs
    from neptune.errors import NeptuneError

    variables = {n: v for n, v in sorted(os.environ.items()) if n.startswith("NEPTUNE_")}
    shown = ", ".join(f"{n}={v}" for n, v in variables.items()) or "none are set"
    unknown = [n for n in variables if n not in config.VARIABLES]
    wrong = config.fault() or logs.parse(config.read().logs)
    if isinstance(wrong, NeptuneError):
        return Finding("settings", wrong.text.replace("\n", ";"), False, f"unset {wrong.asked.split('=')[0]}", True)
    if unknown:
        return Finding(
            "settings", shown, False, f"there is no {', '.join(unknown)}; known: {', '.join(config.VARIABLES)}"
        )
    return Finding("settings", shown, True)


def _cache() -> Finding:
    """Report the cache's folder, how many kernels it holds, and whether it can store more."""
    from neptune import config
    from neptune.driver.cache import Store

    remedy = "set NEPTUNE_CACHE_DIR to a folder of yours, or to 0 for none"
    unread = config.fault()
    if unread is not None:
        return Finding("cache", f"unknown: {unread.asked}", False, "correct the settings")
    folder = config.read().cache_dir
    if folder is None:
        return Finding("cache", "none: every compilation starts anew", True)
    store = Store(folder)
    try:
        entries, size = store.usage()
        wrong = store.trouble()
    except OSError as error:
        return Finding("cache", f"{store.folder}: {error.strerror}", False, remedy)
    if wrong is not None:
        return Finding("cache", f"{store.folder}: {wrong}", False, remedy)
    return Finding("cache", f"{store.folder}: {entries} kernels, {size / 2**20:.1f} MiB", True)


# --- targets -------------------------------------------------------------------------------------


def _targets() -> Iterator[Finding]:
    yield _attempt("run on llvm", lambda: _run("llvm"), INSTALL_TE)
    yield _attempt("run on interpret", lambda: _run("interpret"), "pip install 'triton>=3.6' 'numpy>=2'")
    for target in GPU_TARGETS:
        remedy = "pip install --force-reinstall triton (its compilers come with it)"
        yield _attempt(f"compile for {target}", lambda target=target: _compile(target), remedy)  # type: ignore[misc]


def _attempt(subject: str, act: Callable[[], str], remedy: str) -> Finding:
    """Call `act` and report its result: the one place where any failure is an answer."""
    try:
        return Finding(subject, act(), True)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return Finding(subject, f"{type(error).__name__}: {first}", False, getattr(error, "hint", None) or remedy)


def _tiny(target: str) -> Any:
    """A kernel that doubles a vector."""
    from neptune.driver.pipeline import compile
    from neptune.ir.text.parser import parse_program

    lines = ["program double", "  in x: f32[n]", "  out y: f32[n]", "  scalar n: i32 lo 1"]
    lines += ["body:", "  for i in [0, n):", "    y: y[i] = x[i] + x[i]"]

    def template(sch: Any) -> None:
        (i,) = sch.loops("y")
        outer, _ = sch.split(i, sch.param("BLOCK", [16]))
        sch.bind(outer, "grid.x")

    return compile(parse_program("\n".join(lines)), template, target=target)


def _run(target: str, device: str = "cpu") -> str:
    import torch

    x = torch.arange(40, dtype=torch.float32, device=device)
    y = _tiny(target)(x)
    if not torch.equal(y, x + x):
        raise ArithmeticError("a kernel that doubles a vector gives a wrong result")
    return "a small kernel runs"


def _compile(target: str) -> str:
    (resources,) = _tiny(target).resources(target)
    return f"a small kernel compiles, {resources.registers} registers"


def _gpu() -> Finding:
    import torch

    from neptune.runtime.launching.launch import gpu_target

    present = gpu_target()
    if present is None:
        built = torch.version.cuda or torch.version.hip
        why = "torch is built for the CPU" if built is None else "torch sees no GPU"
        remedy = (
            "install a torch built for CUDA or ROCm" if built is None else "check the driver (nvidia-smi, rocm-smi)"
        )
        return Finding("run on the GPU", why, False, f"where there should be one, {remedy}", optional=built is None)
    name = torch.cuda.get_device_name()
    return _attempt(
        "run on the GPU", lambda: f"{name} ({present}): {_run(present.kind, 'cuda')}", "update the GPU's driver"
    )
