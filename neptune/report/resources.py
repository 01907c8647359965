"""The assembly of a kernel, and what it needs of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from neptune.codegen.compile import Compiled, compile_kernels
from neptune.errors import TargetError
from neptune.forms import FORMS, TRITON, Inspected
from neptune.forms import RoleResources as RoleResources
from neptune.ir.expr import variables
from neptune.runtime.executable import Executable
from neptune.runtime.launching.capability import check_dtypes
from neptune.runtime.launching.launch import Target, gpu_target, parse_target
from neptune.runtime.modules import Form, covers
from neptune.tile.context import SHORTEST_DOT
from neptune.tune.defaults import SIDE

TYPICAL_SIZE = 1024
"""The size that offline compilation assumes where a tile covers one and no typical shape was given; sides of products
that a tile covers have those of default values."""
_inspected: WeakKeyDictionary[Executable, Sequence[Inspected]] = WeakKeyDictionary()
_compiled: WeakKeyDictionary[Executable, dict[Target, list[Compiled]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Resources:
    """One kernel's use of a target. `matrix` is "wgmma", "mma", "mfma" or None; `spill_bytes` are per
    thread; `warnings` are compiler remarks that cost speed. `form` is "triton" or the name of another form; where that
    has roles, `registers` are those that a thread is launched with, and `roles` what each role has.

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
    """The numbers of each kernel: of those in another form first, where the target has that form, then of all in the
    Triton form. TargetError as `compiled`."""
    form = executable.artifact.form
    others = [
        Resources(x.name, x.registers, x.spill_bytes, x.shared_bytes, x.matrix, x.warnings, form.name, x.roles)
        for x in inspected(executable, _architecture(executable, target))
        if form is not None
    ]
    return [*others, *map(resources_of, compiled(executable, target))]


def resources_of(c: Compiled) -> Resources:
    """The numbers of a compiled kernel without its assembly."""
    return Resources(c.name, c.registers, c.spill_bytes, c.shared_bytes, c.matrix, c.warnings)


def asm(executable: Executable, target: str | None, form: str | None) -> dict[str, str]:
    """The assembly of each kernel by name, in one form: None is what dense tensors on 16 bytes take, kernels that have
    no other form are in Triton's. TargetError as `compiled`, and for a form that is none."""
    chosen = _architecture(executable, target)
    data = executable.artifact.form
    own = None if data is None or data.architecture != str(chosen) else data.name
    legal = (TRITON, *((own,) if own else ()))
    if form is not None and form not in legal:
        request = f"assembly of `{executable.artifact.name}` for {chosen} with form={form!r}"
        hint = " or ".join(f'form="{name}"' for name in FORMS)
        raise TargetError(request, "it has no such form there", legal=legal, hint=f"compile with {hint}")
    texts = {} if form == own and own else {c.name: c.asm for c in compiled(executable, target)}
    if form != TRITON:
        texts |= {x.name: x.asm for x in inspected(executable, chosen)}
    return texts


def inspected(executable: Executable, target: Target) -> Sequence[Inspected]:
    """The kernels in another form that a kernel has for a target, compiled once."""
    form = executable.artifact.form
    if form is None or form.architecture != str(target) or form.name not in FORMS:
        return ()
    if executable not in _inspected:
        _inspected[executable] = FORMS[form.name]().inspect(form)
    return _inspected[executable]


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
