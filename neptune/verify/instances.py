"""Draw small instances of programs: sizes, tunables and inputs, of which a program may take many sets at once.

A loop around everything numbers the instances, and every global buffer that holds floats or results has a dimension
for them in front. The loop is one of lanes (`neptune.ir.evaluate.parallel`), so that the evaluator runs all instances
in lockstep: a hundred small ones take about as long as one.

    for i: y[i] = x[i] * s[d[i]]   →   for instance: for i: y[instance, i] = x[instance, i] * s[instance, d[i]]

Inputs of integers and bools are the same in all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import Model
from neptune.ir.evaluate.expressions import Evaluator, choose
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import Const, Expr, Load, Var, loads, rewrite, variables, walk
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    If,
    Program,
    Scalar,
    Stage,
    Stmt,
    for_loops,
    map_exprs,
    paths,
    reduction_loops,
    sub_stmts,
    with_stmts,
    writes,
)
from neptune.tile.ir import Branch, Loop, TileProgram, stmt_exprs, walk_stmts
from neptune.tile.ir import Scalar as TileScalar

AnyProgram = Program | TileProgram
Sizes = dict[str, int]
# Custom inputs: by name, for those that random small values do not serve (page tables, offsets).
MakeInputs = Callable[[np.random.Generator, Mapping[str, int]], Mapping[str, Any]]

LARGEST = 7
# A size that only counts independent repetitions (a batch) needs no more.
REPEATS = 2
# Numbers of parts that a launch chooses: more of them are mostly empty, and each costs as much as all of one part.
PARTS = 4
# Where an instance was too much work, tiles grow with constant dimensions beyond this one.
LONG = 64
TILES = (1, 2, 4)
# How often sizes may be equal by chance: different ones show what mistakes one for another.
ALIKE = 0.25
# How often sizes are any: as a rule longer ones hold more cases, but for those of a single tile that is not full.
ANY = 0.3
# No buffer of an instance has more elements, unless constant dimensions make it so.
VOLUME = 1024


def number(e: Expr, sizes: Mapping[str, int]) -> int:
    """The value of an integer expression over sizes."""
    return int(Evaluator(Memory(Float64())).run(e, sizes))


def _allowed(s: Scalar, largest: int) -> range:
    """Small values of a scalar that respect its bounds and divisor."""
    low = 1 if s.lo is None else s.lo
    first = -(-low // s.divisor) * s.divisor
    last = max(first, largest if s.lo is None else max(largest, s.lo + 1))
    last = last if s.hi is None else min(last, s.hi)
    return range(first, max(first, last) + 1, s.divisor)


def _statement_names(program: AnyProgram) -> Iterator[frozenset[str]]:
    """The variables of every expression that is more than the extent of a loop over repetitions."""
    if isinstance(program, TileProgram):
        for kernel in program.kernels:
            yield from (variables(g.extent) for g in kernel.grid if not isinstance(g.extent, Var))
            yield from (variables(e) for _, e in kernel.axes)
            for t in walk_stmts(kernel.body):
                if isinstance(t, Loop):
                    yield variables(t.lo) | variables(t.hi)
                elif isinstance(t, Branch):
                    yield variables(t.pred)
                for e in stmt_exprs(t):
                    yield from (variables(x.expr) for x in walk(e) if isinstance(x, TileScalar))
        return
    for path, stage in paths(program.body):
        loops = for_loops(path)
        reduced = _folded(path, stage)
        yield from (variables(e) for e in statement_exprs(stage))
        yield from (variables(s.pred) for s in path if isinstance(s, If))
        for f in loops:
            yield variables(f.lo) | (frozenset() if isinstance(f.hi, Var) and f not in reduced else variables(f.hi))


def _folded(path: tuple[Stmt, ...], stage: Stage) -> list[For]:
    """The loops that a stage reduces over: not those around the place where its target lives."""
    targets = set(writes(stage.action))
    born = [k for k, s in enumerate(path) if isinstance(s, Alloc) and s.buffer.name in targets]
    return reduction_loops(stage, for_loops(path[max(born, default=0) :]))


def structural_sizes(program: AnyProgram) -> frozenset[str]:
    """The sizes on which a program's structure depends: reduced over, tiled, compared or computed with."""
    shapes = [variables(d) for b in program.globals.values() for d in b.shape if not isinstance(d, Var)]
    return frozenset[str]().union(*shapes, *_statement_names(program))


