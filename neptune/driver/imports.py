"""Expressions of any front end as Programs: what `compile` begins with."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neptune.base.codes import INSTALL_TE
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Tensor, build
from neptune.frontend.typed import is_typed, traced
from neptune.ir.expr import Cast, Const, Load, Op, Select, Var
from neptune.ir.indices.widths import settled
from neptune.ir.names import with_usable_names
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr

EXPRESSIONS = (
    "a neptune.Program",
    "tensors of neptune.frontend.builder",
    'a function of such, of parameters like x: "f32[m, n]"',
    "a te.Tensor or PrimFunc (with TVM)",
)
"""What `compile` takes."""
EXAMPLE = 'x = placeholder((n,), "float32", "x"); y = compute((n,), lambda i: exp(x[i]), "y"); neptune.compile(y)'
"""What is told to whoever gave something else."""
NODES = (Const, Var, Load, Op, Cast, Select)
LOG = logging.getLogger("neptune.compiler")


def imported(expr: Any, inputs: Sequence[Any] | None, name: str | None) -> Program:
    """Return the Program of an expression, with names that generated code may use."""
    start = time.perf_counter()
    loops = settled(with_usable_names(as_program(expr, inputs, name)))
    LOG.info("import of `%s`: %.1f ms", loops.name, 1e3 * (time.perf_counter() - start))
    return loops


def as_program(expr: Any, inputs: Sequence[Any] | None = None, name: str | None = None) -> Program:
    """The Program of whatever `compile` takes; ExpressionError for anything else."""
    if isinstance(expr, Program):
        return _renamed(_reordered(expr, inputs), name)
    first = expr[0] if isinstance(expr, list | tuple) and expr else expr
    if isinstance(first, Tensor) or (isinstance(first, tuple) and any(isinstance(t, Tensor) for t in first)):
        return build(expr, inputs, name)
    if is_typed(first) and (expr is first or len(expr) == 1):
        outputs, parameters = traced(first)
        return build(outputs, inputs or parameters, name or first.__name__)
    if not _of_tvm(first):
        raise ExpressionError(_asked(expr, first), _wrong(expr, first), legal=EXPRESSIONS, hint=_instead(first))
    try:
        te = importlib.import_module("neptune.frontend.te")
        tvmscript = importlib.import_module("neptune.frontend.tvmscript")
    except ImportError as error:
        raise ExpressionError(
            f"compile {type(expr).__name__}",
            f"it is of TVM, which cannot be imported: {error}",
            legal=EXPRESSIONS,
            hint=INSTALL_TE,
        ) from None
    importer = tvmscript.from_tvmscript if tvmscript.is_function(expr) else te.from_te
    program: Program = importer(expr, inputs, name)
    return program


def _of_tvm(value: Any) -> bool:
    """Return True for an object of TVM's, told without importing it."""
    return any(c.__module__.partition(".")[0] in ("tvm", "tvm_ffi") for c in type(value).__mro__)


def _asked(expr: Any, first: Any) -> str:
    if isinstance(first, NODES):
        return f"compile `{print_expr(first)}`"
    plain = expr is None or isinstance(expr, str | int | float)
    return f"compile {expr!r:.60}" if plain else f"compile {getattr(first, '__name__', type(first).__name__):.60}"


def _wrong(expr: Any, first: Any) -> str:
    if isinstance(first, NODES):
        return "this is a value without a tensor that it is an element of"
    inside = "" if expr is first else f" of {type(first).__name__}"
    return f"this is no expression, but {type(expr).__name__}{inside}"


def _of_torch(value: Any) -> bool:
    """Return True for tensors, arrays, modules and functions of torch and numpy."""
    # What is written in C has no module, but the class that it belongs to.
    owners = (value, type(getattr(value, "__self__", None)), *type(value).__mro__)
    return any(str(getattr(o, "__module__", None)).partition(".")[0] in ("torch", "numpy") for o in owners)


def _instead(first: Any) -> str:
    """What the user may have meant by something that is no expression."""
    if isinstance(first, str):
        return f"neptune.compile(expression, {first!r}), if it is a template; functions of neptune.ops give expressions"
    if isinstance(first, NODES):
        return 'compute((n,), lambda i: …, "y") of neptune.frontend.builder, which makes a tensor of an expression'
    if _of_torch(first):
        return (
            "write what it computes by neptune.frontend.builder, whose placeholders stand for tensors, or an operator "
            "of neptune.ops; the compiled kernel is called with tensors"
        )
    if callable(first):
        return "call it with placeholders of neptune.frontend.builder, and compile what it returns"
    return EXAMPLE


def _reordered(program: Program, inputs: Sequence[Any] | None) -> Program:
    if inputs is None:
        return program
    declared = {b.name: b for b in program.inputs}
    if sorted(map(str, inputs)) != sorted(declared):
        raise ExpressionError(
            f"compile `{program.name}` with inputs={list(inputs)!r}",
            "these are not the names of its inputs, each once",
            legal=tuple(declared),
        )
    return replace(program, inputs=tuple(declared[n] for n in inputs))


def _renamed(program: Program, name: str | None) -> Program:
    if name is None:
        return program
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"compile `{program.name}` with name={name!r}", "a kernel's name is an identifier")
    return replace(program, name=name)
