"""Asynchronous kernels as Gluon source: one self-contained module, with a function for each role.

Gluon is Triton's own lower language, in the same package. The module has the constants of the form (tile sizes,
consumers, stages, layouts), the producer, the consumer, the kernel, which reserves shared memory and starts the roles,
and the launch function, named like the program. Expressions are written by Triton's printer, whose functions Gluon has
under the name `gl`. The text is a function of the TileProgram and the asynchronous kernels alone.

Names, beside those of the Triton text (`neptune.codegen.triton.module`): the ring `k` has `k_tiles`, `k_full`,
`k_empty`; `W` is the number of a consumer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from neptune.codegen.triton.kernel import KernelText, write_kernel
from neptune.codegen.triton.module import NO_DEFAULTS, docstring
from neptune.codegen.triton.text import HELPERS, LIBDEVICE, wrap
from neptune.errors import of_kernel
from neptune.hopper.gluon import versions
from neptune.hopper.gluon.expr import FROM, UPTO, WITHIN
from neptune.hopper.gluon.functions import Written, told_apart, used_constants, write
from neptune.hopper.gluon.launch import BALANCED, DESCRIBED, Launch, Params
from neptune.hopper.gluon.roles import HALVES, INIT, LANE_SUMS, PAIRS, PIN
from neptune.hopper.ir import AsyncKernel
from neptune.ir.integers import Span
from neptune.ir.program import Buffer
from neptune.runtime.calls.addressing import KernelParameters
from neptune.tile.boxes import aligned_rows
from neptune.tile.ir import TileProgram

HOPPER = ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", INIT, "warpgroup_mma_wait")

SIGMOID = "_sigmoid"


def _masked(name: str, sides: tuple[str, ...], compared: str) -> str:
    """A helper that leaves of a tile of scores the columns that are within `sides`."""
    bounds = ", ".join(sides)
    return f"""\