def draw_sizes(
    original: AnyProgram,
    transformed: AnyProgram,
    rng: np.random.Generator,
    tunables: Mapping[str, Sequence[int]] | None = None,
    ease: int = 0,
    near: Sequence[int] = (),
    once: bool = False,
    structural: frozenset[str] | None = None,
    turn: int | None = None,
) -> Sizes:
    """Values for all integer scalars (as a rule different ones, where their bounds let them be) and all tunables.

    With `ease` 1, 2, … sizes are smaller and tiles larger. One size may be about one of `near`, with large tiles.
    Numbers that a launch chooses are 1 with `once` and anything else without, for kernels tell these apart.
    `structural` are those of either program, where they are known. Tiles are random, or go through all combinations as
    `turn` does: few of many random ones are large along one axis and small along another.
    """
    alike, longer = rng.random() < ALIKE, rng.random() >= ANY
    scalars = {s.name: s for s in (*transformed.scalars, *original.scalars) if not is_float(s.dtype)}
    if structural is None:
        structural = structural_sizes(original) | structural_sizes(transformed)
    largest = max(2, LARGEST - 2 * ease)
    while True:
        sizes: Sizes = {}
        for s in scalars.values():
            allowed: Sequence[int] = _allowed(
                s, REPEATS if s.name not in structural else largest if s.upto is None else PARTS
            )
            if s.upto is not None:
                allowed = [v for v in allowed if (v == 1) == once] or allowed
            fresh = [v for v in allowed if v not in sizes.values()]
            draws = 2 if longer and s.upto is None else 1
            sizes[s.name] = int(max(rng.choice(allowed if alike or not fresh else fresh, draws)))
        if largest <= 2 or volume(original, sizes) <= VOLUME:
            break
        largest -= 1
    coarse = _coarseness(original) << ease if ease else 1
    if near and scalars:
        coarse = max(coarse, _move(scalars, structural, sizes, rng, near))
    for t in (*original.tunables, *transformed.tunables):
        if t.covers is not None:
            sizes[t.name] = 1 << max(0, (number(t.covers, sizes) - 1).bit_length())
        elif t.name not in sizes:
            values = list((tunables or {}).get(t.name, [n * coarse for n in TILES]))
            place = int(rng.integers(len(values))) if turn is None else turn % len(values)
            turn = None if turn is None else turn // len(values)
            sizes[t.name] = int(values[place])
    return sizes


