"""Figures 8 and 9: attention with any mask and any score function, and the schedule that fuses it.

    python -m appendix_examples.figures_8_9

The paper's expression has 38 lines and its schedule 28; how many they are here is printed. One expression covers
what the paper's does; one schedule serves all of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import te, tirx

import neptune


# fmt: off
def general_attention(depth: int, mask: Callable[..., Any], score_mod: Callable[..., Any]) -> Any:
    batch, heads, s_q, s_kv = (te.var(n) for n in ("batch", "heads", "s_q", "s_kv"))
    q, k, v = (te.placeholder((batch, heads, n, depth), "float16", name=x)
               for x, n in (("q", s_q), ("k", s_kv), ("v", s_kv)))
    rows, scores = (batch, heads, s_q), (batch, heads, s_q, s_kv)
    d = te.reduce_axis((0, depth), name="d")
    j1, j2, j3 = (te.reduce_axis((0, s_kv), name="j") for _ in range(3))
    p = te.compute(scores, lambda b, h, i, j: te.sum(f32(q[b, h, i, d]) * f32(k[b, h, j, d]), axis=d), name="p")
    score = te.compute(scores, lambda b, h, i, j: te.if_then_else(
        mask(b, h, i, j, s_q, s_kv), score_mod(p[b, h, i, j], b, h, i, j), tirx.const(-math.inf, "float32")),
        name="score_mod")
    top = te.compute(rows, lambda b, h, i: te.max(score[b, h, i, j1], axis=j1), name="softmax_maxelem")
    e = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - top[b, h, i]), name="softmax_exp")
    total = te.compute(rows, lambda b, h, i: te.sum(e[b, h, i, j2], axis=j2), name="softmax_expsum")
    e16 = te.compute(scores, lambda b, h, i, j: e[b, h, i, j].astype("float16"), name="softmax_exp_f16")
    sv = te.compute((*rows, depth), lambda b, h, i, c: te.sum(
        f32(e16[b, h, i, j3]) * f32(v[b, h, j3, c]), axis=j3), name="sv")
    return te.compute((*rows, depth), lambda b, h, i, c: (sv[b, h, i, c] / total[b, h, i]).astype("float16"), name="o")


def schedule_attention(sch: neptune.Schedule) -> None:
    *_, i, j, _ = sch.loops("p")
    i0, j0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [128, 64, 32]), sch.param("BLOCK_N", [64, 32])])
    b, h, *_ = sch.loops("p")
    sch.bind([b, h, i0], ["grid.z", "grid.y", "grid.x"])
    sch.fuse_at("score_mod", j0)
    for stage in ("softmax_maxelem", "softmax_expsum", "sv"):
        sch.rolling_update(stage, j0)
    sch.fuse_at("o", i0)
    sch.partition(j0)
# fmt: on


def f32(x: Any) -> Any:
    return x.astype("float32")


SCALE = tirx.const(1 / math.sqrt(64), "float32")


def everywhere(b: Any, h: Any, i: Any, j: Any, s_q: Any, s_kv: Any) -> Any:
    return tirx.const(True, "bool")


def causal(b: Any, h: Any, i: Any, j: Any, s_q: Any, s_kv: Any) -> Any:
    return j <= i + s_kv - s_q


def scaled(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * SCALE


def softcap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    fifty = tirx.const(50.0, "float32")
    return te.tanh(s * SCALE / fifty) * fifty


VARIANTS = (("global", everywhere, scaled), ("causal", causal, scaled), ("causal, softcap", causal, softcap))


def reference(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The three variants in float64."""
    s = q.double() @ k.double().transpose(-1, -2) / 8
    if "softcap" in name:
        s = 50 * torch.tanh(s / 50)
    if "causal" in name:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.arange(m) > torch.arange(n)[:, None] + m - n, -math.inf)
    return torch.softmax(s, -1) @ v.double()


def lines(function: Callable[..., Any]) -> int:
    return len(inspect.getsource(function).splitlines())


def main() -> None:
    print(f"Figure 8, the expression: {lines(general_attention)} lines (the paper's: 38)\n")
    print(inspect.getsource(general_attention))
    print(f"Figure 9, the schedule: {lines(schedule_attention)} lines (the paper's: 28)\n")
    print(inspect.getsource(schedule_attention))
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 64, dtype=torch.float16) for n in (100, 150, 150))
    for name, mask, score in VARIANTS:
        kernel = neptune.compile(
            general_attention(64, mask, score), schedule_attention, target="llvm", name="attention",
            params={"BLOCK_M": 32, "BLOCK_N": 32},
        )  # fmt: skip
        exact = reference(name, q, k, v)
        o = kernel(q, k, v)
        assert isinstance(o, torch.Tensor)
        error = float((o.double() - exact).norm() / exact.norm())
        loops = ", ".join(x.trips for x in kernel.facts.kernels[0].loops)
        print(f"{name}: {len(kernel.facts.kernels)} kernel, temporaries {kernel.facts.temporaries},")
        print(f"  loops over key tiles: {loops}; error within one unit of float16: {error < 2**-10}")


if __name__ == "__main__":
    main()
