"""The indices that input tensors hold, looked at before a launch where NEPTUNE_CHECK=1 asks for that.

    y[i] = x[idx[i]]   for i in [0, m), x: [n]            every idx[i] must lie in [0, n)
    y[i] += x[col[j]]  for j in [start[i], start[i + 1])   so must every col[j] of a row, and x is read nowhere else

The expression as imported says which elements are read: each read whose place depends on data (`lookups`) is evaluated
over its loops, on the tensors' own device, under the conditions that it stands under.  Places that the program itself
computes, such as those of an argmax, are not known before the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, TypeAlias

import torch

from neptune import config
from neptune.errors import ShapeError
from neptune.ir.dtypes import is_int
from neptune.ir.expr import (
    Cast,
    Expr,
    Load,
    Op,
    Select,
    Var,
    children,
    conjuncts,
    loads,
    logical_and,
    op,
    variables,
    walk,
)
from neptune.ir.integers import Integers, evaluate_size
from neptune.ir.ops import INTEGER
from neptune.ir.program import For, If, Program, for_loops, paths, values
from neptune.ir.text.printer import print_expr

Sizes: TypeAlias = Mapping[str, "int | float"]
AT_ONCE = 1 << 24
"""How many reads are looked at in one step; more are taken in parts of the outermost loop."""


@dataclass(frozen=True)
class Lookup:
    """One dimension of a read at a place that depends on data: `index` must lie in [0, extent) where `when` holds."""

    stage: str
    read: Load
    index: Expr
    extent: Expr
    when: tuple[Expr, ...]
    loops: tuple[For, ...]

    @property
    def source(self) -> str:
        """The tensor that holds the index, or the bounds of the loop that runs over it."""
        own = loads(self.index)
        if own:
            return own[0].buffer
        loop = next(f for f in self.loops if f.var in variables(self.index) and _by_data(f))
        return (loads(loop.hi) or loads(loop.lo))[0].buffer


def lookups(program: Program) -> tuple[Lookup, ...]:
    """Every read of a program (as imported) whose place input tensors decide, each once."""
    inputs = {b.name for b in program.inputs}
    reads: dict[Lookup, None] = {}
    for path, stage in paths(program.body):
        loops = for_loops(path)
        guards = [c for s in path if isinstance(s, If) for c in conjuncts(s.pred)] + conjuncts(stage.when)
        # Bounds and guards are evaluated whatever they say.
        always = [*(b for f in loops for b in (f.lo, f.hi)), *guards]
        evaluated = [(e, ()) for e in always] + [(e, tuple(guards)) for e in values(stage.action)]
        for e, when in evaluated:
            for read, conditions in _reads(e, when):
                for index, extent in zip(read.index, program.buffers[read.buffer].shape, strict=True):
                    one = _lookup(stage.name, read, index, extent, conditions, loops)
                    if one is not None and _known(one, inputs):
                        reads[one] = None
    return tuple(reads)


def may_look(t: torch.Tensor) -> bool:
    """Whether a call may look at what a tensor of indices holds: always on a CPU; on a GPU, where that is a wait, with
    NEPTUNE_CHECK=1 and while no CUDA graph is captured."""
    return not t.is_cuda or (config.checked_calls() and not torch.cuda.is_current_stream_capturing())


def check_indices(rows: Sequence[Lookup], name: str, tensors: Mapping[str, torch.Tensor], sizes: Sizes) -> None:
    """Raise ShapeError for the first of `rows` that a call's tensors lead out of the tensor that is read.

    Nothing is looked at while a CUDA graph is captured, where no number can come back to the host.
    """
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    for row in rows:
        _check(row, name, _Values(tensors, sizes, device))


# --- which reads -----------------------------------------------------------------------------------


def _by_data(loop: For) -> bool:
    return bool(loads(loop.lo) or loads(loop.hi))


def _reads(e: Expr, when: tuple[Expr, ...]) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Every load in `e` with the conditions under which it is evaluated, those of an index first."""
    match e:
        case Select(p, a, b):
            yield from _reads(p, when)
            yield from _reads(a, (*when, p))
            yield from _reads(b, (*when, op("not", p)))
        case Op("and" | "or" as name, (a, b), _):
            yield from _reads(a, when)
            yield from _reads(b, (*when, a if name == "and" else op("not", a)))
        case _:
            for child in children(e):
                yield from _reads(child, when)
            if isinstance(e, Load):
                yield e, when


def _lookup(
    stage: str, read: Load, index: Expr, extent: Expr, when: tuple[Expr, ...], loops: tuple[For, ...]
) -> Lookup | None:
    """The row of one dimension of a read, with the loops that matter; None where its place is no matter of data."""
    by_data = {f.var for f in loops if _by_data(f)}
    if not (loads(index) or variables(index) & by_data):
        return None
    names = variables(index).union(*map(variables, when))
    used: list[For] = []
    for f in reversed(loops):
        if f.var in names:
            names |= variables(f.lo) | variables(f.hi)
            used.insert(0, f)
    return Lookup(stage, read, index, extent, when, tuple(used))


