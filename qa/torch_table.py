"""The table of torch's operators against eager: torch's own database of operators, every overload, edge values.

    python -m qa.torch_table [--only add,mul] [--samples 3] [--jobs 2] [--json out.json]

Every pointwise operator and reduction of torch's database that has a CPU kernel for one of our dtypes, on the
database's samples and on edge values; then every overload of every row, by torch's schemas. Each is traced as the
backend traces it, made a Program and run by the evaluator; dtype, shape, positions of NaN and values are eager's: of
integers and conditions exactly, of floats within a few units, or a few times eager's own distance from float64.
Printed are what is taken, each refusal with its reason, and what is wrong: then the status is 1.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import torch

from neptune.errors import Unsupported
from neptune.torch_ops.table import TABLE
from qa.graphs import evaluated

DTYPES = (
    *(torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
RELATIVE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LEAST = 0.9
"""The part of the database that is to be taken."""
QUOTIENTS = ("remainder", "fmod", "floor_divide", "floor_rounding", "trunc_rounding", "__rmod__", "_mode")
ENDLESS = ("polynomial", "lcm")
"""Operators that go on for as many steps as an edge value says, in eager."""
DECOMPOSED = (
    *("rsub", "true_divide", "floor_divide", "square", "frac", "sgn", "isfinite", "isposinf", "isneginf", "isclose"),
    *("silu", "gelu", "elu", "leaky_relu", "softplus", "hardtanh", "mish", "log_sigmoid", "heaviside", "lerp", "clip"),
    *("masked_fill", "logaddexp", "logaddexp2", "xlogy", "special_xlog1py", "special_entr", "special_ndtr", "sinc"),
    *("__and__", "__or__", "__xor__"),
)
"""Operators that torch itself makes of those of the table."""
STEPS = ("ldexp", "__rdiv__", "round.decimals")
"""What eager computes in steps of 16 bits, and may leave those on its way to a result that they hold."""
UNWRITTEN = tuple(f"{way}chebyshev_polynomial_{kind}.n_" for way in ("special_", "shifted_") for kind in "uw")
"""Of NaN their eager kernels return memory that nothing wrote: `tests/unit/torch_ops` says what is to be there."""
KINDS = ("UnaryUfuncInfo", "BinaryUfuncInfo", "ReductionOpInfo")


@dataclass(frozen=True)
class Case:
    """A call: `function` of tensors. `place`: "add float32 #2"."""

    place: str
    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Found:
    """What became of a case: "right", "refused", "wrong", "raised", or "eager" where eager itself raises."""

    operator: str
    dtype: str
    kind: str
    why: str = ""


# --- cases -----------------------------------------------------------------------------------------------


@cache
def database() -> dict[str, Any]:
    """The pointwise operators and reductions of torch's database, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.full_name: op for op in op_db if _counts(op)}


def _counts(op: Any) -> bool:
    packet: Any = getattr(torch.ops.aten, op.aten_name or "", None)
    tags = [t for o in packet.overloads() for t in getattr(packet, o).tags] if hasattr(packet, "overloads") else []
    known = type(op).__name__ in KINDS or torch.Tag.pointwise in tags
    return known and any(d in op.supported_dtypes("cpu") for d in (*DTYPES, torch.complex64))


