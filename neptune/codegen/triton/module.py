"""TilePrograms as Triton source: one self-contained module a program.

The module holds one `@triton.jit` function per kernel and one launch function, named like the program,
that reads sizes and strides off the tensors, allocates temporaries and launches the kernels in order.
The text is a function of the TileProgram and of the defaults alone, so that it can be compared and cached.

How names come about: `<buffer>_ptr` and `stride_<buffer>_<dim>` are parameters, `offs_<axis>` runs along
a tile axis, `idx_<axis>` holds positions in the whole problem, `<buffer>_base` and `<buffer>_offs` are the
scalar and the tile part of an address, `<var>_end` and `<var>_clean_end` end a loop and its part without
masks. Everything else is named by the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neptune.codegen.triton.kernel import KernelText, write_kernel
from neptune.codegen.triton.launch import write_launch
from neptune.codegen.triton.text import HELPERS, LIBDEVICE
from neptune.runtime.calls.addressing import LOADS
from neptune.tile.ir import TileProgram

NO_DEFAULTS: Mapping[str, int] = MappingProxyType({})
"""Every call of the launch function gives all values."""


def kernel_texts(program: TileProgram, *, loads: str = "pointer", int64_offsets: bool = False) -> list[KernelText]:
    """The kernels of a program, in launch order."""
    if loads not in LOADS:
        raise ValueError(f"loads must be one of {', '.join(LOADS)}, not {loads!r}")
    descriptors = loads == "descriptor"
    return [write_kernel(program, k, descriptors=descriptors, int64_offsets=int64_offsets) for k in program.kernels]


def generate(
    program: TileProgram,
    defaults: Mapping[str, int] = NO_DEFAULTS,
    *,
    header: str = "",
    loads: str = "pointer",
    int64_offsets: bool = False,
) -> str:
    """The Python module of a TileProgram, whose launch function has `defaults` for tile sizes, warps and stages.

    `header` becomes the module's docstring. With `loads="descriptor"`, loads and stores that are boxes go
    through host tensor descriptors. `int64_offsets` is for tensors with strides so large that a tile spans 2**31
    elements. What each form asks of tensors is in `neptune.runtime.calls.addressing`.

    >>> print(generate(TileProgram("nothing", (), (), (), (), (), ())).splitlines()[0])
    \"\"\"Triton kernels of `nothing`.\"\"\"
    """
    return module_text(program, kernel_texts(program, loads=loads, int64_offsets=int64_offsets), defaults, header)


def module_text(program: TileProgram, kernels: list[KernelText], defaults: Mapping[str, int], header: str = "") -> str:
    """The Python module of kernels that `kernel_texts` has written."""
    lines = [*docstring(header or f"Triton kernels of `{program.name}`."), ""]
    lines += _imports(program, kernels)
    for name in sorted(frozenset[str]().union(*(k.helpers for k in kernels))):
        lines += ["", "", *HELPERS[name].splitlines()]
    for k in kernels:
        lines += ["", "", *k.lines]
    lines += ["", "", *write_launch(program, kernels, defaults)]
    return "\n".join(lines) + "\n"


def docstring(text: str) -> list[str]:
    """The text as a docstring, whatever quotes and backslashes are in it."""
    lines = text.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    if len(lines) == 1:
        return [f'"""{lines[0]}"""']
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _imports(program: TileProgram, kernels: list[KernelText]) -> list[str]:
    """Return the import lines of a module, only those that it uses."""
    lines = ["import torch"] if program.temporaries else []
    lines += ["import triton", "import triton.language as tl"]
    lines += [LIBDEVICE] if any("libdevice." in line for k in kernels for line in k.lines) else []
    if any(p.kind == "descriptor" for k in kernels for p in k.parameters):
        lines.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    return lines
