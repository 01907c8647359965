"""A variety of random programs through every front end, against numpy and against TVM's own compiler.

    python -m qa.variety --count 200 --seed 0 [--jobs 2] [--json variety.json]

A program is *right* if every target agrees with a float64 reference that rounds like the program does, and TVM's
compilation of `te.create_prim_func` with it; *skipped* if TVM refuses it, or it reads an element of nothing.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import te

import neptune
from neptune.ir.expr import Var, walk
from qa.harness import Outcome, command
from qa.variety_programs import LIMIT, MANTISSA, Spec, Tensor, draw, nodes
from qa.variety_words import Reference, Symbolic, said

RTOL = {"float64": 1e-10, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}
TARGETS = ("llvm", "interpret")
Template = Callable[[Any], None]


GRID = ("grid.x", "grid.y", "grid.z")


def points(sch: Any) -> None:
    """Every axis of every stage on the grid; reductions are loops."""
    for stage in sch.stages:
        for axis, letter in zip(_written(sch, stage), GRID, strict=False):
            sch.bind(axis, letter)


def tiles(sch: Any) -> None:
    """Tiles of four along the first axis of every stage, the others on the grid; reductions are loops."""
    for stage in sch.stages:
        first, *others = *_written(sch, stage), None
        if first is not None:
            outer, inner = sch.split(first, sch.param("BLOCK", [4]))
            sch.reorder(outer, *others[:-1], inner) if others[:-1] else None
            for axis, letter in zip([outer, *others[:-1]], GRID, strict=False):
                sch.bind(axis, letter)


def covers(sch: Any) -> None:
    """All but the first axis of every stage covered by one tile, those of reductions included."""
    for stage in sch.stages:
        written = _written(sch, stage)
        for k, loop in enumerate(sch.loops(stage)):
            if written and loop.var == written[0].var:
                sch.bind(loop, GRID[0])
            else:
                sch.cover(loop, f"COVER_{stage}_{k}")


TEMPLATES: Mapping[str, Template | None] = {"automatic": None, "points": points, "tiles": tiles, "covers": covers}
"""What programs are scheduled by; the automatic choice takes every one."""
TURNS = ("automatic", "automatic", "automatic", "points", "automatic", "tiles", "automatic", "covers")


def _written(sch: Any, stage: str) -> list[Any]:
    """The loops of a stage that index what it writes."""
    found = {x.name for i in sch.definition(stage).action.index for x in walk(i) if isinstance(x, Var)}
    return [f for f in sch.loops(stage) if f.var in found]


# --- one program -----------------------------------------------------------------------------------


def arrays_of(spec: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs (float64, int64 or bool) and scalars by name."""
    rng = np.random.default_rng(spec.seed)
    made: dict[str, Any] = {}
    for t in spec.inputs:
        shape = tuple(d.value for d in t.shape)
        if t.dtype == "bool":
            made[t.name] = rng.random(shape) < 0.5
        elif t.dtype in MANTISSA:
            made[t.name] = np.asarray(rng.integers(-8, 9, shape) / 4)
            if t.special:
                odd = rng.choice([np.nan, np.inf, -np.inf, 0.5], shape)
                made[t.name] = np.where(rng.random(shape) < 0.5, odd, made[t.name])
        else:
            made[t.name] = np.asarray(rng.integers(0 if t.dtype == "uint8" else -5, 6, shape))
    return made, {n: -2 if d == "int32" else 1.5 for n, d in spec.scalars.items()}


