"""Masks of random integer arithmetic near the limits of int32 and int64, through FlexAttention's mods, the template
and the loop evaluator, which wraps around at every width, against the mask in torch's own int64."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from neptune.errors import NeptuneError
from neptune.functional.mods import traced
from neptune.fusion.schedule import Schedule
from neptune.ir.evaluate.program import evaluate
from neptune.ir.indices.widths import settled
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.tile.arrange import arrange, started
from neptune.tile.localize import localize
from qa.harness import Outcome, command

DEPTH = 2
TILES = (16, 64, 128)
LARGE = (3, 7, 1000, 30_000_000, 1_000_000_007, 2**30, 2**31 - 1, 2**31, 2**31 + 11, 2**40, 2**61, 2**62, 2**63 - 1)
OFFSETS = (0, 1, -1, 5, 2**31 - 5, -(2**31) + 3, 2**40, 2**63 - 3, -(2**63) + 1)


@dataclass
class Draw:
    """Random expressions as text over b, h, i, j and captured tensors t0, t1, …"""

    rng: random.Random
    rows: int
    keys: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def captured(self) -> str:
        dtype = self.rng.choice((torch.int32, torch.int64))
        limits = torch.iinfo(dtype)
        ends = (limits.min, limits.min + 1, limits.max, limits.max - 2, -1, 0, 1, 3, self.keys, 2**30)
        axis, n = self.rng.choice((("i", self.rows), ("j", self.keys), ("b", 1)))
        sorted_ = self.rng.random() < 0.3
        values = [self.rng.choice(ends) for _ in range(n)]
        name = f"t{len(self.tensors)}"
        self.tensors[name] = torch.tensor(sorted(values) if sorted_ else values, dtype=dtype)
        return f"{name}[{axis}]"

    def leaf(self) -> str:
        kind = self.rng.random()
        if kind < 0.75:
            return self.rng.choice(("i", "j"))
        return self.captured() if kind < 0.9 else f"{self.rng.choice(('i', 'j'))}.long()"

    def integer(self, depth: int) -> str:
        if depth == 0 or self.rng.random() < 0.15:
            return self.leaf()
        a = self.integer(depth - 1)
        large = self.rng.choice(LARGE) * self.rng.choice((1, 1, -1))
        match self.rng.randrange(9):
            case 0 | 1:
                return f"({a} * {large})"
            case 2:
                return f"({a} + {self.rng.choice(OFFSETS)})"
            case 3:
                return f"({a} - {self.integer(depth - 1)})"
            case 4:
                return f"({a} + {self.integer(depth - 1)})"
            case 5:
                return f"({a} // {abs(large)})"
            case 6:
                return f"({a} % {abs(large)})"
            case 7:
                return f"({a} * {self.leaf()})"
            case _:
                return self.rng.choice(
                    (f"(-{a})", f"{a}.int()", f"torch.abs({a})", f"torch.minimum({a}, {self.leaf()})")
                )

    def condition(self) -> str:
        factor = self.rng.choice(LARGE)
        compare = self.rng.choice(("<=", "<", ">=", ">", "=="))
        if self.rng.random() < 0.3:
            one = f"i * {factor} {self.rng.choice(('+', '-'))} {self.rng.choice(OFFSETS)} {compare} j * {factor}"
        else:
            one = f"{self.integer(2)} {compare} {self.integer(self.rng.randrange(2))}"
        match self.rng.randrange(4):
            case 0:
                return f"({one}) & (j <= i)"
            case 1:
                return f"({one}) | (j < 3)"
            case _:
                return one


def mask_of(text: str, tensors: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """The mod that a text stands for; its tensors are captured as closures capture them."""
    names = ", ".join(tensors)
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def make({names}):\n    return lambda b, h, i, j: {text}", scope)
    made: Callable[..., Any] = scope["make"](*tensors.values())
    return made


def fused(program: Program) -> Program:
    """The program as the template for attention schedules it."""
    schedule = Schedule(program)
    flash_attention(schedule)
    return localize(arrange(started(schedule.program)), strict=False)


def brute(mask: Callable[..., Any], rows: int, keys: int) -> np.ndarray[Any, Any]:
    """The mask, element by element, in torch's int64."""
    zero = torch.zeros((), dtype=torch.int64)
    at = [torch.tensor(k) for k in range(max(rows, keys))]
    return np.array([[bool(mask(zero, zero, at[i], at[j])) for j in range(keys)] for i in range(rows)])


def weights(seen: np.ndarray[Any, Any], q: Any, k: Any, v: Any) -> Any:
    """Attention of float64 arrays [rows, depth] where `seen`; a row that sees nothing is 0."""
    scores = np.where(seen, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
    with np.errstate(all="ignore"):
        p = np.exp(scores - np.where(np.isinf(m := scores.max(-1, keepdims=True)), 0, m))
        total = p.sum(-1, keepdims=True)
    return np.where(total > 0, p / np.where(total > 0, total, 1), 0) @ v


def run(text: str, tensors: dict[str, torch.Tensor], rows: int, keys: int, tile: int, seed: int) -> Outcome:
    """The outcome of one mask, at sizes and a length of tiles."""
    case = f"{text}  { ({n: (t.dtype, t.tolist()) for n, t in tensors.items()}) } rows={rows} keys={keys} tile={tile}"
    mask = mask_of(text, tensors)
    try:
        seen = brute(mask, rows, keys)
        mod = traced(mask, "mask_mod")
        made = settled(attention(depth=DEPTH, dtype="float32", mask=lambda b, h, i, j: mod.expression(b, h, i, j)))
        loops = fused(made)
    except (NeptuneError, RuntimeError, ZeroDivisionError) as error:
        return Outcome(
            "refused", str(error).splitlines()[1].strip()[:100] if "\n" in str(error) else str(error)[:100], case
        )
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(1, 1, n, DEPTH)) for n in (rows, keys, keys))
    sizes = {"batch": 1, "heads": 1, "s_q": rows, "s_kv": keys}
    for p in mod.placeholders:
        sizes |= {
            print_expr(d): int(n) for d, n in zip(p.shape, tensors[p.name.removesuffix("_in")].shape, strict=True)
        }
    inputs = {"q": q, "k": k, "v": v} | {p.name: tensors[p.name.removesuffix("_in")].numpy() for p in mod.placeholders}
    right = weights(seen, q[0, 0], k[0, 0], v[0, 0])
    for what, of in (("loops", made), ("fused", loops)):
        given = {**sizes, **{t.name: tile for t in of.tunables}}
        found = np.asarray(
            evaluate(of, {n: a for n, a in inputs.items() if n in {b.name for b in of.inputs}}, given)["o"]
        )
        if not np.allclose(found[0, 0], right, atol=1e-5):
            return Outcome("wrong", what, case)
    return Outcome("right")


def trial(seed: int) -> Outcome:
    """A random mask, at random sizes."""
    rng = random.Random(seed)
    rows, keys = rng.randrange(1, 6), rng.randrange(1, 8)
    if rng.random() < 0.2:
        rows, keys = rng.randrange(60, 140), rng.randrange(60, 140)
    draw = Draw(rng, rows, keys)
    text = draw.condition()
    return run(text, draw.tensors, rows, keys, rng.choice(TILES), seed)


if __name__ == "__main__":
    command(trial, __doc__)
