"""The constants of the cost model, found on measured kernels of an H200; `bench.cost` judges them, and fits others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What is fitted. Cycles, instructions of a warp, shares; exponents of p-norms."""

    product_loop: float = 105.0
    plain_loop: float = 20.0
    per_hmma: float = 1.75
    without_products: float = 2.3
    hmma: float = 0.62
    issue: float = 1.3
    special: float = 4.8
    overlap_groups: float = 0.38
    turns: float = 0.62
    iteration: float = 35.0
    fold: float = 58.0
    fold_across: float = 79.0
    latency: float = 680.0
    hidden: float = 2.5
    program: float = 1140.0
    norm: float = 1.65
    alone: float = 3.3
    memory_norm: float = 3.2
    memory: float = 0.94
    first: float = 5.7
    further: float = 3.3
    spilled: float = 5.0


FITTED = Constants()
