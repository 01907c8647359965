"""The assembly of a kernel, and what it needs of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from neptune.codegen.compile import Compiled, compile_kernels
from neptune.errors import TargetError
from neptune.ir.expr import variables
from neptune.runtime.addressing import ASYNCHRONOUS, Roles
from neptune.runtime.capability import check_dtypes
from neptune.runtime.executable import Executable
from neptune.runtime.launch import Target, gpu_target, parse_target
from neptune.runtime.modules import Form, covers
from neptune.tile.context import SHORTEST_DOT
from neptune.tune.defaults import SIDE

if TYPE_CHECKING:
    from neptune.hopper.compile import Built

TYPICAL_SIZE = 1024
"""The size that offline compilation assumes where a tile covers one and no typical shape was given; sides of products
that a tile covers have those of default values."""
TRITON = "triton"
_built: WeakKeyDictionary[Executable, list[tuple[Roles, Built]]] = WeakKeyDictionary()
_compiled: WeakKeyDictionary[Executable, dict[Target, list[Compiled]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class RoleResources:
    """What the roles of an asynchronous kernel take: registers of a thread of each consumer and of the producer, as the
    code leaves them to it, consumers of a program, stages of the tiles that loops load, and barriers in shared
    memory."""

    consumer: int
    producer: int
    consumers: int
    stages: int
    barriers: int


@dataclass(frozen=True, slots=True)
class Resources:
    """One kernel's use of a target. `matrix` is "wgmma", "mma", "mfma" or None; `spill_bytes` are per
    thread; `warnings` are compiler remarks that cost speed. `form` is "triton" or "asynchronous"; of the latter
    `registers` are those that a thread is launched with, and `roles` what each role has.

    >>> Resources("softmax_kernel", 32, 0, 0, None, ()).spill_bytes
    0
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix: str | None
    warnings: tuple[str, ...]
    form: str = TRITON
    roles: RoleResources | None = None


def resources(executable: Executable, target: str | None) -> list[Resources]:
    """The numbers of each kernel: of the asynchronous ones first, where the target has that form, then of all in the
    Triton form. TargetError as `compiled`."""
    asynchronous = [_resources(x, built) for x, built in _asynchronous(executable, _architecture(executable, target))]
    return [*asynchronous, *map(resources_of, compiled(executable, target))]


def resources_of(c: Compiled) -> Resources:
    """The numbers of a compiled kernel without its assembly."""
    return Resources(c.name, c.registers, c.spill_bytes, c.shared_bytes, c.matrix, c.warnings)


def asm(executable: Executable, target: str | None, form: str | None) -> dict[str, str]:
    """The assembly of each kernel by name, in one form: None is what dense tensors on 16 bytes take, kernels that have
    no asynchronous form are in Triton's. TargetError as `compiled`, and for a form that is none."""
    chosen = _architecture(executable, target)
    has = executable.artifact.asynchronous is not None and executable.artifact.asynchronous.architecture == str(chosen)
    legal = (TRITON, *((ASYNCHRONOUS,) if has else ()))
    if form is not None and form not in legal:
        asked = f"assembly of `{executable.artifact.name}` for {chosen} with form={form!r}"
        raise TargetError(asked, "it has no such form there", legal=legal, hint='compile with form="asynchronous"')
    texts = {} if form == ASYNCHRONOUS else {c.name: c.asm for c in compiled(executable, target)}
    if form != TRITON:
        texts |= {built.name: built.ptx for _, built in _asynchronous(executable, chosen)}
    return texts


def _resources(of: Roles, built: Built) -> Resources:
    """The numbers of an asynchronous kernel."""
    found = built.lint
    roles = RoleResources(
        consumer=min(found.consumers, default=built.registers),
        producer=max(found.producers, default=built.registers),
        consumers=int(of.levers["consumers"]),
        stages=int(of.levers["stages"]),
        barriers=built.mbarriers,
    )
    words = (built.name, built.registers, built.spill_bytes, built.shared_bytes, "wgmma", built.warnings)
    return Resources(*words, ASYNCHRONOUS, roles)


def _asynchronous(executable: Executable, target: Target) -> list[tuple[Roles, Built]]:
    """The asynchronous kernels that a kernel has for a target, compiled once."""
    of = executable.artifact.asynchronous
    if of is None or of.architecture != str(target):
        return []
    known = _built.setdefault(executable, [])
    if not known:
        from neptune.hopper.accept import kernels_of, numbers
        from neptune.hopper.compile import compile_gluon

        # Registers are read off the code.
        known += [(x, compile_gluon(of.text, x.kernel, numbers(x.levers))) for x in kernels_of(of, (0, 0))]
    return known


def compiled(executable: Executable, target: str | None) -> list[Compiled]:
    """Each kernel compiled for a GPU that need not be here, once; None: the kernel's target, or the GPU here.

    Raises TargetError where no architecture is named, and where the compiler refuses.
    """
    chosen, known = _architecture(executable, target), _compiled.setdefault(executable, {})
    check_dtypes(executable.loops, chosen)
    if chosen not in known:
        artifact, modules = executable.artifact, executable.modules
        sides = (t.covers for t in modules.declared.tunables if t.covers is not None and t.least >= SHORTEST_DOT)
        short = dict.fromkeys((n for e in sides for n in variables(e)), SIDE)
        typical = {
            s.name: artifact.shapes.get(s.name, short.get(s.name, TYPICAL_SIZE)) for s in modules.declared.scalars
        }
        params = {**covers(modules.declared, typical), **modules.params}
        source, kernels = modules.source(Form(chosen.loads)), artifact.modules[chosen.loads].kernels
        known[chosen] = [
            c
            for k in kernels
            for c in compile_kernels(source, [k], str(chosen), {**params, **modules.of_one.get(k.function, {})})
        ]
    return known[chosen]


def _architecture(executable: Executable, target: str | None) -> Target:
    """A GPU target with its architecture."""
    parsed = executable.target if target is None else parse_target(target)
    present = None if parsed.arch else gpu_target()
    if not parsed.arch and present is not None and (present.kind == parsed.kind or target is None):
        return present
    if not parsed.arch or not parsed.on_gpu:
        raise TargetError(
            f"compile `{executable.artifact.name}` for {parsed}",
            "name the architecture to compile for",
            legal=("cuda:80", "cuda:90", "hip:gfx942"),
        )
    return parsed
