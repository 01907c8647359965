"""FlashAttention forward for Hopper, written by hand in Gluon: the yardstick of generated warp-specialised kernels.

One warp copies (the producer), two or three warpgroups of 64 rows each compute (the consumers), and tiles are handed
out by a table that the host makes. In a consumer's loop the product of scores of tile i and the product of values of
tile i - 1 are issued back to back. The softmax of tile i runs under the second one, which is waited for in the same
iteration: an asynchronous product whose left operand lies in registers must not be carried into the next one. Keys
are visited from the last tile to the first, so that the masked tile is the first of all and the loop holds no mask.

q, k, v: [heads, length, depth], dense and 16-byte aligned, float16 or bfloat16, finite, one length for all. The heads
of q are a multiple of those of k. Scores are kept in units of log2.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.9's names, or those that 3.6 has for them (neptune/hopper/gluon/versions.py).
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = getattr(gl, "barrier", None) or gl.thread_barrier

ROWS = 64
"""Rows of a consumer: a warpgroup's product has 64."""


class Form(NamedTuple):
    """One configuration: consumers, keys in a tile, stages, and whether results have shared memory of their own."""

    consumers: int
    block_n: int
    stages: int
    own_o: bool


def form(depth: int, length: int) -> Form:
    """The measured best by depth; short sequences of depth 64 have too few rows for three consumers."""
    if depth == 64:
        return Form(2, 128, 3, True) if length < 2048 else Form(3, 128, 2, True)
    return Form(2, 128, 2, True) if depth == 128 else Form(2, 64, 2, False)