def _known(row: Lookup, inputs: set[str]) -> bool:
    """True if all that decides about the place is known before the launch, and is of operators that are here."""
    deciding = (row.index, *row.when, *(b for f in row.loops for b in (f.lo, f.hi)))
    return all(
        (not isinstance(x, Load) or x.buffer in inputs) and (not isinstance(x, Op) or x.name in _OPS)
        for e in deciding
        for x in walk(e)
    )


# --- what they come to -------------------------------------------------------------------------------


def _divisor(b: torch.Tensor) -> torch.Tensor:
    return torch.where(b == 0, torch.ones_like(b), b)


_OPS: Mapping[str, Callable[..., torch.Tensor]] = {
    # A shift drops the bits that leave its dtype, which int64 keeps.
    **{name: function for name, function in INTEGER.items() if name not in ("shl", "shr")},
    **{"floordiv": lambda a, b: a // _divisor(b), "mod": lambda a, b: a % _divisor(b)},
    **{"min": torch.minimum, "max": torch.maximum},
    **{"and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not},
}


@dataclass
class _Values(Integers[torch.Tensor]):
    """The values of expressions at all points of some loops, each of which is a dimension: integers are exact, as
    int64; a load outside of its tensor has the nearest element."""

    tensors: Mapping[str, torch.Tensor]
    sizes: Sizes
    device: torch.device
    loops: Mapping[str, torch.Tensor] = field(default_factory=dict)
    operators: ClassVar = _OPS

    def number(self, value: Any) -> torch.Tensor:
        return torch.tensor(value, device=self.device)

    def var(self, e: Var) -> torch.Tensor:
        return self.loops[e.name] if e.name in self.loops else self.number(self.sizes[e.name])

    def cast(self, e: Cast[Expr]) -> torch.Tensor:
        return _exact(self.of(e.arg).to(getattr(torch, e.dtype)), e.dtype)

    def select(self, e: Select[Expr]) -> torch.Tensor:
        pred, then, other = map(self.of, e.parts)
        return torch.where(pred, then, other)

    def load(self, e: Load) -> torch.Tensor:
        t = self.tensors[e.buffer].detach()
        index = [self.of(i).clamp(0, n - 1) for i, n in zip(e.index, t.shape, strict=True)]
        return _exact(t[tuple(index)] if index else t, e.dtype)


def _exact(t: torch.Tensor, dtype: str) -> torch.Tensor:
    return t.long() if is_int(dtype) else t


def _check(row: Lookup, name: str, known: _Values) -> None:
    extent = evaluate_size(row.extent, known.sizes)
    inside = list(row.when)
    for k, f in enumerate(row.loops):
        lo, hi = known.of(f.lo), known.of(f.hi)
        if lo.numel() == 0 or hi.numel() == 0:
            return
        if lo.numel() > 1 or hi.numel() > 1:
            # The range is all that any iteration outside runs over, of which each has its own.
            inside += [Op("ge", (Var(f.var), f.lo), "bool"), Op("lt", (Var(f.var), f.hi), "bool")]
        run = torch.arange(int(lo.min()), max(int(lo.min()), int(hi.max())), device=known.device)
        known = replace(known, loops={**known.loops, f.var: run.reshape(-1, *[1] * (len(row.loops) - k - 1))})
    for part in _parts(row, known.loops):
        known = replace(known, loops=part)
        index = known.of(row.index)
        wrong = (index < 0) | (index >= extent)
        if inside:
            wrong = wrong & known.of(logical_and(*inside))
        if bool(wrong.any()):
            _refuse(row, name, extent, part, index, wrong)


def _parts(row: Lookup, env: Mapping[str, torch.Tensor]) -> Iterator[Mapping[str, torch.Tensor]]:
    """The points of the loops, so many at a time as there is memory for."""
    if not row.loops:
        yield env
        return
    outer = row.loops[0].var
    step = max(1, AT_ONCE // max(1, prod(t.numel() for n, t in env.items() if n != outer)))
    for some in torch.split(env[outer], step):
        yield {**env, outer: some}


def _refuse(
    row: Lookup, name: str, extent: int, env: Mapping[str, torch.Tensor], index: torch.Tensor, wrong: torch.Tensor
) -> None:
    """The error for the first place that is none."""
    shape = [t.numel() for t in env.values()]
    first = int(wrong.expand(shape).reshape(-1).int().argmax())

    def at(t: torch.Tensor) -> int:
        return int(t.expand(shape).reshape(-1)[first])

    point = ", ".join(f"{var} = {at(t)}" for var, t in env.items())
    raise ShapeError(
        f"call of kernel `{name}`",
        f"`{row.source}` leads out of `{row.read.buffer}`: `{print_expr(row.index)}` is {at(index)}",
        legal=[f"0 to {extent - 1}"],
        where=f"stage {row.stage}: {print_expr(row.read)}" + (f" at {point}" if point else ""),
    )
