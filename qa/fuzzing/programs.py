"""What `qa.fuzz` fuzzes with: a program as plain data, and how it is said in every tongue.

    {"sizes": {"m": [3, true], "n": [5, true]},            value, and whether it is symbolic
     "inputs": [{"name": "x", "at": "ij", "dtype": "float32"}],
     "stages": [{"name": "r0", "at": "i", "fold": "max", "over": "j", "value": ["read", "x", "i", "j"]},
                {"name": "r1", "at": "i", "fold": "sum", "over": "j",
                 "value": ["exp", ["sub", ["read", "x", "i", "j"], ["read", "r0", "i"]]]}],
     "outputs": ["r1"]}

    expr := number | axis | [op, expr…] | ["read", tensor, expr…] | ["cast", dtype, expr]
          | ["int", k] | ["size", name] | ["scalar", name]

Letters of `at` and `over` are axes (`AXES` gives their sizes). A stage without `fold` is a map; one may have `where`
and `init`. It is JSON as it stands: a failure is saved as the program that shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from qa.variety_programs import CHOICES, Axis, Extent, Fold, Node, Size, Spec, Tensor

Doc: TypeAlias = "dict[str, Any]"
Expr: TypeAlias = Any
Arrays: TypeAlias = "dict[str, Any]"

AXES = {"b": "b", "i": "m", "j": "n", "d": "d", "e": "e"}
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")
SCALARS = {"alpha": 1.5}


# --- walking ---------------------------------------------------------------------------------------


def parts(e: Expr) -> list[int]:
    """The positions of a node's subexpressions."""
    if not isinstance(e, list) or e[0] in ("int", "size", "scalar"):
        return []
    return list(range(2 if e[0] in ("read", "cast") else 1, len(e)))


def walk(e: Expr) -> Iterator[Expr]:
    """Every node, the root first."""
    yield e
    for k in parts(e):
        yield from walk(e[k])


def _is(e: Expr, op: str) -> bool:
    return isinstance(e, list) and e[0] == op


def stage_exprs(stage: Doc) -> list[Expr]:
    """The value of a stage, and what drops values of its fold."""
    return [stage[k] for k in ("value", "where") if k in stage]


def reads(stage: Doc) -> set[str]:
    """The tensors that a stage reads."""
    return {n[1] for e in stage_exprs(stage) for n in walk(e) if _is(n, "read")}


def results(stage: Doc) -> list[str]:
    """The names of a stage's results: one, or values and positions of what it chooses."""
    count = {"argmax": 2, "argmin": 2, "top2": 4}.get(stage.get("fold", ""), 0)
    return [f"{stage['name']}_{q}" for q in range(count)] or [stage["name"]]


def pruned(doc: Doc) -> Doc:
    """Without the stages and inputs that no output needs."""
    needed = set(doc["outputs"])
    stages = []
    for s in reversed(doc["stages"]):
        if needed & set(results(s)):
            needed |= reads(s)
            stages.append(s)
    return {**doc, "stages": stages[::-1], "inputs": [t for t in doc["inputs"] if t["name"] in needed]}


# --- dtypes ----------------------------------------------------------------------------------------


def dtypes(doc: Doc) -> dict[str, str]:
    """The dtype of every tensor."""
    found = {t["name"]: t["dtype"] for t in doc["inputs"]}
    for s in doc["stages"]:
        own = dtype_of(s["value"], found)
        names = results(s)
        half = len(names) // 2
        found |= {n: "int32" if half and k >= half else own for k, n in enumerate(names)}
    return found


def dtype_of(e: Expr, tensors: Mapping[str, str]) -> str:
    """The dtype of an expression."""
    if isinstance(e, str):
        return "int32"
    if not isinstance(e, list):
        return "float32"
    match e[0]:
        case "int" | "size":
            return "int32"
        case "scalar":
            return "float32"
        case "read":
            return tensors[e[1]]
        case "cast":
            return str(e[1])
        case "select":
            return dtype_of(e[2], tensors)
        case name:
            return "bool" if name in COMPARE else dtype_of(e[1], tensors)


