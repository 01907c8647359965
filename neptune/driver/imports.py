"""Expressions of any front end as Programs: what `compile` begins with."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from neptune.codes import INSTALL_TE
from neptune.errors import ExpressionError
from neptune.frontend.assemble import Tensor, build
from neptune.ir.names import check_names
from neptune.ir.program import Program

EXPRESSIONS = ("a neptune.Program", "tensors of neptune.frontend.builder", "a te.Tensor or PrimFunc (with TVM)")
"""What `compile` takes."""
LOG = logging.getLogger("neptune.compiler")


def imported(expr: Any, inputs: Sequence[Any] | None, name: str | None) -> Program:
    """Return the Program of an expression, with names that generated code may use."""
    start = time.perf_counter()
    loops = as_program(expr, inputs, name)
    check_names(loops)
    LOG.info("import of `%s`: %.1f ms", loops.name, 1e3 * (time.perf_counter() - start))
    return loops


def as_program(expr: Any, inputs: Sequence[Any] | None = None, name: str | None = None) -> Program:
    """The Program of whatever `compile` takes; ExpressionError for anything else."""
    if isinstance(expr, Program):
        return _renamed(_reordered(expr, inputs), name)
    first = expr[0] if isinstance(expr, list | tuple) and expr else expr
    if isinstance(first, Tensor):
        return build(expr, inputs, name)
    if first is None or isinstance(first, str | int | float | FunctionType):
        raise ExpressionError(
            f"compile {getattr(expr, '__name__', repr(expr)):.60}",
            f"this is no expression, but {type(expr).__name__}",
            legal=EXPRESSIONS,
            hint=_instead(first),
        )
    try:
        te = importlib.import_module("neptune.frontend.te")
        tvmscript = importlib.import_module("neptune.frontend.tvmscript")
    except ImportError as error:
        raise ExpressionError(
            f"compile {type(expr).__name__}",
            f"it is neither a Program nor tensors of the builder, and TVM cannot be imported: {error}",
            legal=EXPRESSIONS,
            hint=INSTALL_TE,
        ) from None
    importer = tvmscript.from_tvmscript if tvmscript.is_function(expr) else te.from_te
    program: Program = importer(expr, inputs, name)
    return program


def _instead(first: Any) -> str | None:
    """Return a guess at what the user meant by something that is no expression; None without one."""
    if isinstance(first, str):
        return f"neptune.compile(expression, {first!r}), if it is a template; functions of neptune.ops give expressions"
    return "call it, and compile what it returns" if isinstance(first, FunctionType) else None


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
