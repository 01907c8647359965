"""Kernels that keep one part of a GPU busy each, in plain Triton; `neptune.autotune.calibrate` times them.

Each but `nothing` and `read` also writes, for every program, on which processor it ran, and that processor's cycles and
the nanoseconds before and after its loop: rates per cycle follow whatever the clock does, and the clock itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def clock():
    """Cycles of this processor; not moved across other assembly with effects."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def timer():
    """Nanoseconds."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def processor():
    """The number of this processor."""
    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def took(spent, cycles, ns):
    """Write a row of `neptune.autotune.calibrate.SPENT`: what was read before a loop, and is now."""
    at = spent + 5 * tl.program_id(0)
    tl.store(at, processor().to(tl.int64))
    tl.store(at + 1, cycles)
    tl.store(at + 2, clock())
    tl.store(at + 3, ns)
    tl.store(at + 4, timer())


@triton.jit
def nothing():
    """A launch."""


@triton.jit
def read(x, out, steps, BLOCK: tl.constexpr):
    """Read steps blocks of float32 that no other program reads, from memory."""
    at = tl.program_id(0).to(tl.int64) * steps * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        total += tl.load(x + at + step * BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def read_again(x, out, spent, length, steps, BLOCK: tl.constexpr):
    """Read steps blocks of a buffer that L2 holds, round and round, each program from another place; past L1."""
    total = tl.zeros([BLOCK], tl.float32)
    start = tl.program_id(0).to(tl.int64) * 977 * BLOCK
    cycles, ns = clock(), timer()
    for step in range(steps):
        at = tl.multiple_of((start + step * BLOCK) % length, BLOCK)
        total += tl.load(x + at + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total, 0))
    took(spent, cycles, ns)


@triton.jit
def exponentials(out, spent, steps, BLOCK: tl.constexpr):
    """steps times BLOCK exponentials, each on what the one before has made."""
    x = tl.arange(0, BLOCK).to(tl.float32) / BLOCK
    cycles, ns = clock(), timer()
    for _ in range(steps):
        x = tl.math.exp2(-x)
    tl.store(out + tl.program_id(0), tl.sum(x, 0))
    took(spent, cycles, ns)


@triton.jit
def multiply(x, y, out, spent, steps, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr):
    """steps products of the same two tiles, added up in the dtype of `out`."""
    i, j, k = tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, DEPTH)
    a = tl.load(x + i[:, None] * DEPTH + k[None, :])
    b = tl.load(y + j[None, :] * DEPTH + k[:, None])
    total = tl.zeros([ROWS, COLS], out.dtype.element_ty)
    cycles, ns = clock(), timer()
    for _ in range(steps):
        total = tl.dot(a, b, total, input_precision="tf32", out_dtype=out.dtype.element_ty)
    tl.store(out + tl.program_id(0).to(tl.int64) * ROWS * COLS + i[:, None] * COLS + j[None, :], total)
    took(spent, cycles, ns)
