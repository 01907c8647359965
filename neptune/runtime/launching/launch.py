"""Targets, and how a compiled program runs on each.

Every target runs the same fused program: "llvm" compiles its loops for this machine's CPU (registered from above,
`neptune.codegen.llvm`); the others run its Triton module, "interpret" in Triton's interpreter.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from neptune.base.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning, TargetError
from neptune.ir.program import Program
from neptune.runtime.launching.capability import check_dtypes
from neptune.runtime.launching.plans import Plan, enter_thread
from neptune.runtime.launching.recording import Launcher, distinct_floats, launching, make_plan, recording, with_values
from neptune.runtime.launching.refused import REFUSED
from neptune.runtime.modules import Form, Modules
from neptune.versions import untested

LOG = logging.getLogger("neptune.runtime")
LEGAL = ("cuda", "cuda:90", "hip", "hip:gfx942", "interpret", "llvm")
CAPABILITIES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""The compute capabilities that Triton compiles for; later ones are for its compiler to judge."""
Scalars: TypeAlias = Mapping[str, "int | float"]
Temporaries: TypeAlias = Mapping[str, torch.Tensor]
Launch: TypeAlias = Callable[..., "Plan | None"]
"""(inputs, outputs, every scalar by name, temporaries in a caller's memory) → the outputs are written; on a GPU, how to
do it again. The other targets have temporaries of their own. On a GPU a further argument is a Launcher, which decides
what is done with every launch: then nothing is to be done again."""
NONE: Temporaries = MappingProxyType({})
WORD = 4
MOST_SPILLED = 1024
"""Bytes a thread: a few words around a loop cost nothing, a tile that goes to memory and back does."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target. `arch` is the part behind the colon, "" where none was named.

    >>> Target("hip", "gfx942").device, str(Target("hip", "gfx942"))
    ('cuda', 'hip:gfx942')
    """

    kind: str
    arch: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.kind in ("cuda", "hip")

    @property
    def device(self) -> str:
        """The torch device type of the tensors it takes (torch calls AMD GPUs cuda, too)."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def loads(self) -> str:
        """The way kernels for it address memory: by tensor descriptors where the hardware has them (sm_90 on)."""
        return "descriptor" if self.kind == "cuda" and self.arch.isdigit() and int(self.arch) >= 90 else "pointer"

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def parse_target(text: str) -> Target:
    """The target a string names; TargetError lists the legal ones.

    >>> parse_target("cuda:90")
    Target(kind='cuda', arch='90')
    """
    if not isinstance(text, str):
        raise TargetError(f"compile for target {text!r}", "a target is a string", legal=LEGAL)
    kind, colon, arch = text.partition(":")
    fits = {"cuda": arch.isdigit(), "hip": arch.startswith("gfx"), "interpret": False, "llvm": False}
    if kind not in fits or (colon and not fits[kind]):
        raise TargetError(f"compile for target {text!r}", "there is no such target", legal=LEGAL)
    if kind == "cuda" and arch and int(arch) <= CAPABILITIES[-1] and int(arch) not in CAPABILITIES:
        raise TargetError(
            f"compile for target {text!r}",
            "no GPU that can be compiled for has this compute capability (90 stands for 9.0; it is no device's number)",
            legal=[f"cuda:{c}" for c in CAPABILITIES],
        )
    return Target(kind, arch)


def default_target() -> Target:
    """The GPU where torch sees one, else this machine's CPU: by LLVM where there is TVM, else Triton's interpreter."""
    if torch.cuda.is_available():
        return Target("hip" if torch.version.hip else "cuda")
    return Target("llvm" if has_tvm() else "interpret")


def has_tvm() -> bool:
    """Return True if TVM is installed; it is not imported."""
    try:
        return find_spec("tvm") is not None
    except (ImportError, ValueError):  # also where it was said to be missing: sys.modules["tvm"] is None
        return False


def gpu_target() -> Target | None:
    """The architecture of the present GPU, None where there is none."""
    if not torch.cuda.is_available():
        return None
    if torch.version.hip:
        return Target("hip", torch.cuda.get_device_properties(0).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability()
    return Target("cuda", f"{major}{minor}")


def capturing() -> bool:
    """True while a CUDA graph is captured on the current stream."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def make_launch(target: Target, fused: Program, modules: Modules) -> Launch:
    """Return the function that runs a program on a target; compilation that can wait happens at the first call.

    `fused` is the executable form of the program (inits explicit, tiles local), `modules` its Triton.
    Raises TargetError if the target is not available.
    """
    if target.kind not in LAUNCHERS:
        raise TargetError(
            f"run `{fused.name}` on {target}", "nothing has registered how to run on it", legal=tuple(LAUNCHERS)
        )
    if target.kind != "llvm":
        _tell_versions()
    return LAUNCHERS[target.kind](target, fused, modules)


@cache
def _tell_versions() -> None:
    """Warn, once, where Triton is of another version than kernels were tested with."""
    if wrong := untested():
        warnings.warn(wrong, stacklevel=frames_of_package() + 1)


def _interpreted(target: Target, fused: Program, modules: Modules) -> Launch:
    from neptune.runtime.processes.interpret import run_interpreted

    free = passed_scalars(fused)

    def launch(
        inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], scalars: Scalars, own: Temporaries = NONE
    ) -> Plan | None:
        tensors = [*inputs, *outputs]
        form = modules.form(tensors, scalars, "pointer", runs_other(modules, target))
        scalars_passed = [scalars[n] for n in free]
        run_interpreted(modules.source(form), fused.name, tensors, scalars_passed, modules.values(form))
        return None

    return launch


