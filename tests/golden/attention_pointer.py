"""Triton kernels of `attention`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["s_q", "s_kv"])
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    stride_q_batch,
    stride_q_heads,
    stride_q_s_q,
    stride_k_batch,
    stride_k_heads,
    stride_k_s_kv,
    stride_v_batch,
    stride_v_heads,
    stride_v_s_kv,
    stride_out_batch,
    stride_out_heads,
    stride_out_s_q,
    s_q,
    s_kv,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i0 = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, 128)
    offs_n = tl.arange(0, BLOCK_N)
    q_base = q_ptr + b * stride_q_batch + h * stride_q_heads + (i0 * BLOCK_M).to(tl.int64) * stride_q_s_q
    q_offs = offs_m[:, None] * stride_q_s_q + offs_d[None, :]
    idx_m = i0 * BLOCK_M + offs_m
    j0_end = tl.minimum(s_kv // BLOCK_N, tl.maximum(i0 * BLOCK_M + s_kv - s_q + 1, 0) // BLOCK_N)
    k_base = k_ptr + b * stride_k_batch + h * stride_k_heads
    k_offs = offs_n[None, :] * stride_k_s_kv + offs_d[:, None]
    v_base = v_ptr + b * stride_v_batch + h * stride_v_heads
    v_offs = offs_n[:, None] * stride_v_s_kv + offs_d[None, :]
    j0_end_1 = tl.maximum(
        j0_end,
        tl.minimum(
            tl.cdiv(s_kv, BLOCK_N),
            tl.cdiv(tl.maximum(tl.minimum(i0 * BLOCK_M + BLOCK_M, s_q) - 1 + s_kv - s_q + 1, 0), BLOCK_N),
        ),
    )
    out_base = out_ptr + b * stride_out_batch + h * stride_out_heads + (i0 * BLOCK_M).to(tl.int64) * stride_out_s_q
    out_offs = offs_m[:, None] * stride_out_s_q + offs_d[None, :]
    # q
    q_tile = tl.load(q_base + q_offs, mask=idx_m[:, None] < s_q, other=0.0)
    # m
    m = tl.full([BLOCK_M], -3.4028234663852886e+38, tl.float32)
    # l
    l = tl.zeros([BLOCK_M], tl.float32)
    # acc
    acc = tl.zeros([BLOCK_M, 128], tl.float32)
    for j0 in range(j0_end):
        # s
        k = tl.load(k_base + tl.cast(j0 * BLOCK_N, tl.int64) * stride_k_s_kv + k_offs)
        s = tl.dot(q_tile, k) * 0.12751743
        # m
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        # p
        p = tl.exp2(s - m_new[:, None])
        # l
        l = l * alpha + tl.sum(p, axis=1)
        # acc
        v = tl.load(v_base + tl.cast(j0 * BLOCK_N, tl.int64) * stride_v_s_kv + v_offs)
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        # m
        m = m_new
    for j0 in range(j0_end, j0_end_1):
        idx_n = j0 * BLOCK_N + offs_n
        # s
        k = tl.load(
            k_base + tl.cast(j0 * BLOCK_N, tl.int64) * stride_k_s_kv + k_offs,
            mask=idx_n[None, :] < s_kv,
            other=0.0,
        )
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
        v = tl.load(
            v_base + tl.cast(j0 * BLOCK_N, tl.int64) * stride_v_s_kv + v_offs,
            mask=idx_n[:, None] < s_kv,
            other=0.0,
        )
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        # m
        m = m_new
    # out
    tl.store(out_base + out_offs, (acc / l[:, None]).to(tl.float16), mask=idx_m[:, None] < s_q)


def attention(q, k, v, out, *, BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2):
    batch = q.shape[0]
    heads = q.shape[1]
    s_q = q.shape[2]
    s_kv = k.shape[2]
    grid = (triton.cdiv(s_q, BLOCK_M), heads, batch)
    attention_kernel[grid](
        q, k, v, out,
        q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1),
        v.stride(2), out.stride(0), out.stride(1), out.stride(2),
        s_q, s_kv,
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps,
        num_stages=num_stages,
    )
