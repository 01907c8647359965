"""An asynchronous kernel as Gluon source: one self-contained module, with a function for each role.

Gluon is Triton's own lower language, in the same package. The module has the constants of the form (tile sizes,
consumers, stages, layouts), the producer, the consumer, the kernel, which reserves shared memory and starts the roles,
and the launch function, named like the program. Expressions are written by Triton's printer, whose functions Gluon has
under the name `gl`. The text is a function of the TileProgram and the asynchronous kernel alone.

Names, beside those of the Triton text (`neptune.codegen.triton`): the ring `k` has `k_tiles`, `k_full`, `k_empty`; `W`
is the number of a consumer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neptune.codegen.triton import NO_DEFAULTS, docstring
from neptune.codegen.triton_kernel import KernelText, Parameter, function_name, parameters_used, write_kernel
from neptune.codegen.triton_scope import axis_labels
from neptune.codegen.triton_text import HELPERS, wrap
from neptune.hopper import versions
from neptune.hopper.gluon_expr import Boxes, GluonContext
from neptune.hopper.gluon_kernel import KernelWriter, Role
from neptune.hopper.gluon_launch import BALANCED, DESCRIBED, Params, write_launch
from neptune.hopper.gluon_roles import FIRST, HALVES, LANE_SUMS, PAIRS, PIN, TABLE, RoleWriter
from neptune.hopper.gluon_shared import CONSUMER, CONSUMERS, Shared
from neptune.hopper.ir import AStmt, AsyncKernel, Issue, walk_async
from neptune.hopper.layouts import Layouts, WarpLayouts
from neptune.hopper.plain import plain
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.program import Tunable
from neptune.runtime.addressing import KernelParameters, Span
from neptune.tile.ir import GridAxis, Local, TileKernel, TileProgram

RESERVED = frozenset(
    {"gl", "gluon", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait", "fence_async_shared"}
    | {TABLE, FIRST, CONSUMERS, CONSUMER, *versions.RENAMED}
)
HOPPER = ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")

SIGMOID = "_sigmoid"
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
    SIGMOID: """\
@gluon.jit
def _sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))
""",
}
"""Helper functions beside those of `HELPERS`; the sigmoid is what Triton's own does."""


@dataclass(frozen=True, slots=True)
class GluonText:
    """A module, the parameters of its kernel as offline compilation wants them, the inputs and outputs that go through
    descriptors, whose addresses and strides must be multiples of 16 bytes, and what its int32 offsets add up."""

    text: str
    kernel: KernelParameters
    aligned: tuple[str, ...]
    spans: tuple[Span, ...]


def generate(program: TileProgram, kernel: AsyncKernel, params: Params = NO_DEFAULTS, *, header: str = "") -> GluonText:
    """The module of `program` whose kernel of this name is asynchronous; `header` becomes its docstring.

    Other kernels of the program stay those of the Triton text, with the tile sizes, warps and stages of `params`.
    """
    others = {k.name: write_kernel(program, k, int64_offsets=True) for k in program.kernels if k.name != kernel.name}
    every = program
    shared = Shared(kernel)
    program, known = _fixed(program, kernel)
    plains = {role: _plain(program, kernel, body) for role, body in _bodies(kernel).items()}
    products = [s for s in walk_async(kernel.consumer) if isinstance(s, Issue)]
    labels = axis_labels(plains["consumer"])
    layouts = {"producer": WarpLayouts(kernel.extents, labels), "consumer": Layouts(products, kernel.extents, labels)}
    named = {n: v for x in layouts.values() for n, v in x.constants.items()}
    reserved = RESERVED | {*shared.names, *known, *shared.constants, *named}
    name = function_name(program, TileKernel(kernel.name, (), (), ()))
    boxes: Boxes = {}
    contexts: dict[str, GluonContext] = {}
    roles: dict[str, Role] = {}
    for role, body in _bodies(kernel).items():
        ctx = contexts[role] = GluonContext(program, plains[role], layouts[role], shared, boxes, reserved)
        lines = RoleWriter(ctx, kernel).role(body, role == "consumer")
        roles[role] = Role(f"{name.removesuffix('_kernel')}_{role}", tuple(lines), frozenset(ctx.used))
    ctx.used |= roles["producer"].used
    parameters = tuple(p for p in parameters_used(ctx) if p.kind != "tunable")
    sizes = {axis: str(ctx.scalar(e)) for axis, e in ctx.extents.items()}
    writer = KernelWriter(kernel, shared, name, parameters, sizes)
    functions = [
        writer.role(roles["producer"], False),
        writer.role(roles["consumer"], True),
        writer.main(roles["producer"], roles["consumer"]),
        *([BALANCED.splitlines()] if kernel.levers.persistent == "table" else []),
        DESCRIBED.splitlines(),
    ]
    lines = _helpers(frozenset[str]().union(*(c.helpers for c in contexts.values())), functions)
    lines += _plain_texts(list(others.values()), lines)
    lines += [spelled(line) for f in functions for line in ("", "", *f)]
    lines += ["", "", *map(spelled, write_launch(every, kernel, writer.text, others, params))]
    named = {n: v for x in layouts.values() for n, v in x.constants.items()}
    constants = known | shared.constants | named | {n: v for v, n in shared.layouts.items()}
    imports = [*_imports(kernel, every, bool(others)), "", *versions.head()]
    head = [*docstring(header or f"Gluon kernel of `{program.name}`."), "", *imports, ""]
    head += [x for n, v in _used(constants, lines) for x in wrap(spelled(f"{n} = gl.constexpr({v})"))]
    spans = _spans(contexts.values(), kernel)
    return GluonText("\n".join([*head, *lines]) + "\n", writer.types(program), _aligned(program, parameters), spans)


