"""FlexAttention's mods as expressions: traced once, by torch, on scalars without values.

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

becomes `s + slopes_in[h] * (j - i)` with one more input. torch's own tracer (`make_fx`) runs the function on fake
scalars and writes down what it does in ATen; each node of that is a row of `neptune.torch_ops`
(`translate`). A function that
asks a scalar for its value cannot be written down, and torch's complaint is told as a line of the user's.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from neptune.base.boundary import PACKAGE
from neptune.base.locks import Lock
from neptune.errors import ExpressionError, Unsupported, answered
from neptune.frontend.assemble import Tensor
from neptune.frontend.builder import placeholder, var
from neptune.functional.arrays import Dim
from neptune.functional.captured import Captured, captured
from neptune.functional.operators import MIXED, PLAIN
from neptune.functional.translate import ASKS, INSTEAD, WRITES, Translation, decompositions
from neptune.ir.expr import Expr, Var
from neptune.ir.names import fits
from neptune.ir.text.printer import print_expr
from neptune.runtime.transforms import derivative_of, takes_tangents
from neptune.torch_ops.scalars import as_dtype, name_of

INDICES = ("b", "h", "q_idx", "kv_idx")
SIGNATURES = {"score_mod": ("score", *INDICES), "mask_mod": INDICES}
SHAPE: Any = torch.Tensor.shape
LENGTHS = ("size", "numel", "nelement", "__len__", "stride", "storage_offset", "is_contiguous")
VALUES = ("item", "tolist", "numpy", "__array__", "__int__", "__float__", "__bool__", "__index__")
"""Questions to a tensor whose answers are numbers in the graph."""
_TRACING = Lock()
"""torch's tracer is one for all threads."""
HELD = {torch.int16: torch.int32, torch.uint16: torch.int32}
"""Tensors of dtypes that expressions do not have are read as copies of these, which hold all of their numbers."""


@dataclass(frozen=True)
class Read:
    """A captured tensor's dimension that is read at a plain index: it must be at least as long as the index's axis."""

    name: str
    dimension: int
    axis: str


@dataclass(frozen=True, eq=False)
class Mod:
    """A traced mod. `expression(*scalars)` is its value; `tensors` are the inputs that it reads beside, in order."""

    kind: str
    module: GraphModule
    tensors: tuple[Captured, ...]
    placeholders: tuple[Tensor, ...]
    asked: str = ""
    place: str | None = None
    asks: bool = False
    wide: str = "float32"
    """The dtype of scores."""
    reads: list[Read] = field(default_factory=list)
    lengths: list[bool] = field(default_factory=list)

    @property
    def sized(self) -> bool:
        """It asks for a length or a number of a tensor, or is written for one: another one, another mod."""
        return self.asks or bool(self.lengths)

    @cached_property
    def text(self) -> str:
        """The expression, on variables: what a kernel is compiled for."""
        score = [Var("score", self.wide)] if self.kind == "score_mod" else []
        return print_expr(self.expression(*score, *(Var(n) for n in INDICES)))

    def expression(self, *scalars: Expr) -> Expr:
        """The value of the mod for a score and raw indices (a mask: for the indices)."""
        axes = dict(zip(scalars, SIGNATURES[self.kind], strict=True))
        inputs = {id(c.value): (t, c.value) for c, t in zip(self.tensors, self.placeholders, strict=True)}

        def read(dim: Dim, e: Expr) -> None:
            if e in axes and dim.of is not None and (access := Read(*dim.of, axes[e])) not in self.reads:
                self.reads.append(access)

        try:
            e = answered(Translation(self.module, inputs, scalars, read, lambda: self.lengths.append(True)).value)
        except (TypeError, NotImplementedError) as error:
            raise self.refusal(str(error)) from None
        if isinstance(e, Unsupported):
            raise self.refusal(e.why, e.hint)
        if self.kind == "mask_mod" and e.dtype != "bool":
            raise self.refusal(f"it returns a value of {e.dtype}", "a condition, such as q_idx >= kv_idx")
        if self.kind == "score_mod" and e.dtype == "bool":
            raise self.refusal("it returns a condition", "a score; conditions go into mask_mod=")
        return e if e.dtype == "bool" else as_dtype(e, self.wide)

    def refusal(self, wrong: str, hint: str | None = None) -> ExpressionError:
        """The ExpressionError of this mod."""
        return ExpressionError(self.asked, wrong, hint=hint, where=self.place)


