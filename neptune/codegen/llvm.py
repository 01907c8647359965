"""The LLVM target: compile any Program for this machine's CPU and run it on torch tensors.

It is an oracle and a fallback: one function serves all sizes and all tile sizes, loops run in the order of
the Program, and every rounding of the Program is performed (see `tvmscript`). This is, with the importer, the
only module that knows TVM.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from neptune.base.boundary import public
from neptune.base.codes import INSTALL_TE
from neptune.codegen.for_cpu import clamped
from neptune.codegen.tvm_values import carrier
from neptune.codegen.tvmscript import print_tvmscript
from neptune.errors import FusionError, InternalError, ShapeError, TargetError
from neptune.ir.decompose import decompose
from neptune.ir.dtypes import FLOAT8, is_float
from neptune.ir.expr import Expr, Var, redirected, variables
from neptune.ir.indices.affine import poly, scope_of, to_expr
from neptune.ir.indices.extremes import Extremes
from neptune.ir.integers import evaluate_size
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    If,
    Program,
    Stage,
    Stmt,
    map_action,
    retarget,
    sub_stmts,
    with_stmts,
)
from neptune.ir.text.printer import print_expr

# torch dtypes that DLPack or TVM would not take as they are, and the bits they are passed as.
_PASSED_AS = {torch.bfloat16: torch.uint16, torch.bool: torch.uint8}
_PASSED_AS |= {getattr(torch, dtype): torch.uint8 for dtype in FLOAT8}
_X86 = platform.machine().lower() in ("x86_64", "amd64", "x86")
_PIPELINE = "neptune"
_COMPILED: dict[tuple[str, bool], Callable[..., None]] = {}


@public
def compile_llvm(program: Program, *, fast: bool = False) -> LLVMKernel:
    """Compile a Program, scheduled and fused or not.

    With `fast` false, sums are folded in the order of the Program and nothing is contracted, so the result is
    that of the Program to the bit, up to the last bit of exp, log and the like. `fast` allows reassociation
    and fused multiply-adds: still deterministic on one machine, but not comparable between block sizes.

    Raises TargetError where TVM is not installed, FusionError for a Program with open obligations.

        >>> kernel = compile_llvm(program)                                   # doctest: +SKIP
        >>> kernel([x], [y], {"n": 1024}, {"BLOCK_M": 64})                   # doctest: +SKIP
    """
    if program.owes:
        raise FusionError(
            f"compile {program.name} for llvm",
            "it owes repairs, so it does not compute what the expression says",
            where="\n".join(f"owes {o.stage} <- {o.on} @ {o.loop}" for o in program.owes),
            hint="rolling_update, split_k or privatize on the stage",
        )
    return LLVMKernel(program, fast)


class LLVMKernel:
    """A compiled Program; made by `compile_llvm`.

    `text()` is the TVMScript it was compiled from. Tensors may have any strides: a layout whose last stride
    is not 1 compiles a second function on first use. Tensors are never copied.
    """

    def __init__(self, program: Program, fast: bool) -> None:
        self.program = program
        self._fast = fast
        self._texts: dict[frozenset[str], str] = {}
        self._lowered = clamped(hoist_allocs(decompose(program)))
        _compiled(self.text(), fast, program.name)

    def text(self, strided: frozenset[str] = frozenset()) -> str:
        """The TVMScript, for the given buffers having a last stride other than 1; every call asks for it."""
        if strided not in self._texts:
            self._texts[strided] = print_tvmscript(self._lowered, strided, fence=not self._fast and not _X86)
        return self._texts[strided]

    @public
    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        scalars: Mapping[str, int | float] | None = None,
        tunables: Mapping[str, int] | None = None,
    ) -> None:
        """Run, writing `outputs` in place. Sizes that an input's shape binds may be left out of `scalars`,
        and tunables that cover a size out of `tunables`.

        Raises ShapeError for tensors that do not fit the Program, and for outputs that overlap an input.
        """
        p = self._lowered
        self._check(inputs, outputs)
        env = self._bind(inputs, dict(scalars or {}), dict(tunables or {}))
        tensors = [*inputs, *outputs]
        buffers = [*p.inputs, *p.outputs]
        for b, t in zip(buffers, tensors, strict=True):
            self._check_shape(b, t, env)
        _check_overlap(p, inputs, outputs)
        tensors = [_passable(t) for t in tensors]
        strided = frozenset(b.name for b, t in zip(buffers, tensors, strict=True) if t.stride(-1) != 1)
        tensors += [_passable(_scratch(b, env)) for b in p.temporaries]
        function = _compiled(self.text(strided), self._fast, p.name)
        values = [_argument(env[s.name], s.dtype) for s in p.scalars]
        values += [int(env[t.name]) for t in p.tunables]
        try:
            function(tensors, values)
        except Exception as error:
            raise InternalError(f"running {p.name} on llvm failed: {_summary(error)}") from None

    def _asked(self) -> str:
        return f"run {self.program.name} on llvm"

    def _check(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Counts, dtypes, ranks and devices."""
        p = self._lowered
        for word, buffers, tensors in (("inputs", p.inputs, inputs), ("outputs", p.outputs, outputs)):
            if len(buffers) != len(tensors):
                raise ShapeError(self._asked(), f"{len(tensors)} {word} were given, it has {len(buffers)}")
            for b, t in zip(buffers, tensors, strict=True):
                if t.device.type != "cpu":
                    raise ShapeError(self._asked(), f"{b.name} is on {t.device}", legal=("cpu",))
                if t.dtype != getattr(torch, b.dtype):
                    raise ShapeError(self._asked(), f"{b.name} is {t.dtype}", legal=(f"torch.{b.dtype}",))
                if t.dim() != len(b.shape):
                    raise ShapeError(self._asked(), f"{b.name} has {t.dim()} dimensions, not {len(b.shape)}")

    def _bind(
        self, inputs: Sequence[torch.Tensor], scalars: dict[str, int | float], tunables: dict[str, int]
    ) -> dict[str, int | float]:
        """Every scalar and tunable by name: given, bound by an input's shape, or covering a size."""
        p = self._lowered
        env: dict[str, int | float] = {}
        for b, t in zip(p.inputs, inputs, strict=True):
            env.update({d.name: n for d, n in zip(b.shape, t.shape, strict=True) if isinstance(d, Var)})
        env.update(scalars)
        for tunable in p.tunables:
            if tunable.covers is not None and tunable.name not in tunables:
                env[tunable.name] = 1 << max(0, evaluate_size(tunable.covers, env) - 1).bit_length()
        env.update(tunables)
        missing = [n for n in (*(s.name for s in p.scalars), *(t.name for t in p.tunables)) if n not in env]
        if missing:
            raise ShapeError(self._asked(), f"no value was given for {', '.join(missing)}")
        bad = [t.name for t in p.tunables if env[t.name] < 1]
        if bad:
            raise ShapeError(self._asked(), f"{bad[0]} is {env[bad[0]]}", legal=("a positive integer",))
        return env

    def _check_shape(self, buffer: Buffer, tensor: torch.Tensor, env: Mapping[str, int | float]) -> None:
        expected = tuple(evaluate_size(d, env) for d in buffer.shape)
        if expected != tuple(tensor.shape):
            shape = ", ".join(print_expr(d) for d in buffer.shape)
            raise ShapeError(
                self._asked(),
                f"{buffer.name} has shape {tuple(tensor.shape)}, not {expected}",
                where=f"{buffer.name}[{shape}]",
            )


