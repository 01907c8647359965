"""The mistakes in an expression: what the verifiers of programs and of tile programs share.

Reads of an expression that leave their buffer whatever the sizes are: a mistake, of which no run can say more.

    y[i] = x[i + 1] for i in [0, n), x: [n]        reads x[n]

Reads under a select or a guard are the business of its predicate; indices that are loaded, of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neptune.errors import ExpressionError, InternalError
from neptune.ir.dtypes import DTYPES, by_float32, is_int
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var, children, loads, op, variables
from neptune.ir.indices.affine import Poly, Scope, extreme, nonnegative, number, poly, scope_of, to_expr
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer, For, Program, Scalar, Stage, for_loops, paths, values
from neptune.ir.text.printer import print_expr, print_stage

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


# --- reads beyond a buffer --------------------------------------------------------------------------


def check_reads(program: Program) -> None:
    """Raise ExpressionError for the first read that is outside of its buffer for all sizes."""
    for path, stage in paths(program.body):
        if stage.when is None:
            _check_stage(program, stage, for_loops(path))


def nearest_size(s: Scalar, value: int) -> int:
    """The nearest value that a size may have: within its bounds, and a multiple of its divisor."""
    value = -(-value // s.divisor) * s.divisor
    low = -(-(1 if s.lo is None else s.lo) // s.divisor) * s.divisor
    high = value if s.hi is None else s.hi // s.divisor * s.divisor
    return max(low, min(value, high))


def with_room(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes at which a read by position is inside of its buffer, where one of the buffer's own can be raised for it.

    mask[b] with batch = 515 and mask: [mask_0]   →   mask_0 is at least 515
    """
    bounds = dict(sizes)
    for path, stage in paths(program.body):
        loops = for_loops(path)
        scope, names = scope_of(program, loops), [f.var for f in reversed(loops)]
        read = [x for e in (*values(stage.action), *(e for f in loops for e in (f.lo, f.hi))) for x in loads(e)]
        places = [p for x in read for p in zip(x.index, program.buffers[x.buffer].shape, strict=True)]
        for e, size in ((e, size) for i, size in places for e in _alternatives(i) if not loads(e)):
            high = extreme(poly(e), names, scope, largest=True)
            end = None if high is None else to_expr(high + number(1))
            if end is not None and isinstance(size, Var) and variables(end) <= bounds.keys() - {size.name}:
                bounds[size.name] = max(bounds[size.name], evaluate_size(end, bounds))
    return bounds


def _alternatives(e: Expr) -> Iterator[Expr]:
    """What an index may be: it counts from the end where it is negative."""
    for part in (e.then, e.other) if isinstance(e, Select) else ():
        yield from _alternatives(part)
    if not isinstance(e, Select):
        yield e


def _check_stage(program: Program, stage: Stage, loops: tuple[For, ...]) -> None:
    scope = scope_of(program, loops)
    names = [f.var for f in reversed(loops)]
    for e in values(stage.action):
        for x in _always_read(e):
            shape = program.buffers[x.buffer].shape
            for k, (i, size) in enumerate(zip(x.index, shape, strict=True)):
                reached = None if loads(i) else _outside(poly(i), poly(size), names, scope)
                if reached is not None:
                    raise ExpressionError(
                        f"compile `{program.name}`",
                        f"stage `{stage.name}` reads `{x.buffer}` at `{print_expr(i)}` in dimension {k}, which reaches "
                        f"{print_expr(to_expr(reached))}, and has {print_expr(size)} elements",
                        hint="a shorter range, or a select around the read",
                        where=print_stage(stage),
                        kind="reading",
                    )


def _always_read(e: Expr) -> Iterator[Load]:
    """The loads that are evaluated whatever a predicate says."""
    if isinstance(e, Load):
        yield e
    for child in children(e)[:1] if isinstance(e, Select) else children(e):
        yield from _always_read(child)


def _outside(index: Poly, size: Poly, names: list[str], scope: Scope) -> Poly | None:
    """A value that the index takes and that is no element; None where there is none for certain."""
    high = extreme(index, names, scope, largest=True)
    if high is not None and nonnegative(high - size, scope):
        return high
    low = extreme(index, names, scope, largest=False)
    if low is not None and nonnegative(number(-1) - low, scope):
        return low
    return None
