"""The mistakes in an expression: what the verifiers of programs and of tile programs share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neptune.errors import InternalError
from neptune.ir.dtypes import DTYPES, by_float32, is_int
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var, children, op
from neptune.ir.printer import print_expr
from neptune.ir.program import Buffer

SHOWN = 20
"""How many mistakes a report names."""


def report(subject: str, findings: Iterable[str]) -> None:
    """Raise InternalError where there are findings, each said once."""
    if text := reported(subject, findings):
        raise InternalError(text)


def reported(subject: str, findings: Iterable[str]) -> str:
    """The text of findings, each said once; "" without any."""
    unique = list(dict.fromkeys(findings))
    more = [f"and {len(unique) - SHOWN} more"] if len(unique) > SHOWN else []
    return "\n  - ".join([f"{subject} is not well-formed:", *unique[:SHOWN], *more]) if unique else ""


def check_expr(e: Expr, names: Mapping[str, str], buffers: Mapping[str, Buffer]) -> Iterator[str]:
    """Yield the mistakes in an expression, for the dtypes of variables and the buffers in scope."""
    match e:
        case Const():
            yield from _check_const(e)
        case Var(name, dtype):
            if name not in names:
                yield f"variable {name} is used where it is not defined"
            elif names[name] != dtype:
                yield f"variable {name} is {names[name]}, used as {dtype}"
        case Load(buffer, index, dtype):
            yield from check_access(buffer, index, buffers)
            if buffer in buffers and buffers[buffer].dtype != dtype:
                yield f"buffer {buffer} is {buffers[buffer].dtype}, loaded as {dtype}"
        case _:
            yield from check_dtypes(e)
    for child in children(e):
        yield from check_expr(child, names, buffers)


def check_dtypes(e: Op[Any] | Cast[Any] | Select[Any]) -> Iterator[str]:
    """Yield the mistakes in the dtypes of an operator, a cast or a choice, of scalars or of tiles."""
    parts = tuple(x.dtype for x in e.parts)
    if isinstance(e, Op):
        yield from _check_op(e.name, parts, e.dtype)
    elif e.dtype not in DTYPES:
        yield f"unknown dtype {e.dtype}"
    elif isinstance(e, Cast) and parts[0] != e.dtype and by_float32(parts[0], e.dtype):
        yield f"a cast of {parts[0]} to {e.dtype} without float32 in between"
    elif isinstance(e, Select):
        if parts[0] != "bool":
            yield f"select on {parts[0]}, not on a predicate"
        if parts[1] != parts[2]:
            yield f"select branches differ in dtype: {parts[1]} and {parts[2]}"


def _check_op(name: str, args: tuple[str, ...], dtype: str) -> Iterator[str]:
    if name not in OPS:
        yield f"unknown operator {name}"
    elif not args and not OPS[name].arity:
        if dtype not in DTYPES or DTYPES[dtype].kind != "float":
            yield f"{name} is a float, not {dtype}"
    else:
        try:
            # The rules live in the constructor: ask it, with placeholders that cannot fold.
            derived = op(name, *(Var(f"arg{k}", d) for k, d in enumerate(args))).dtype
        except TypeError as error:
            yield str(error)
        else:
            if derived != dtype:
                yield f"{name} of {args[0]} is {derived}, not {dtype}"


def _check_const(e: Const) -> Iterator[str]:
    if e.dtype not in DTYPES:
        yield f"unknown dtype {e.dtype}"
        return
    row = DTYPES[e.dtype]
    if row.kind == "bool" or isinstance(e.value, bool):
        fits = row.kind == "bool" and isinstance(e.value, bool)
    else:
        fits = row.kind == "float" or (isinstance(e.value, int) and row.lowest <= e.value <= row.highest)
    if not fits:
        yield f"{e.value!r} is not a value of {e.dtype}"


def check_access(buffer: str, index: tuple[Expr, ...], buffers: Mapping[str, Buffer]) -> Iterator[str]:
    """Yield the mistakes in `buffer[index…]`, those inside the index expressions apart."""
    if buffer not in buffers:
        yield f"buffer {buffer} is used where it is not defined"
    elif len(index) != len(buffers[buffer].shape):
        yield f"buffer {buffer} has rank {len(buffers[buffer].shape)}, indexed by {len(index)}"
    for i in index:
        if not is_int(i.dtype):
            yield f"index {_text(i)} of {buffer} is {i.dtype}, not an integer"


def check_integer(what: str, e: Expr) -> Iterator[str]:
    """Yield what is wrong where an integer is expected."""
    if not is_int(e.dtype):
        yield f"{what} {_text(e)} is {e.dtype}, not an integer"


def check_predicate(what: str, e: Expr) -> Iterator[str]:
    """Yield what is wrong where a condition is expected."""
    if e.dtype != "bool":
        yield f"{what} {_text(e)} is {e.dtype}, not bool"


def _text(e: Expr) -> str:
    # A malformed expression may not print, and a report must not fail.
    try:
        return print_expr(e)
    except (KeyError, OverflowError, ValueError):
        return repr(e)
