"""Values of tunables and sizes: what a caller may give, and what stands where nothing was given."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from neptune.errors import ScheduleError, ShapeError
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.runtime.chosen import LARGEST
from neptune.tile.context import SHORTEST_DOT
from neptune.tile.fit import dots
from neptune.tile.fit import params as defaults
from neptune.tile.ir import TileProgram

LIMITS = {"num_warps": 32, "num_stages": 16}
LARGEST_TILE = 1 << 16


def resolve_params(program: TileProgram, given: Mapping[str, int]) -> dict[str, int]:
    """A value for every free tunable, num_warps and num_stages: given, else the first candidates that fit.

    Raises ScheduleError for a name or a value that is not legal.
    """
    if not isinstance(given, Mapping):
        raise ScheduleError(f"compile `{program.name}` with params={given!r}", "params is a mapping of names to values")
    products = [(dict(k.axes), n) for k in program.kernels for n in dots(k)]
    known = defaults(program)
    values: dict[str, int] = {}
    parts: dict[str, int] = {}
    summed = {e.name for axes, n in products if isinstance(e := axes[n.a.dims[1]], Var)}
    chosen = {s.name for s in program.scalars if s.upto is not None}
    for name, value in given.items():
        asked = f"compile `{program.name}` with {name}={value!r}"
        if name in chosen:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise ScheduleError(asked, "this is no number of parts", legal=(f"1 to {LARGEST}",))
            parts[name] = value
            continue
        if name not in known:
            covered = any(t.name == name for t in program.tunables)
            wrong = "it follows from a size and is chosen at each call" if covered else "there is no such parameter"
            raise ScheduleError(asked, wrong, legal=(*known, *sorted(chosen)))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScheduleError(asked, "it must be a positive integer", legal=("1", "2", "4"))
        if name != "num_stages" and value & (value - 1):
            raise ScheduleError(asked, "it must be a power of two", legal=("1", "2", "4", "8", "…"))
        limit = LIMITS.get(name, LARGEST_TILE)
        if value > limit:
            raise ScheduleError(asked, f"it is at most {limit}")
        if name in summed and value < SHORTEST_DOT:
            wrong = f"the matrix unit sums over it, and takes no fewer than {SHORTEST_DOT} at a time"
            raise ScheduleError(asked, wrong, legal=("16", "32", "64", "128"))
        values[name] = value
    return {**defaults(program, values), **parts}


def plain_numbers(given: Any) -> Any:
    """A mapping with its integers as Python's own: NumPy's are not equal to them in a cache key.

    >>> import numpy
    >>> plain_numbers({"BLOCK_M": numpy.int64(16)}), plain_numbers({"BLOCK_M": True})
    ({'BLOCK_M': 16}, {'BLOCK_M': True})
    """
    if not isinstance(given, Mapping):
        return given
    return {k: int(v) if isinstance(v, Integral) and not isinstance(v, bool) else v for k, v in given.items()}


def checked_sizes(what: str, program: Program, given: Mapping[Any, int] | None) -> dict[str, int]:
    """Sizes by name. A key may be the variable itself, which stands for its name.

    ShapeError for a size that the program does not have, and for a value that is no size.
    """
    if not isinstance(given or {}, Mapping):
        raise ShapeError(f"compile `{program.name}` with {what}={given!r}", f"{what} is a mapping of names to sizes")
    known = {s.name: s for s in program.scalars}
    found: dict[str, int] = {}
    for key, value in plain_numbers(given or {}).items():
        name = key if isinstance(key, str) else getattr(key, "name", None)
        asked = f"compile `{program.name}` with {what}={{{name or key!r}: {value!r}}}"
        if name not in known:
            raise ShapeError(asked, "it has no such size", legal=tuple(known))
        if isinstance(value, bool) or not isinstance(value, int) or value < (known[name].lo or 0):
            raise ShapeError(asked, "this is no size", legal=(f"an integer of at least {known[name].lo or 0}",))
        found[name] = value
    return found