@gluon.jit
def {name}(x, column, {bounds}):
    # Elements in other columns are -inf: each is compared where it is chosen.
    return gl.inline_asm_elementwise(
        "{{ .reg .pred p; {compared} selp.f32 $0, $1, 0fFF800000, p; }}",
        "=f,f,r{",r" * len(sides)}",
        [x, column, {bounds}],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
"""


GLUON_HELPERS = {
    PIN: '''\
@gluon.jit
def _pin(x):
    # The value itself, behind a store that never runs: nothing that makes it is moved behind a later wait.
    return gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        .reg .u32 a;
        mov.u32 a, 0;
        setp.lt.f32 p, $1, 0f00000000;
        @p st.volatile.shared.f32 [a], $1;
        mov.b32 $0, $1;
        }
        """,
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )
''',
    LANE_SUMS: """\
@gluon.jit
def _lane_sums(x):
    # Of each row the sums of what each of its four lanes holds, without an exchange between lanes.
    parts = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return gl.convert_layout(gl.sum(gl.sum(parts, 3), 1), LANES)
""",
    PAIRS: """\
@gluon.jit
def _pairs(x):
    # Neighbours of 16 bits in one register, as products take them: what a loop carries stays so.
    lo, hi = gl.split(x.reshape([x.shape[0], x.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(
        "mov.b32 $0, {$1, $2};", "=r,h,h", [lo, hi], dtype=gl.int32, is_pure=True, pack=1
    )
""",
    HALVES: """\
@gluon.jit
def _halves(x, dtype: gl.constexpr, layout: gl.constexpr):
    lo = x.to(gl.int16).to(dtype, bitcast=True)
    hi = (x >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(lo, hi).reshape([x.shape[0], 2 * x.shape[1]]), layout)
""",
    "_tanh_approx": """\
@gluon.jit
def _tanh_approx(x):
    # One instruction, off by 2^-17 or so; results are in so few bits that they cannot tell.
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
""",
    UPTO: _masked("_upto", ("last",), "setp.le.s32 p, $2, $3;"),
    FROM: _masked("_from", ("first",), "setp.ge.s32 p, $2, $3;"),
    WITHIN: _masked("_within", ("first", "last"), "setp.ge.s32 p, $2, $3; setp.le.and.s32 p, $2, $4, p;"),
    SIGMOID: """\
@gluon.jit
def _sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))
""",
}
"""Helper functions beside those of `HELPERS`; the sigmoid is what Triton's own does."""


@dataclass(frozen=True, slots=True)
class GluonText:
    """A module, the parameters of its asynchronous kernels as offline compilation wants them, the inputs and outputs
    that go through descriptors, whose addresses and strides must be multiples of 16 bytes, and what its int32 offsets
    add up. `takes` are the tile sizes, warps and stages that the launch function takes, for its other kernels."""

    text: str
    kernels: tuple[KernelParameters, ...]
    aligned: tuple[str, ...]
    spans: tuple[Span, ...]
    takes: tuple[str, ...] = ()

    @property
    def kernel(self) -> KernelParameters:
        """The parameters of its only kernel."""
        (one,) = self.kernels
        return one


def generate(program: TileProgram, *kernels: AsyncKernel, params: Params = NO_DEFAULTS, header: str = "") -> GluonText:
    """The module of `program` whose kernels of these names are asynchronous; `header` becomes its docstring.

    Other kernels of the program stay those of the Triton text, with the tile sizes, warps and stages of `params`.
    """
    names = {k.name for k in kernels}
    others = {k.name: write_kernel(program, k, int64_offsets=True) for k in program.kernels if k.name not in names}
    apart: list[Written] = []
    for k in kernels:
        with of_kernel(k.name):
            apart.append(write(program, k))
    written = told_apart(apart)
    functions = [f for w in written for f in w.functions]
    functions += [BALANCED.splitlines()] if any(w.kernel.levers.persistent == "table" for w in written) else []
    functions += [DESCRIBED.splitlines()]
    lines = _helpers(frozenset[str]().union(*(w.helpers for w in written)), functions)
    lines += _plain_texts(list(others.values()), lines)
    lines += [spelled(line) for f in functions for line in ("", "", *f)]
    launch = Launch(program, {w.kernel.name: (w.kernel, w.text) for w in written}, others, params)
    lines += ["", "", *map(spelled, launch.lines())]
    constants = {name: value for w in written for name, value in w.constants.items()}
    imports = [*_imports(kernels, program, bool(others), lines), "", *versions.head()]
    head = [*docstring(header or f"Gluon kernel of `{program.name}`."), "", *imports, ""]
    head += [x for n, v in used_constants(constants, lines) for x in wrap(spelled(f"{n} = gl.constexpr({v})"))]
    described = frozenset[str]().union(*(w.described for w in written))
    return GluonText(
        "\n".join([*head, *lines]) + "\n",
        tuple(w.types for w in written),
        tuple(b.name for b in _seen(program) if b.name in described),
        tuple(dict.fromkeys(s for w in written for s in w.spans)),
        launch.takes,
    )


def _seen(program: TileProgram) -> list[Buffer]:
    """Whose rows and addresses a call looks at."""
    return [*program.inputs, *program.outputs, *(b for b in program.temporaries if not aligned_rows(b))]


def _imports(kernels: Sequence[AsyncKernel], program: TileProgram, tiled: bool, text: Sequence[str]) -> list[str]:
    """The imports that the lines of a module need; with `tiled`, kernels on tiles among them."""
    hopper = [n for n in HOPPER if n != INIT or any(f"{INIT}(" in line for line in text)]
    lines = ["import heapq", ""] if any(k.levers.persistent == "table" for k in kernels) else []
    lines += ["import torch"] if not all(k.levers.once for k in kernels) or program.temporaries else []
    lines += [
        "import triton",
        *(["import triton.language as tl"] if tiled else []),
        "from triton.experimental import gluon",
        *([LIBDEVICE] if any("libdevice." in line for line in text) else []),
    ]
    lines += ["from triton.experimental.gluon import language as gl"]
    lines += wrap(f"from triton.experimental.gluon.language.nvidia.hopper import ({', '.join(hopper)})")
    return [*lines, "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor"]


def spelled(line: str) -> str:
    """A line of Triton's printer in Gluon: the same functions, under another name.

    >>> spelled("x = tl.exp2(tl.maximum(a, b))")
    'x = gl.exp2(gl.maximum(a, b))'
    """
    return re.sub(r"\btl\.sigmoid\b", "_sigmoid", line).replace("@triton.jit", "@gluon.jit").replace("tl.", "gl.")


def _plain_texts(kernels: list[KernelText], before: list[str]) -> list[str]:
    """Kernels on tiles with their helpers, under other names where functions of Gluon's have theirs."""
    names = sorted(frozenset[str]().union(*(k.helpers for k in kernels)))
    lines = [line for n in names for line in ("", "", *HELPERS[n].splitlines())]
    lines += [line for k in kernels for line in ("", "", *k.lines)]
    taken = [n for n in names if any(f"def {n}(" in line for line in before)]
    for n in taken:
        lines = [re.sub(rf"\b{n}\b", f"{n}_of_tiles", line) for line in lines]
    return lines


def _helpers(names: frozenset[str], functions: list[list[str]]) -> list[str]:
    """The helper functions by name, and those that lines of Triton's have only under another name."""
    more = {SIGMOID} if any(SIGMOID in spelled(line) for f in functions for line in f) else set()
    texts = [GLUON_HELPERS.get(n) or HELPERS[n] for n in sorted(names | more)]
    return [spelled(line) for text in texts for line in ("", "", *text.splitlines())]