# --- TE, the builder and numpy: as `qa.variety` says programs -----------------------------------


def spec_of(doc: Doc) -> Spec:
    """The program as a `qa.variety` one, which speaks TE, the builder's words and numpy."""
    sizes = {n: Size(n, value, symbolic) for n, (value, symbolic) in doc["sizes"].items()}
    kinds = dtypes(doc)

    def extent(letter: str) -> Extent:
        return Extent(((1, sizes[AXES[letter]]),))

    def node(e: Expr) -> Node:
        dtype = dtype_of(e, kinds)
        if isinstance(e, str):
            return Node("axis", (e,), dtype)
        if not isinstance(e, list):
            return Node("const", (float(e),), dtype)
        match e[0]:
            case "int":
                return Node("const", (e[1],), dtype)
            case "size":
                return Node("extent", (Extent(((1, sizes[e[1]]),)),), dtype)
            case "scalar":
                return Node("scalar", (e[1],), dtype)
            case "read":
                return Node("read", (e[1], *map(node, e[2:])), dtype)
            case "cast":
                return Node("cast", (node(e[2]),), dtype)
            case name:
                return Node(name, tuple(map(node, e[1:])), dtype)

    spec = Spec(0, "builder")
    for t in doc["inputs"]:
        spec.inputs.append(Tensor(t["name"], tuple(map(extent, t["at"])), t["dtype"], 2.0, None))
    for s in doc["stages"]:
        fold = None
        if "fold" in s:
            where = node(s["where"]) if "where" in s else None
            fold = Fold(s["fold"], tuple(Axis(a, extent(a)) for a in s["over"]), where, s.get("init"))
        axes = tuple(Axis(a, extent(a)) for a in s["at"])
        for part, name in enumerate(results(s)):
            shape = tuple(a.extent for a in axes)
            spec.stages.append(
                Tensor(name, shape, kinds[name], 2.0, None, axes=axes, value=node(s["value"]), fold=fold, part=part)
            )
    by_name = {t.name: t for t in spec.stages}
    spec.outputs = [by_name[n] for n in doc["outputs"]]
    used = [n[1] for s in doc["stages"] for e in stage_exprs(s) for n in walk(e) if _is(n, "scalar")]
    spec.scalars = {n: "float32" for n in SCALARS if n in used}
    return spec


def chooses(doc: Doc) -> bool:
    """Whether a stage folds pairs."""
    return any(s.get("fold") in CHOICES for s in doc["stages"])


def truncates(doc: Doc) -> bool:
    """Whether something is cast to an integer: of what is none that says nothing."""
    nodes = [n for s in doc["stages"] for e in stage_exprs(s) for n in walk(e)]
    return any(_is(n, "cast") and not n[1].startswith("float") for n in nodes)


# --- torch -----------------------------------------------------------------------------------------

_TORCH: Mapping[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "min": torch.minimum,
    "max": torch.maximum,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "neg": torch.neg,
    "pow": torch.pow,
    "mod": torch.remainder,
    **{n: getattr(torch, n) for n in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "sin", "floor", "erf")},
}
_FOLDS: Mapping[str, Any] = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}