def tensor_of(array: Any, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(getattr(torch, dtype))


class Wanted:
    """What a program should give: `near` rounds like the program does, and `off` says how far from it floats may be.

    That is RTOL of a tensor's largest value, what rounding shows to be lost, and twice what a rough evaluation does.
    """

    def __init__(self, spec: Spec, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> None:
        self.near, pure = (Reference(spec, arrays, scalars, rounding).arrays for rounding in (True, False))
        floats = [t for t in spec.stages if t.dtype in MANTISSA]
        worst = max((RTOL[d] for d in spec.dtypes if d in MANTISSA), default=1e-10)
        self.rough: dict[str, Any] = {t.name: 0.0 for t in floats}
        rng = np.random.default_rng(spec.seed)
        for _ in range(6):
            _Rough(spec, arrays, scalars, self, rng)
        with np.errstate(all="ignore"):
            once = {t.name: worst * self.scale(t) + 4 * self.distance(t, pure[t.name]) for t in floats}
        self.off = {name: off + 2 * self.rough[name] for name, off in once.items()}

    def scale(self, t: Tensor) -> Any:
        """The magnitude of a tensor's elements."""
        return self._spread(t, np.abs(self.near[t.name]))

    def distance(self, t: Tensor, other: Any) -> Any:
        """How far other values of a tensor are from `near`."""
        return self._spread(t, np.abs(self.near[t.name] - other))

    def _spread(self, t: Tensor, x: Any) -> Any:
        """`x` where finite, and everywhere at least its largest. What a reducer starts from is not of that size: of
        3.4e38 where a fold had no elements nothing follows for the others."""
        x = np.where(np.isfinite(x), x, 0.0)
        usual = np.abs(self.near[t.name]) < LIMIT.get(t.dtype, 1e9)
        return np.maximum(x, x[usual].max(initial=0.0))


class _Rough(Reference):
    """A reference as rough as a right kernel may be: it rounds after every step of a fold, taken in any order, and what
    a stage reads is off by RTOL this way or that. (Of a sum of -29.4 in float16 the sigmoid knows one digit.)"""

    def __init__(self, spec: Spec, arrays: Any, scalars: Any, wanted: Wanted, rng: np.random.Generator) -> None:
        self.wanted, self.rng = wanted, rng
        super().__init__(spec, arrays, scalars, True)

    def result(self, t: Tensor) -> Any:
        found, rough = self.stage(t), self.wanted.rough
        if t.name in rough:
            rough[t.name] = np.maximum(rough[t.name], self.wanted.distance(t, found))
        if t.frac is not None:  # exact: what reads it may be discontinuous
            return found
        dtypes = {t.dtype, *(n.dtype for n in nodes(t.value))} if t.value else {t.dtype}
        rtol = max(RTOL[d] for d in dtypes if d in MANTISSA)
        return found + rtol * self.wanted.scale(t) * self.rng.choice((-1.0, 1.0), np.shape(found))

    def folded(self, t: Tensor, fn: Any, value: Any, start: Any) -> Any:
        if t.dtype not in MANTISSA or fn not in (np.add, np.multiply):
            return super().folded(t, fn, value, start)
        shape = value.shape[: len(t.axes)]
        terms = value.reshape(*shape, int(np.prod(value.shape[len(t.axes) :])))
        total = np.full(shape, float(start))
        for k in self.rng.permutation(terms.shape[-1]):
            total = self.round(fn(total, terms[..., k]), t.dtype)
        return total


def compare(t: Tensor, got: Any, wanted: Wanted) -> str | None:
    """How `got` differs from what is wanted, or None."""
    if tuple(got.shape) != tuple(d.value for d in t.shape):
        return f"`{t.name}` has shape {tuple(got.shape)}"
    near = wanted.near[t.name]
    wrong = np.asarray(got) != near
    if t.dtype in MANTISSA:
        finite = np.isfinite(near)
        with np.errstate(all="ignore"):
            far = np.where(finite, np.abs(got - near) > wanted.off[t.name], ~(np.isnan(got) & np.isnan(near)))
        wrong &= far | (finite != np.isfinite(got))
    bad = np.argwhere(wrong)
    return None if not len(bad) else f"`{t.name}`{bad[0].tolist()} is {got[tuple(bad[0])]}, not {near[tuple(bad[0])]}"


def poisoned(t: Tensor) -> torch.Tensor:
    """Memory that no result looks like."""
    dtype = getattr(torch, t.dtype)
    return torch.full([d.value for d in t.shape], float("nan") if dtype.is_floating_point else 99, dtype=dtype)


def plain_array(x: torch.Tensor) -> Any:
    return x.to(torch.float64).numpy() if x.dtype.is_floating_point else x.numpy()


def by_tvm(spec: Spec, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> list[Any] | None:
    """The outputs by TVM's own compilation; None where it has no say."""
    if not spec.plain or "bfloat16" in spec.dtypes:
        return None
    words = Symbolic(spec, True)
    sizes = {s.name: s.value for t in (*spec.inputs, *spec.stages) for s in _sizes(t)}
    bound = {d.terms[0][1].name for t in (*spec.inputs, *spec.outputs) for d in t.shape if len(d.terms) == 1}
    free = [v for n, v in words.sizes.items() if n not in bound]
    args = [*words.inputs, *words.outputs, *words.scalars.values(), *free]
    try:
        main = tvm.compile(te.create_prim_func(args), "llvm")["main"]
    except Exception:
        return None
    outs = [torch.zeros(tuple(d.value for d in t.shape), dtype=getattr(torch, t.dtype)) for t in spec.outputs]
    given = [tensor_of(arrays[t.name], t.dtype) for t in spec.inputs]
    main(*given, *outs, *(scalars[n] for n in words.scalars), *(sizes[v.name] for v in free))
    return [plain_array(o) for o in outs]


def run_one(seed: int, targets: Sequence[str] = TARGETS) -> Outcome:
    """Draw, compile, run and compare the program of a seed."""
    spec = draw(seed)
    template = TURNS[seed % len(TURNS)]

    def outcome(kind: str, message: str = "") -> Outcome:
        reason = " | ".join(line.strip() for line in message.splitlines()[:2])[:150]
        return Outcome(kind, reason, f"{spec.source}, {template}: {message}")

    try:
        expr, inputs = said(spec, spec.source)
    except neptune.NeptuneError as error:
        return outcome("refused", str(error))
    except Exception as error:
        return outcome("skipped" if spec.source != "builder" else "raised", f"{type(error).__name__}: {error}")
    arrays, scalars = arrays_of(spec)
    try:
        wanted = Wanted(spec, arrays, scalars)
    except IndexError:
        return outcome("skipped", "it reads an element of an empty tensor")
    try:
        oracle = by_tvm(spec, arrays, scalars)
    except Exception as error:
        return outcome("skipped", f"TVM: {type(error).__name__}: {str(error).splitlines()[-1]}")
    for t, o in zip(spec.outputs, oracle or (), strict=False):
        if why := compare(t, o, wanted):
            return outcome("wrong", f"TVM against numpy: {why}")
    for target in targets:
        try:
            kernel = neptune.compile(expr, TEMPLATES[template], inputs=inputs, target=target)
            values = {s.name: s.value for t in (*spec.inputs, *spec.stages) for s in _sizes(t)} | scalars
            given = [tensor_of(arrays[n], _dtype(spec, n)) for n in kernel.inputs]
            got = [poisoned(t) for t in spec.outputs]
            kernel(*given, *(values[n] for n in kernel.scalars), out=got)
        except neptune.errors.InternalError as error:
            return outcome("raised", f"{target}: {error}")
        except neptune.NeptuneError as error:
            return outcome("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return outcome("raised", f"{target}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})")
        for t, found in zip(spec.outputs, got, strict=True):
            if why := compare(t, plain_array(found), wanted):
                return outcome("wrong", f"{target}: {why}")
    return outcome("right")


def _sizes(t: Tensor) -> list[Any]:
    folded = t.fold.axes if t.fold else ()
    return [s for d in (*t.shape, *(a.extent for a in folded)) for _, s in d.terms]


def _dtype(spec: Spec, name: str) -> str:
    return next(t.dtype for t in spec.inputs if t.name == name)


if __name__ == "__main__":
    # What a check rejects is a failure here.
    os.environ.setdefault("NEPTUNE_STRICT", "1")
    command(run_one, __doc__)
