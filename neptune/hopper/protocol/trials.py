"""Small launches of a generated Gluon module, for `neptune.hopper.protocol.check`: loops of all lengths that matter.

A size that bounds a loop, or the tiles of rows, takes the values that give 0, 1, … 2 · stages + 1 tiles, or fewer of a
loop that comes back to the same turns earlier: all such sizes together while tiles are small, and each by itself short
or long beside the others, half a tile longer, or longer than any number that bounds a loop (a window). All others are
small. Programs have so many groups in a row as bring tiles that are loaded once a group back to the same turns, and one
more. Where launches choose in how many parts an axis is folded, all this is for one part, and for several: of all
lengths, and of two that differ in one program; some empty.

Names of slots and parities have the period 2S in turns, for a ring of S stages. A loop whose every iteration advances a
ring by n turns, n a number, comes back to them after 2S / gcd(n, 2S) iterations: after 2S where tiles are loaded in the
loop itself, after one where it holds a loop of so many constant iterations. What the loop's own iterations do not show,
a loop within does: each of its turns is one of a constant number, and all of them are always run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import gcd, prod
from typing import Any

from neptune.codegen.triton.kernel import function_name
from neptune.codegen.triton.launch import shape_sources
from neptune.hopper.hardware import ROWS
from neptune.hopper.ir import AStmt, AsyncKernel, Fill, inside, walk_async
from neptune.hopper.protocol.check import Trial
from neptune.ir.check import nearest_size
from neptune.ir.expr import Const, Expr, variables, walk
from neptune.ir.program import Buffer
from neptune.tile.ir import Assign, Branch, Loop, TileKernel, TileProgram, bound_exprs
from neptune.tile.ir import Scalar as ScalarTile
from neptune.verify.instances import number

LEAST = 3
"""Iterations of a loop of unknown length: first, last, and one between them."""
PROGRAMS = 2
FAR = 1 << 14
UNEVEN = ((3, 4), (5, 2))
"""Parts, and the tiles that they share: two, two and none; one each, and three times none."""
FEW = 2
"""The value of other sizes beside short loops: some tiles in a row for one program."""


def _bounds(kernel: AsyncKernel) -> Iterator[Expr]:
    """The expressions that decide how many tiles there are: bounds of loops and conditions, scalars in them, the groups
    of rows."""
    yield from _groups(kernel)
    for s in (*walk_async(kernel.producer), *walk_async(kernel.consumer)):
        if isinstance(s, Loop | Branch):
            yield from bound_exprs(s)
        elif isinstance(s, Assign) and isinstance(s.value, ScalarTile):
            yield s.value.expr


def _groups(kernel: AsyncKernel) -> Iterator[Expr]:
    """The numbers of groups of rows."""
    return (g.extent for g in kernel.grid if g.var in (kernel.group, kernel.rows))


def swept(program: TileProgram, kernel: AsyncKernel) -> frozenset[str]:
    """The sizes that a loop's bounds, or the groups of rows, depend on."""
    named = frozenset[str]().union(*(variables(e) for e in _bounds(kernel)))
    return named & {s.name for s in program.scalars if s.upto is None}


def _tiles(kernel: AsyncKernel) -> list[int]:
    """The sizes of the tiles that loops count, by name or as numbers."""
    known = kernel.levers.tiles
    names = {v for e in _bounds(kernel) for v in variables(e)}
    numbers = {int(x.value) for e in _bounds(kernel) for x in walk(e) if isinstance(x, Const)}
    return sorted({n for name, n in known.items() if n > 1 and (name in names or n in numbers)} | {ROWS})


