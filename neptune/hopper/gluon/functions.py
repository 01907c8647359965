"""One asynchronous kernel as functions of a Gluon module: its roles, and the kernel that starts them.

Their constants (tile sizes, consumers, stages, layouts) are the module's. Where kernels of one module have constants of
the same name with different values, these are named after them: `BLOCK_N` of `attention_o_kernel` is `O_BLOCK_N`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neptune.codegen.triton_kernel import KernelText, function_name, parameters_used
from neptune.codegen.triton_scope import axis_labels
from neptune.codegen.triton_text import wrap
from neptune.hopper.gluon import versions
from neptune.hopper.gluon.expr import Boxes, GluonContext
from neptune.hopper.gluon.kernel import KernelWriter, Role
from neptune.hopper.gluon.layouts import LANES, Layouts, WarpLayouts
from neptune.hopper.gluon.roles import FIRST, INIT, TABLE, RoleWriter
from neptune.hopper.gluon.shared import CONSUMER, CONSUMERS, Shared
from neptune.hopper.ir import AsyncKernel, Issue, walk_async
from neptune.hopper.roles.as_tiles import addressed_roles
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.program import Tunable
from neptune.ir.spans import Span
from neptune.runtime.addressing import KernelParameters
from neptune.runtime.artifact import launch_name
from neptune.tile.address import Addressed
from neptune.tile.ir import TileKernel, TileProgram

RESERVED = frozenset(
    {"gl", "gluon", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait", INIT, "fence_async_shared"}
    | {TABLE, FIRST, CONSUMERS, CONSUMER, *versions.RENAMED}
)


@dataclass(frozen=True)
class Written:
    """The functions of one kernel. `text` is what the launch function must know of it, `types` what offline compilation
    must; `constants` are those of the module that its functions may use, `helpers` its helper functions, `described`
    the buffers that go through descriptors, `spans` what its int32 offsets add up. `stem` tells it from other
    kernels."""

    kernel: AsyncKernel
    stem: str
    functions: tuple[list[str], ...]
    text: KernelText
    types: KernelParameters
    constants: Mapping[str, object]
    helpers: frozenset[str]
    described: frozenset[str]
    spans: tuple[Span, ...]


def write(program: TileProgram, kernel: AsyncKernel) -> Written:
    """The functions of the kernel of `program` that has this name."""
    shared = Shared(kernel)
    program, known = _fixed(program, kernel)
    addressed_of = addressed_roles(program, kernel)
    products = [s for s in walk_async(kernel.consumer) if isinstance(s, Issue)]
    labels = axis_labels(addressed_of["consumer"][0].kernel)
    layouts = {"producer": WarpLayouts(kernel.extents, labels), "consumer": Layouts(products, kernel.extents, labels)}
    named = {n: v for x in layouts.values() for n, v in x.constants.items()}
    reserved = RESERVED | {*shared.names, *known, *shared.constants, *named}
    name = function_name(program, TileKernel(kernel.name, (), (), ()))
    boxes: Boxes = {}
    contexts: dict[str, GluonContext] = {}
    roles: dict[str, Role] = {}
    for role, (addressed, body) in addressed_of.items():
        ctx = contexts[role] = GluonContext(addressed, layouts[role], shared, boxes, reserved)
        lines = RoleWriter(ctx, kernel).role(body, role == "consumer")
        roles[role] = Role(f"{name.removesuffix('_kernel')}_{role}", tuple(lines), frozenset(ctx.used))
    ctx.used |= roles["producer"].used
    parameters = tuple(p for p in parameters_used(ctx) if p.kind != "tunable")
    sizes = {axis: str(ctx.scalar(e)) for axis, e in ctx.extents.items()}
    writer = KernelWriter(kernel, shared, name, parameters, sizes)
    functions = (
        writer.role(roles["producer"], False),
        writer.role(roles["consumer"], True),
        writer.main(roles["producer"], roles["consumer"]),
    )
    named = {n: v for x in layouts.values() for n, v in x.constants.items()}
    return Written(
        kernel=kernel,
        stem=launch_name(program.name, name),
        functions=functions,
        text=writer.text,
        types=writer.types(program),
        constants=known | shared.constants | named | {n: v for v, n in shared.layouts.items()},
        helpers=frozenset[str]().union(*(c.helpers for c in contexts.values())),
        described=frozenset(p.of for p in parameters if p.kind == "descriptor"),
        spans=_spans((addressed for addressed, _ in addressed_of.values()), kernel),
    )


def told_apart(kernels: Sequence[Written]) -> list[Written]:
    """The kernels with a name of its own for every constant whose value they do not share.

    No other name of their functions is in capitals.
    """
    # The layout of lanes is the same for all, and helper functions name it.
    used = [used_constants(w.constants, [LANES, *(line for f in w.functions for line in f)]) for w in kernels]
    values: dict[str, set[str]] = {}
    for constants in used:
        for name, value in constants:
            values.setdefault(name, set()).add(str(value))
    apart = {name for name, texts in values.items() if len(texts) > 1}
    # A layout that is made of another one says something else where that one does.
    while more := {n for c in used for n, v in c if n not in apart and apart & _words(str(v))}:
        apart |= more
    return [
        _renamed(w, dict(c), {n: f"{w.stem.upper()}_{n}" for n in apart}) for w, c in zip(kernels, used, strict=True)
    ]


def _renamed(w: Written, constants: Mapping[str, object], names: Mapping[str, str]) -> Written:
    """A kernel with other names for constants."""

    def put(text: str) -> str:
        return re.sub(r"\w+", lambda m: names.get(m[0], m[0]), text)

    functions = tuple([x for line in f for x in (wrap(put(line)) if names else [line])] for f in w.functions)
    renamed = {names.get(n, n): put(v) if isinstance(v, str) else v for n, v in constants.items()}
    return replace(w, functions=functions, constants=renamed)


def used_constants(constants: Mapping[str, object], lines: Iterable[str]) -> list[tuple[str, object]]:
    """The constants that occur in lines, or in another one."""
    words = _words("\n".join(lines))
    needed: list[tuple[str, object]] = []
    for name, value in reversed(list(constants.items())):
        if name in words:
            needed.insert(0, (name, value))
            words |= _words(str(value))
    return needed


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _spans(roles: Iterable[Addressed], kernel: AsyncKernel) -> tuple[Span, ...]:
    """The spans that offsets of int32 add up, in numbers."""

    def known(extent: Expr) -> Expr:
        return Const(kernel.levers.tiles[extent.name], "int32") if isinstance(extent, Var) else extent

    spans = (s for role in roles for s in role.spans)
    return tuple(dict.fromkeys(Span(s.buffer, tuple((d, known(e), f) for d, e, f in s.axes)) for s in spans))


def _fixed(program: TileProgram, kernel: AsyncKernel) -> tuple[TileProgram, dict[str, int]]:
    """The program with its tunables at the values of this form, and these values."""
    known = {t.name: kernel.levers.tiles[t.name] for t in program.tunables if t.name in kernel.levers.tiles}
    tunables = tuple(Tunable(t.name, (known[t.name],)) if t.name in known else t for t in program.tunables)
    return replace(program, tunables=tunables), known
