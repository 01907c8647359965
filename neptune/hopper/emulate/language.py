"""A stand-in for `triton.experimental.gluon.language`: functions of tiles, and what the machine does.

In a trace (`machine.stub`) tiles of floats have no values: what is made of a stub is one. Those of integers have
where something asks for them (`neptune.hopper.emulate.stub`). Kernels on tiles, which stand beside those with roles in
a module, have `triton.language`, whose other functions are here too, so that the whole program runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from operator import getitem
from types import SimpleNamespace
from typing import Any

import numpy as np

from neptune.hopper.emulate.memory import Pointer
from neptune.hopper.emulate.stub import Stub, stubs, touched
from neptune.hopper.emulate.values import Tile, binary, divided, is_float, operands, quotient, to_bits, wider
from neptune.ir.dtypes import DTYPES
from neptune.ir.evaluate.floats import Float64
from neptune.ir.ops import LIBM


class DTypeName(str):
    """A dtype of Neptune's by its name, with what kernels ask of Triton's."""

    __slots__ = ()

    @property
    def element_ty(self) -> DTypeName:
        return self

    @property
    def primitive_bitwidth(self) -> int:
        return DTYPES[self].bits


_DTYPES = {
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64", "int1": "bool",
    "int8": "int8", "uint8": "uint8", "int32": "int32", "int64": "int64", "float8e4nv": "float8_e4m3fn",
    "float8e5": "float8_e5m2",
}  # fmt: skip


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tiles, which of stubs makes a stub."""

    @functools.wraps(function)
    def apply(*args: Any, **named: Any) -> Any:
        if any(map(stubs, args)) or any(map(stubs, named.values())):
            return Stub.of(apply, *args, **named)
        return function(*args, **named)

    return apply


def _unary(function: Callable[..., Any]) -> Callable[[Any], Tile]:
    def apply(x: Any) -> Tile:
        x = x if isinstance(x, Tile) else Tile(x, "float32")
        with np.errstate(all="ignore"):
            return Tile(function(x.data), x.dtype, x.layout)

    return lifted(apply)


_erf = np.vectorize(__import__("math").erf, otypes=[float])
UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "sqrt_rn": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil,
    "abs": np.abs, "erf": _erf,
}  # fmt: skip
_LIBRARY = {n: lifted(lambda *x, n=n: Tile(Float64().apply(n, [t.data for t in x], "float64"), x[0].dtype, x[0].layout))
            for n in LIBM}  # fmt: skip
_ASM: dict[str, Callable[..., Any]] = {
    r"tanh\.approx": np.tanh,
    r"ex2\.approx": np.exp2,
    r"lg2\.approx": np.log2,
    r"rcp\.approx": lambda x: 1.0 / x,
    r"rsqrt\.approx": lambda x: 1.0 / np.sqrt(x),
    r"sqrt\.approx": np.sqrt,
    # A pin: a store that never runs, then a move.
    r"mov\.b32 \$0, \$1;": lambda x: x,
}


_MASKED: dict[str, Callable[..., Any]] = {
    "setp.le.s32 p, $2, $3;": lambda column, last: column <= last,
    "setp.ge.s32 p, $2, $3;": lambda column, first: column >= first,
    "setp.ge.s32 p, $2, $3; setp.le.and.s32 p, $2, $4, p;": lambda column, first, last: (
        (column >= first) & (column <= last)
    ),
}
"""The comparisons that say which elements a choice keeps; the others are -inf."""


def inline_asm(asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int) -> Any:
    """The instructions in line that generated kernels have, on arrays."""
    if stubs(args):
        return Stub.of(lambda *parts: inline_asm(asm, constraints, list(parts), dtype, is_pure, pack), *args)
    if asm == "mov.b32 $0, {$1, $2};":
        # Two elements of 16 bits into one register.
        return Tile(to_bits(args[0]) | (to_bits(args[1]) << 16), dtype)
    if (choice := re.fullmatch(r"\{ \.reg \.pred p; (.*) selp\.f32 \$0, \$1, 0fFF800000, p; \}", asm)) is not None:
        x, *sides = args
        return Tile(
            np.where(_MASKED[choice[1]](*(getattr(s, "data", s) for s in sides)), x.data, -np.inf), dtype, x.layout
        )
    for pattern, function in _ASM.items():
        if re.search(pattern, asm) and len(args) == 1:
            with np.errstate(all="ignore"):
                return Tile(function(args[0].data), dtype, args[0].layout)
    raise NotImplementedError(f"what this assembler text computes: {asm.strip()}")


