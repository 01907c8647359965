"""The functions of a Gluon module: a role's signature, and the kernel, which reserves memory and starts the roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neptune.codegen.compile import parameters_of
from neptune.codegen.triton_kernel import KernelText, Parameter
from neptune.codegen.triton_launch import wrap_words
from neptune.codegen.triton_text import TL_DTYPES, WIDTH, wrap
from neptune.hopper.gluon.roles import FIRST, TABLE
from neptune.hopper.gluon.shared import CONSUMER, CONSUMERS, Shared
from neptune.hopper.hardware import WARPS
from neptune.hopper.ir import AsyncKernel
from neptune.runtime.addressing import KernelParameters
from neptune.tile.ir import TileProgram

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