def by_torch(doc: Doc, arrays: Mapping[str, Any], dtype: torch.dtype) -> list[Any] | None:
    """The outputs as torch computes them, unfused, float32 as `dtype`; None where it has no say (choices of pairs)."""
    if chooses(doc):
        return None
    sizes = {n: v for n, (v, _) in doc["sizes"].items()}
    kinds = dtypes(doc)
    real = {n: torch.as_tensor(a) for n, a in arrays.items()}
    tensors = {n: t.to(_as(kinds[n], dtype)) for n, t in real.items()}

    def run(e: Expr, env: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(e, str):
            return env[e]
        if not isinstance(e, list):
            return torch.tensor(float(e), dtype=dtype)
        match e[0]:
            case "int":
                return torch.tensor(e[1])
            case "size":
                return torch.tensor(sizes[e[1]])
            case "scalar":
                return torch.tensor(SCALARS[e[1]], dtype=dtype)
            case "read":
                index = tuple(run(k, env).long() for k in e[2:])
                return tensors[e[1]][index] if index else tensors[e[1]]
            case "cast":
                return run(e[2], env).to(_as(e[1], dtype))
            case "select":
                return torch.where(run(e[1], env), run(e[2], env), run(e[3], env))
            case name:
                return torch.as_tensor(_TORCH[name](*(run(k, env) for k in e[1:])))

    for s in doc["stages"]:
        letters = s["at"] + s.get("over", "")
        shape = [sizes[AXES[a]] for a in letters]
        env = {}
        for k, a in enumerate(letters):
            env[a] = torch.arange(shape[k]).reshape([-1 if q == k else 1 for q in range(len(shape))])
        value = run(s["value"], env).broadcast_to(shape)
        if "fold" in s:
            over = tuple(range(len(s["at"]), len(shape)))
            start: Any = _start(s["fold"], getattr(torch, kinds[s["name"]]))
            if "where" in s:
                value = torch.where(run(s["where"], env), value, torch.tensor(start, dtype=value.dtype))
            start = torch.tensor(s.get("init", start), dtype=value.dtype)
            for axis in reversed(over):
                value = _FOLDS[s["fold"]](value, dim=axis)
            step = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[s["fold"]]
            value = _TORCH[step](value, start)
        tensors[s["name"]] = value
    return [tensors[n].to(torch.float64).numpy() for n in doc["outputs"]]


def _start(reducer: str, dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return {"sum": 0, "prod": 1, "max": limits.min, "min": limits.max}[reducer]


def _as(dtype: str, wanted: torch.dtype) -> torch.dtype:
    """float32 is computed as `wanted`; in float64 no cast of floats rounds."""
    plain: torch.dtype = getattr(torch, dtype)
    if not plain.is_floating_point:
        return plain
    return wanted if wanted == torch.float64 or dtype == "float32" else plain


# --- data ------------------------------------------------------------------------------------------

MODES = ("mild", "normal", "large", "zeros", "infinite")


def arrays_of(doc: Doc, seed: int, mode: str, finite: frozenset[str] = frozenset()) -> Arrays:
    """Inputs (float64 values that their dtypes hold, or integers) at the program's sizes.

    "mild" are small multiples of 1/4, for which sums are exact; "large" ones overflow what is not bounded; "zeros" has
    a half of them 0 (whole rows and tiles too), "infinite" some -inf, but not in inputs that are `finite`.
    """
    rng = np.random.default_rng(seed)
    sizes = {n: v for n, (v, _) in doc["sizes"].items()}
    made: Arrays = {}
    for t in doc["inputs"]:
        shape = tuple(sizes[AXES[a]] for a in t["at"])
        if t["dtype"] == "int32":
            low, high = (0, sizes[t["below"]]) if "below" in t else (0, sizes["n"] + 2)
            made[t["name"]] = np.asarray(rng.integers(low, max(1, high), shape), np.int64)
            continue
        mild = np.asarray(rng.integers(-8, 9, shape) / 4)
        values = {
            "mild": mild,
            "normal": np.clip(np.asarray(rng.standard_normal(shape)), -2, 2),
            "large": np.asarray(rng.standard_normal(shape)) * 40,
            "zeros": np.where(rng.random(shape[:1] + (1,) * (len(shape) - 1)) < 0.5, 0.0, mild),
            "infinite": np.where((rng.random(shape) < 0.4) & (t["name"] not in finite), -math.inf, mild),
        }[mode]
        as_stored = torch.from_numpy(np.array(values)).to(getattr(torch, t["dtype"]))
        made[t["name"]] = as_stored.to(torch.float64).numpy()
    return made


def resized(doc: Doc, values: Mapping[str, int]) -> Doc:
    """The same program at other sizes (of those that are symbolic)."""
    sizes = {n: [values.get(n, v) if symbolic else v, symbolic] for n, (v, symbolic) in doc["sizes"].items()}
    return {**doc, "sizes": sizes}