def _spans(contexts: Iterable[GluonContext], kernel: AsyncKernel) -> tuple[Span, ...]:
    """What offsets of int32 add up, in numbers."""

    def known(extent: Expr) -> Expr:
        return Const(kernel.levers.tiles[extent.name], "int32") if isinstance(extent, Var) else extent

    spans = (s for ctx in contexts for s in ctx.spans)
    return tuple(dict.fromkeys(Span(s.buffer, tuple((d, known(e), f) for d, e, f in s.axes)) for s in spans))


def _aligned(program: TileProgram, parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    used = {p.of for p in parameters if p.kind == "descriptor"}
    return tuple(b.name for b in (*program.inputs, *program.outputs) if b.name in used)


def _bodies(kernel: AsyncKernel) -> dict[str, tuple[AStmt, ...]]:
    return {"producer": kernel.producer, "consumer": kernel.consumer}


def _fixed(program: TileProgram, kernel: AsyncKernel) -> tuple[TileProgram, dict[str, int]]:
    """The program with its tunables at the values of this form, and these values."""
    known = {t.name: kernel.levers.tiles[t.name] for t in program.tunables if t.name in kernel.levers.tiles}
    tunables = tuple(Tunable(t.name, (known[t.name],)) if t.name in known else t for t in program.tunables)
    return replace(program, tunables=tunables), known


def _plain(program: TileProgram, kernel: AsyncKernel, body: tuple[AStmt, ...]) -> TileKernel:
    """The role as a kernel on tiles; the extent of an axis is the tunable that it had, where that has this value."""
    before = next((dict(k.axes) for k in program.kernels if k.name == kernel.name), {})
    values = {t.name: t.candidates[0] for t in program.tunables if len(t.candidates) == 1}
    axes: list[tuple[str, Expr]] = []
    for axis, extent in kernel.axes:
        e = before.get(axis)
        named = isinstance(e, Var) and values.get(e.name) == extent
        axes.append((axis, e if named and e is not None else Const(extent, "int32")))
    rows = [] if kernel.rows == kernel.group else [GridAxis(kernel.rows, Const(0, "int32"), "x")]
    tiles = tuple(plain(body, lambda s: Local(s.ring, s.dims, s.dtype)))
    return TileKernel(kernel.name, (*kernel.grid, *rows), tuple(axes), tiles)


def _imports(kernel: AsyncKernel, program: TileProgram, tiled: bool) -> list[str]:
    lines = ["import heapq", ""] if kernel.levers.persistent == "table" else []
    lines += ["import torch"] if kernel.levers.persistent != "once" or program.temporaries else []
    lines += [
        "import triton",
        *(["import triton.language as tl"] if tiled else []),
        "from triton.experimental import gluon",
    ]
    lines += ["from triton.experimental.gluon import language as gl"]
    lines += wrap(f"from triton.experimental.gluon.language.nvidia.hopper import ({', '.join(HOPPER)})")
    return [*lines, "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor"]


def _used(constants: Mapping[str, object], lines: list[str]) -> list[tuple[str, object]]:
    """The constants that occur in lines, or in another one."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    needed: list[tuple[str, object]] = []
    for name, value in reversed(list(constants.items())):
        if name in words:
            needed.insert(0, (name, value))
            words |= set(re.findall(r"\w+", str(value)))
    return needed


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
