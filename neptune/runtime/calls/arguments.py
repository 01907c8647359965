"""Are these the arguments of this kernel?  Every answer but yes is a ShapeError on one screen.

Tensors are taken as they are, with any strides; only the last dimension must be dense. Symbolic sizes are read
off the inputs' shapes, and every tensor that shares a size must agree on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NoReturn

import torch

from neptune.errors import ShapeError
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Const, Var, variables
from neptune.ir.indices.sizes import Solved, given, solved
from neptune.ir.integers import evaluate_size
from neptune.ir.names import usable
from neptune.ir.program import ZERO, Buffer, Program, Scalar
from neptune.ir.text.printer import print_expr
from neptune.runtime.calls.workspace import overlap, overlaps_itself
from neptune.runtime.transforms import derivative_of

INT32_MAX = 2**31 - 1
REMEMBERED = 256
"""How many combinations of layouts a kernel remembers as good."""


@dataclass(frozen=True)
class Call:
    """Checked arguments: what a launch needs. `scalars` holds every scalar of the program by name."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    scalars: Mapping[str, int | float]


@dataclass(frozen=True)
class Signature:
    """The arguments that a kernel takes: made once per kernel, asked at every call.

    `device` is a torch device type, `bounds` the largest allowed value of symbolic sizes.
    """

    program: Program
    device: str
    bounds: Mapping[str, int] = field(default_factory=dict)
    _seen: dict[tuple[Any, ...], Mapping[str, int]] = field(default_factory=dict, init=False, repr=False)

    def __str__(self) -> str:
        """`softmax(x: f32[rows, cols]) -> y: f32[rows, cols]`, as errors show it."""
        words = [_declared(b) for b in self.program.inputs]
        words += [f"{s.name}: {s.dtype}" for s in self.free]
        return f"{self.program.name}({', '.join(words)}) -> {', '.join(_declared(b) for b in self.program.outputs)}"

    def bind(self, args: Sequence[Any], out: Any = None) -> Call:
        """Check a call's arguments and allocate its outputs where `out` is None.

        `args` are the input tensors, then the scalars that no shape binds; `out` is a tensor, or a
        sequence of them in the order of the outputs. Raises ShapeError.
        """
        scalars = self.scalars(args)
        inputs = tuple(args[: len(self.program.inputs)])
        device = inputs[0].device if inputs else torch.device(self.device)
        outputs = self._outputs(inputs, out, scalars, device)
        return Call(inputs, outputs, scalars)

    def scalars(self, args: Sequence[Any]) -> dict[str, int | float]:
        """Every scalar of the program by name, of a call with these arguments, which are checked."""
        p, free, count = self.program, self.free, len(self.program.inputs)
        if len(args) != count + len(free):
            self._refuse_count(len(args))
        inputs = tuple(args[:count])
        scalars: dict[str, int | float] = dict(self._layouts(inputs))
        for s, value in zip(free, args[count:], strict=True):
            scalars[s.name] = self._scalar(s, value)
        for k in self._computed:
            self._check_shape(p.inputs[k], inputs[k], scalars)
        return scalars

    def in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments, in order, of a call that gives the last ones by name. Raises ShapeError.

        kernel(q, v=v, k=k) → (q, k, v)
        """
        names = self.names
        if any(n not in names for n in named):
            # An argument may have a name of its own in generated code.
            named = {n if n in names or not n.isidentifier() else usable(n): value for n, value in named.items()}
        if len(args) > len(names):
            self._refuse_count(len(args) + len(named))
        for name in named:
            if name not in names:
                self._refuse(f"it has no argument `{name}`", legal=names, kind="count")
            if name in names[: len(args)]:
                wrong = f"argument `{name}` was given twice: as number {names.index(name) + 1} and by its name"
                self._refuse(wrong, kind="count")
        missing = [n for n in names[len(args) :] if n not in named]
        if missing:
            legal = [f"{n}=…" for n in missing]
            self._refuse(f"no value was given for {', '.join(missing)}", legal=legal, kind="count")
        return (*args, *(named[n] for n in names[len(args) :]))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The arguments of a call, in order."""
        return (*(b.name for b in self.program.inputs), *(s.name for s in self.free))

    def _refuse_count(self, count: int) -> NoReturn:
        wrong = f"{count} arguments were given, it takes {len(self.names)}: {', '.join(self.names)}"
        self._refuse("\n".join([wrong, *self._reasons()]), kind="count")

    def _reasons(self) -> Iterator[str]:
        """Why sizes of the inputs are arguments beside them."""
        left = [s.name for s in self.free]
        for b, d in ((x, d) for x in self.program.inputs for d in x.shape):
            if names := [n for n in left if n in variables(d)]:
                left = [n for n in left if n not in names]
                are, them = ("are arguments", "them") if names[1:] else ("is an argument", "it")
                shown = " and ".join(f"`{n}`" for n in names)
                yield f"{shown} {are}: the dimension {print_expr(d)} of `{b.name}` does not give {them}"

    @cached_property
    def free(self) -> list[Scalar]:
        """The scalars that no shape gives."""
        return free_scalars(self.program)

    @cached_property
    def _solved(self) -> tuple[Solved, ...]:
        """The sizes that are inside of dimensions."""
        return solved([b.shape for b in self.program.inputs])

    @cached_property
    def _computed(self) -> list[int]:
        """The inputs with a dimension that only all scalars together give."""
        shapes = [b.shape for b in self.program.inputs]
        return [k for k, shape in enumerate(shapes) if not all(isinstance(d, Var | Const) for d in shape)]

    # --- tensors ---

    def _layouts(self, inputs: Sequence[Any]) -> Mapping[str, int]:
        """The sizes that the inputs' shapes give; layouts that have passed before are not checked again."""
        key = tuple(_layout(t) for t in inputs)
        sizes = self._seen.get(key)
        if sizes is None:
            for b, t in zip(self.program.inputs, inputs, strict=True):
                self._check_tensor(b, t, self.device if t is inputs[0] else str(inputs[0].device))
            sizes = self._sizes(inputs)
            for k, (b, t) in enumerate(zip(self.program.inputs, inputs, strict=True)):
                if k not in self._computed:
                    self._check_shape(b, t, sizes)
            if len(self._seen) >= REMEMBERED:
                self._seen.clear()
            self._seen[key] = sizes
        return sizes

    def _check_tensor(self, b: Buffer, t: Any, device: str) -> None:
        """Kind, device, dtype, rank and the last stride; `device` is a type or, for one GPU of several, its name."""
        if not isinstance(t, torch.Tensor):
            self._refuse(f"argument `{b.name}` is {type(t).__name__} {_short(t)}", legal=["a torch.Tensor"])
        if t.layout != torch.strided or t.is_nested:
            layout = "nested" if t.is_nested else t.layout
            self._refuse(f"argument `{b.name}` has layout {layout}", legal=["torch.strided"])
        if t.is_neg() or t.is_conj():
            # Such a view is a sign that memory does not hold.
            self._refuse(f"argument `{b.name}` is a lazily negated view", hint=f"{b.name}.resolve_neg()")
        if (derivative := derivative_of(t)) is not None:
            hint = derivative.instead.format(b.name)
            self._refuse(f"argument `{b.name}` {derivative.wrong}", hint=hint, kind="gradient")
        if device not in (t.device.type, str(t.device)):
            move = f'{b.name}.to("{device}")'
            self._refuse(f"argument `{b.name}` is on {t.device}", legal=[device], hint=move, kind="device")
        if not _in_memory(t):
            self._refuse(
                f"argument `{b.name}` has no elements in memory: it is a fake tensor, or one inside torch.vmap",
                hint="call the kernel outside, on plain tensors",
            )
        if t.dtype != getattr(torch, b.dtype):
            cast = f"{b.name}.to(torch.{b.dtype})"
            self._refuse(f"argument `{b.name}` is {t.dtype}", legal=[f"torch.{b.dtype}"], hint=cast, kind="dtype")
        if t.dim() != len(b.shape):
            actual = f"argument `{b.name}` has {t.dim()} dimensions, {_shape(t)}"
            self._refuse(actual, legal=[f"{len(b.shape)} dimensions, {_dims(b)}"], kind="shape")
        # Where there are no elements any strides do; numpy gives zeros.
        if t.dim() and t.shape[-1] > 1 and t.stride(-1) != 1 and t.numel():
            self._refuse(
                f"argument `{b.name}` has strides {tuple(t.stride())}",
                legal=["any strides with a last one of 1"],
                hint=f"{b.name}.contiguous()",
                kind="strides",
            )

    def _sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """Every symbolic size that is a plain dimension, agreed on by all inputs, and within its bounds."""
        declared = {s.name: s for s in self.program.scalars}
        sizes: dict[str, int] = {}
        first: dict[str, str] = {}
        for b, t in zip(self.program.inputs, inputs, strict=True):
            for k, (d, n) in enumerate(zip(b.shape, t.shape, strict=True)):
                where = f"`{b.name}` (dimension {k})"
                if not isinstance(d, Var):
                    continue
                if sizes.setdefault(d.name, n) != n:
                    self._refuse(
                        f"arguments {first[d.name]} and {where} share the size {d.name}, "
                        f"but the first has {sizes[d.name]} and the second {n}",
                        kind="sizes",
                    )
                if d.name not in first:
                    first[d.name] = where
                    self._check_range(declared[d.name], n, f"size {d.name} of argument {where}")
        for s in self._solved:
            b, n = self.program.inputs[s.input], inputs[s.input].shape[s.dim]
            dim, where = print_expr(b.shape[s.dim]), f"`{b.name}` (dimension {s.dim})"
            value = s.value(n, sizes)
            if value is None:
                wrong = f"argument {where} is {n}, and has to be {dim} with a whole {s.name}"
                legal = f"a multiple of {s.times}" + (f", plus {print_expr(s.rest)}" if s.rest != ZERO else "")
                self._refuse(wrong, legal=[legal], kind="shape")
            sizes[s.name] = value
            self._check_range(declared[s.name], value, f"size {s.name} of argument {where}, {dim} = {n},")
        return sizes

    def _check_shape(self, b: Buffer, t: torch.Tensor, sizes: Mapping[str, int | float]) -> None:
        """Constant and computed dimensions."""
        for k, (d, n) in enumerate(zip(b.shape, t.shape, strict=True)):
            expected = evaluate_size(d, sizes)
            if n != expected:
                what = "" if str(expected) == print_expr(d) else f" ({print_expr(d)})"
                actual = f"argument `{b.name}` has shape {_shape(t)}; dimension {k} is {n}"
                self._refuse(actual, legal=[f"{expected}{what}"], kind="shape")

    # --- scalars ---

    def _scalar(self, s: Scalar, value: Any) -> int | float:
        """A trailing scalar argument, as a Python number."""
        if isinstance(value, torch.Tensor) and value.dim() == 0:
            legal = [f"a Python number ({s.dtype})"]
            self._refuse(f"argument `{s.name}` is a tensor", legal=legal, hint=".item()", kind="scalar")
        if isinstance(value, bool) or not isinstance(value, Real):
            wrong = f"argument `{s.name}` is {type(value).__name__} {_short(value)}"
            self._refuse(wrong, legal=[f"a {s.dtype}"], kind="scalar")
        if is_float(s.dtype):
            return float(value)
        if not isinstance(value, Integral):
            self._refuse(f"argument `{s.name}` is {value!r}", legal=[f"an integer ({s.dtype})"], kind="scalar")
        self._check_range(s, int(value), f"argument `{s.name}`")
        return int(value)

    def _check_range(self, s: Scalar, value: int, what: str) -> None:
        highest = INT32_MAX if s.dtype == "int32" else 2**63 - 1
        # Sizes of zero are served too, if not by the kernel (neptune.runtime.calls.empty).
        lo = -highest - 1 if s.lo is None else 0 if s.lo == 1 else s.lo
        hi = min(x for x in (highest, s.hi, self.bounds.get(s.name)) if x is not None)
        step = "" if s.divisor == 1 else f", a multiple of {s.divisor}"
        if not lo <= value <= hi or value % s.divisor:
            self._refuse(f"{what} is {value}", legal=[f"{lo} to {hi}{step}"], kind="bound")

    # --- outputs ---

    def shapes(self, sizes: Mapping[str, int | float]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The shape and the dtype of each output, for these sizes; nothing is allocated."""
        outputs = self.program.outputs
        return [(tuple(evaluate_size(d, sizes) for d in b.shape), getattr(torch, b.dtype)) for b in outputs]

    def _outputs(
        self,
        inputs: Sequence[torch.Tensor],
        out: Any,
        sizes: Mapping[str, int | float],
        device: torch.device,
    ) -> tuple[torch.Tensor, ...]:
        p = self.program
        if out is None:
            return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.shapes(sizes))
        tensors = (out,) if isinstance(out, torch.Tensor) else tuple(out) if isinstance(out, Sequence) else None
        if tensors is None or len(tensors) != len(p.outputs):
            what = type(out).__name__ if tensors is None else f"{len(tensors)} tensors"
            names = ", ".join(b.name for b in p.outputs)
            self._refuse(f"out= is {what}", legal=[f"{len(p.outputs)} tensor(s): {names}"], kind="out")
        for b, t in zip(p.outputs, tensors, strict=True):
            self._check_tensor(b, t, str(device))
            self._check_shape(b, t, sizes)
        self._check_overlap(inputs, tensors)
        return tensors

    def _check_overlap(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """A kernel reads inputs while it writes outputs, and programs write in any order."""
        names = [*(b.name for b in self.program.inputs), *(b.name for b in self.program.outputs)]
        tensors = [*inputs, *outputs]
        for k in range(len(inputs), len(tensors)):
            if overlaps_itself(tensors[k]):
                self._refuse(
                    f"elements of out= `{names[k]}` lie on top of each other", hint="torch.empty(...)", kind="out"
                )
            for other in range(k):
                if overlap(tensors[k], tensors[other]):
                    wrong = f"out= `{names[k]}` overlaps `{names[other]}` in memory"
                    self._refuse(wrong, hint="out=None", kind="out")

    def _refuse(
        self, wrong: str, *, legal: Sequence[str] = (), hint: str | None = None, kind: str | None = None
    ) -> NoReturn:
        request = f"call of kernel `{self.program.name}`"
        raise ShapeError(request, wrong, legal=legal, hint=hint, where=str(self), kind=kind)


def free_scalars(program: Program) -> list[Scalar]:
    """The scalars that no input's shape gives: the arguments of a call behind its tensors, in order."""
    by_shapes = given([b.shape for b in program.inputs])
    return [s for s in program.scalars if s.name not in by_shapes]


def checked_call_sizes(program: Program, given: Mapping[str, Any], asked: str) -> dict[str, int | float]:
    """Every size of a call by name; ShapeError for one that is missing, unknown or no size."""
    names = [s.name for s in program.scalars if not is_float(s.dtype)]
    for name, value in given.items():
        if name not in names:
            raise ShapeError(asked, f"it has no size `{name}`", legal=names, kind="named_sizes")
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            legal = ("a positive integer",)
            raise ShapeError(asked, f"{name}={value!r} is no size", legal=legal, kind="named_sizes")
    missing = [n for n in names if n not in given]
    if missing:
        wrong = f"no value was given for {', '.join(missing)}"
        raise ShapeError(asked, wrong, legal=[f"{n}=…" for n in missing], kind="named_sizes")
    return {n: int(v) for n, v in given.items()}


def _layout(t: Any) -> Any:
    """Return the properties that the checks look at; for anything but a dense tensor, an object that never passed."""
    if isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_nested:
        refused = t.is_neg() or t.is_conj() or derivative_of(t) is not None or not _in_memory(t)
        return t.dtype, t.device, t.shape, t.stride(), refused
    return object()


def _in_memory(t: torch.Tensor) -> bool:
    """Return True if a tensor has an address; tensors of tracers and transformations have none."""
    if type(t) is not torch.Tensor and hasattr(t, "fake_mode"):
        return False
    try:
        # Meta tensors are a matter of their device.
        return t.data_ptr() != 0 or t.numel() == 0 or t.device.type == "meta"
    except RuntimeError:
        return False


def _dims(b: Buffer) -> str:
    return f"[{', '.join(print_expr(d) for d in b.shape)}]"


def _declared(b: Buffer) -> str:
    return f"{b.name}: {b.dtype}{_dims(b)}"


def _shape(t: torch.Tensor) -> str:
    return f"[{', '.join(map(str, t.shape))}]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
