"""What a mod holds on to: tensors and numbers in its closure, its defaults, the globals that it names, and the
functions among them.

    def mask(b, h, q_idx, kv_idx):                    path ("cell", 0) → documents, a tensor
        return documents[b, q_idx] == documents[b, kv_idx]

A path says how to get from the function to a value. torch.compile follows the same paths, so that captured tensors are
inputs of its graph, and captured numbers are guarded.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Step = tuple[str, Any]
Path = tuple[Step, ...]
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
DEEPEST = 16
LONGEST = 256
"""What lies deeper, or in a longer list, is opaque."""
CONSTANT = ("torch", "math", "operator", "builtins", "functools", "typing", "numpy")
BEHIND = frozenset(
    (
        *("__import__", "attrgetter", "compile", "eval", "exec", "getattr", "globals", "hasattr", "input"),
        *("iter", "locals", "methodcaller", "next", "open", "vars"),
    )
)
"""Functions by which code reaches what it does not name."""
STATE = frozenset(
    (
        *("_C", "_dynamo", "_version", "accelerator", "are_deterministic_algorithms_enabled", "autocast_mode"),
        *("backends", "compiler", "cuda", "data_ptr", "distributed", "get_autocast_cpu_dtype"),
        *("get_autocast_dtype", "get_autocast_gpu_dtype", "get_default_device"),
        *("get_deterministic_debug_mode", "get_float32_matmul_precision", "get_num_interop_threads"),
        *("get_num_threads", "get_rng_state", "grad", "grad_fn", "initial_seed", "is_anomaly_enabled"),
        *("is_autocast_cache_enabled", "is_autocast_cpu_enabled", "is_autocast_enabled"),
        *("is_deterministic_algorithms_warn_only_enabled", "is_grad_enabled", "is_inference"),
        *("is_inference_mode_enabled", "is_leaf", "is_warn_always_enabled", "jit", "mps", "overrides"),
        *("random", "seed"),
    )
)
"""Names in torch and of tensors by which code reads the state of the process: it may be another at the next call."""
UNKNOWN = BEHIND | STATE
SETTABLE = (*PLAIN, torch.Tensor, torch.nn.Parameter, types.FunctionType, tuple, list, dict)
"""What somebody may have put into a module of torch or of the standard library, and may change."""


@dataclass(frozen=True)
class Captured:
    """A value behind a function: `kind` is "tensor", "function", "value", "constant" (a module, a type or a function
    of torch's or of the standard library), or "opaque", which nothing is known of: all that is not walked in full.
    `again`: the path on which this same tensor or function was reached first."""

    path: Path
    kind: str
    value: Any
    name: str
    again: Path | None = None

    @property
    def key(self) -> Any:
        """What of it a trace depends on: of a tensor all but its data and its lengths. A trace does not tell two names
        of one tensor apart, so that these are other than two tensors."""
        match self.kind:
            case "tensor":
                t = self.value
                return t.dtype, t.dim(), t.device, t.requires_grad, self.again
            case "function":
                return self.value.__code__, self.value.__name__, self.value.__qualname__, self.value.__doc__, self.again
            case "constant":
                return self.value
            case "value":
                return type(self.value), repr(self.value)
            case _:
                return object()


def captured(function: Any) -> list[Captured]:
    """Everything that can be reached from a mod, the mod itself first."""
    values = list(_walk(function, (), "mod", {}))
    # torch.tensor(0.5) in a mod is of this dtype.
    return [*values, Captured((("default dtype", None),), "value", torch.get_default_dtype(), "the default dtype")]


def reach(function: Any, path: Path) -> Any:
    """The value at the end of a path; torch.compile traces this."""
    value = function
    for kind, where in path:
        if kind == "cell":
            value = value.__closure__[where].cell_contents
        elif kind == "global":
            value = value.__globals__[where]
        elif kind == "default":
            value = value.__defaults__[where]
        elif kind == "keyword":
            value = value.__kwdefaults__[where]
        elif kind == "attribute":
            value = getattr(value, where)
        elif kind == "length":
            value = len(value)
        elif kind == "import":
            value = sys.modules[where]
        elif kind == "default dtype":
            value = torch.get_default_dtype()
        else:
            value = value[where]
    return value


def _walk(value: Any, path: Path, name: str, seen: dict[int, Path]) -> Iterator[Captured]:
    kind = type(value)
    if len(path) > DEEPEST:
        yield Captured(path, "opaque", value, name)
    elif isinstance(value, torch.Tensor):
        yield Captured(path, "tensor", value, name, seen.get(id(value)))
        if id(value) not in seen:
            seen[id(value)] = path
            yield from _attributes(value, path, seen)
    elif kind in PLAIN:
        yield Captured(path, "value", value, name)
    elif kind is types.FunctionType:
        if _is_torchs(value) and not path_is_closure(value) and value.__name__ not in STATE:
            yield Captured(path, "constant", value, name)
            return
        yield Captured(path, "function", value, name, seen.get(id(value)))
        if id(value) not in seen:
            seen[id(value)] = path
            yield from _behind(value, path, name, seen)
    elif kind in (tuple, list, dict) and len(value) <= LONGEST and all(type(k) in (str, int) for k in _keys(value)):
        yield Captured((*path, ("length", kind.__name__)), "value", len(value), name)
        for k in _keys(value):
            yield from _walk(value[k], (*path, ("item", k)), str(k), seen)
    elif kind in (types.MethodType, functools.partial):
        inside = (("__func__", "__self__"), ("func", "args", "keywords"))[kind is functools.partial]
        for attribute in inside:
            yield from _walk(getattr(value, attribute), (*path, ("attribute", attribute)), attribute, seen)
        if kind is functools.partial:
            yield from _attributes(value, path, seen)
    else:
        yield Captured(path, "constant" if _is_constant(value) else "opaque", value, name)


def _keys(value: Any) -> Iterable[Any]:
    return value if isinstance(value, dict) else range(len(value))


def _attributes(value: Any, path: Path, seen: dict[int, Path]) -> Iterator[Captured]:
    """What hangs on a function, a partial or a tensor; a tensor of another class may find more in its class."""
    if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
        yield Captured(path, "opaque", value, type(value).__name__)
    for name, held in vars(value).items():
        yield from _walk(held, (*path, ("attribute", name)), name, seen)


def _behind(function: types.FunctionType, path: Path, name: str, seen: dict[int, Path]) -> Iterator[Captured]:
    names, imported = _names(function.__code__)
    for step, called, value in _held(function, names):
        yield from _walk(value, (*path, step), called, seen)
        yield from _in_module(value, (*path, step), names, seen)
    for used in names:
        unknown = used in UNKNOWN or not _is_constant(getattr(builtins, used, int))
        if used not in function.__globals__ and unknown:
            yield Captured(path, "opaque", function, used)
    if not all(map(_is_ours, imported)):
        yield Captured(path, "opaque", function, name)
    for module in imported:
        # What an import inside of the function binds is the first package, or, with `as` or `from`, the last one.
        for m in (module.partition(".")[0], module):
            yield from _in_module(sys.modules.get(m), (*path, ("import", m)), names, seen)
    yield from _attributes(function, path, seen)


def _held(function: types.FunctionType, names: Sequence[str]) -> Iterator[tuple[Step, str, Any]]:
    """What a function has in its cells, in its defaults, and in the globals that it names: steps, names, values."""
    for k, cell in enumerate(function.__closure__ or ()):
        try:
            yield ("cell", k), function.__code__.co_freevars[k], cell.cell_contents
        except ValueError:
            continue
    for k, value in enumerate(function.__defaults__ or ()):
        yield ("default", k), "default", value
    for keyword, value in (function.__kwdefaults__ or {}).items():
        yield ("keyword", keyword), keyword, value
    for used in names:
        if used in function.__globals__:
            yield ("global", used), used, function.__globals__[used]


def _in_module(value: Any, path: Path, names: Sequence[str], seen: dict[int, Path]) -> Iterator[Captured]:
    """What code may read of a module that it names, but for the functions, types and modules that stand there: numbers,
    and what somebody has put there."""
    if not isinstance(value, types.ModuleType) or not _is_constant(value) or id(value) in seen:
        return
    seen[id(value)] = path
    for name in names:
        held, further = vars(value).get(name), (*path, ("attribute", name))
        if type(held) in SETTABLE and held is not None:
            yield from _walk(held, further, name, seen)
        else:
            yield from _in_module(held, further, names, seen)


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that code uses, of globals and of attributes alike; and the modules that it imports."""
    names = dict.fromkeys(code.co_names)
    imported = [i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, modules = _names(inner)
            names |= dict.fromkeys(more)
            imported += modules
    return tuple(names), tuple(imported)


def path_is_closure(function: types.FunctionType) -> bool:
    """True for a function that holds something: torch's own `and_masks` returns such."""
    return bool(function.__closure__)


def _is_constant(value: Any) -> bool:
    """True for modules, types and built-in functions of torch and of the standard library, which nobody changes."""
    if isinstance(value, types.BuiltinFunctionType):
        if value.__name__ in UNKNOWN:
            return False
        # One that is bound to an object is a method of it.
        owner = value.__self__
        return (owner is None or isinstance(owner, types.ModuleType | type)) and _is_ours(value.__module__)
    if isinstance(value, types.ModuleType):
        return sys.modules.get(value.__name__) is value and _is_ours(value.__name__)
    return isinstance(value, type) and _is_ours(value.__module__) and not hasattr(value, "__dataclass_fields__")


def _is_ours(module: Any) -> bool:
    return str(module).partition(".")[0].removeprefix("_") in CONSTANT


def _is_torchs(function: types.FunctionType) -> bool:
    """True for a function that stands in a module of torch's, whatever it says of itself."""
    return str(function.__globals__.get("__name__")).partition(".")[0] == "torch" and not vars(function)
