"""A function whose parameters are annotated with dtypes and shapes, as an expression.

    def entropy(x: "f32[rows, cols]"):
        p = softmax(x)                                     →   a program `entropy` of input x: f32[rows, cols]
        return compute(x.shape[:1], lambda i: …)

An annotation is written as programs print it, `f32[m, n]` or `float32[m, n]`, and `f32` of a scalar: a name in a shape
is a size, the same wherever it stands; numbers and expressions of sizes that other dimensions are may stand there too.
One of jaxtyping's (`Float32[Tensor, "rows cols"]`) says the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from neptune.errors import ExpressionError, NeptuneError, or_refusal
from neptune.frontend.assemble import Tensor
from neptune.frontend.builder import placeholder, var
from neptune.ir.dtypes import BY_SHORT, DTYPES
from neptune.ir.expr import Expr, Var, walk
from neptune.ir.text.line import parse_expr

_WRITTEN = re.compile(r"\s*(\w+)\s*(?:\[(.*)\]\s*)?", re.DOTALL)
HINT = 'x: "f32[rows, cols]", a scalar as scale: "f32"'


def is_typed(value: Any) -> bool:
    """True for a function all of whose parameters are annotated, and with one that has some."""
    if not inspect.isfunction(value):
        return False
    parameters = inspect.signature(value).parameters.values()
    return bool(parameters) and all(p.annotation is not p.empty for p in parameters)


def traced(function: Callable[..., Any]) -> tuple[Any, list[Tensor | Var]]:
    """What a typed function returns, and its parameters as placeholders and scalars, in their order."""
    request = f"the function `{function.__name__}`"
    declared = inspect.signature(function).parameters.values()
    if variadic := [p.name for p in declared if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        raise ExpressionError(request, f"`{variadic[0]}` is any number of arguments", hint="a parameter for each")
    parameters = {p.name: _parameter(request, p.name, p.annotation) for p in declared}
    dims = [d for t in parameters.values() if isinstance(t, Tensor) for d in t.shape]
    bound = {v.name for d in dims for v in walk(d) if isinstance(v, Var)}
    if sizes := [name for name, x in parameters.items() if isinstance(x, Var) and name in bound]:
        wrong = f"`{sizes[0]}` is a size in a shape, which tensors have, and a parameter"
        raise ExpressionError(request, wrong, hint=f"leave it out: var({sizes[0]!r}) or a tensor's shape is that size")
    by_name = {p.name for p in declared if p.kind is p.KEYWORD_ONLY}
    outputs = function(
        *(x for name, x in parameters.items() if name not in by_name),
        **{name: x for name, x in parameters.items() if name in by_name},
    )
    if outputs is None:
        raise ExpressionError(request, "it returns nothing", hint="return compute(…), or several in a tuple")
    return outputs, list(parameters.values())


def _parameter(request: str, name: str, annotation: Any) -> Tensor | Var:
    text = _text(annotation)
    match = _WRITTEN.fullmatch(text) if text is not None else None
    dtype = None if match is None else BY_SHORT[match[1]].name if match[1] in BY_SHORT else match[1]
    if match is None or dtype not in DTYPES:
        shown = text if text is not None else repr(annotation)
        raise ExpressionError(request, f"`{name}` is annotated with {shown:.60}: no dtype and shape", hint=HINT)
    if match[2] is None:
        return var(name, dtype)
    return placeholder([_dimension(request, name, d) for d in match[2].split(",") if match[2].strip()], dtype, name)


def _dimension(request: str, name: str, text: str) -> Expr:
    sizes: Mapping[str, str] = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text), "int32")
    e = or_refusal(parse_expr, text.strip(), sizes)
    if isinstance(e, NeptuneError) or e.dtype != "int32":
        raise ExpressionError(request, f"the dimension `{text.strip()}` of `{name}` is no size", hint=HINT)
    return e


def _text(annotation: Any) -> str | None:
    """The annotation as text, one of jaxtyping's in our notation."""
    if isinstance(annotation, str):
        return annotation.strip("'\"")
    dims, dtypes = getattr(annotation, "dim_str", None), getattr(annotation, "dtypes", None)
    if isinstance(dims, str) and isinstance(dtypes, list | tuple) and len(dtypes) == 1:
        return f"{dtypes[0]}[{', '.join(dims.split())}]"
    return None
