"""What is measured: operators at sizes, with what each is in torch and what it must give.

    attention   ten operators × 2⁷ … 2¹⁵ keys × batch 1 and 8
    linear      products, and products behind a norm or with a gate
    rows        softmax
    chains      chains of reductions beyond attention (`bench.chain_programs`, `bench.chain_attention`)

Those that tell most come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Any

import torch

from bench import setups
from bench.cases import alibi_slopes
from bench.chain_attention import ATTENTION as CHAINS_OF_ATTENTION
from bench.chain_programs import ROW_CHAINS, Chain
from bench.comparison import attention, chains
from bench.speed_operators import work
from neptune.ir.dtypes import is_float
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program
from neptune.ops.attention import OPERATORS, operator
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.ops.softmax import softmax

Tensors = Sequence[torch.Tensor]
Blocks = Iterator[tuple[tuple[Any, ...], Tensors, Tensors]]
"""Where in each result, what must be there in float64, and what the unfused expression gives."""
FIRST, REST = (1024, 4096, 8192, 16384), (128, 256, 512, 2048, 32768)
BATCHES = (1, 8)
SHORT = 1024
"""Below this length, the host's time is told as well."""
CHAIN_SIZES = {"rows": 4096, "cols": 4096}
CHAIN_DEPTH = 64
ELEMENTS = {"float32": 4, "float16": 2, "int32": 4, "int8": 1}
"""Bytes of one."""
ROWS = 64
"""Rows of each block that is compared."""


@dataclass(frozen=True)
class Subject:
    """One operator at one size.

    `eager` is it in torch. `row` are the options of an attention, empty for all else. `amount` is how much of `unit` a
    call does. `positive` are inputs that are weights or variances; integers are drawn below `below`. `short`: the
    host's time is told as well.
    """

    name: str
    group: str
    program: Callable[[], Program]
    sizes: Mapping[str, int]
    eager: Callable[..., Any]
    unit: str
    amount: float
    row: Mapping[str, Any] = field(default_factory=dict)
    positive: tuple[str, ...] = ()
    below: int = 128
    short: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By the names of the inputs, in the order of a call."""
        return {b.name: tuple(evaluate_size(d, self.sizes) for d in b.shape) for b in self.program().inputs}

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Always the same: normal numbers, slopes of ALiBi, small integers."""
        generator = torch.Generator(device=device).manual_seed(0)
        made = []
        for b, shape in zip(self.program().inputs, self.shapes().values(), strict=True):
            dtype = getattr(torch, b.dtype)
            if b.name == "slopes":
                made.append(torch.from_numpy(alibi_slopes(shape[0])).to(dtype).to(device))
            elif not is_float(b.dtype):
                least = -self.below + 1 if b.dtype == "int8" else 0
                made.append(torch.randint(least, self.below, shape, device=device, generator=generator, dtype=dtype))
            else:
                x = torch.randn(shape, device=device, generator=generator, dtype=torch.float32)
                made.append((x.abs() + 0.5 if b.name in self.positive else x).to(dtype))
        return made

    def blocks(self, args: Tensors) -> Blocks:
        """Rows of the results at the start and at the end."""
        if self.row:
            yield from attention.blocks(self.row, args)
            return
        by_row = [self._by_row(b.shape[0]) for b in self.program().inputs]
        count = next(len(t) for t, own in zip(args, by_row, strict=True) if own)
        n = min(ROWS, count)
        for a in sorted({0, count - n}):
            part = [t[a : a + n] if own else t for t, own in zip(args, by_row, strict=True)]
            exact = [t.double() if t.is_floating_point() else t for t in part]
            yield (slice(a, a + n),), as_tuple(self.eager(*exact)), as_tuple(self.eager(*part))

    def _by_row(self, dim: Any) -> bool:
        return getattr(dim, "name", "") in ("m", "rows")


def as_tuple(out: Any) -> tuple[torch.Tensor, ...]:
    """The results of a call, one or several."""
    return tuple(out) if isinstance(out, tuple | list) else (out,)


# --- tables --------------------------------------------------------------------------------------


def of_attention(name: str, batch: int, length: int) -> Subject:
    """One of the ten operators, with the heads of the paper's table."""
    row = dict(OPERATORS[name])
    unit, amount = work(row, length)
    sizes = {"batch": batch, "s_kv": length} | ({} if "queries" in row else {"s_q": length})
    return Subject(
        f"{name} {batch}×{length}",
        "attention",
        partial(operator, name),
        sizes,
        attention.eager(row),
        unit,
        batch * amount,
        row,
        short=length < SHORT,
    )


def of_product(name: str, m: int, n: int, k: int) -> Subject:
    """A product, or a chain around one."""
    programs: dict[str, tuple[Callable[[], Program], Callable[..., Any], int]] = {
        "matmul": (matmul, torch.matmul, 1),
        "rms_norm_linear": (rms_norm_linear, setups.normed, 1),
        "gated_linear": (gated_linear, setups.gated, 2),
    }
    program, eager, products = programs[name]
    amount = products * 2 * m * n * k / 1e12
    return Subject(f"{name} {m}×{n}×{k}", "linear", program, {"m": m, "n": n, "k": k}, eager, "TFLOP/s", amount)


def of_softmax(rows: int, cols: int) -> Subject:
    """Softmax in float32."""
    eager = partial(torch.softmax, dim=-1)
    at, amount = {"rows": rows, "cols": cols}, 8 * rows * cols / 1e9
    return Subject(f"softmax {rows}×{cols}", "rows", softmax, at, eager, "GB/s", amount)


def of_chain(chain: Chain) -> Subject:
    """A chain of reductions; its rate counts every input and result once."""
    program = cache(partial(chain.build, CHAIN_DEPTH))
    buffers = (*program().inputs, *program().outputs)
    amount = sum(prod(evaluate_size(d, CHAIN_SIZES) for d in b.shape) * ELEMENTS[b.dtype] for b in buffers) / 1e9
    below = CHAIN_SIZES["cols"] if chain.name == "linear_cross_entropy" else 128
    eager, positive = chains.TORCH[chain.name], chain.positive
    name = f"chain {chain.name}"
    return Subject(name, "chains", program, CHAIN_SIZES, eager, "GB/s", amount, positive=positive, below=below)


@cache
def subjects() -> Mapping[str, Subject]:
    """All by name, the most telling first."""
    made: list[Subject] = []
    for lengths in (FIRST, REST):
        made += [of_attention(n, b, s) for s in lengths for b in BATCHES for n in OPERATORS]
    made += [of_product("matmul", *size) for size in setups.PRODUCTS]
    made += [of_product(n, *size) for size in setups.CHAINS for n in ("rms_norm_linear", "gated_linear")]
    made += [of_softmax(*size) for size in setups.ROWS]
    made += [of_chain(c) for c in (*ROW_CHAINS, *CHAINS_OF_ATTENTION) if c.name in chains.TORCH]
    return {s.name: s for s in made}