# --- scratch ---------------------------------------------------------------------------------------


def hoist_allocs(program: Program) -> Program:
    """Turn every Alloc into a temporary, so that the caller allocates all memory.

    Loops are serial, so one copy serves every execution of the body. Allocs of one declaration that do not
    nest share it; others are renamed. Before → after::

        alloc t: f32[BLOCK_M] @tile         temp t: f32[BLOCK_M]
        for i ...: t[i] = ...               for i ...: t[i] = ...
    """
    known = {s.name for s in program.scalars} | {t.name for t in program.tunables}
    used = set(program.globals) | known
    hoisted: dict[str, Buffer] = {}

    def choose(buffer: Buffer, live: frozenset[str], loops: tuple[For, ...]) -> Buffer:
        buffer = replace(buffer, shape=tuple(_largest(program, d, loops) for d in buffer.shape))
        free = set().union(*(variables(d) for d in buffer.shape)) - known
        if free:
            raise InternalError(f"the extent of local buffer {buffer.name} varies with {', '.join(sorted(free))}")
        for name in (buffer.name, *(f"{buffer.name}_{k}" for k in range(1, len(hoisted) + len(used) + 2))):
            fresh = replace(buffer, name=name)
            if name not in used and name not in live and hoisted.setdefault(name, fresh) == fresh:
                return fresh
        raise AssertionError("some name is free")

    def visit(s: Stmt, names: dict[str, str], loops: tuple[For, ...]) -> Stmt:
        if isinstance(s, Alloc):
            buffer = choose(s.buffer, frozenset(names.values()), loops)
            return visit(s.body, names | {s.buffer.name: buffer.name}, loops)
        s = _rename_buffers(s, names)
        inside = (*loops, s) if isinstance(s, For) else loops
        return with_stmts(s, tuple(visit(p, names, inside) for p in sub_stmts(s)))

    body = visit(program.body, {}, ())
    return replace(program, body=body, temporaries=(*program.temporaries, *hoisted.values()))


