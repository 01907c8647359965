"""One asynchronous kernel as functions of a Gluon module: its roles, and the kernel that starts them.

Their constants (tile sizes, consumers, stages, layouts) are the module's. Where kernels of one module have constants of
the same name with different values, these are named after them: `BLOCK_N` of `attention_o_kernel` is `O_BLOCK_N`.

A role is a signature and a body; the kernel reserves memory and starts the roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neptune.codegen.compile import parameters_of
from neptune.codegen.triton.kernel import KernelText, Parameter, function_name, parameters_used
from neptune.codegen.triton.launch import wrap_words
from neptune.codegen.triton.scope import axis_labels
from neptune.codegen.triton.text import TL_DTYPES, WIDTH, wrap
from neptune.hopper.gluon import versions
from neptune.hopper.gluon.expr import Boxes, GluonContext
from neptune.hopper.gluon.layouts import LANES, Layouts, WarpLayouts
from neptune.hopper.gluon.roles import FIRST, INIT, TABLE, RoleWriter
from neptune.hopper.gluon.shared import CONSUMER, CONSUMERS, Shared
from neptune.hopper.hardware import WARPS
from neptune.hopper.ir import AsyncKernel, Issue, walk_async
from neptune.hopper.roles.as_tiles import addressed_roles
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.integers import Span
from neptune.ir.program import Tunable
from neptune.runtime.artifact import launch_name
from neptune.runtime.calls.addressing import KernelParameters
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


# --- signatures, and the kernel that starts the roles -----------------------------------------------

PRODUCES = "Copies tiles into shared memory, each as soon as the consumers have left its place."
CONSUMES = "One warpgroup: the rows of consumer W, on tiles that the producer copies."


@dataclass(frozen=True)
class Role:
    """A role's lines, and the names of the module that they use."""

    name: str
    lines: tuple[str, ...]
    used: frozenset[str]


@dataclass(frozen=True)
class KernelWriter:
    """Writes the functions of one kernel. `sizes` has the texts of the extents of axes."""

    kernel: AsyncKernel
    shared: Shared
    function: str
    parameters: tuple[Parameter, ...]
    sizes: dict[str, str]

    @property
    def general(self) -> tuple[str, ...]:
        """All but descriptors: a verdict is on one compilation, so that none may follow from an address or a length."""
        descriptors = {p.name for p in self.parameters if p.kind == "descriptor"}
        return tuple(n for n in self.given if n not in descriptors)

    @property
    def text(self) -> KernelText:
        """The kernel for the launch function."""
        return KernelText(self.function, (), self.parameters, frozenset(), (), self.general)

    @property
    def given(self) -> list[str]:
        """The parameters of the kernel: those of the launch, and the table of tiles."""
        names = [p.name for p in self.parameters]
        return names + [TABLE, FIRST] * (self.kernel.levers.persistent == "table")

    def types(self, program: TileProgram) -> KernelParameters:
        """The types of the parameters, of none of which anything else is known; boxes in numbers."""
        known = parameters_of(program, self.text)
        values = self.kernel.levers.tiles
        boxes = {n: [values[e] if isinstance(e, str) else e for e in box] for n, box in known.boxes.items()}
        tables = [n for n in self.given if n in (TABLE, FIRST)]
        types = {**known.types, **dict.fromkeys(tables, "*i32")}
        return KernelParameters(self.function, types, boxes, ())

    def arguments(self, role: Role) -> list[str]:
        """The arguments of a role, in the order of its parameters."""
        return [n for n in (*self.given, *self.shared.names) if n in role.used]

    def role(self, role: Role, consumer: bool) -> list[str]:
        """The function of a role."""
        words = [f"{CONSUMER}: gl.constexpr"] * consumer + self.arguments(role)
        note = CONSUMES if consumer else PRODUCES
        return ["@gluon.jit", *bracketed(f"def {role.name}(", words, "):"), *_indented([f"# {note}", *role.lines])]

    def main(self, producer: Role, consumer: Role) -> list[str]:
        """The kernel."""
        names = ", ".join(f'"{n}"' for n in self.general)
        head = f"@gluon.jit(do_not_specialize=[{names}])" if self.general else "@gluon.jit"
        lines = [*self.memory(), *self.barriers(), "fence_async_shared()", *self.start(producer, consumer)]
        return [head, *bracketed(f"def {self.function}(", self.given, "):"), *_indented(lines)]

    def memory(self) -> list[str]:
        """Tiles of rings and of results."""
        lines = []
        for r in self.kernel.rings:
            stages = self.shared.stages(r)
            count = stages if not r.own else CONSUMERS if r.stages == 1 else f"{stages} * {CONSUMERS}"
            lines.append(self.tiles(r.name, count, r.dims, r.dtype))
        outs = [o for o in self.kernel.outs if o.over is None]
        return lines + [self.tiles(o.name, CONSUMERS, o.dims, o.dtype) for o in outs]

    def tiles(self, name: str, count: str, dims: tuple[str, ...], dtype: str) -> str:
        shape = f"[{', '.join([count, *(self.sizes[d] for d in dims)])}]"
        layout = self.shared.layout(name, dims, dtype)
        return f"{name}_tiles = gl.allocate_shared_memory({TL_DTYPES[dtype]}, {shape}, {layout})"

    def barriers(self) -> list[str]:
        """A full and an empty barrier for each stage: one expectation fills it, every consumer leaves it."""
        lines: list[str] = []
        leaders = [r for r in self.kernel.rings if r.barrier is None]
        for r in leaders:
            allocation = f"gl.allocate_shared_memory(gl.int64, [{self.shared.stages(r)}, 1], mbarrier.MBarrierLayout())"
            lines += [f"{self.shared.barrier(r, kind)} = {allocation}" for kind in ("full", "empty")]
        for stages in dict.fromkeys(self.shared.stages(r) for r in leaders):
            index, pad = ("0", "") if stages == "1" else ("stage", "    ")
            if pad:
                lines.append(f"for stage in gl.static_range({stages}):")
            for r in leaders:
                if self.shared.stages(r) == stages:
                    full, empty = (self.shared.barrier(r, kind) for kind in ("full", "empty"))
                    lines.append(f"{pad}mbarrier.init({full}.index({index}), count=1)")
                    lines.append(f"{pad}mbarrier.init({empty}.index({index}), count={CONSUMERS})")
        return lines

    def start(self, producer: Role, consumer: Role) -> list[str]:
        """All roles. The tuples stand in the call, as a variable would make tensors of their constants."""
        many = self.kernel.levers.consumers
        parts = [(consumer.name, [str(w), *self.arguments(consumer)]) for w in range(many)]
        parts.append((producer.name, self.arguments(producer)))
        registers, rest = self.kernel.levers.registers
        lines = ["gl.warp_specialize(", "    ["]
        lines += [x for name, args in parts for x in bracketed(f"        ({name}, (", args, ")),")]
        warps = [WARPS] * (many - 1) + [1]
        return [*lines, "    ],", f"    {warps},", f"    {[registers] * (many - 1) + [rest]},", ")"]


def bracketed(head: str, words: Sequence[str], tail: str) -> list[str]:
    """Words between brackets: on one line, else on lines of their own, as few as they need."""
    line = f"{head}{', '.join(words)}{tail}"
    if len(line) <= WIDTH - 4:
        return [line]
    pad = head[: len(head) - len(head.lstrip())]
    return [head, *wrap_words(words, f"{pad}    "), pad + tail]


def _indented(lines: list[str]) -> list[str]:
    return [x for line in lines for x in wrap(f"    {line}")]
