"""Softmax over rows."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "cols"])
def softmax_kernel(
    x_ptr,
    y_ptr,
    stride_x_rows,
    stride_y_rows,
    rows,
    cols,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    i0 = tl.program_id(0)
    offs_c = tl.arange(0, BLOCK_C)
    offs_r = tl.arange(0, BLOCK_R)
    x_base = x_ptr + (i0 * BLOCK_R).to(tl.int64) * stride_x_rows
    x_offs = offs_r[:, None] * stride_x_rows + offs_c[None, :]
    idx_r = i0 * BLOCK_R + offs_r
    y_base = y_ptr + (i0 * BLOCK_R).to(tl.int64) * stride_y_rows
    y_offs = offs_r[:, None] * stride_y_rows + offs_c[None, :]
    # x
    x = tl.load(x_base + x_offs, mask=(idx_r[:, None] < rows) & (offs_c[None, :] < cols), other=0.0)
    xf = tl.where(offs_c[None, :] < cols, x.to(tl.float32), float("-inf"))
    # top
    top = tl.max(xf, axis=1)
    # e
    e = tl.exp2((xf - top[:, None]) * 1.442695)
    # total
    total = tl.sum(e, axis=1)
    # y
    tl.store(
        y_base + y_offs,
        (e / total[:, None]).to(tl.float16),
        mask=(idx_r[:, None] < rows) & (offs_c[None, :] < cols),
    )


def softmax(x, y, *, BLOCK_R=4, BLOCK_C=None, num_warps=4, num_stages=2):
    rows = x.shape[0]
    cols = x.shape[1]
    if BLOCK_C is None:
        BLOCK_C = triton.next_power_of_2(cols)
    grid = (triton.cdiv(rows, BLOCK_R),)
    softmax_kernel[grid](
        x, y,
        x.stride(0), y.stride(0),
        rows, cols,
        BLOCK_R=BLOCK_R, BLOCK_C=BLOCK_C,
        num_warps=num_warps,
        num_stages=num_stages,
    )
