"""Reads of an expression that leave their buffer whatever the sizes are: a mistake, of which no run can say more.

    y[i] = x[i + 1] for i in [0, n), x: [n]        reads x[n]

Reads under a select or a guard are the business of its predicate; indices that are loaded, of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neptune.errors import ExpressionError
from neptune.ir.affine import Poly, Scope, extreme, nonnegative, number, poly, scope_of, to_expr
from neptune.ir.expr import Expr, Load, Select, Var, children, loads, variables
from neptune.ir.integers import evaluate_size
from neptune.ir.printer import print_expr, print_stage
from neptune.ir.program import For, Program, Scalar, Stage, for_loops, paths, values


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
