"""Values of tunables and sizes: what a caller may give, and what stands where nothing was given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from neptune.base import logs
from neptune.errors import ScheduleError, ShapeError
from neptune.ir.program import Program
from neptune.runtime.artifact import PINNED, Artifact, launch_name
from neptune.runtime.parts import LARGEST
from neptune.tile.context import SHORTEST_DOT
from neptune.tile.ir import TileProgram
from neptune.tune.defaults import defaults, least_tiles
from neptune.tune.model.machine import DEFAULT, Machine

LOG = logging.getLogger("neptune.compiler")
LIMITS = {"num_warps": 32, "num_stages": 16}
LARGEST_TILE = 1 << 16


@dataclass(frozen=True)
class Space:
    """The parameters of a kernel, and what values each may take.

    `tiles` are its free tunables with their least values, `covering` those that follow from a size, `parts` the numbers
    that launches choose, `kernels` the names of its launches.
    """

    tiles: Mapping[str, int]
    covering: tuple[str, ...]
    parts: tuple[str, ...]
    kernels: tuple[str, ...]

    def __str__(self) -> str:
        """One line for each parameter, with its legal values."""
        return "\n".join(
            f"{name}: {', '.join(self.legal(name))}" for name in (*self.tiles, *LIMITS, *sorted(self.parts))
        )

    def legal(self, name: str) -> tuple[str, ...]:
        """The legal values of a parameter, for people.

        >>> space = Space({"BLOCK_N": 16}, (), ("NUM_SPLITS",), ("o_combine",))
        >>> space.legal("BLOCK_N"), space.legal("o_combine.num_warps"), space.legal("NUM_SPLITS")
        (('16', '32', '64', '…', '65536'), ('1', '2', '4', '…', '32'), ('1 to 32768',))
        """
        plain = name.rpartition(".")[2]
        if name in self.parts:
            return (f"1 to {LARGEST}",)
        if plain == "num_stages":
            return (f"1 to {LIMITS[plain]}",)
        least, most = self.tiles.get(name, 1), LIMITS.get(plain, LARGEST_TILE)
        return (*(str(least << k) for k in range(3)), "…", str(most))

    def check(self, asked: str, given: Mapping[str, int], hint: str | None = None) -> None:
        """Raise ScheduleError for the first name or value that is not legal; `asked` says what for."""
        for name, value in given.items():
            wrong = self._wrong(name, value)
            if wrong is not None:
                raise ScheduleError(f"{asked} with {name}={value!r}", wrong[0], legal=wrong[1], hint=hint)

    def ranked(self, given: Mapping[str, int]) -> dict[str, int]:
        """Those of the given values that the cost model knows, of all kernels, and that are legal."""
        known = {n: v for n, v in given.items() if n in self.tiles or n in LIMITS}
        return {n: v for n, v in known.items() if self._wrong(n, v) is None}

    def takes(self, given: Mapping[str, int]) -> bool:
        """True if these names and values are legal."""
        return all(self._wrong(name, value) is None for name, value in given.items())

    def _wrong(self, name: str, value: object) -> tuple[str, tuple[str, ...]] | None:
        """What is wrong with a value of a parameter, and what is legal."""
        if name in self.parts:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                return "this is no number of parts", self.legal(name)
            return None
        known = (*self.tiles, *LIMITS)
        kernel, _, plain = name.rpartition(".") if isinstance(name, str) else ("", "", name)
        of_one = kernel in self.kernels and plain in LIMITS
        if name not in known and not of_one:
            wrong = "there is no such parameter"
            if name in self.covering:
                wrong = "it follows from a size and is chosen at each call"
            each = [f"{k}.num_warps" for k in self.kernels] if kernel else []
            return wrong, (*known, *sorted(self.parts), *each)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return "it must be a positive integer", self.legal(name)
        if plain != "num_stages" and value & (value - 1):
            return "it must be a power of two", self.legal(name)
        limit = LIMITS.get(plain, LARGEST_TILE)
        if value > limit:
            return f"it is at most {limit}", self.legal(name)
        least = self.tiles.get(name, 1)
        if value < least:
            return f"the matrix unit sums over it, and takes no fewer than {least} at a time", self.legal(name)
        return None


def space_of(program: TileProgram) -> Space:
    """The parameters of a TileProgram's kernels."""
    return Space(
        {n: least_tiles(program).get(n, 1) for n in (t.name for t in program.tunables if t.covers is None)},
        tuple(t.name for t in program.tunables if t.covers is not None),
        program.chosen,
        tuple(launch_name(program.name, k.name) for k in program.kernels),
    )