def _largest(program: Program, extent: Expr, loops: tuple[For, ...]) -> Expr:
    """An extent that serves every iteration: of a tile that ends with its part of an axis, the longest."""
    inner = [f.var for f in reversed(loops) if f.var in variables(extent)]
    bound = Extremes(scope_of(program, loops)).of(poly(extent), inner, largest=True) if inner else None
    return extent if bound is None else to_expr(bound)


def _rename_buffers(s: Stmt, names: dict[str, str]) -> Stmt:
    """Rename the buffers in one statement's own expressions and targets (not in its substatements)."""
    changed = {a: b for a, b in names.items() if a != b}
    if not changed:
        return s

    def fix(e: Expr) -> Expr:
        return redirected(e, changed)

    match s:
        case For(_, lo, hi, _, _, facts):
            return replace(s, lo=fix(lo), hi=fix(hi), facts=tuple(fix(f) for f in facts))
        case If(pred, _):
            return replace(s, pred=fix(pred))
        case Stage(_, action, when, made):
            action = retarget(map_action(action, fix), changed)
            return Stage(s.name, action, None if when is None else fix(when), made)
        case _:
            return s


# --- arguments -------------------------------------------------------------------------------------


def _scratch(buffer: Buffer, env: Mapping[str, int | float]) -> torch.Tensor:
    shape = tuple(evaluate_size(d, env) for d in buffer.shape)
    return torch.empty(shape, dtype=getattr(torch, buffer.dtype), device="cpu")


