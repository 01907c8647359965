"""The hardware that the form is made for: warpgroups of sm_90 and their products, and what one processor has.

Rates and sizes are those of the table of machines (`neptune.tune.model.machine`).
"""

from __future__ import annotations

from neptune.tune.model.machine import BY_ARCH

TARGET = "cuda:90"
WARP, WARPS = 32, 4
"""Threads of a warp, and warps of a warpgroup: a producer is one warp, a consumer one warpgroup."""
THREADS = WARP * WARPS
"""Threads of a consumer."""
ROWS, COLUMNS = 64, 256
"""The rows of a product of one warpgroup, which are those of a consumer, and its most columns."""
LANES_PER_ROW = 4
"""Threads that hold a row of a product's result."""
SHARED_LIMIT = BY_ARCH["sm_90"].shared_limit
"""Bytes of shared memory that a program can have."""
PROGRAMS = BY_ARCH["sm_90"].processors
"""Programs that run at once, one on each multiprocessor."""
FLOPS, EXPONENTIALS = BY_ARCH["sm_90"].matrix["float16"], BY_ARCH["sm_90"].special
"""The work of a multiprocessor in a cycle: operations of 16-bit products, and special functions."""
LATENCY = 1500
"""Cycles from asking for a tile until it is there."""