def resolve_params(
    program: TileProgram,
    given: Mapping[str, int],
    typical: Mapping[str, int] | None = None,
    machine: Machine = DEFAULT,
    chosen: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """A value for every free tunable, num_warps and num_stages: given, else as `chosen` for a family, else what the
    cost model puts first for typical sizes, else (where one of these is missing) the first candidates that fit.

    Raises ScheduleError for a name or a value that is not legal.
    """
    space = space_of(program)
    space.check(f"compile `{program.name}`", given)
    plain = space.ranked(given)
    if chosen is None:
        from neptune.tune.rank import ranked

        try:
            best = ranked(program, typical or {}, machine, plain)
        except Exception as error:
            logs.defect(LOG, f"the cost model on `{program.name}`", error)
            best = ()
        chosen = best[0].params if best else defaults(program, plain)
    return {**chosen, **{n: v for n, v in given.items() if n not in plain}}


def with_params(artifact: Artifact, declared: Program, params: Any, values: Mapping[str, Any]) -> Artifact:
    """The same kernel with other values of its parameters; what is not named keeps its value.

    `declared` has the kernel's parameters. Raises ScheduleError for a name or a value that is not legal.
    """
    request = f"kernel.with_params of `{artifact.name}`"
    if not isinstance({} if params is None else params, Mapping):
        raise ScheduleError(f"{request} with {params!r:.40}", "params is a mapping of names to values")
    numbers = plain_numbers({**(params or {}), **values})
    least = artifact.explanation.get("least", {})
    free = {t.name: least.get(t.name, 1) for t in declared.tunables if t.covers is None}
    if "least" not in artifact.explanation:
        # A kernel that was saved before these were: what its template declared is known to be legal.
        free = {t.name: min(t.candidates, default=SHORTEST_DOT) for t in declared.tunables if t.covers is None}
    kernels = tuple(launch_name(artifact.name, k.name) for k in artifact.facts.kernels)
    covering = tuple(t.name for t in declared.tunables if t.covers is not None)
    of_form = [] if artifact.form is None else [n for n in numbers if n in artifact.form.levers and n not in free]
    hint = f"neptune.compile(…, params={{{of_form[0]!r}: …}}), which makes another form anew" if of_form else None
    Space(free, covering, artifact.chosen, kernels).check(request, numbers, hint)
    return artifact.with_values(numbers).pinning({*artifact.explanation.get(PINNED, ()), *numbers})


def checked_params(program: Program, given: Any) -> dict[str, int]:
    """The parameters of a request, by name; ScheduleError for what is no mapping. Legal values are a template's."""
    if not isinstance(given or {}, Mapping):
        raise ScheduleError(f"compile `{program.name}` with params={given!r}", "params is a mapping of names to values")
    return dict(plain_numbers(given or {}))


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
    sizes: dict[str, int] = {}
    for key, value in plain_numbers(given or {}).items():
        name = key if isinstance(key, str) else getattr(key, "name", None)
        request = f"compile `{program.name}` with {what}={{{name or key!r}: {value!r}}}"
        if name not in known:
            raise ShapeError(request, "it has no such size", legal=tuple(known))
        if isinstance(value, bool) or not isinstance(value, int) or value < (known[name].lo or 0):
            raise ShapeError(request, "this is no size", legal=(f"an integer of at least {known[name].lo or 0}",))
        sizes[name] = value
    return sizes