@gluon.jit
def _producer(
    q_desc, k_desc, v_desc, table, first, qs, ks, vs, qf, qe, kf, ke, vf, ve, length, groups, row_tiles,
    D: gl.constexpr, BN: gl.constexpr, ST: gl.constexpr, NW: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    BM: gl.constexpr = NW * 64
    cta = gl.program_id(0)
    k = 0
    done = 0
    for t in range(gl.load(first + cta), gl.load(first + cta + 1)):
        tile = gl.load(table + t)
        head = tile // row_tiles
        row = (tile % row_tiles) * BM
        mbarrier.wait(qe, (done & 1) ^ 1)
        mbarrier.expect(qf, NW * 64 * D * 2)
        for w in gl.static_range(NW):
            async_load(q_desc, [head * length + row + w * 64, 0], qf, qs.index(w))
        done += 1  # noqa: SIM113 (kernels have no enumerate)
        end = length
        if CAUSAL:
            end = gl.minimum(length, row + BM)
        n = gl.cdiv(end, BN)
        base = (head // groups) * length
        for i in range(n):
            st = k % ST
            phase = ((k // ST) & 1) ^ 1
            key = base + (n - 1 - i) * BN
            mbarrier.wait(ke.index(st), phase)
            mbarrier.expect(kf.index(st), BN * D * 2)
            async_load(k_desc, [key, 0], kf.index(st), ks.index(st))
            mbarrier.wait(ve.index(st), phase)
            mbarrier.expect(vf.index(st), BN * D * 2)
            async_load(v_desc, [key, 0], vf.index(st), vs.index(st))
            k += 1


@gluon.jit
def _pin(x):
    """The value itself, behind a store that never runs: the compiler does not sink what makes it below a later wait."""
    return gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        .reg .u32 a;
        mov.u32 a, 0;
        setp.lt.f32 p, $1, 0f00000000;
        @p st.volatile.shared.f32 [a], $1;
        mov.b32 $0, $1;
        }
        """,
        "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _lane_sums(p, BN: gl.constexpr):
    """[64, 4]: of each row the sums of what each of four lanes holds, without a shuffle."""
    return gl.sum(gl.sum(p.reshape([64, BN // 8, 4, 2]), 3), 1)


@gluon.jit
def _consumer(
    W: gl.constexpr, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles, scale,
    D: gl.constexpr, BN: gl.constexpr, ST: gl.constexpr, NW: gl.constexpr, CAUSAL: gl.constexpr,
    OWN_O: gl.constexpr, PIN: gl.constexpr, LSE: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    BM: gl.constexpr = NW * 64
    SL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    OL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    AL: gl.constexpr = gl.DotOperandLayout(0, OL, 2)
    DT: gl.constexpr = qs.dtype
    cta = gl.program_id(0)
    zs = gl.zeros([64, BN], gl.float32, SL)
    q = qs.index(W)
    k = 0
    done = 0
    for t in range(gl.load(first + cta), gl.load(first + cta + 1)):
        tile = gl.load(table + t)
        head = tile // row_tiles
        row = (tile % row_tiles) * BM + W * 64
        end = length
        own = length
        if CAUSAL:
            end = gl.minimum(length, row - W * 64 + BM)
            own = gl.minimum(length, row + 64)
        n = gl.cdiv(end, BN)
        mine = gl.cdiv(own, BN)
        # Tiles wholly above the diagonal of these rows are released unread.
        for _ in range(n - mine):
            mbarrier.wait(kf.index(k % ST), (k // ST) & 1)
            mbarrier.arrive(ke.index(k % ST), count=1)
            mbarrier.wait(vf.index(k % ST), (k // ST) & 1)
            mbarrier.arrive(ve.index(k % ST), count=1)
            k += 1
        mbarrier.wait(qf, done & 1)
        mbarrier.wait(kf.index(k % ST), (k // ST) & 1)
        sa = warpgroup_mma(q, ks.index(k % ST).permute((1, 0)), zs, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[sa])
        mbarrier.arrive(ke.index(k % ST), count=1)
        cols = (mine - 1) * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, SL))
        if TAIL:
            s = gl.where((cols < length)[None, :], s, -1.0e30)
        if CAUSAL:
            rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, SL))
            s = gl.where(cols[None, :] <= rows[:, None], s, -1.0e30)
        m = gl.max(s, 1) * scale
        # A row of scores below every finite bound keeps its maximum finite, so that no difference is NaN.
        p = gl.exp2(s * scale - m[:, None])
        sums = _lane_sums(p, BN)
        LL: gl.constexpr = sums.type.layout
        ph = gl.convert_layout(p.to(DT), AL)
        acc = gl.zeros([64, D], gl.float32, OL)
        k += 1
        for _ in range(1, mine):
            st = k % ST
            pst = (k - 1) % ST
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
            if PIN:
                sums = _pin(sums)
            acc, p, sums = warpgroup_mma_wait(0, deps=[oa, p, sums])
            mbarrier.arrive(ve.index(pst), count=1)
            acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, OL))[:, None]
            ph = gl.convert_layout(p.to(DT), AL)
            m = m_new
            k += 1
        pst = (k - 1) % ST
        mbarrier.wait(vf.index(pst), ((k - 1) // ST) & 1)
        oa = warpgroup_mma(ph, vs.index(pst), acc, is_async=True)
        if OWN_O:
            mbarrier.arrive(qe, count=1)
        total = gl.sum(sums, 1)
        (acc,) = (warpgroup_mma_wait(0, deps=[oa]),)
        mbarrier.arrive(ve.index(pst), count=1)
        acc = acc * (1.0 / gl.convert_layout(total, gl.SliceLayout(1, OL)))[:, None]
        tma.store_wait(0)
        barrier()
        o = os.index(W) if OWN_O else q
        o.store(acc.to(DT))
        fence_async_shared()
        barrier()
        async_store(o_desc, [head, row, 0], o.reshape([1, 64, D]))
        if not OWN_O:
            tma.store_wait(0)
            mbarrier.arrive(qe, count=1)
        if LSE:
            r = row + gl.arange(0, 64, layout=gl.SliceLayout(1, SL))
            at = gl.convert_layout(total, gl.SliceLayout(1, SL))
            gl.store(lse + head * length + r, (m + gl.log2(at)) * 0.6931471805599453, mask=r < length)
        done += 1  # noqa: SIM113
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["length", "groups", "row_tiles"])
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, lse, table, first, length, groups, row_tiles, scale,
    D: gl.constexpr, BN: gl.constexpr, ST: gl.constexpr, NW: gl.constexpr, CAUSAL: gl.constexpr,
    OWN_O: gl.constexpr, PIN: gl.constexpr, LSE: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """All tiles of a program of the grid, by its roles."""
    DT: gl.constexpr = q_desc.dtype
    qs = gl.allocate_shared_memory(DT, [NW, 64, D], q_desc.layout)
    ks = gl.allocate_shared_memory(DT, [ST, BN, D], k_desc.layout)
    vs = gl.allocate_shared_memory(DT, [ST, BN, D], v_desc.layout)
    os = gl.allocate_shared_memory(DT, [NW, 64, D], q_desc.layout) if OWN_O else qs
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    qf = gl.allocate_shared_memory(gl.int64, [1], bar)
    qe = gl.allocate_shared_memory(gl.int64, [1], bar)
    kf = gl.allocate_shared_memory(gl.int64, [ST, 1], bar)
    ke = gl.allocate_shared_memory(gl.int64, [ST, 1], bar)
    vf = gl.allocate_shared_memory(gl.int64, [ST, 1], bar)
    ve = gl.allocate_shared_memory(gl.int64, [ST, 1], bar)
    mbarrier.init(qf, count=1)
    mbarrier.init(qe, count=NW)
    for i in gl.static_range(ST):
        mbarrier.init(kf.index(i), count=1)
        mbarrier.init(ke.index(i), count=NW)
        mbarrier.init(vf.index(i), count=1)
        mbarrier.init(ve.index(i), count=NW)
    fence_async_shared()
    # A variable that holds a tuple would make tensors of its constants: hence in full, for each role.
    if NW == 2:
        gl.warp_specialize([
            (_consumer, (0, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles,
                         scale, D, BN, ST, NW, CAUSAL, OWN_O, PIN, LSE, TAIL)),
            (_consumer, (1, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles,
                         scale, D, BN, ST, NW, CAUSAL, OWN_O, PIN, LSE, TAIL)),
            (_producer, (q_desc, k_desc, v_desc, table, first, qs, ks, vs, qf, qe, kf, ke, vf, ve, length, groups,
                         row_tiles, D, BN, ST, NW, CAUSAL)),
        ], [4, 1], [240, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (0, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles,
                         scale, D, BN, ST, NW, CAUSAL, OWN_O, PIN, LSE, TAIL)),
            (_consumer, (1, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles,
                         scale, D, BN, ST, NW, CAUSAL, OWN_O, PIN, LSE, TAIL)),
            (_consumer, (2, o_desc, lse, table, first, qs, ks, vs, os, qf, qe, kf, ke, vf, ve, length, row_tiles,
                         scale, D, BN, ST, NW, CAUSAL, OWN_O, PIN, LSE, TAIL)),
            (_producer, (q_desc, k_desc, v_desc, table, first, qs, ks, vs, qf, qe, kf, ke, vf, ve, length, groups,
                         row_tiles, D, BN, ST, NW, CAUSAL)),
        ], [4, 4, 1], [160, 160, 24])  # fmt: skip


def balanced(
    heads: int, length: int, rows: int, block_n: int, causal: bool, programs: int, near: int
) -> tuple[list[int], list[int]]:
    """Tiles in the order of each program: the heaviest next tile to the program that is free first.

    `near` heads come before others: as many as have their keys and values in L2 together.
    Returns the tiles (head · row tiles + row tile), program after program, and where each program's begin.
    """
    row_tiles = -(-length // rows)

    def weight(m: int) -> int:
        end = min(length, (m + 1) * rows) if causal else length
        return -(-end // block_n) + 1

    every = ((m, h) for h in range(heads) for m in range(row_tiles))
    order = sorted(every, key=lambda t: (t[1] // near, -weight(t[0]), t[1], t[0]))
    free = [(0, p) for p in range(programs)]
    given: list[list[int]] = [[] for _ in range(programs)]
    for m, h in order:
        busy, p = heapq.heappop(free)
        given[p].append(h * row_tiles + m)
        heapq.heappush(free, (busy + weight(m), p))
    first = [0]
    for tiles in given:
        first.append(first[-1] + len(tiles))
    return [t for tiles in given for t in tiles], first


def constants(depth: int, length: int, f: Form, causal: bool, lse: bool) -> dict[str, Any]:
    """The compile-time arguments of the kernel, in order."""
    return {
        "D": depth, "BN": f.block_n, "ST": f.stages, "NW": f.consumers, "CAUSAL": causal, "OWN_O": f.own_o,
        "PIN": depth == 64, "LSE": lse, "TAIL": length % f.block_n != 0,
    }  # fmt: skip