def _passable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as TVM takes it: at least one dimension, a dtype it knows, no gradient."""
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor.unsqueeze(0)
    if tensor.shape[-1] <= 1 and tensor.stride(-1) != 1:
        # The stride of one element means nothing; 1 saves a second compilation.
        tensor = tensor.as_strided(tensor.shape, (*tensor.stride()[:-1], 1))
    return tensor.view(_PASSED_AS[tensor.dtype]) if tensor.dtype in _PASSED_AS else tensor


def _argument(value: int | float, dtype: str) -> int | float:
    """A scalar as it is passed; the call itself rounds to float32."""
    if not is_float(dtype):
        return int(value)
    if carrier(dtype) != dtype:
        return float(torch.tensor(value, dtype=getattr(torch, dtype), device="cpu").item())
    return float(value)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from the first to past the last byte of a tensor."""
    if tensor.numel() == 0:
        return (0, 0)
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _interleaves(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two views of equal strides, such as slices of one packed tensor, are shown to be disjoint:
    within some period that divides the larger strides, each occupies a part of its own."""
    if a.stride() != b.stride() or a.dtype != b.dtype:
        return False
    gap = abs(a.data_ptr() - b.data_ptr()) // a.element_size()
    steps = list(zip(a.shape, b.shape, a.stride(), strict=True))
    for period in a.stride():
        if period and all(s % period == 0 for s in a.stride() if s >= period):
            inner = sum((max(m, n) - 1) * s for m, n, s in steps if s < period)
            if inner < gap % period < period - inner:
                return True
    return False


def _check_overlap(program: Program, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Refuse outputs that share memory with an argument: the code assumes that none do."""
    named = list(zip((*program.inputs, *program.outputs), (*inputs, *outputs), strict=True))
    for k, (out, tensor) in enumerate(named[len(inputs) :], len(inputs)):
        lo, hi = _span(tensor)
        for other, view in named[:k]:
            start, stop = _span(view)
            if lo < stop and start < hi and not _interleaves(tensor, view):
                raise ShapeError(f"run {program.name} on llvm", f"{out.name} overlaps {other.name} in memory")


# --- TVM -------------------------------------------------------------------------------------------


def _tvm() -> Any:
    try:
        import tvm
    except ImportError as error:
        raise TargetError(
            "compile for llvm", f"TVM cannot be imported: {error}", hint=INSTALL_TE, kind="package"
        ) from None
    return tvm


def _target(tvm: Any, fast: bool) -> Any:
    """This machine's CPU. A fused multiply-add is one rounding where the Program has two: LLVM forms them
    unasked, so on x86 the instructions are taken away (elsewhere the text fences its products)."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    if cpu is None:
        raise TargetError("compile for llvm", "this build of TVM has no LLVM", hint=INSTALL_TE, kind="package")
    options: dict[str, Any] = {"kind": "llvm", "mcpu": cpu()}
    if fast:
        options |= {"fast-math-reassoc": True, "fast-math-contract": True}
    elif _X86:
        options["mattr"] = ["-fma", "-fma4"]
    return tvm.target.Target(options)


def _compiled(text: str, fast: bool, name: str) -> Callable[..., None]:
    """The compiled function of a text, from memory where it has been compiled before."""
    key = (text, fast)
    if key not in _COMPILED:
        tvm = _tvm()
        target = _target(tvm, fast)
        try:
            main = _built(tvm, tvm.script.from_source(text), target)
        except Exception as error:
            raise InternalError(f"compiling {name} for llvm failed: {_summary(error)}{_line(error, text)}") from None
        _COMPILED[key] = lambda tensors, values: main(*tensors, *values)
    return _COMPILED[key]


def _built(tvm: Any, module: Any, target: Any) -> Any:
    """The main function of a module: by few passes, and by all of TVM's where these do not serve."""
    try:
        tvm.tirx.compilation_pipeline.PIPELINE_MAP.setdefault(_PIPELINE, lambda: _passes(tvm))
        return tvm.compile(module, target, tir_pipeline=_PIPELINE)["main"]
    except Exception:
        # Another version of TVM, or an expression that must be simplified more often before it is lowered.
        return tvm.compile(module, target)["main"]


def _passes(tvm: Any) -> tuple[Any, ...]:
    """The passes that plain loops need. TVM's own are for blocks, threads and vectors, and simplify three times, which
    takes as long as all else, and twenty times as long for long bounds."""
    plain, blocks = tvm.tirx.transform, tvm.s_tir
    lowering = (
        plain.FlattenBuffer(),
        plain.StorageRewrite(),
        plain.StmtSimplify(),
        blocks.transform.RewriteUnsafeSelect(),
        plain.AnnotateEntryFunc(),
        plain.SplitHostDevice(),
        plain.MakePackedAPI(),
    )
    both = blocks.pipeline.finalize_host_passes, blocks.pipeline.finalize_device_passes
    return tvm.ir.transform.Sequential(lowering), *both


def _summary(error: BaseException) -> str:
    """The first line of TVM's message; the rest is its own stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _line(error: BaseException, text: str) -> str:
    """The line of the text that TVM's message points to, with the stage comment over it."""
    match = re.search(r"<str>:(\d+):", str(error))
    lines = text.splitlines()
    if match is None or not 0 < int(match[1]) <= len(lines):
        return ""
    row = int(match[1]) - 1
    stage = next((s for s in reversed(lines[:row]) if s.lstrip().startswith("# ")), "")
    return "".join(f"\n  {s.strip()}" for s in (stage, lines[row]) if s.strip())