def _on_gpu(target: Target, fused: Program, modules: Modules) -> Launch:
    request = f"run `{fused.name}` on {target}"
    present = gpu_target()
    if present is None:
        raise TargetError(
            request,
            "torch sees no GPU here",
            legal=("interpret", "llvm"),
            hint="kernel.asm() and .source need no GPU",
            kind="no_gpu",
        )
    if present.kind != target.kind or target.arch not in ("", present.arch):
        legal = (present.kind, str(present), "interpret", "llvm")
        raise TargetError(request, f"the GPU here is {present}", legal=legal, kind="no_gpu")
    check_dtypes(fused, present)
    # Triton reads a kernel's text back from its file, so the module is imported from one, in a private folder.
    from triton.runtime.jit import JITFunction

    from neptune.runtime.processes.source import load_source

    free = passed_scalars(fused)
    asking = f"run `{fused.name}` on {present} with {dict(modules.params)}"
    loaded: dict[Form, Callable[..., None]] = {}
    served: set[tuple[Any, ...]] = set()

    def function(form: Form) -> Callable[..., None]:
        if form not in loaded:
            loaded[form] = getattr(load_source(modules.source(form)), fused.name)
        return loaded[form]

    def launch(
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        scalars: Scalars,
        own: Temporaries = NONE,
        launcher: Launcher | None = None,
    ) -> Plan | None:
        tensors = [*inputs, *outputs]
        # A view at an odd address, or with huge strides, is served too: by another form of the module.
        form = tiles = modules.form(tensors, scalars, present.loads)
        if runs_other(modules, present):
            form = modules.form(tensors, scalars, present.loads, other=True)
        if launcher is not None:
            # A caller may hand kernels on to what knows Triton's alone; tensors without memory are of `warm`.
            for each in dict.fromkeys((tiles, form) if outputs[0].is_meta else (tiles,)):
                run = launching(function(each), JITFunction, with_values(launcher, modules.values_of_one(each)))
                with _said(asking):
                    run(*tensors, *(scalars[n] for n in free), **own, **modules.values(each))
            return None
        # The first call of a shape makes what a capture cannot: a table of tiles.
        shape = (form, outputs[0].device, *(x for x in scalars.values() if isinstance(x, int)))
        captured = form != tiles and shape not in served and torch.cuda.is_current_stream_capturing()
        form = tiles if captured else form
        fresh, start = form not in loaded, time.perf_counter()
        numbers = distinct_floats([scalars[n] for n in free])
        run, log = recording(function(form), JITFunction, modules.values_of_one(form))
        with torch.cuda.device(outputs[0].device):
            enter_thread()
            with _said(asking):
                run(*tensors, *numbers, **own, **modules.values(form))
            # The first temporary lies at the start of the caller's memory.
            memory = min((t.data_ptr() for t in own.values()), default=None)
            plan = make_plan(log, inputs, outputs, [x for x in numbers if isinstance(x, float)], memory)
        if form != tiles:
            served.add(shape)
        if fresh:
            _tell_spills(r.compiled for r in log)
            # Triton compiles in the first launch.
            LOG.info("first launch of %s of `%s`: %.0f ms", form, fused.name, 1e3 * (time.perf_counter() - start))
        # Calls behind the capture take the form that this one could not.
        return None if captured else plan

    return launch


def runs_other(modules: Modules, present: Target) -> bool:
    """True where the kernel's other form is for this target, and what it compiles to has been accepted."""
    other = modules.other
    if other is None or other.architecture != str(present):
        return False
    settings = other.settings()
    if settings not in modules.runs:
        modules.runs[settings] = other.runs()
    return modules.runs[settings]


def _tell_spills(compiled: Iterable[Any]) -> None:
    """A NeptunePerformanceWarning for each binary that Triton has loaded whose threads spill more than MOST_SPILLED
    bytes. The model's estimate keeps what spills out of a family (`tune/model/occupancy.py`), where it is right."""
    for c in compiled:
        spilled = WORD * int(getattr(c, "n_spills", 0) or 0)
        if spilled > MOST_SPILLED:
            message = (
                f"kernel `{c.name}` spills {spilled} bytes a thread, with {c.n_regs} registers: its tiles do not fit; "
                "try: smaller tiles or more warps by params=, or kernel.tune, which measures others"
            )
            warnings.warn(NeptunePerformanceWarning(message), stacklevel=frames_of_package() + 1)


@contextmanager
def _said(asked: str) -> Iterator[None]:
    """TargetError for a first launch that Triton refuses: too much shared memory, an operand it does not take, or wrong
    code (`neptune.runtime.machine_code.descriptors`)."""
    from triton.errors import TritonError

    try:
        yield
    except TritonError as error:
        last = [line.strip() for line in str(error).splitlines() if line.strip()][-1:]
        hint = "other tile sizes, num_warps or num_stages"
        raise TargetError(asked, f"Triton: {' '.join(last)[:300]}", hint=hint, kind=REFUSED) from None


def passed_scalars(program: Program) -> tuple[str, ...]:
    """The scalars that no input has as a dimension: trailing arguments of the launch function, in order."""
    bound = program.shape_scalars
    return tuple(s.name for s in program.scalars if s.name not in bound)


LAUNCHERS: dict[str, Callable[[Target, Program, Modules], Launch]] = {
    "cuda": _on_gpu,
    "hip": _on_gpu,
    "interpret": _interpreted,
}
"""How to run on each kind of target. A room above registers the targets that need a compiler here: "llvm"."""
