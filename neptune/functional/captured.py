"""What a mod holds on to: tensors and numbers in its closure, its defaults, the globals that it names, and the
functions among them.

    def mask(b, h, q_idx, kv_idx):                    path ("cell", 0) → documents, a tensor
        return documents[b, q_idx] == documents[b, kv_idx]

A path says how to get from the function to a value. torch.compile follows the same paths, so that captured tensors are
inputs of its graph, and captured numbers are guarded.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Step = tuple[str, Any]
Path = tuple[Step, ...]
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
DEEPEST = 6
CONSTANT = ("torch", "math", "operator", "builtins", "functools", "typing", "numpy", "None")


@dataclass(frozen=True)
class Captured:
    """A value behind a function: `kind` is "tensor", "function", "value", "constant" (a module, a type or a function
    of torch's or of the standard library), or "opaque", which nothing is known of. `again`: the path on which this
    same tensor or function was reached first."""

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
                return self.value.dtype, self.value.dim(), self.again
            case "function":
                return self.value.__code__, self.again
            case "constant":
                return self.value
            case "value":
                return type(self.value), repr(self.value)
            case _:
                return object()


def captured(function: Any) -> list[Captured]:
    """Everything that can be reached from a mod, the mod itself first."""
    return list(_walk(function, (), "mod", {}))


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
        else:
            value = value[where]
    return value


def _walk(value: Any, path: Path, name: str, seen: dict[int, Path]) -> Iterator[Captured]:
    if isinstance(value, torch.Tensor):
        yield Captured(path, "tensor", value, name, seen.get(id(value)))
        seen.setdefault(id(value), path)
    elif isinstance(value, PLAIN):
        yield Captured(path, "value", value, name)
    elif isinstance(value, types.FunctionType):
        if _is_torchs(value) and not path_is_closure(value):
            yield Captured(path, "constant", value, name)
            return
        if id(value) in seen:
            yield Captured(path, "function", value, name, seen[id(value)])
            return
        if len(path) > DEEPEST:
            yield Captured(path, "opaque", value, name)
            return
        seen[id(value)] = path
        yield Captured(path, "function", value, name)
        yield from _behind(value, path, seen)
    elif isinstance(value, tuple | list):
        for k, item in enumerate(value):
            yield from _walk(item, (*path, ("item", k)), name, seen)
    elif isinstance(value, types.MethodType | functools.partial):
        inside = (("__func__", "__self__"), ("func", "args", "keywords"))[isinstance(value, functools.partial)]
        for attribute in inside:
            yield from _walk(getattr(value, attribute), (*path, ("attribute", attribute)), attribute, seen)
    elif isinstance(value, dict):
        for k, item in value.items():
            yield from _walk(item, (*path, ("item", k)), str(k), seen)
    else:
        yield Captured(path, "constant" if _is_constant(value) else "opaque", value, name)


def _behind(function: types.FunctionType, path: Path, seen: dict[int, Path]) -> Iterator[Captured]:
    code = function.__code__
    for k, cell in enumerate(function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield from _walk(value, (*path, ("cell", k)), code.co_freevars[k], seen)
    for k, value in enumerate(function.__defaults__ or ()):
        yield from _walk(value, (*path, ("default", k)), "default", seen)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield from _walk(value, (*path, ("keyword", name)), name, seen)
    for name in _names(code):
        if name in function.__globals__:
            yield from _walk(function.__globals__[name], (*path, ("global", name)), name, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def path_is_closure(function: types.FunctionType) -> bool:
    """True for a function that holds something: torch's own `and_masks` returns such."""
    return bool(function.__closure__)


def _is_constant(value: Any) -> bool:
    """True for modules, types and built-in functions of torch and of the standard library, which nobody changes."""
    if not isinstance(value, types.ModuleType | types.BuiltinFunctionType | type):
        return False
    home = value.__name__ if isinstance(value, types.ModuleType) else str(value.__module__)
    return home.partition(".")[0] in CONSTANT


def _is_torchs(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
