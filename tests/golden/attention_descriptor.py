"""Triton kernels of `attention`."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit(do_not_specialize=["s_q", "s_kv"])
def attention_kernel(q_desc, k_desc, v_desc, out_desc, s_q, s_kv, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    i0 = tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    offs_n = tl.arange(0, BLOCK_N)
    offs_m = tl.arange(0, BLOCK_M)
    j0_end = tl.minimum(s_kv // BLOCK_N, tl.maximum(i0 * BLOCK_M + s_kv - s_q + 1, 0) // BLOCK_N)
    j0_end_1 = tl.maximum(
        j0_end,
        tl.minimum(
            tl.cdiv(s_kv, BLOCK_N),
            tl.cdiv(tl.maximum(tl.minimum(i0 * BLOCK_M + BLOCK_M, s_q) - 1 + s_kv - s_q + 1, 0), BLOCK_N),
        ),
    )
    idx_m = i0 * BLOCK_M + offs_m
    # q
    q_tile = q_desc.load([b, h, i0 * BLOCK_M, 0]).reshape(BLOCK_M, 128)
    # m
    m = tl.full([BLOCK_M], -3.4028234663852886e+38, tl.float32)
    # l
    l = tl.zeros([BLOCK_M], tl.float32)
    # acc
    acc = tl.zeros([BLOCK_M, 128], tl.float32)
    for j0 in range(j0_end):
        # s
        k = k_desc.load([b, h, j0 * BLOCK_N, 0]).reshape(BLOCK_N, 128).T
        s = tl.dot(q_tile, k) * 0.12751743
        # m
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        # p
        p = tl.exp2(s - m_new[:, None])
        # l
        l = l * alpha + tl.sum(p, axis=1)
        # acc
        v = v_desc.load([b, h, j0 * BLOCK_N, 0]).reshape(BLOCK_N, 128)
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        # m
        m = m_new
    for j0 in range(j0_end, j0_end_1):
        idx_n = j0 * BLOCK_N + offs_n
        # s
        k = k_desc.load([b, h, j0 * BLOCK_N, 0]).reshape(BLOCK_N, 128).T
        s = tl.where(
            (idx_n[None, :] <= idx_m[:, None] + s_kv - s_q) & (idx_n[None, :] < s_kv),
            tl.dot(q_tile, k) * 0.12751743,
            float("-inf"),
        )
        # m
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        # p
        p = tl.exp2(s - m_new[:, None])
        # l
        l = l * alpha + tl.sum(p, axis=1)
        # acc
        v = v_desc.load([b, h, j0 * BLOCK_N, 0]).reshape(BLOCK_N, 128)
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        # m
        m = m_new
    # out
    out_desc.store([b, h, i0 * BLOCK_M, 0], (acc / l[:, None]).to(tl.float16).reshape(1, 1, BLOCK_M, 128))


def attention(q, k, v, out, *, BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2):
    batch = q.shape[0]
    heads = q.shape[1]
    s_q = q.shape[2]
    s_kv = k.shape[2]
    q_desc = TensorDescriptor.from_tensor(q, [1, 1, BLOCK_M, 128])
    k_desc = TensorDescriptor.from_tensor(k, [1, 1, BLOCK_N, 128])
    v_desc = TensorDescriptor.from_tensor(v, [1, 1, BLOCK_N, 128])
    out_desc = TensorDescriptor.from_tensor(out, [1, 1, BLOCK_M, 128])
    grid = (triton.cdiv(s_q, BLOCK_M), heads, batch)
    attention_kernel[grid](
        q_desc, k_desc, v_desc, out_desc,
        s_q, s_kv,
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps,
        num_stages=num_stages,
    )
