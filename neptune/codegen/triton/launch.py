"""The launch function: sizes from shapes, temporaries, grids, and the kernels in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neptune.codegen.triton.expr import HostPrinter
from neptune.codegen.triton.kernel import KernelText, Parameter, grid_letters
from neptune.codegen.triton.text import MUL, WIDTH, wrap
from neptune.ir.expr import Expr, Var, variables
from neptune.ir.program import Tunable
from neptune.ir.text.printer import print_expr
from neptune.runtime.launching.recording import LAUNCHER
from neptune.tile.ir import TileKernel, TileProgram

HOST = HostPrinter(str)


def _text(e: Expr) -> str:
    return str(HOST(e))


def shape_sources(program: TileProgram) -> dict[str, str]:
    """Map each size that is a plain dimension of an input to its source: name → `q.shape[2]`."""
    sources: dict[str, str] = {}
    for b in program.inputs:
        for k, d in enumerate(b.shape):
            if isinstance(d, Var) and d.name not in sources:
                sources[d.name] = f"{b.name}.shape[{k}]"
    return sources


def launch_signature(program: TileProgram, defaults: Mapping[str, int], *, numbers: bool = True) -> str:
    """`q, k, out, scale, *, part=None, BLOCK_M=64, num_warps=4, num_stages=2, launcher=lambda kernel: kernel`.

    What has no default must be given. Without `numbers`, warps and stages are the function's own.
    """
    sources = shape_sources(program)
    words = [b.name for b in (*program.inputs, *program.outputs)]
    words += [s.name for s in program.scalars if s.name not in sources]
    words.append("*")
    words += [f"{b.name}=None" for b in program.temporaries]
    words += [f"{t.name}=None" if t.covers is not None else _value(t.name, defaults) for t in program.tunables]
    words += [_value(name, defaults) for name in ("num_warps", "num_stages") if numbers]
    return ", ".join([*words, f"{LAUNCHER}=lambda kernel: kernel"])


def _value(name: str, defaults: Mapping[str, int]) -> str:
    return f"{name}={defaults[name]}" if name in defaults else name


def write_launch(program: TileProgram, kernels: list[KernelText], defaults: Mapping[str, int]) -> list[str]:
    """The launch function's lines."""
    lines = [f"def {program.name}({launch_signature(program, defaults)}):", *describe(program, _described(kernels))]
    sources = shape_sources(program)
    needed = sizes_needed(program, kernels)
    lines += [f"    {name} = {source}" for name, source in sources.items() if name in needed]
    lines += prepared(program)
    for kernel, text in zip(program.kernels, kernels, strict=True):
        lines += launched(kernel, text)
    return [x for line in lines for x in wrap(line)]


def prepared(program: TileProgram) -> list[str]:
    """The lines that give tiles and temporaries that were not given."""
    lines = [line for t in program.tunables for line in _cover(t)]
    for b in program.temporaries:
        sizes = ", ".join(_text(d) for d in b.shape)
        comma = "," if len(b.shape) == 1 else ""
        device = f"{(program.inputs or program.outputs)[0].name}.device"
        lines.append(f"    if {b.name} is None:")
        lines.append(f"        {b.name} = torch.empty(({sizes}{comma}), dtype=torch.{b.dtype}, device={device})")
    return lines


def _described(kernels: list[KernelText]) -> frozenset[str]:
    return frozenset(p.of for k in kernels for p in k.parameters if p.kind == "descriptor")


def describe(program: TileProgram, described: frozenset[str]) -> list[str]:
    """The docstring: what each tensor must be; `described` go through descriptors."""
    lines = ["Launch on tensors whose last dimension is dense; nothing is checked here.", ""]
    for b in (*program.inputs, *program.outputs):
        notes = ["written"] * (b in program.outputs) + ["16-byte aligned in address and strides"] * (
            b.name in described
        )
        shape = ", ".join(print_expr(d) for d in b.shape)
        lines.append(f"{b.name}: {b.dtype} [{shape}]{', ' * bool(notes)}{', '.join(notes)}")
    sources = shape_sources(program)
    lines += [f"{s.name}: {s.dtype}" for s in program.scalars if s.name not in sources]
    lines.append(f"{LAUNCHER}: applied to each kernel before its launch, such as torch.library.wrap_triton")
    return [f'    """{lines[0]}', *(f"    {x}".rstrip() for x in lines[1:]), '    """']


def _cover(t: Tunable) -> list[str]:
    """A tile that must cover a size is as large as the size needs."""
    if t.covers is None:
        return []
    return [f"    if {t.name} is None:", f"        {t.name} = triton.next_power_of_2({_text(t.covers)})"]


def sizes_needed(program: TileProgram, kernels: list[KernelText]) -> frozenset[str]:
    """The sizes that the launch function mentions."""
    exprs = [g.extent for k in program.kernels for g in k.grid]
    exprs += [d for b in program.temporaries for d in b.shape]
    exprs += [t.covers for t in program.tunables if t.covers is not None]
    names = frozenset[str]().union(*(variables(e) for e in exprs))
    return names | {p.name for k in kernels for p in k.parameters if p.kind == "scalar"}


def launched(kernel: TileKernel, text: KernelText) -> list[str]:
    """One kernel: its descriptors, its grid, the call."""
    lines = []
    for p in text.parameters:
        if p.kind == "descriptor":
            box = ", ".join("1" if d is None else _text(d) for d in p.box)
            lines.append(f"    {p.name} = TensorDescriptor.from_tensor({p.of}, [{box}])")
    groups = grid_letters(kernel.grid)
    sizes = []
    for letter in "xyz"[: max(("xyz".index(a) + 1 for a in groups), default=1)]:
        parts = [HOST(g.extent) for g in groups.get(letter, ())]
        sizes.append(str(parts[0]) if len(parts) == 1 else " * ".join(p.at(MUL + 1) for p in parts) or "1")
    comma = "," if len(sizes) == 1 else ""
    lines.append(f"    grid = ({', '.join(sizes)}{comma})")
    lines.append(f"    {LAUNCHER}({text.function})[grid](")
    lines += passed(text.parameters)
    words = [f"{p.name}={p.name}" for p in text.parameters if p.kind == "tunable"]
    lines += wrap_words(words)
    return [*lines, "        num_warps=num_warps,", "        num_stages=num_stages,", "    )"]


def passed(parameters: Sequence[Parameter]) -> list[str]:
    """The lines of a call that give tensors, strides and scalars."""
    kinds = ("tensor", "stride", "scalar")
    return [x for k in kinds for x in wrap_words([_argument(p) for p in parameters if _group(p) == k])]


def _group(p: Parameter) -> str:
    return "tensor" if p.kind in ("pointer", "descriptor") else p.kind


def _argument(p: Parameter) -> str:
    if p.kind == "stride":
        return f"{p.of}.stride({p.dim})"
    return p.of if p.kind in ("pointer", "scalar") else p.name


def wrap_words(words: Sequence[str], pad: str = " " * 8) -> list[str]:
    """Arguments on as few lines as they need."""
    lines: list[str] = []
    line = ""
    for w in words:
        if line and len(line) + len(w) + 2 > WIDTH - 1:
            lines.append(line)
            line = ""
        line = f"{line} {w}," if line else f"{pad}{w},"
    return [*lines, line] if line else lines
