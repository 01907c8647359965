"""The hand-written attention as text, with arguments for the emulator, and what it should compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bench.baselines.flash_attention_gluon as written
from bench.baselines.flash_attention_gluon import ROWS, Form, balanced, constants
from neptune.hopper.emulate import Descriptor, Tensor
from neptune.ir.evaluate.floats import round_to


@cache
def text() -> str:
    return Path(written.__file__).read_text()


@dataclass
class Launch:
    """One launch. `scale_q` makes scores huge, so that each row has one key that counts."""

    form: Form
    length: int = 200
    causal: bool = True
    heads: int = 2
    kv_heads: int = 1
    depth: int = 32
    programs: int = 2
    dtype: str = "float16"
    lse: bool = True
    scale_q: float = 1.0
    out: Any = field(init=False)
    sums: Any = field(init=False)

    kernel = "attention_kernel"

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.length)
        shapes = [(h, self.length, self.depth) for h in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (round_to(rng.standard_normal(s), self.dtype).astype(np.float32) for s in shapes)
        self.q, self.k, self.v = q * np.float32(self.scale_q), k, v
        self.out = np.full(q.shape, np.nan, np.float32)
        self.sums = np.full((self.heads, self.length), np.nan, np.float32)

    @property
    def grid(self) -> tuple[int]:
        return (self.programs,)

    def call(self, module: dict[str, Any]) -> None:
        """Launches the kernel of a module."""
        module[self.kernel][self.grid](*self.args())

    def args(self) -> list[Any]:
        f, rows = self.form, self.form.consumers * ROWS
        tiles, first = balanced(self.heads, self.length, rows, f.block_n, self.causal, self.programs, self.heads)
        return [
            self._descriptor(self.q, ROWS), self._descriptor(self.k, f.block_n), self._descriptor(self.v, f.block_n),
            Descriptor(Tensor(self.out, self.dtype), (1, ROWS, self.depth)), self.sums, np.array(tiles, np.int32),
            np.array(first, np.int32), self.length, self.heads // self.kv_heads, -(-self.length // rows),
            math.log2(math.e) / math.sqrt(self.depth),
            *constants(self.depth, self.length, f, self.causal, self.lse).values(),
        ]  # fmt: skip

    def _descriptor(self, x: Any, rows: int) -> Descriptor:
        return Descriptor(Tensor(x.reshape(-1, self.depth), self.dtype), (rows, self.depth))

    def expected(self) -> tuple[Any, Any]:
        """The attention in float64, and the log-sum-exp."""
        group = self.heads // self.kv_heads
        k, v = (np.repeat(x.astype(np.float64), group, 0) for x in (self.k, self.v))
        s = np.einsum("hid,hjd->hij", self.q.astype(np.float64), k) / math.sqrt(self.depth)
        if self.causal:
            s = np.where(np.tril(np.ones((self.length, self.length), bool)), s, -np.inf)
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        total = p.sum(-1, keepdims=True)
        return np.einsum("hij,hjd->hid", p / total, v), (m + np.log(total))[..., 0]

    def errors(self) -> tuple[float, float]:
        """The largest differences: of results, and of log-sum-exp. NaN and what is not written are infinite."""
        out, sums = self.expected()
        worst = [np.abs(self.out - out).max(), np.abs(self.sums - sums).max() if self.lse else 0.0]
        return tuple(math.inf if math.isnan(w) else float(w) for w in worst)  # type: ignore[return-value]


SMALL = (
    # Tiles of 128 or 192 rows: more of them than programs, and some with fewer iterations than there are stages.
    Launch(Form(2, 64, 2, True), 300, programs=2, heads=1),
    Launch(Form(2, 64, 3, False), 64, programs=1, heads=4, lse=False),
    Launch(Form(3, 64, 3, False), 200, programs=1, heads=1),
)