def _move(
    scalars: Mapping[str, Scalar],
    structural: frozenset[str],
    sizes: Sizes,
    rng: np.random.Generator,
    near: Sequence[int],
) -> int:
    """Put one size next to an edge; returns how much larger tiles should be there."""
    edge = int(rng.choice(near))
    name = str(rng.choice(sorted(scalars.keys() & structural) or sorted(scalars)))
    size = edge + int(rng.integers(-2, LARGEST))
    if size in _allowed(scalars[name], size):
        sizes[name] = size
    return 1 << max(0, (edge // LARGEST).bit_length() - 1)


def _coarseness(program: AnyProgram) -> int:
    """Return the factor on tile lengths for long constant dimensions: a power of two, 1 for moderate ones."""
    longest = max((int(d.value) for b in program.globals.values() for d in b.shape if isinstance(d, Const)), default=1)
    return 1 << max(0, (longest // LONG).bit_length())


def volume(program: AnyProgram, sizes: Sizes) -> int:
    """Elements of the largest buffer that does not depend on tunables."""
    tuned = {t.name for t in program.tunables}
    free = [b for b in program.globals.values() if not any(variables(d) & tuned for d in b.shape)]
    return max([1, *(prod(number(d, sizes) for d in b.shape) for b in free)])


def compared_only(program: AnyProgram) -> frozenset[str]:
    """The inputs of integers that say no place: nothing is read where they say, and no loop ends there.

    Lengths and document numbers of masks are such: they may be as large as a size, and larger.
    """
    if not isinstance(program, Program):
        return frozenset()
    places: list[Expr] = []
    for path, stage in paths(program.body):
        places += [*stage.action.index, *(i for e in statement_exprs(stage) for x in loads(e) for i in x.index)]
        places += [e for f in for_loops(path) for e in (f.lo, f.hi)]
    read = {x.buffer for e in places for x in loads(e)}
    integers = {b.name for b in program.inputs if not is_float(b.dtype) and b.dtype != "bool"}
    # What is computed may have been computed of any of them.
    return frozenset(integers - read) if read <= integers else frozenset()


def draw_inputs(
    program: AnyProgram,
    sizes: Sizes,
    model: Model,
    rng: np.random.Generator,
    attempt: int,
    make: MakeInputs | None = None,
    style: str = "plain",
    finite: frozenset[str] = frozenset(),
    compared: frozenset[str] = frozenset(),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, sizes with the float scalars). Later attempts draw smaller, then sorted, integers; those in `compared`
    are up to the largest size and beyond it in style "plain".

    With style "-inf" one input of floats, none of `finite`, holds some of it, with "ties" they hold few different
    values, and zeros.
    """
    arrays = {} if make is None else dict(make(rng, sizes))
    inputs: dict[str, Any] = {}
    floats = [b.name for b in program.inputs if is_float(b.dtype) and b.name not in arrays]
    some = [n for n in floats if n not in finite]
    masked = str(rng.choice(some)) if style == "-inf" and some else ""
    for b in program.inputs:
        shape = tuple(number(d, sizes) for d in b.shape)
        if b.name in arrays:
            inputs[b.name] = arrays[b.name]
        elif is_float(b.dtype):
            drawn = model.draw(rng, shape)
            if style == "ties":
                drawn = _repeated(model, rng, drawn, shape, b.dtype)
            inputs[b.name] = _masked(model, rng, drawn, shape, b.dtype) if b.name == masked else drawn
        elif b.dtype == "bool":
            inputs[b.name] = rng.random(shape) < 0.5
        else:
            far = b.name in compared and style == "plain"
            most = max(sizes.values(), default=0) + 2 if far else max(1, 4 - attempt % 4)
            values = rng.integers(0, most, shape)
            if far:  # Longer ones hold more cases here, too.
                values = np.maximum(values, rng.integers(0, most, shape))
            inputs[b.name] = np.sort(values, axis=-1) if shape and attempt >= 4 else values
    scalars = {s.name: model.draw(rng, ()) for s in program.scalars if is_float(s.dtype)}
    return inputs, {**sizes, **scalars}


def _repeated(model: Model, rng: np.random.Generator, drawn: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Two or three of the values, again and again; now and then zeros at the beginning of rows, or in all of them."""
    if not prod(shape):
        return drawn
    chosen = rng.integers(0, min(int(rng.integers(2, 4)), prod(shape)), shape)
    few = model.make([part.ravel()[chosen] for part in model.parts(drawn)])
    if shape and rng.random() < 0.5:
        rows = (*shape[:-1], 1)
        length = np.where(rng.random(rows) < 0.3, shape[-1], rng.integers(0, shape[-1] + 1, rows))
        first = np.arange(shape[-1]) < length
        few = choose(model, np.broadcast_to(first, shape), model.const(0.0, dtype), few, dtype)
    return few


def _masked(model: Model, rng: np.random.Generator, drawn: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """-inf in some elements, in some whole rows, and in the beginning of some."""
    mask = rng.random(shape) < 0.3
    if shape:
        mask |= rng.random((*shape[:-1], 1)) < 0.2
        mask |= (rng.random((*shape[:-1], 1)) < 0.3) & (np.arange(shape[-1]) < rng.integers(0, shape[-1] + 1))
    return choose(model, mask, model.const(-np.inf, dtype), drawn, dtype)


# --- many sets of inputs at once --------------------------------------------------------------------

COUNT, INSTANCE = "__instances", "__instance"
"""The names of the number of instances, a scalar of the batched program, and of the loop's variable."""


def batched(program: Program, outputs: tuple[Buffer, ...]) -> Program:
    """The program for many instances. `outputs` are the buffers to have as its results: outputs and temporaries."""
    count, instance = Var(COUNT), Var(INSTANCE)
    many = {b.name for b in program.globals.values() if is_float(b.dtype)}
    many |= {b.name for b in (*program.outputs, *program.temporaries)}

    def wider(b: Buffer) -> Buffer:
        return replace(b, shape=(count, *b.shape)) if b.name in many else b

    def read(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer not in many:
            return None
        return replace(e, index=(instance, *(rewrite(i, read) for i in e.index)))

    def write(s: Stmt) -> Stmt:
        if isinstance(s, Stage):
            if writes(s.action)[0] not in many:
                return s
            return replace(s, action=replace(s.action, index=(instance, *s.action.index)))
        return with_stmts(s, tuple(write(p) for p in sub_stmts(s)))

    body = write(map_exprs(program.body, lambda e: rewrite(e, read)))
    named = {b.name for b in outputs}
    temporaries = tuple(wider(b) for b in (*program.outputs, *program.temporaries) if b.name not in named)
    return replace(
        program,
        inputs=tuple(wider(b) for b in program.inputs),
        outputs=tuple(wider(b) for b in outputs),
        temporaries=temporaries,
        scalars=(*program.scalars, Scalar(COUNT)),
        body=For(INSTANCE, Const(0, "int32"), count, body),
    )
