"""FlexAttention's mods as expressions: traced once, by torch, on scalars without values.

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

becomes `s + slopes_in[h] * (j - i)` with one more input. torch's own tracer (`make_fx`) runs the function on fake
scalars and writes down what it does in ATen; each node of that is a rule of `neptune.functional.aten`. A function that
asks a scalar for its value cannot be written down, and torch's complaint is told as a line of the user's.
"""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from neptune.boundary import PACKAGE
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Tensor
from neptune.frontend.builder import placeholder, var
from neptune.functional.aten import RULES, SAME, NotAnExpression, as_dtype, name_of
from neptune.functional.captured import Captured, captured
from neptune.ir import expr as ir
from neptune.ir.expr import Const, Expr, Op, Var
from neptune.ir.names import fits
from neptune.ir.printer import print_expr

INDICES = ("b", "h", "q_idx", "kv_idx")
SIGNATURES = {"score_mod": ("score", *INDICES), "mask_mod": INDICES}
ASKS = (
    "it asks for the value of a score or an index, which is known in the kernel only: a branch (if, and, or, not, min, "
    "max) or .item()"
)
INSTEAD = "torch.where(condition, a, b); & | ~ of conditions; torch.minimum, torch.maximum"
SHAPE: Any = torch.Tensor.shape
LENGTHS = ("size", "numel", "nelement", "__len__", "stride", "storage_offset", "is_contiguous")
VALUES = ("item", "tolist", "numpy", "__array__", "__int__", "__float__", "__bool__", "__index__")
"""Questions to a tensor whose answers are numbers in the graph."""
NAMED = ("alpha", "rounding_mode", "min", "max", "approximate")
"""Named arguments of ATen's functions that change a value, and those that do not."""
WHERE = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit")
HELD = {torch.int16: torch.int32, torch.uint16: torch.int32}
"""Tensors of dtypes that expressions do not have are read as copies of these, which hold all of their numbers."""
SHORT = (torch.int8, torch.uint8, torch.int16, torch.uint16)
CHOOSES = ("where", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", *SAME)
"""Functions whose results are one of their arguments: the only ones of short integers, which wrap around in torch."""
WRITES = "a mod gives a value for one pair of query and key, and changes nothing"


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
    sized: bool = False
    """It asks for a length or a number of a tensor that it holds: another one, another mod."""
    wide: str = "float32"
    """The dtype of scores."""
    reads: list[Read] = field(default_factory=list)

    @cached_property
    def text(self) -> str:
        """The expression, on variables: what a kernel is compiled for."""
        score = [Var("score", self.wide)] if self.kind == "score_mod" else []
        return print_expr(self.expression(*score, *(Var(n) for n in INDICES)))

    def expression(self, *scalars: Expr) -> Expr:
        """The value of the mod for a score and raw indices (a mask: for the indices)."""
        return _Translation(self, scalars).value()


class _Indexed(TorchFunctionMode):
    """`t[q_idx]` is a read at a symbol, where torch would ask a scalar tensor for its number. Questions for lengths
    and numbers are noticed."""

    sized = valued = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.valued |= getattr(func, "__name__", "") in VALUES
        self.sized |= getattr(func, "__name__", "") in LENGTHS or getattr(func, "__self__", None) is SHAPE
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            while len(index) > 1 and (index[-1] is ... or (isinstance(index[-1], slice) and index[-1] == slice(None))):
                # What is left is indexed next.
                index = index[:-1]
            known = all(isinstance(x, torch.Tensor | int) and not isinstance(x, bool) for x in index)
            if known and any(isinstance(x, torch.Tensor) for x in index):
                like = next(x for x in index if isinstance(x, torch.Tensor))
                places = [x if isinstance(x, torch.Tensor) else torch.full_like(like, x) for x in index]
                return torch.ops.aten.index.Tensor(args[0], places)
        return func(*args, **(kwargs or {}))


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
        _refuse(kind, function, "it does something else each time it is called", hint=WRITES)
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
    made = tuple(_input(c.value, n, function, kind) for c, n in zip(held.values(), names, strict=True))
    mod = Mod(kind, module, tuple(held.values()), made, *_asked(kind, function), mode.sized or mode.valued, wide)
    if mode.valued and stand_ins:
        _refuse(kind, function, ASKS, hint=INSTEAD)
    # What is no expression is refused here, and what is read at which index is known.
    assert mod.text
    return mod


def _input(value: torch.Tensor, name: str, function: Any, kind: str) -> Tensor:
    try:
        dtype = name_of(HELD.get(value.dtype, value.dtype))
    except NotAnExpression as error:
        _refuse(kind, function, f"it reads `{name}`: {error.wrong}", hint=error.hint)
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
        _refuse(kind, function, f"it cannot be called: {error}", hint=shown)
    except ValueError:
        return


def _graph(function: Any, kind: str, wide: str) -> tuple[GraphModule, _Indexed]:
    """What the function does, as a graph of ATen's functions; and whether it asks for lengths or values."""
    mode = _Indexed()
    # Where what it holds is: so that no function of it sees two devices.
    device = next((c.value.device for c in captured(function) if c.kind == "tensor" and c.value.is_cuda), "cpu")
    scalars = [torch.zeros((), dtype=torch.int32, device=device) for _ in INDICES]
    scalars = scalars if kind == "mask_mod" else [torch.zeros((), dtype=getattr(torch, wide), device=device), *scalars]

    def called(*args: torch.Tensor) -> Any:
        with mode:
            result = function(*args)
        # Python's own numbers are no nodes of a graph.
        return torch.full((), result) if isinstance(result, bool | int | float) else result

    try:
        # Also while torch traces what calls us: this trace is another, of other tensors.
        with torch.no_grad(), torch._guards.tracing(None), torch.utils._python_dispatch._disable_current_modes():
            module = make_fx(called, tracing_mode="fake", _allow_non_fake_inputs=True)(*scalars)
            return module, mode
    except ExpressionError:
        raise
    except Exception as error:
        line = _users_line(error)
        if type(error).__name__ in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
            _refuse(kind, function, ASKS, hint=INSTEAD, where=line)
        first = (str(error).strip().splitlines() or [""])[0]
        _refuse(kind, function, f"{type(error).__name__}: {first:.200}", where=line)


def _users_line(error: Exception) -> str | None:
    """The last line of the traceback that is neither ours nor torch's."""
    ours = (PACKAGE, str(torch.__path__[0]))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def _shown(file: str) -> str:
    """A file by its path from here, where it lies below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _refuse(kind: str, function: Any, wrong: str, *, hint: str | None = None, where: str | None = None) -> NoReturn:
    asked, place = _asked(kind, function)
    raise ExpressionError(asked, wrong, hint=hint, where=where or place) from None


def _asked(kind: str, function: Any) -> tuple[str, str | None]:
    """How errors name a mod, and where it is defined."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    place = None if code is None else f"{_shown(code.co_filename)}:{code.co_firstlineno}"
    return f"attention with {kind}={name}", place


# --- from a graph to an expression ---------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A captured tensor of which the first indices are known."""

    tensor: Tensor
    scalar: bool
    index: tuple[Expr, ...] = ()

    def value(self) -> Expr:
        """Its element."""
        if self.scalar:
            return self.tensor[0]
        left = len(self.tensor.shape) - len(self.index)
        if left:
            raise NotAnExpression(
                f"it uses {'all' if not self.index else 'a slice'} of `{self.tensor.name.removesuffix('_in')}`, "
                f"which has {left} more dimension{'s' * (left > 1)}",
                "read one element: tensor[b, h, q_idx, kv_idx]",
            )
        return self.tensor[self.index]


class _Translation:
    """One walk over a mod's graph."""

    def __init__(self, mod: Mod, scalars: Sequence[Expr]) -> None:
        self.mod, self.axes = mod, dict(zip(scalars, SIGNATURES[mod.kind], strict=True))
        self.done: dict[Node, Any] = {}
        self.scalars = iter(scalars)
        self.inputs: Mapping[int, tuple[Tensor, bool]] = {
            id(c.value): (t, c.value.dim() == 0) for c, t in zip(mod.tensors, mod.placeholders, strict=True)
        }

    def value(self) -> Expr:
        for node in self.mod.module.graph.nodes:
            if node.op == "output":
                return self._result(node.args[0])
            try:
                self.done[node] = self._node(node)
            except (NotAnExpression, TypeError, NotImplementedError) as error:
                wrong = error.wrong if isinstance(error, NotAnExpression) else str(error)
                hint = error.hint if isinstance(error, NotAnExpression) else None
                self._refuse(wrong, hint)
        raise AssertionError("a graph ends with its output")

    def _refuse(self, wrong: str, hint: str | None = None) -> NoReturn:
        raise ExpressionError(self.mod.asked, wrong, hint=hint, where=self.mod.place) from None

    def _result(self, node: Any) -> Expr:
        if not isinstance(node, Node):
            self._refuse(f"it returns {node!r:.60}", "one value: a score, or a condition")
        try:
            e = self._scalar(self.done[node])
        except NotAnExpression as error:
            self._refuse(error.wrong, error.hint)
        if self.mod.kind == "mask_mod" and e.dtype != "bool":
            self._refuse(f"it returns a value of {e.dtype}", "a condition, such as q_idx >= kv_idx")
        if self.mod.kind == "score_mod" and e.dtype == "bool":
            self._refuse("it returns a condition", "a score; conditions go into mask_mod=")
        return e if e.dtype == "bool" else as_dtype(e, self.mod.wide)

    def _node(self, node: Node) -> Any:
        if node.op == "placeholder":
            return next(self.scalars)
        if node.op == "get_attr":
            value = getattr(self.mod.module, str(node.target))
            known = self.inputs.get(id(value))
            return as_dtype(value.item(), name_of(value.dtype)) if known is None else _Part(*known)
        args: Any = torch.fx.node.map_arg(node.args, lambda n: self.done[n])
        if node.target is operator.getitem:
            raise NotAnExpression("it makes several values at once", "functions of single values")
        name = getattr(node.target, "_schema", None) and node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
        if name == "_local_scalar_dense":
            raise NotAnExpression(ASKS, INSTEAD)
        if name == "index":
            return self._indexed(args[0], args[1])
        if name == "select" and isinstance(args[0], _Part) and args[1] == 0:
            return self._indexed(args[0], [Const(args[2], "int32")])
        if name is None or name not in RULES or not isinstance(node.meta.get("val"), torch.Tensor):
            wrong = f"it writes to a tensor ({name})" if str(name).endswith("_") else f"it calls {name or node.target}"
            raise NotAnExpression(f"{wrong}, which is no function of single values", WRITES)
        scalars = [self._scalar(a) for a in args]
        if node.meta["val"].dim():
            raise NotAnExpression(f"{name} makes a tensor of {node.meta['val'].dim()} dimensions", WRITES)
        made = node.meta["val"].dtype
        if made in SHORT and (name not in CHOOSES or any(getattr(a, "dtype", made) != made for a in _read_by(node))):
            raise NotAnExpression(f"it computes in {made}, which wraps around", "tensor[…].to(torch.int32)")
        dtype = name_of(HELD.get(made, made))
        if node.target is torch.ops.aten.view.dtype:
            raise NotAnExpression("it reads a number's bits as another dtype", "x.to(dtype), which casts")
        return RULES[name](dtype, *scalars, **self._named(node))

    def _named(self, node: Node) -> dict[str, Any]:
        named = torch.fx.node.map_arg(node.kwargs, lambda n: self._scalar(self.done[n]))
        unknown = [n for n, v in named.items() if n not in NAMED and n not in WHERE and v is not None]
        if unknown:
            raise NotAnExpression(f"it calls {node.target} with {unknown[0]}={named[unknown[0]]}", WRITES)
        return {n: v for n, v in named.items() if n in NAMED}

    def _scalar(self, value: Any) -> Any:
        return value.value() if isinstance(value, _Part) else value

    def _indexed(self, part: Any, index: Sequence[Any]) -> _Part:
        if not isinstance(part, _Part):
            raise NotAnExpression("it indexes what is no captured tensor", "a tensor from outside of the mod")
        if len(part.index) + len(index) > len(part.tensor.shape) or part.scalar:
            raise NotAnExpression(f"it has too many indices for `{part.tensor.name.removesuffix('_in')}`")
        places = list(part.index)
        for i in index:
            k, e = len(places), self._scalar(i)
            if e is None or e.dtype == "bool" or not e.dtype.startswith(("int", "uint")):
                raise NotAnExpression(
                    f"index {k} of `{part.tensor.name.removesuffix('_in')}` is no integer", "b, h, q_idx or kv_idx"
                )
            if e in self.axes and (read := Read(part.tensor.name, k, self.axes[e])) not in self.mod.reads:
                self.mod.reads.append(read)
            size = part.tensor.shape[k]
            # torch counts negative indices from the end.
            places.append(e if _at_least_0(e) else ir.select(e < 0, e + size, e))
        return _Part(part.tensor, part.scalar, tuple(places))


def _read_by(node: Node) -> list[Any]:
    """The values of a node's arguments, but for conditions."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return [v for v in values if getattr(v, "dtype", None) != torch.bool]


def _at_least_0(e: Expr) -> bool:
    """True for an index that is at least 0 as it is written: indices are, and what is made of them by + * // %."""
    match e:
        case Const(value, _):
            return value >= 0
        case Var():
            return True
        case Op("add" | "mul" | "floordiv" | "min", (a, b), _):
            return _at_least_0(a) and _at_least_0(b)
        case Op("max", (a, b), _):
            return _at_least_0(a) or _at_least_0(b)
        case Op("mod", (_, b), _):
            return isinstance(b, Const) and b.value > 0
        case ir.Cast(arg, _):
            return arg.dtype.startswith("int") and _at_least_0(arg)
        case _:
            return False
