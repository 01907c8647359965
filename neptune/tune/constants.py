"""The constants of the cost model, found on measured kernels of an H200; `bench.cost` judges them, and fits others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What is fitted. Cycles, instructions of a warp, shares; exponents of p-norms."""

    product_loop: float = 125.0
    plain_loop: float = 69.0
    per_hmma: float = 1.17
    without_products: float = 1.76
    hmma: float = 0.336
    issue: float = 1.22
    special: float = 7.06
    overlap_groups: float = 0.21
    turns: float = 0.48
    iteration: float = 17.0
    fold: float = 36.0
    fold_across: float = 37.0
    latency: float = 640.0
    hidden: float = 1.49
    hidden_synchronous: float = 0.374
    exchange: float = 730.0
    program: float = 1310.0
    norm: float = 1.69
    alone: float = 5.5
    narrow: float = 120.0
    memory_norm: float = 4.2
    memory: float = 0.94
    first: float = 5.7
    further: float = 3.16
    spilled: float = 9.0


FITTED = Constants()