def _choice(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(a: Any, b: Any, **_: Any) -> Any:
        if isinstance(a, Tile) or isinstance(b, Tile):
            return binary(function)(a, b)
        return type(a + b)(function(a, b))

    return lifted(apply)


def _fold(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Tile, axis: int | None = None, keep_dims: bool = False, **_: Any) -> Tile:
        data, dtype = x.data, "int32" if x.dtype == "bool" else x.dtype
        if dtype == "int32":
            data = data.astype(np.int64)
        with np.errstate(all="ignore"):
            return Tile(function(data, axis=axis, keepdims=keep_dims), dtype)

    return lifted(apply)


def _reduce(x: Any, axis: int | None, combine: Callable[..., Any], keep_dims: bool = False) -> Any:
    """A fold by a function of two elements (or of two tuples of them)."""
    parts = x if isinstance(x, tuple | list) else (x,)
    if stubs(parts):
        combined = Stub.of(lambda p: _reduce(p, axis, combine, keep_dims), x)
        return (
            combined
            if not isinstance(x, tuple | list)
            else tuple(Stub.of(getitem, combined, i) for i in range(len(parts)))
        )
    if axis is None:
        parts, axis = [Tile(p.data.ravel(), p.dtype) for p in parts], 0
    columns = [[Tile(d, p.dtype) for d in np.moveaxis(p.data, axis, 0)] for p in parts]
    total: Any = tuple(column[0] for column in columns)
    for row in list(zip(*columns, strict=True))[1:]:
        combined = combine(*total, *row)
        total = combined if isinstance(combined, tuple | list) else (combined,)
    if keep_dims:
        total = tuple(Tile(np.expand_dims(t.data, axis), t.dtype) for t in total)
    return tuple(total) if isinstance(x, tuple | list) else total[0]


def _where(condition: Any, a: Any, b: Any) -> Any:
    if not any(isinstance(x, Tile) for x in (condition, a, b)):
        return a if condition else b
    x, y, dtype = operands(a, b) if isinstance(a, Tile) or isinstance(b, Tile) else (a, b, _kind(a, b))
    return Tile(np.where(condition.data if isinstance(condition, Tile) else condition, x, y), dtype)


def _kind(a: Any, b: Any) -> str:
    return "float32" if isinstance(a, float) or isinstance(b, float) else "int32"


def _fma(a: Any, b: Any, c: Any) -> Any:
    # One rounding: in float64 the product of two float32 is exact.
    x, y, dtype = operands(a, b)
    return Tile(x * y + (c.data if isinstance(c, Tile) else c), dtype)


class Layout:
    """A layout: its class in Gluon and its arguments."""

    def __init__(self, kind: str, *args: Any, **named: Any) -> None:
        self.said = (kind, repr(args), repr(sorted(named.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.said == other.said

    def __hash__(self) -> int:
        return hash(self.said)

    def __repr__(self) -> str:
        return f"{self.said[0]}{self.said[1]}"


class SharedLayout(Layout):
    """`NVMMASharedLayout`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__("NVMMASharedLayout", *args, **named)

    @staticmethod
    def get_default_for(block: Any, dtype: Any, **named: Any) -> SharedLayout:
        return SharedLayout(tuple(block), str(dtype))


_LAYOUTS = """AutoLayout BlockedLayout SliceLayout DistributedLinearLayout DotOperandLayout NVMMADistributedLayout
SwizzledSharedLayout PaddedSharedLayout SharedLinearLayout CoalescedLayout"""


def _made(machine: Any) -> dict[str, Callable[..., Any]]:
    """The functions that make tiles of nothing, or of memory."""

    def full(shape: Any, value: Any, dtype: Any, layout: Any = None) -> Any:
        if machine.stub and is_float(dtype):
            return Stub()
        if isinstance(value, Stub):
            return Stub.of(lambda v: full(shape, v, dtype, layout), value)
        return Tile(np.full(tuple(shape), _number(value)), dtype, layout)

    def load(pointer: Any, mask: Any = None, other: Any = None, **_: Any) -> Any:
        if machine.stub and is_float(pointer.dtype):
            return Stub()
        if stubs((pointer.offset, mask, other)):
            parts = (pointer.offset, mask, other)
            return Stub.of(lambda at, m, o: Pointer(pointer.tensor, at).load(m, o), *parts)
        return pointer.load(mask, other)

    def store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
        touched(value)
        if not machine.stub:
            pointer.store(value, mask)

    def arange(start: int, end: int, layout: Any = None) -> Any:
        def make() -> Tile:
            return Tile(np.arange(start, end), "int32", layout)

        return Stub(make) if machine.stub else make()

    def atomic_add(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> Any:
        if machine.stub:
            return Stub()
        before = pointer.load(mask, 0)
        pointer.store(before + value, mask)
        return before

    return {
        "full": full,
        "zeros": lambda shape, dtype, layout=None: full(shape, 0, dtype, layout),
        "arange": arange,
        "full_like": lifted(lambda x, value: Tile(np.full(x.shape, _number(value)), x.dtype, x.layout)),
        "zeros_like": lifted(lambda x: Tile(np.zeros(x.shape), x.dtype, x.layout)),
        "load": load,
        "store": store,
        "atomic_add": atomic_add,
    }


def _number(x: Any) -> Any:
    return x.data if isinstance(x, Tile) else x


def _convert(x: Tile, layout: Any, assert_trivial: bool = False) -> Tile:
    return Tile(x.data, x.dtype, layout)


def _cast(x: Any, dtype: Any, **_: Any) -> Any:
    if isinstance(x, Tile):
        return x.to(dtype)
    return float(x) if is_float(dtype) else int(x)


def language(machine: Any) -> SimpleNamespace:
    """`gl`, for one machine."""
    kinds: dict[str, Any] = {name: functools.partial(Layout, name) for name in _LAYOUTS.split()}
    same = lambda x, *_, **__: x  # noqa: E731
    return SimpleNamespace(
        **{name: DTypeName(dtype) for name, dtype in _DTYPES.items()},
        int16=DTypeName("int16"),
        **kinds,
        **{name: _unary(f) for name, f in UNARY.items()},
        **_made(machine),
        NVMMASharedLayout=SharedLayout,
        constexpr=lambda x: x,
        static_range=lambda *bounds: list(range(*bounds)),
        cdiv=lifted(lambda a, b: quotient(a + b - 1, b)),
        minimum=_choice(np.fmin),
        maximum=_choice(np.fmax),
        sum=_fold(np.sum),
        max=_fold(np.fmax.reduce),
        min=_fold(np.fmin.reduce),
        reduce=_reduce,
        where=lifted(_where),
        fma=lifted(_fma),
        fdiv=lifted(divided),
        div_rn=lifted(divided),
        add=lifted(lambda a, b, **_: a + b),
        sub=lifted(lambda a, b, **_: a - b),
        mul=lifted(lambda a, b, **_: a * b),
        cast=lifted(_cast),
        convert_layout=lifted(_convert),
        expand_dims=lifted(lambda x, axis: Tile(np.expand_dims(x.data, axis), x.dtype)),
        reshape=lifted(lambda x, shape, **_: x.reshape(shape)),
        permute=lifted(lambda x, order: x.permute(order)),
        join=lifted(lambda a, b: Tile(np.stack([a.data, b.data], -1), a.dtype)),
        split=lambda x: (
            (Stub.of(lambda t: t.split()[0], x), Stub.of(lambda t: t.split()[1], x))
            if isinstance(x, Stub)
            else x.split()
        ),
        inline_asm_elementwise=lambda asm, constraints, args, dtype, is_pure=True, pack=1: inline_asm(
            asm, constraints, args, dtype, is_pure, pack
        ),
        multiple_of=same,
        max_contiguous=same,
        max_constancy=same,
        to_tensor=same,
        assume=lambda *_: None,
        static_print=lambda *_: None,
        device_assert=lambda *_: None,
        static_assert=_assert,
        program_id=lambda axis=0: machine.program[axis],
        num_programs=lambda axis=0: machine.grid[axis],
        num_warps=lambda: 4,
        allocate_shared_memory=machine.allocate,
        thread_barrier=machine.sync,
        warp_specialize=machine.specialise,
        nvidia=SimpleNamespace(hopper=_hopper(machine)),
        extra=SimpleNamespace(libdevice=SimpleNamespace(**_LIBRARY)),
    )


def _assert(condition: bool, text: str = "") -> None:
    if not condition:
        raise AssertionError(text)


def _hopper(machine: Any) -> SimpleNamespace:
    """`gl.nvidia.hopper`."""
    return SimpleNamespace(
        fence_async_shared=machine.fence,
        warpgroup_mma=machine.product,
        warpgroup_mma_wait=machine.products_wait,
        warpgroup_mma_init=lambda x: x,
        mbarrier=SimpleNamespace(
            MBarrierLayout=functools.partial(Layout, "MBarrierLayout"),
            init=machine.init,
            invalidate=machine.invalidate,
            wait=machine.wait,
            arrive=machine.arrive,
            expect=machine.expect,
        ),
        tma=SimpleNamespace(
            async_copy_global_to_shared=machine.copy_in,
            async_copy_shared_to_global=machine.copy_out,
            store_wait=machine.copies_out_wait,
        ),
    )


# --- kernels on tiles -----------------------------------------------------------------------------


CAPABILITY = (9, 0)


def of_tiles(machine: Any) -> SimpleNamespace:
    """`tl`, for one machine whose tiles have values."""
    return SimpleNamespace(
        **vars(language(machine)),
        dot=_dot,
        trans=lambda x, *order: x.trans(*order),
        broadcast_to=_broadcast_to,
        sigmoid=lambda x: Tile(1.0 / (1.0 + np.exp(-x.data)), x.dtype),
        debug_barrier=lambda: None,
        target_info=SimpleNamespace(cuda_capability_geq=lambda *least: least <= CAPABILITY),
    )


def _dot(a: Tile, b: Tile, acc: Any = None, *, out_dtype: Any = None, **_: Any) -> Tile:
    """A product, added to `acc`; in float64, as all sums of float32 here."""
    dtype = str(out_dtype or (wider("float32", a.dtype) if is_float(a.dtype) else "int32"))
    total = a.data @ b.data
    return Tile(total if acc is None else acc.data + total, dtype)


def _broadcast_to(x: Any, *shape: Any) -> Any:
    dims = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    if isinstance(x, Pointer):
        return Pointer(x.tensor, _broadcast_to(x.offset, dims))
    data, dtype = (x.data, x.dtype) if isinstance(x, Tile) else (x, "float32" if isinstance(x, float) else "int32")
    return Tile(np.broadcast_to(data, dims), dtype)