def sizes(program: TileProgram, kernel: AsyncKernel) -> list[dict[str, int]]:
    """Values of all sizes, integer arguments and numbers of parts, one launch each."""
    tiles = _tiles(kernel)
    most = max(2 * ring.stages + 1 for ring in kernel.rings)
    least = min(window(kernel), most)
    sweep = sorted(swept(program, kernel))
    # How many groups a program has in a row follows from these sizes, and how long loops are from others.
    grouped = frozenset[str]().union(*(variables(e) for e in _groups(kernel)))
    lengths = {name: most if name in grouped else least for name in sweep}
    alike = [{s: max(min(n, count) * tiles[0] - 1, 1) for s, n in lengths.items()} for count in range(most + 1)]
    # Loops over larger tiles have not been as long by then: one size after the other, as loops may be nested.
    larger = [
        {**dict.fromkeys(sweep, 2 * tiles[-1] - 1), name: n * count - 1}
        for n in tiles[1:]
        for name in sweep
        for count in range(tiles[0] * lengths[name] // n + 1, lengths[name] + 1)
    ]
    alone = [*_alone(kernel, sweep, tiles[-1], least), *_rows(kernel, sweep, grouped, tiles[-1])]
    launches = [(1, values) for values in (*alike, *larger, *alone)]
    if program.chosen:
        # Parts of so many tiles and of one less, in both orders where a program has several.
        uneven = [(2, 2 * count - 1) for count in range(1, least + 1)] + list(UNEVEN)
        launches += [(parts, dict.fromkeys(sweep, count * n - 1)) for n in tiles for parts, count in uneven]
        launches += [(2, values) for values in alone]
    return _taken(program, launches, tiles[-1])


def _alone(kernel: AsyncKernel, sweep: list[str], tile: int, most: int) -> list[dict[str, int]]:
    """Each size short or long beside the others, half a tile longer, or longer than a window."""
    short, long = dict.fromkeys(sweep, 1), dict.fromkeys(sweep, (most // 2 + 1) * tile)
    alone = [{**others, name: value[name]} for others, value in ((long, short), (short, long)) for name in sweep]
    few = dict.fromkeys(sweep, 3 * tile)
    alone += [{**few, name: few[name] + tile // 2 + 1} for name in sweep]
    if far := _far(kernel, tile):
        alone += [{**dict.fromkeys(sweep, 2 * tile + 1), name: far} for name in sweep]
    return alone


def _rows(kernel: AsyncKernel, sweep: list[str], grouped: frozenset[str], tile: int) -> Iterator[dict[str, int]]:
    """Loops of one tile and of two in as many groups of rows as a program takes; other launches have LEAST of them."""
    rows = in_a_row(kernel) * kernel.levers.consumers * ROWS
    if in_a_row(kernel) > LEAST and not kernel.levers.once:
        for count in (1, 2):
            yield {s: rows - 1 if s in grouped else count * tile - 1 for s in sweep}


def _taken(program: TileProgram, launches: list[tuple[int, dict[str, int]]], tile: int) -> list[dict[str, int]]:
    """Numbers of parts with the values of some sizes, as those of all."""
    numbers = [s for s in program.scalars if s.upto is None and s.dtype.startswith("int")]
    distinct: dict[tuple[int, ...], dict[str, int]] = {}
    for parts, values in launches:
        others = FEW if max(values.values(), default=0) <= 2 * tile else 1
        taken = {s.name: nearest_size(s, values.get(s.name, others)) for s in numbers}
        taken |= dict.fromkeys(program.chosen, parts)
        distinct.setdefault(tuple(taken.values()), taken)
    return list(distinct.values())


def _far(kernel: AsyncKernel, tile: int) -> int:
    """A size behind the largest number in a bound, such as a window's; 0 where there is none of note."""
    numbers = [int(x.value) for e in _bounds(kernel) for x in walk(e) if isinstance(x, Const)]
    largest = max((n for n in numbers if tile < n <= FAR), default=0)
    return largest and largest + 3 * tile + 1


def trials(program: TileProgram, kernel: AsyncKernel, *, alone: bool = False) -> Iterator[Trial]:
    """The launches. Persistent programs have about `in_a_row` groups each; of all programs PROGRAMS are checked.
    `alone`: other kernels do nothing."""
    only = function_name(program, TileKernel(kernel.name, (), (), ())) if alone else ""
    groups, launches = in_a_row(kernel), []
    for values in sizes(program, kernel):
        tiles = prod(number(g.extent, {**kernel.levers.tiles, **values}) for g in kernel.grid)
        launches.append((values, max(1, tiles // groups)))
        yield Trial(call(program, values), launches[-1][1], PROGRAMS, only=only)
    # Integers that differ from tensor to tensor, such as where intervals start and end, for what nothing came to.
    integers = [b for b in program.inputs if b.shape and b.dtype.startswith("int")]
    for values, processors in launches if integers else []:
        for apart in (2, 3):
            launch = call(program, values, max(values.values()) // apart + 1)
            yield Trial(launch, processors, PROGRAMS, spare=True, only=only)
    # No size is 0; what the text says of that case is read all the same, if nothing else comes to it.
    for name in sorted(swept(program, kernel)):
        yield Trial(call(program, {**dict.fromkeys(values, 2), name: 0}), 1, PROGRAMS, spare=True, only=only)


def call(program: TileProgram, values: Mapping[str, int], apart: int = 0) -> Callable[[Mapping[str, Any]], object]:
    """A launch of the module's launch function on tensors of these sizes, whose floats are not set; integers of one
    tensor are so far from those of the next."""
    sources = shape_sources(program)
    given: dict[str, Any] = {
        b.name: _tensor(b, values, n * apart) for n, b in enumerate((*program.inputs, *program.outputs))
    }
    given |= {s.name: values.get(s.name, 1.0) for s in program.scalars if s.name not in sources}

    def launch(module: Mapping[str, Any]) -> object:
        return module[program.name](**given)

    return launch


def _tensor(b: Buffer, values: Mapping[str, int], more: int = 0) -> Any:
    """A tensor of a buffer: integers go from the largest size down, since they may bound loops, as lengths of sequences
    do."""
    import torch

    shape = tuple(number(e, values) for e in b.shape)
    dtype = getattr(torch, b.dtype)
    if dtype.is_floating_point or not shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    longest = max(values.values(), default=1)
    down = longest - (64 * torch.arange(shape[-1], device="cpu") + more) % (longest + 1)
    return down.expand(shape).to(dtype).contiguous()


# --- iterations that a check sees ----------------------------------------------------------------


def window(kernel: AsyncKernel) -> int:
    """The longest that each loop of unknown length is to be: it is checked with all lengths from none to that."""
    stages = {r.name: r.stages for r in kernel.rings}
    outside = {s.ring for s in _outside(kernel.producer)}
    lengths = [2 * stages[name] for name in outside]
    for loop in _unknown(kernel.producer):
        lengths += [_period(2 * n, _advance(inside(loop), name)) for name, n in stages.items()]
    return max(LEAST, *(n + 1 for n in lengths))


def in_a_row(kernel: AsyncKernel) -> int:
    """The number of groups that a program goes through: until what is loaded once a group, or so many times, comes back
    to the same names, and one more."""
    stages = {r.name: r.stages for r in kernel.rings}
    outside = {s.ring for s in _outside(kernel.producer)}
    return max([LEAST, *(1 + _period(2 * stages[n], _advance(kernel.producer, n)) for n in outside)])


def _outside(body: tuple[AStmt, ...]) -> Iterator[Fill]:
    """The fills in no loop of an unknown length: the turns of groups."""
    for s in body:
        if isinstance(s, Fill):
            yield s
        elif isinstance(s, Branch) or (isinstance(s, Loop) and _trips(s) is not None):
            yield from _outside(inside(s))


def _unknown(body: tuple[AStmt, ...]) -> Iterator[Loop]:
    for s in body:
        if isinstance(s, Loop) and _trips(s) is None:
            yield s
        if isinstance(s, Loop | Branch):
            yield from _unknown(inside(s))


def _trips(loop: Loop) -> int | None:
    if isinstance(loop.lo, Const) and isinstance(loop.hi, Const):
        return max(int(loop.hi.value) - int(loop.lo.value), 0)
    return None


def _advance(body: tuple[AStmt, ...], ring: str) -> int | None:
    """The turns of a ring in a body; None where they are more or fewer from time to time."""
    turns = 0
    for s in body:
        if isinstance(s, Fill):
            turns += s.ring == ring
        elif isinstance(s, Loop | Branch):
            more = _advance(inside(s), ring)
            trips = _trips(s) if isinstance(s, Loop) else None
            if more == 0 or trips == 0:
                continue
            if more is None or trips is None:
                return None
            turns += trips * more
    return turns


def _period(turns: int, advance: int | None) -> int:
    """Iterations until all names of a ring come again."""
    return turns if advance is None else turns // gcd(advance, turns) if advance else 1
