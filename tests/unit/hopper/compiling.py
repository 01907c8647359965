"""The hand-written attention as the Gluon kernels that these tests compile: its text, types and constants."""

from __future__ import annotations

import functools
from pathlib import Path

from bench.baselines import flash_attention_gluon as written
from neptune.hopper.validate.compile import Built, compile_gluon
from neptune.runtime.calls.addressing import KernelParameters

LENGTH = 4096
NUMBERS = {"length": "i32", "groups": "i32", "row_tiles": "i32", "scale": "fp32"}


def text() -> str:
    """The module's text, without what the compiler does not need (torch takes seconds to import)."""
    whole = Path(str(written.__file__)).read_text()
    return whole[: whole.index("def balanced(")].replace("import torch\n", "")


def kernel(
    depth: int,
    causal: bool = False,
    *,
    chosen: written.Form | None = None,
    lse: bool = False,
    length: int = LENGTH,
    dtype: str = "fp16",
) -> tuple[KernelParameters, dict[str, int]]:
    """The parameters of the kernel and its constants."""
    f = chosen or written.form(depth, length)
    values = written.constants(depth, length, f, causal, lse)
    keys = (f.block_n, depth)
    boxes = {"q_desc": (written.ROWS, depth), "k_desc": keys, "v_desc": keys, "o_desc": (1, written.ROWS, depth)}
    types = {**dict.fromkeys(boxes, dtype), "lse": "*fp32", "table": "*i32", "first": "*i32"}
    types |= {**NUMBERS, **dict.fromkeys(values, "constexpr")}
    return KernelParameters("attention_kernel", types, boxes, ()), values


@functools.cache
def built(depth: int, causal: bool = False, *, wrong: bool = False) -> Built:
    """The kernel compiled, once a process; `wrong`: with the miscompile below."""
    return compile_gluon(miscompiled() if wrong else text(), *kernel(depth, causal))


def miscompiled() -> str:
    """The text with the product of values carried around the loop, its left operand in registers: what the softmax
    makes is given the registers of the product in flight."""
    whole = text()
    start = whole.index("        for _ in range(1, mine):")
    end = whole.index("        pst = (k - 1) % ST\n        mbarrier.wait(vf.index(pst), ((k - 1) // ST) & 1)\n", start)
    return (
        whole[:start].replace("warpgroup_mma_wait,\n", "warpgroup_mma_init,\n    warpgroup_mma_wait,\n")
        + CARRIED
        + whole[end:]
    )


CARRIED = """\
        oa = warpgroup_mma_init(acc)
        beta = gl.zeros([64], gl.float32, gl.SliceLayout(1, OL))
        for _ in range(1, mine):
            st = k % ST
            pst = (k - 1) % ST
            acc = warpgroup_mma_wait(0, deps=[oa])
            acc = acc * beta[:, None]
            mbarrier.wait(kf.index(st), (k // ST) & 1)
            sa = warpgroup_mma(q, ks.index(st).permute((1, 0)), zs, use_acc=False, is_async=True)
            mbarrier.wait(vf.index(pst), ((k - 1) // ST) & 1)
            oa = warpgroup_mma(ph, vs.index(pst), acc, is_async=True)
            s = warpgroup_mma_wait(1, deps=[sa])
            mbarrier.arrive(ke.index(st), count=1)
            m_new = gl.maximum(m, gl.max(s, 1) * scale)
            p = gl.exp2(s * scale - m_new[:, None])
            alpha = gl.exp2(m - m_new)
            sums = sums * gl.convert_layout(alpha, gl.SliceLayout(1, LL))[:, None] + _lane_sums(p, BN)
            beta = gl.convert_layout(alpha, gl.SliceLayout(1, OL))
            ph = gl.convert_layout(p.to(DT), AL)
            mbarrier.arrive(ve.index(pst), count=1)
            m = m_new
            k += 1
        acc = warpgroup_mma_wait(0, deps=[oa])
        acc = acc * beta[:, None]
"""
