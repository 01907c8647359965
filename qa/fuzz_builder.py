"""Random programs of the builder with 64-bit integers, float64, 0-d and empty tensors, ranges that depend on rows,
choices of which only places are read, and stores at places from memory: each compiles to the end, and is right.

    python -m qa.fuzz_builder --count 1000 --jobs 2

The oracle is torch in float64. What is compiled runs in the evaluator (its tiles), every tenth program on llvm, where
TVM is installed; with NEPTUNE_QA_TARGET=cuda all run on a GPU. Every other one has NEPTUNE_VERIFY=0, the others
NEPTUNE_STRICT=1: a rejection by an exact check of Neptune's, or an exception of a candidate, is a finding.
"""

from __future__ import annotations

import os
import random
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import neptune
from neptune.errors import InternalError, NeptuneError
from neptune.frontend import builder as nb
from neptune.frontend.builder import Axis, Tensor, compute, placeholder, reduce_axis, var
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.runtime.modules import covers
from neptune.tune.subject import tiles_of
from neptune.verify.evaluate import evaluate
from qa.harness import Outcome, command

with suppress(ImportError):
    import tvm  # noqa: F401  (a limit on the first case must not cut its import in two)

FLOATS, INTEGERS = ("float32", "float32", "float64"), ("int32", "int64")
LLVM_EVERY = 10
ROUNDING = {"float32": 1e-4, "float64": 1e-9}
SCATTER = """program scattered
  in x: {dtype}[n, m]
  in row: {integer}[n]
  out o: {dtype}[n, m]
  temp t: {dtype}[n]
  scalar n: i32
  scalar m: i32
body:
  for i in [0, n):
    for j in [0, m):
      t: t[i] {fold} x[i, j] init {start}
  for i in [0, n):
    for j in [0, m):
      o: o[row[i], j] = x[i, j] {op} t[i]
"""


@dataclass
class Value:
    """An element in two tongues: of the builder, and as a tensor of torch over all axes, in float64 or int64."""

    said: Any
    true: torch.Tensor
    dtype: str

    def like(self, said: Any, value: torch.Tensor, dtype: str = "") -> Value:
        return Value(said, value, dtype or self.dtype)


UNARY: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (nb.exp, torch.exp),
    "tanh": (nb.tanh, torch.tanh),
    "abs": (nb.abs, torch.abs),
    "sigmoid": (nb.sigmoid, torch.sigmoid),
    "square": (lambda a: a * a, lambda a: a * a),
    "half": (lambda a: a * 0.5, lambda a: a * 0.5),
    "far": (lambda a: a * -3.0 + 1.0, lambda a: a * -3.0 + 1.0),
}
INTEGER: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda a: a + 3, lambda a: a + 3),
    "mod": (lambda a: a % 3, lambda a: a % 3),
    "div": (lambda a: a // 2, lambda a: a.div(2, rounding_mode="floor")),
    "neg": (lambda a: a * -1, lambda a: -a),
}


@dataclass
class Made:
    """A program, what it is called with, and what torch says."""

    program: Program
    inputs: dict[str, torch.Tensor]
    wanted: list[torch.Tensor]