def samples(op: Any, dtype: torch.dtype, most: int) -> Iterator[Case]:
    """The database's own samples, and edge values in their place."""
    torch.manual_seed(0)
    given = [s for s in itertools.islice(op.sample_inputs("cpu", dtype), 40) if _size(s) <= 400]
    step = max(1, len(given) // most)
    for k, s in enumerate(given[::step][:most]):
        yield _case(f"{op.full_name} {dtype} sample {k}", op, (s.input, s.args, s.kwargs))
    if not given or not isinstance(given[0].input, torch.Tensor) or any(w in op.full_name for w in ENDLESS):
        return
    s = given[0]
    other = isinstance(s.args[0], torch.Tensor) if s.args else False
    xs = torch.tensor(edges(dtype), dtype=dtype)
    x, y = (xs.repeat_interleave(len(xs)), xs.repeat(len(xs))) if other else (xs, xs)
    if type(op).__name__ == "ReductionOpInfo" and not s.args:
        for rows in edge_rows(dtype):
            yield _case(f"{op.full_name} {dtype} rows {tuple(rows.shape)}", op, (rows, (), s.kwargs))
    elif type(op).__name__ in KINDS and len(s.args) <= 1 and (other or not s.args):
        # What one pair raises is not what others do.
        for some in (slice(None),) if dtype.is_floating_point else (y == y, (y > 0) & (y < 9)):
            yield _case(f"{op.full_name} {dtype} edges", op, (x[some], (y[some],) if other else (), s.kwargs))


def _size(sample: Any) -> int:
    tensors = [t for t in torch.utils._pytree.tree_leaves((sample.input, sample.args)) if isinstance(t, torch.Tensor)]
    return max((t.numel() for t in tensors), default=0)


def _case(place: str, op: Callable[..., Any], given: Any) -> Case:
    leaves, spec = torch.utils._pytree.tree_flatten(given)
    tensors = tuple(x.detach().clone() for x in leaves if isinstance(x, torch.Tensor))

    def function(*own: torch.Tensor) -> Any:
        left = iter(own)
        first, args, named = torch.utils._pytree.tree_unflatten(
            [next(left) if isinstance(x, torch.Tensor) else x for x in leaves], spec
        )
        return op(first, *args, **named)

    return Case(place, function, tensors)


def edges(dtype: torch.dtype) -> list[float]:
    """Numbers at which functions turn, and at the ends of a dtype."""
    if dtype == torch.bool:
        return [False, True]
    if not dtype.is_floating_point:
        top = torch.iinfo(dtype).max
        found = [0, 1, -1, 2, -2, 3, 7, -8, 30, 31, 63, 100, top // 2, top - 1, top, -top, -top - 1]
        return [x for x in found if x >= torch.iinfo(dtype).min]
    info = torch.finfo(dtype)
    small = [info.tiny, -info.tiny, 2.0**-24, -(2.0**-24), 1e-3]
    near = [0.0, -0.0, *small, 0.1, -0.1, 0.3, 0.5, 0.7, 1.0, -1.0, 1.5, 2.0]
    far = [2.5, -2.5, 3.0, 10.0, -12.0, 88.0, 100.0, -100.0, 1e4, -1e4, info.max, -info.max]
    return [*near, *far, math.inf, -math.inf, math.nan]


def edge_rows(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """What reductions turn at: 0-d, rows of one, NaN and infinities in a row, empty ones."""
    xs = torch.tensor(edges(dtype), dtype=dtype)
    yield xs[3:4].reshape(()) if len(xs) > 3 else xs[1]
    yield xs[:1].reshape(1, 1)
    yield xs[:12].reshape(2, -1)
    yield torch.zeros(0, dtype=dtype)
    if dtype.is_floating_point:
        yield torch.tensor([[1.0, math.nan, 2.0], [math.inf, 1.0, 2.0], [-math.inf, -math.inf, -math.inf]], dtype=dtype)


@cache
def listed() -> dict[str, Any]:
    """Every overload that torch's schemas list of an operator that is taken, by name, but for reductions."""
    found = {}
    for name in (*TABLE, *DECOMPOSED):
        packet = getattr(torch.ops.aten, name)
        for target in (getattr(packet, o) for o in packet.overloads()):
            schema = target._schema
            takes = [a for a in schema.arguments if isinstance(a.type, torch.TensorType)]
            folds = any(a.name == "dim" for a in schema.arguments) or (name in ("max", "min") and len(takes) < 2)
            lists = any("Dimname" in str(a.type) or "List[Tensor]" in str(a.type) for a in schema.arguments)
            one = [str(r.type) for r in schema.returns] == ["Tensor"]
            if takes and one and not (folds or lists or schema.is_mutable):
                found[str(target)] = target
    return found


def overload_cases(target: Any, dtype: torch.dtype) -> Iterator[Case]:
    """An overload on edges: tensors of a dtype, and numbers that it holds and that it does not."""
    arguments = [a for a in target._schema.arguments if not a.kwarg_only]
    tensors = [k for k, a in enumerate(arguments) if isinstance(a.type, torch.TensorType)]
    numbers = [k for k, a in enumerate(arguments) if a.type.kind() == "NumberType" and k not in tensors]
    xs = torch.tensor(edges(dtype), dtype=dtype)
    xs = xs[~xs.isnan()] if any(w in str(target) for w in UNWRITTEN) else xs
    whole = [2, 3 if dtype == torch.uint8 else -3, 0] if not dtype.is_floating_point else [0.1, -2.5, 2, 0.0, math.inf]
    for n in whole if numbers else [None]:
        values: list[Any] = []
        for k, a in enumerate(arguments):
            if a.has_default_value() and a.name == "min":
                values.append(xs.roll(1) if "Tensor" in str(a.type) else 1)
            elif a.has_default_value() and k not in tensors:
                break
            elif k in tensors:
                shift = xs.roll(tensors.index(k))
                shift = shift[-1] if a.name == "value" else shift
                values.append(shift > 0 if a.name in ("mask", "condition") else shift)
            elif k in numbers:
                values.append(n)
        yield _case(f"{target} {dtype} {n}", lambda first, *rest: target(first, *rest), (values[0], values[1:], {}))
    if len(tensors) == 2 and not numbers:
        # A 0-d tensor bends to the other one, as a number does.
        zero = torch.tensor(0.1, dtype=torch.float32)
        yield _case(f"{target} {dtype} 0-d", lambda first, *rest: target(first, *rest), (xs, [zero], {}))


# --- the comparison ----------------------------------------------------------------------------------------


def judged(case: Case) -> tuple[str, str]:
    """What became of a case, and why."""
    try:
        # oneDNN's gelu of infinity is NaN, on some processors.
        with torch.backends.mkldnn.flags(enabled=False):
            right = case.function(*case.tensors)
    except Exception as error:
        return "eager", str(error)[:80]
    wanted = [t for t in torch.utils._pytree.tree_leaves(right) if isinstance(t, torch.Tensor)]
    if not wanted or any(t.dtype not in DTYPES for t in wanted):
        what = ", ".join(sorted({str(t.dtype) for t in wanted})) or "no tensor"
        return "refused", f"its result is {what}"
    try:
        made = evaluated(case.function, *case.tensors)
    except Unsupported as why:
        return "refused", str(why)[:120]
    except Exception as error:
        name = type(error).__name__
        inside = any("/neptune/" in f.filename for f in traceback.extract_tb(error.__traceback__))
        return ("raised", f"{name}: {error}"[:200]) if inside else ("refused", f"torch does not trace it: {name}")
    exact = _in_float64(case)
    for k, (ours, theirs) in enumerate(zip(made, wanted, strict=True)):
        if any(w in case.place for w in QUOTIENTS):
            ours, theirs = _defined(case.tensors, ours, theirs)
        if "pow" in case.place and not theirs.dtype.is_floating_point and exact is None:
            # A power that leaves its integers wraps around in torch, and has no value here.
            big = case.function(*(t.double() for t in case.tensors))
            ours, theirs = (torch.where(big.abs() < torch.iinfo(t.dtype).max, t, 0) for t in (ours, theirs))
        if wrong := difference(ours, theirs, exact[k] if exact is not None else None, case.tensors, case.place):
            return "wrong", wrong
    return "right", ""


def _defined(given: Sequence[torch.Tensor], *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results of a remainder without those of a quotient of 2²⁴ and more, of which nothing is said (also by torch,
    whose vectors have NaN there)."""
    if len(given) != 2 or not all(t.shape == results[0].shape and t.is_floating_point() for t in given):
        return results
    a, b = (t.double() for t in given)
    far = ((a / b).abs() >= 2**24) | ((b / a).abs() >= 2**24)
    return tuple(torch.where(far & (a * b != 0), torch.zeros_like(t), t) for t in results)


def _in_float64(case: Case) -> list[torch.Tensor] | None:
    if not any(t.dtype in RELATIVE for t in case.tensors):
        return None
    try:
        right = case.function(*(t.double() if t.dtype in RELATIVE else t for t in case.tensors))
    except Exception:
        return None
    return [t for t in torch.utils._pytree.tree_leaves(right) if isinstance(t, torch.Tensor)]


def difference(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None, given: Sequence[torch.Tensor], place: str = ""
) -> str:
    """How a result differs from eager's; "" where it does not."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    if not theirs.dtype.is_floating_point:
        off = ours != theirs
    else:
        a, b = ours.double(), theirs.double()
        true = b if exact is None or exact.shape != b.shape or not exact.dtype.is_floating_point else exact.double()
        info = torch.finfo(theirs.dtype)
        apart = (b - true).abs().nan_to_num(0.0, posinf=0.0)
        room = 6 * apart + RELATIVE[theirs.dtype] * b.abs() + 4 * info.tiny * info.eps * 2**3
        near = b.isfinite() & ((a - b).abs() <= room)
        off = (a.isnan() != b.isnan()) | ((a != b) & ~near & ~a.isnan())
        if theirs.dtype in (torch.float16, torch.bfloat16) and any(w in place for w in STEPS):
            off &= ~(a.isinf() & (b.abs() >= 0.99 * info.max))
            held = true.isfinite() & ((a - true).abs() <= RELATIVE[theirs.dtype] * true.abs())
            off &= b.isfinite() | ~(held | (a == true))
        if place.startswith(("addcmul", "aten.addcmul")) and len(given) == 3:
            # Whether a product is rounded, or overflows, before the sum, eager leaves to its vectors.
            x, y, z = (t.double() for t in given)
            off &= (a - b).abs() > info.eps * (x.abs() + (y * z).abs())
            off &= ((y * z).abs() <= info.max) | x.isfinite()
    if not off.any():
        return ""
    at = tuple(int(i) for i in off.nonzero()[0])
    inputs = [t[at] if t.shape == off.shape else t.reshape(-1)[:6].tolist() for t in given]
    shown = ", ".join(str(t.item()) if isinstance(t, torch.Tensor) else str(t) for t in inputs)
    return f"({shown}) → {ours[at].item()}, not {theirs[at].item()} ({int(off.sum())} of {off.numel()})"


# --- the sweep -----------------------------------------------------------------------------------------------


def of_operator(job: tuple[str, int, str]) -> list[Found]:
    """All cases of an operator of the database, or (`aten.…`) of an overload."""
    name, most, dtypes = job
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = []
    for dtype in (d for d in DTYPES if not dtypes or str(d).removeprefix("torch.") in dtypes.split(",")):
        if name in database():
            op = database()[name]
            if dtype not in op.supported_dtypes("cpu"):
                continue
            cases = samples(op, dtype, most)
        else:
            cases = overload_cases(listed()[name], dtype)
        for case in cases:
            kind, why = judged(case)
            found.append(Found(name, str(dtype), kind, f"{case.place}: {why}" if kind in ("wrong", "raised") else why))
    if not found and not any(d in database()[name].supported_dtypes("cpu") for d in DTYPES):
        found.append(Found(name, "complex", "refused", "it is a function of complex numbers alone"))
    return found


def sweep(names: Sequence[str], most: int, jobs: int, dtypes: str) -> Iterator[list[Found]]:
    """All findings, an operator at a time."""
    work = [(n, most, dtypes) for n in names]
    if jobs == 1:
        yield from map(of_operator, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(of_operator, work)


def report(found: Sequence[Found]) -> tuple[float, str]:
    """The part of the database's variants that are taken, and the page."""
    by: dict[str, list[Found]] = defaultdict(list)
    for f in found:
        by[f.operator].append(f)
    of_database = {n: fs for n, fs in by.items() if n in database()}
    taken = [n for n, fs in of_database.items() if any(f.kind == "right" for f in fs) and not _refusals(fs)]
    cells = Counter(_cell(fs) for name in of_database for fs in _cells(by[name]))
    lines = [
        f"{len(of_database)} operators of the database, {len(by) - len(of_database)} overloads, {len(found)} cases: "
        + ", ".join(f"{n} {k}" for k, n in Counter(f.kind for f in found).most_common()),
        f"operators taken whole: {len(taken)} ({len(taken) / max(1, len(of_database)):.1%}); operators × dtypes: "
        f"{cells['right']} of {cells.total()} ({cells['right'] / max(1, cells.total()):.1%})",
    ]
    for name, fs in sorted(by.items()):
        for why, n in Counter(f.why for f in _refusals(fs)).most_common(2):
            lines.append(f"  refused  {name}: {why} ({n} of {len(fs)})")
    return cells["right"] / max(1, cells.total()), "\n".join(lines)


def _refusals(found: Sequence[Found]) -> list[Found]:
    return [f for f in found if f.kind == "refused"]


def is_dropped(f: Found) -> bool:
    """True for an overload of a row that is not taken: the table has it, and the backend does not."""
    return f.operator in listed() and f.kind == "refused" and f.why.startswith("the operator")


def _cells(found: Sequence[Found]) -> list[list[Found]]:
    by: dict[str, list[Found]] = defaultdict(list)
    for f in found:
        by[f.dtype].append(f)
    return list(by.values())


def _cell(found: Sequence[Found]) -> str:
    kinds = {f.kind for f in found}
    return next((k for k in ("wrong", "raised", "refused", "right") if k in kinds), "eager")


@click.command(help=__doc__)
@click.option("--only", default="", help="Operators, by comma: names of the database, or aten.add.Scalar.")
@click.option("--samples", "most", default=3, show_default=True, help="The database's samples of a dtype.")
@click.option("--jobs", default=1, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path))
@click.option("--dtypes", default="", help="Dtypes, by comma; all without.")
def main(only: str, most: int, jobs: int, path: Path | None, dtypes: str) -> None:
    names = only.split(",") if only else [*database(), *listed()]
    found = []
    for fs in sweep(names, most, jobs, dtypes):
        found += fs
        if fs:
            click.echo(f"{fs[0].operator}: " + ", ".join(f"{n} {k}" for k, n in Counter(f.kind for f in fs).items()))
        for f in fs:
            if f.kind in ("wrong", "raised"):
                click.echo(f"{f.kind}: {f.why}")
    part, page = report(found)
    click.echo(page)
    if path:
        path.write_text(json.dumps([vars(f) for f in found], indent=0))
    failed = any(f.kind in ("wrong", "raised") or is_dropped(f) for f in found)
    sys.exit(failed or (not only and part < LEAST))


if __name__ == "__main__":
    main()