class _Indexed(TorchFunctionMode):
    """`t[q_idx]` is a read at a symbol, where torch would ask a scalar tensor for its number. Questions for lengths
    and numbers are noticed."""

    sized = valued = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.valued |= getattr(func, "__name__", "") in VALUES
        self.sized |= getattr(func, "__name__", "") in LENGTHS or getattr(func, "__self__", None) is SHAPE
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            places = [x for x in index if isinstance(x, torch.Tensor)]
            if places and all(x.dtype not in (torch.bool, torch.uint8) for x in places):
                return torch.ops.aten.index.Tensor(*_parted(args[0], index))
        return func(*args, **(kwargs or {}))


class _Unwritten(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what writes to a tensor before it is done: what a mod holds are the user's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            raise Unsupported(f"it writes to a tensor ({func._schema.name.partition('::')[2]})")
        return func(*args, **(kwargs or {}))


def _parted(x: torch.Tensor, index: tuple[Any, ...]) -> tuple[torch.Tensor, list[Any]]:
    """The part of a tensor that numbers and slices of an index choose, and for each of its dimensions the rest."""
    basic = tuple(slice(None) if isinstance(i, torch.Tensor) else i for i in index)
    hidden = x.dim() - sum(i is not None and i is not Ellipsis for i in index)
    places: list[Any] = []
    for i in index:
        if isinstance(i, torch.Tensor):
            places.append(i)
        elif not isinstance(i, int) or isinstance(i, bool):
            places += [None] * (hidden if i is Ellipsis else 1)
    return x[basic], places


def traced(function: Any, kind: str, taken: Sequence[str] = (), wide: str = "float32", stand_ins: bool = False) -> Mod:
    """The mod `function`, a "score_mod" or a "mask_mod", of scores of dtype `wide`. `taken`: names that its tensors
    cannot have. `stand_ins`: what it holds are tensors of other values than those of a call.

    Raises ExpressionError, with the user's line where there is one, for what is no expression of scalars.
    """
    wanted = SIGNATURES[kind]
    _check_signature(function, kind, wanted)
    module, mode = _graph(function, kind, wide)
    # What a function counts, or draws at random, is another the second time.
    if _graph(function, kind, wide)[0].code != module.code:
        raise _refusal(kind, function, "it does something else each time it is called", hint=WRITES)
    behind = [c for c in captured(function) if c.kind == "tensor"]
    held: dict[int, Captured] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and id(value := getattr(module, node.target)) not in held:
            known = next((c for c in behind if c.value is value), None)
            if known is None and value.dim() == 0:
                # A number that the mod has made of a Python one.
                continue
            held[id(value)] = known or Captured((("unknown", node.target),), "tensor", value, "tensor")
    names: list[str] = []
    for c in held.values():
        names.append(_name(c.name, {*taken, *names}))
    inputs = tuple(_input(c.value, n, function, kind) for c, n in zip(held.values(), names, strict=True))
    mod = Mod(kind, module, tuple(held.values()), inputs, *_asked(kind, function), mode.sized or mode.valued, wide)
    if mode.valued and stand_ins:
        raise _refusal(kind, function, ASKS, hint=INSTEAD)
    # What is no expression is refused here, and what is read at which index is known.
    assert mod.text
    return mod


def refuse_wrapped(kind: str, function: Any, behind: Sequence[Captured]) -> None:
    """Raise ExpressionError where a mod holds a tensor inside of a transformation of `torch.func`: of a member of a
    batch nothing is read that all members share, and derivatives there are none."""
    if not torch._C._functorch.maybe_current_level() and not takes_tangents():
        return
    for c in behind:
        if c.kind == "tensor" and torch._C._functorch.is_batchedtensor(c.value):
            hint = f"a batch in q, k and v that the mod knows the member of: {c.name}[b, …]"
            raise _refusal(kind, function, f"it reads `{c.name}`, which torch.vmap goes over", hint=hint)
        if c.kind == "tensor" and (derivative := derivative_of(c.value)) is not None:
            raise _refusal(kind, function, f"`{c.name}` {derivative.wrong}", hint=derivative.instead.format(c.name))


def _input(value: torch.Tensor, name: str, function: Any, kind: str) -> Tensor:
    dtype = answered(name_of, HELD.get(value.dtype, value.dtype))
    if isinstance(dtype, Unsupported):
        raise _refusal(kind, function, f"it reads `{name}`: {dtype.why}", hint=dtype.hint)
    return placeholder([var(f"{name}_{k}") for k in range(value.dim())] or [1], dtype, name)


def _name(wanted: str, taken: set[str]) -> str:
    """A name for an input: that of the user's variable with _in behind, so that it is none of a stage."""
    base = wanted if wanted.isidentifier() and wanted.isascii() and not wanted.startswith("_") else "tensor"
    base = base if fits(f"{base}_in") and fits(f"{base}_in_0") else f"of_{base.strip('_')}"
    return next(n for n in (f"{base}{k or ''}_in" for k in range(len(taken) + 1)) if n not in taken)


def _check_signature(function: Any, kind: str, wanted: Sequence[str]) -> None:
    shown = f"a function ({', '.join(wanted)})"
    if not callable(function):
        raise ExpressionError(f"attention with {kind}=", f"{function!r:.60} is not a function", hint=shown)
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError as error:
        raise _refusal(kind, function, f"it cannot be called: {error}", hint=shown) from None
    except ValueError:
        return


def _graph(function: Any, kind: str, wide: str) -> tuple[GraphModule, _Indexed]:
    """What the function does, as a graph of ATen's functions; and whether it asks for lengths or values."""
    mode = _Indexed()
    # Where what it holds is: so that no function of it sees two devices.
    device = next((c.value.device for c in captured(function) if c.kind == "tensor" and c.value.is_cuda), "cpu")
    scalars = [torch.zeros((), dtype=torch.int64, device=device) for _ in INDICES]
    scalars = scalars if kind == "mask_mod" else [torch.zeros((), dtype=getattr(torch, wide), device=device), *scalars]

    def called(*args: torch.Tensor) -> Any:
        with mode, _Unwritten():  # type: ignore[no-untyped-call]
            result = function(*args)
        # Python's own numbers are no nodes of a graph.
        return torch.full((), result) if isinstance(result, bool | int | float) else result

    try:
        # Also while torch traces what calls us: this trace is another, of other tensors.
        with _TRACING, torch._guards.tracing(None), torch.utils._python_dispatch._disable_current_modes():
            tracer = make_fx(called, decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)
            return tracer(*scalars), mode
    except ExpressionError:
        raise
    except Unsupported as error:
        raise _refusal(kind, function, str(error), hint=WRITES, where=_users_line(error)) from None
    except Exception as error:
        line = _users_line(error)
        for c in captured(function):
            if (instead := _instead(c, error)) is not None:
                raise _refusal(
                    kind, function, f"it reads `{c.name}`, a {type(c.value).__name__}", hint=instead, where=line
                ) from None
        if type(error).__name__ in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
            raise _refusal(kind, function, ASKS, hint=INSTEAD, where=line) from None
        first = (str(error).strip().splitlines() or [""])[0]
        raise _refusal(kind, function, f"{type(error).__name__}: {first:.200}", where=line) from None


def _instead(c: Captured, error: Exception) -> str | None:
    """What to write for something that torch's tracer does not follow, as its error says; None where it is not that."""
    if c.kind == "tensor" and MIXED in str(error) and type(c.value) not in PLAIN:
        return f"{c.name}.as_subclass(torch.Tensor)"
    return f"torch.from_numpy({c.name})" if type(c.value).__name__ == "ndarray" and "numpy" in str(error) else None


def _users_line(error: Exception) -> str | None:
    """The last line of the traceback that is neither ours nor torch's."""
    ours = (PACKAGE, str(torch.__path__[0]))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def _shown(file: str) -> str:
    """A file by its path from here, where it lies below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _refusal(
    kind: str, function: Any, wrong: str, *, hint: str | None = None, where: str | None = None
) -> ExpressionError:
    request, place = _asked(kind, function)
    return ExpressionError(request, wrong, hint=hint, where=where or place)


def _asked(kind: str, function: Any) -> tuple[str, str | None]:
    """How errors name a mod, and where it is defined."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    place = None if code is None else f"{_shown(code.co_filename)}:{code.co_firstlineno}"
    return f"attention with {kind}={name}", place