@dataclass
class Drawing:
    """A program in the making: sizes, inputs, and the rows of results so far."""

    rng: random.Random
    lengths: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, tuple[Tensor, torch.Tensor]] = field(default_factory=dict)
    rows: list[tuple[Tensor, torch.Tensor]] = field(default_factory=list)
    outputs: list[tuple[Tensor, torch.Tensor]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        pick = self.rng.choice
        self.dtype = pick(FLOATS)
        self.lengths = {"n": pick((0, 1, 2, 3, 5)), "m": pick((1, 1, 2, 4, 7)) if self.rng.random() < 0.95 else 0}
        self.n, self.m = (var(x) if self.rng.random() < 0.8 else self.lengths[x] or var(x) for x in "nm")
        self.ranged = self.rng.random() < 0.3
        self.integer = pick(INTEGERS)
        self.rank = pick((0, 1, 1, 1, 2))

    def name(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    # --- what is read -------------------------------------------------------------------------------

    def input(self, name: str, dims: str, dtype: str) -> tuple[Tensor, torch.Tensor]:
        if name not in self.inputs:
            shape = [self.lengths[d] for d in dims]
            g = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
            scale = self.rng.choice((1.0, 1.0, 30.0)) if dtype == "float64" else 1.0
            if is_float(dtype):
                data = torch.randn(shape, generator=g, dtype=torch.float64) * scale
            else:
                data = torch.randint(-4, 9, shape, generator=g)
            data = data.to(getattr(torch, dtype))
            said = placeholder(tuple(getattr(self, d) for d in dims), dtype, name)
            self.inputs[name] = said, data
        said, data = self.inputs[name]
        return said, data.to(torch.float64 if is_float(dtype) else torch.int64)

    def element(self, i: Any, j: Any, depth: int = 2) -> Value:
        """A float at row i (None: there is none) and column j."""
        rng = self.rng
        dims, at = ("nm", (i, j)) if i is not None else ("m", (j,))
        if depth == 0 or rng.random() < 0.3:
            x, data = self.input(rng.choice("xz"), dims, self.dtype)
            return Value(x[at], data, self.dtype)
        a = self.element(i, j, depth - 1)
        kind = rng.choice(("unary", "unary", "mask", "integer", "column", "row", "position"))
        if kind == "row" and self.rows and i is not None:
            r, data = rng.choice(self.rows)
            return a.like(a.said - r[i], a.true - data[:, None])
        if kind == "mask":
            keep, seen = self.mask(i, j)
            return a.like(nb.select(keep, a.said, 0.0), torch.where(seen, a.true, 0.0))
        if kind == "integer":
            k = self.whole(i, j)
            return a.like(a.said * nb.cast(k.said, self.dtype), a.true * k.true)
        if kind == "column":
            w, data = self.input("w", "m", self.dtype)
            return a.like(a.said * w[j], a.true * data)
        if kind == "position":
            columns = torch.arange(self.lengths["m"], dtype=torch.float64)
            return a.like(a.said + nb.cast(j, self.dtype) * 0.25, a.true + columns * 0.25)
        said, of = UNARY[rng.choice([*UNARY])]
        return a.like(said(a.said), of(a.true))

    def whole(self, i: Any, j: Any) -> Value:
        """An integer; of 64 bits it may be large on the way."""
        k, data = self.input("k", "m", self.integer)
        said, of = INTEGER[self.rng.choice([*INTEGER])]
        v = Value(said(k[j]), of(data), self.integer)
        if self.integer == "int64" and self.rng.random() < 0.5:
            big = 1 << self.rng.choice((33, 40, 55))
            v = v.like(v.said * nb.const(big, "int64") // nb.const(big // 2, "int64"), (v.true * big) // (big // 2))
        return v

    def mask(self, i: Any, j: Any) -> tuple[Any, torch.Tensor]:
        k, rows, columns = self.whole(i, j), torch.arange(self.lengths["n"])[:, None], torch.arange(self.lengths["m"])
        if i is None or self.rng.random() < 0.5:
            return k.said <= nb.const(2, self.integer), k.true <= 2
        if self.rng.random() < 0.5:
            return j <= i, columns <= rows
        return nb.cast(j, self.integer) <= k.said + nb.cast(i, self.integer), columns <= k.true + rows

    # --- what is folded -----------------------------------------------------------------------------

    def axis(self, i: Any, kind: str) -> tuple[Axis, torch.Tensor | bool]:
        """A reduced axis, and which columns it has in each row."""
        rows, columns = torch.arange(self.lengths["n"])[:, None], torch.arange(self.lengths["m"])
        if kind == "below":
            return reduce_axis((0, nb.minimum(i + 1, self.m)), self.name("a")), columns <= rows
        if kind == "length":
            length, data = self.input("length", "n", "int32")
            kept = data.clamp(0, self.lengths["m"])
            return reduce_axis((0, nb.maximum(nb.minimum(length[i], self.m), 0)), self.name("a")), columns < kept[
                :, None
            ]
        return reduce_axis((0, self.m), self.name("a")), True

    def fold(self) -> None:
        """One more reduction over the columns of each row, or over all columns where there are no rows."""
        rng = self.rng
        kind = rng.choice(("sum", "max", "min", "sum", "max", "argmax", "argmin", "top"))
        ranged = (
            rng.choice(("below", "length")) if self.ranged and self.rank and not kind.startswith(("arg", "top")) else ""
        )
        inner, found = rng.randrange(1 << 30), dict[str, Any]()

        def body(*at: Any) -> Any:
            self.rng = random.Random(inner)
            i = at[0] if at else None
            axis, seen = self.axis(i, ranged)
            v = self.element(i, axis)
            shape = [*([self.lengths["n"]] if at else []), self.lengths["m"]]
            found["v"], found["seen"] = v.true.broadcast_to(shape), seen
            if kind == "top":
                return nb.top_k(v.said, 2, axis=axis)
            return getattr(nb, kind)(v.said, axis=axis)

        made = compute((self.n,) if self.rank else (), body if self.rank else (lambda: body()), self.name("r"))
        self.rng = rng
        v, seen = found["v"], torch.as_tensor(found["seen"]).broadcast_to(found["v"].shape)
        if kind in ("argmax", "argmin", "top"):
            self.chosen(kind, made, v)
            return
        nothing = {"sum": 0.0, "max": _lowest(self.dtype), "min": -_lowest(self.dtype)}[kind]
        kept = torch.cat(
            [torch.where(seen, v, nothing), torch.full([*v.shape[:-1], 1], nothing, dtype=torch.float64)], -1
        )
        folds: dict[str, Any] = {"sum": kept.sum, "max": kept.amax, "min": kept.amin}
        want = folds[kind](-1)
        self.outputs.append((made, want))
        if self.rank and bool(torch.isfinite(want).all() and (want.abs() < 1e4).all()):
            self.rows.append((made, want))

    def chosen(self, kind: str, made: Sequence[Tensor], v: torch.Tensor) -> None:
        if not v.shape[-1] or (kind == "top" and v.shape[-1] < 2):
            return
        if kind == "top":
            # The first of equal ones.
            values, places = (x[..., :2] for x in v.sort(dim=-1, descending=True, stable=True))
            for part, want in zip(made, (*values.unbind(-1), *places.unbind(-1)), strict=True):
                if self.rng.random() < 0.4:
                    self.outputs.append((part, want))
            return
        best = v.sort(dim=-1, descending=kind == "argmax", stable=True)
        for part, want in zip(made, (x[..., 0] for x in best), strict=True):
            if self.rng.random() < 0.6:
                self.outputs.append((part, want))

    def spread(self) -> None:
        """A map behind the reductions."""
        if not self.rows:
            return
        r, data = self.rng.choice(self.rows)
        x, every = self.input("x", "nm", self.dtype)
        self.outputs.append(
            (compute((self.n, self.m), lambda i, j: x[i, j] * r[i], self.name("y")), every * data[:, None])
        )


def _lowest(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).min)


def draw(seed: int) -> Made | None:
    """The program of a seed; None where nothing came of it."""
    rng = random.Random(seed)
    if rng.random() < 0.05:
        return _scattered(rng)
    d = Drawing(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        d.fold()
    if d.rank == 2:
        d.spread()
    outputs = [o for o in d.outputs if rng.random() < 0.7] or d.outputs[-1:]
    if not outputs:
        return None
    program = nb.build([t for t, _ in outputs], name="drawn")
    inputs = {b.name: d.inputs[b.name][1] for b in program.inputs}
    return Made(program, inputs, [w for _, w in outputs])


def _scattered(rng: random.Random) -> Made:
    """Rows stored where memory says, each once."""
    dtype, integer = rng.choice(("float32", "float64")), rng.choice(INTEGERS)
    fold, start, op = rng.choice((("max=", "-inf", "-"), ("+=", "0.0", "*"), ("min=", "inf", "+")))
    short = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}
    text = SCATTER.format(
        dtype=short[dtype],
        integer=short[integer],
        fold=fold,
        start=start + (":f64" if dtype == "float64" else ""),
        op=op,
    )
    n, m = rng.choice((1, 3, 6)), rng.choice((1, 4, 7))
    g = torch.Generator().manual_seed(rng.randrange(1 << 30))
    x, row = torch.randn(n, m, generator=g, dtype=torch.float64), torch.randperm(n, generator=g)
    x = x.to(getattr(torch, dtype))
    folds: dict[str, Any] = {"max=": x.double().amax, "+=": x.double().sum, "min=": x.double().amin}
    t = folds[fold](-1, keepdim=True)
    whole = {"-": x.double() - t, "*": x.double() * t, "+": x.double() + t}[op]
    wanted = torch.empty_like(whole)
    wanted[row] = whole
    return Made(parse_program(text), {"x": x, "row": row.to(getattr(torch, integer))}, [wanted])


# --- compiled, and run ------------------------------------------------------------------------------


def trial(seed: int) -> Outcome:
    """Compile the program of a seed without a template, and compare what it made with torch."""
    strict = seed % 2 == 1
    os.environ["NEPTUNE_CACHE_DIR"] = "0"
    os.environ["NEPTUNE_VERIFY"], os.environ["NEPTUNE_STRICT"] = ("1", "1") if strict else ("0", "0")
    warnings.simplefilter("ignore")
    try:
        made = draw(seed)
    except NeptuneError as error:
        return Outcome("refused", f"built: {error.wrong.splitlines()[0][:100]}")
    if made is None:
        return Outcome("right", "nothing drawn")
    text = str(made.program)
    try:
        target = os.environ.get("NEPTUNE_QA_TARGET") or ("llvm" if seed % LLVM_EVERY == 0 else "interpret")
        kernel = neptune.compile(made.program, target=target)
    except NeptuneError as error:
        return Outcome("refused", f"{type(error).__name__}: {error.wrong.splitlines()[0][:100]}", text)
    except InternalError as error:
        kind = "rejected" if "rejected by a check" in str(error) or "differs from" in str(error) else "raised"
        return Outcome(kind, str(error).splitlines()[0][:150], f"{text}\n{error}")
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error}"[:150], f"{text}\n{traceback.format_exc()}")
    try:
        got = _evaluated(kernel, made) if target == "interpret" else _called(kernel, made)
    except NeptuneError as error:
        return Outcome("raised", f"called: {type(error).__name__}: {error.wrong}"[:150], f"{text}\n{error}")
    why = _differs(made, got)
    if why:
        return Outcome("wrong", f"{target}: {why}"[:150], f"{text}\n{kernel.explain()[:300]}\n{made.inputs}")
    return Outcome("right")


def _called(kernel: neptune.Kernel, made: Made) -> list[Any]:
    device = "cuda" if os.environ.get("NEPTUNE_QA_TARGET", "").startswith("cuda") else "cpu"
    found = kernel(*(made.inputs[b.name].to(device) for b in made.program.inputs))
    return [t.cpu() for t in (found if isinstance(found, tuple | list) else [found])]


def _evaluated(kernel: neptune.Kernel, made: Made) -> list[Any]:
    """What the tiles of a kernel compute, in float64."""
    artifact = kernel.executable.artifact
    tiles = tiles_of(artifact)
    sizes = {d.name: n for b in made.program.inputs for d, n in zip(b.shape, made.inputs[b.name].shape, strict=True)
             if hasattr(d, "name")}  # fmt: skip
    params = {t.name: min(4, min(t.candidates)) for t in tiles.tunables if t.covers is None}
    params |= {s.name: 2 for s in tiles.scalars if s.name not in sizes}
    values = {**sizes, **params}
    values |= covers(tiles, values)
    arrays = {n: (t.double() if t.is_floating_point() else t.long()).numpy() for n, t in made.inputs.items()}
    try:
        found = evaluate(tiles, arrays, values)
    except EvaluationError as error:
        return [str(error)] * len(tiles.outputs)
    return [torch.as_tensor(np.asarray(found[b.name])) for b in tiles.outputs]


def _differs(made: Made, got: Sequence[Any]) -> str | None:
    for b, want, have in zip(made.program.outputs, made.wanted, got, strict=True):
        if isinstance(have, str):
            return have
        if tuple(have.shape) != tuple(want.shape):
            return f"{b.name} has shape {tuple(have.shape)}, not {tuple(want.shape)}"
        if not is_float(b.dtype):
            if not torch.equal(have.long(), want.long()):
                return f"{b.name} differs"
            continue
        tolerance = ROUNDING[b.dtype]
        # Where the true value leaves the range of the dtype, it is infinite there.
        true = want.to(getattr(torch, b.dtype)).double() if have.dtype != torch.float64 else want
        largest = float(true[torch.isfinite(true)].abs().max()) if torch.isfinite(true).any() else 1.0
        if not torch.allclose(
            have.double(), true, rtol=tolerance, atol=tolerance * max(1.0, min(largest, 1e30)), equal_nan=True
        ):
            return f"{b.name} differs"
    return None


if __name__ == "__main__":
    command(trial, __doc__)
