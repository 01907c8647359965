"""What no row may see reaches nothing: masks × templates × forms, with NaN or infinity in all that is hidden.

A mask is a conjunction of parts that rows share (lengths, intervals, kept keys, numbers; also unions of them) and of
parts that differ by row (causal, windows, documents). Keys and values that the parts which rows share exclude
are poisoned; results are compared with float64 on the visible ones. Forms: the fused loops (what
LLVM gets) and the tiles (what Triton gets), both by the evaluator. The asynchronous form is refused for such masks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune.errors import NeptuneError
from neptune.frontend.builder import placeholder, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr, logical_and, logical_or
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program, Tunable
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.templates.flash_decoding import flash_decoding
from neptune.templates.softmax_row import softmax_row
from neptune.templates.stagewise import stagewise
from neptune.tile.arrange import started
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import lower
from neptune.verify.evaluate import evaluate
from qa.harness import Outcome, command

Array = Any
TEMPLATES: dict[str, Callable[[Schedule], None]] = {
    "flash_attention": flash_attention,
    "flash_decoding": flash_decoding,
    "stagewise": stagewise,
    "softmax_row": softmax_row,
}
DEPTH, BATCH = 16, 3
POISONS = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class Part:
    """A predicate as an expression and as numpy: of (b, i, j) and the tensors."""

    text: str
    of: Callable[[Expr, Expr, Expr], Expr]
    sees: Callable[[dict[str, Array], Array, Array, Array], Array]


def _ints(name: str, *shape: str, dtype: str = "int32") -> Any:
    return placeholder(tuple(var(s) for s in shape), dtype, name)


LENS, FIRST, LONG = _ints("lens", "batch"), _ints("first", "batch"), _ints("long", "batch", dtype="int64")
KEEP, DOC = _ints("keep", "batch", "s_kv", dtype="bool"), _ints("doc", "batch", "s_kv")
SHARED = (
    Part("j < lens[b]", lambda b, i, j: j < LENS[b], lambda t, b, i, j: j < t["lens"][b]),
    Part("lens[b] - j >= 1", lambda b, i, j: LENS[b] - j >= 1, lambda t, b, i, j: j < t["lens"][b]),
    Part("j < long[b]", lambda b, i, j: j.astype("int64") < LONG[b], lambda t, b, i, j: j < t["long"][b]),
    Part("first[b] <= j", lambda b, i, j: FIRST[b] <= j, lambda t, b, i, j: t["first"][b] <= j),
    Part("keep[b, j]", lambda b, i, j: KEEP[b, j], lambda t, b, i, j: t["keep"][b, j]),
    Part("j < 5", lambda b, i, j: j < 5, lambda t, b, i, j: j < 5),
    Part("doc[b, j] != 1", lambda b, i, j: DOC[b, j] - 1 < 0, lambda t, b, i, j: t["doc"][b, j] < 1),
    Part("j <= i + lens[b] - 4", lambda b, i, j: j <= i + LENS[b] - 4, lambda t, b, i, j: j <= i + t["lens"][b] - 4),
)
BY_ROW = (
    Part("j <= i + 3", lambda b, i, j: j <= i + 3, lambda t, b, i, j: j <= i + 3),
    Part("i - j < 4", lambda b, i, j: i - j < 4, lambda t, b, i, j: i - j < 4),
    Part("j >= i", lambda b, i, j: j >= i, lambda t, b, i, j: j >= i),
)


def _either(a: Part, b: Part) -> Part:
    return Part(
        f"({a.text} or {b.text})",
        lambda *at: logical_or(a.of(*at), b.of(*at)),
        lambda *at: a.sees(*at) | b.sees(*at),
    )


def _mask(rng: random.Random) -> tuple[list[Part], list[Part]]:
    """Parts that rows share, and others."""
    shared = rng.sample(SHARED, rng.choice((1, 1, 2, 3)))
    if len(shared) > 1 and rng.random() < 0.3:
        shared = [_either(*shared[:2]), *shared[2:]]
    return shared, rng.sample(BY_ROW, rng.choice((0, 0, 1, 2)))


def _tensors(rng: np.random.Generator, s_kv: int) -> dict[str, Array]:
    return {
        "lens": rng.choice([0, 1, -3, s_kv, s_kv // 2, s_kv + 5, 2**31 - 9], BATCH),
        "long": rng.choice([0, 1, s_kv, s_kv // 2, 2**40, -(2**40)], BATCH),
        "first": rng.choice([0, 1, -7, s_kv // 2, s_kv], BATCH),
        "keep": rng.random((BATCH, s_kv)) < 0.6,
        "doc": rng.integers(-1, 3, (BATCH, s_kv)),
    }


def _forms(program: Program, template: str) -> Iterator[tuple[str, Program | TileProgram]]:
    schedule = Schedule(program)
    TEMPLATES[template](schedule)
    yield "loops", started(schedule.program)
    yield "tiles", lower(schedule.program, relaxed=template == "stagewise")


def trial(seed: int) -> Outcome:
    """One mask by one template, in all forms."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    shared, others = _mask(rng)
    template, poison = rng.choice(list(TEMPLATES)), rng.choice(POISONS)
    s_q, s_kv = rng.choice((1, 3, 6, 9)), rng.choice((1, 4, 7, 11, 16))
    heads, kv_heads = rng.choice(((2, 2), (2, 1), (4, 2)))
    case = (
        f"{template}: {' and '.join(p.text for p in (*shared, *others))}; {s_q} × {s_kv}, {heads}/{kv_heads}, {poison}"
    )

    def mask(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        return logical_and(*(p.of(b, i, j) for p in (*shared, *others)))

    program = attention(heads=heads, kv_heads=kv_heads, depth=DEPTH, causal=False, dtype="float32", mask=mask)
    t = _tensors(numbers, s_kv)
    at = np.ogrid[:BATCH, :s_q, :s_kv]
    seen = [np.broadcast_to(p.sees(t, *at), (BATCH, s_q, s_kv)) for p in (*shared, *others)]
    sees = np.logical_and.reduce(seen)
    # What rows share, in the most that any of them sees: the causal part of a length is of the last row.
    kept = np.logical_and.reduce([x.any(1) for x in seen[: len(shared)]])
    q = numbers.standard_normal((BATCH, heads, s_q, DEPTH))
    k, v = numbers.standard_normal((2, BATCH, kv_heads, s_kv, DEPTH))
    wanted = _wanted(q, k, v, sees)
    k, v = (np.where(kept[:, None, :, None], x, poison) for x in (k, v))
    given = {"q": q, "k": k, "v": v, **t}
    sizes = {"batch": BATCH, "s_q": s_q, "s_kv": s_kv}
    try:
        for name, form in _forms(program, template):
            tiles = {x.name: _tile(rng, x, sizes) for x in form.tunables}
            parts = {s.name: 2 for s in form.scalars if s.upto is not None}
            out = evaluate(form, {b.name: given[b.name] for b in form.inputs}, {**sizes, **tiles, **parts})["o"]
            if not np.allclose(out, wanted, 1e-5, 1e-5):
                return Outcome(
                    "wrong", f"{name} of {template}", f"{case}\n{name}, {tiles}: {np.abs(out - wanted).max()}"
                )
    except NeptuneError as error:
        return Outcome("refused", f"{template}: {error.wrong}"[:120], case)
    return Outcome("right")


def _tile(rng: random.Random, x: Tunable, sizes: dict[str, int]) -> int:
    """A value of a tunable: one that covers an axis is the smallest power of two that does."""
    if x.covers is not None:
        return 1 << (evaluate_size(x.covers, sizes) - 1).bit_length()
    return rng.choice([v for v in (2, 4, 8) if v >= x.least] or [x.least])


def _wanted(q: Array, k: Array, v: Array, sees: Array) -> Array:
    """Attention in float64; a row without keys is 0."""
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    score = np.where(sees[:, None], q @ np.swapaxes(k, 2, 3) / DEPTH**0.5, -np.inf)
    top = np.max(score, -1, keepdims=True)
    p = np.exp(score - np.where(np.isfinite(top), top, 0.0))
    total = p.sum(-1, keepdims=True)
    return p @ v / np.where(total == 0, 1.0, total)


if __name__ == "__main__":
    command(trial, __doc__)
