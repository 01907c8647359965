"""Rows of `bench.hopper` beside its default: the same kernel with levers settled by hand, each, and the best of them.

These are what the cost model of forms is held against (`bench.hopper_cost`): one that is often beaten here is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import torch

import neptune
from bench.hopper_timing import TARGET, Planned, Row, heads_of, timed
from neptune.ops.attention import attention
from neptune.ops.linear import matmul

Levers = tuple[tuple[str, Any], ...]
Tiles = tuple[tuple[str, int], ...]
TILES = ((2, 256, 64, 3), (2, 256, 32, 6), (2, 128, 64, 5), (2, 128, 128, 3), (3, 128, 64, 4), (2, 64, 128, 4))
"""Consumers, columns and depth of a tile, stages."""
PRODUCTS: Mapping[str, tuple[Tiles, Levers]] = {
    f"{64 * w}×{n}×{k} s{s}": (
        (("BLOCK_M", 64), ("BLOCK_N", n), ("BLOCK_K", k)),
        (("consumers", w), ("stages", s), ("persistent", "stride")),
    )
    for w, n, k, s in TILES
}
"""Rows × columns × depth of a tile, and stages."""
ATTENTION = ((2, 128, 2), (3, 128, 2), (2, 64, 3), (3, 64, 3), (2, 64, 2))
"""Consumers, keys of a tile, stages."""
ORDERS = {True: "table", False: "stride"}


@cache
def product_of(name: str) -> neptune.Kernel:
    """A product in its asynchronous form with these levers; one kernel serves all sizes."""
    tiles, levers = PRODUCTS[name]
    return neptune.compile(
        matmul(), "matmul", target=TARGET, form="asynchronous", params={**dict(tiles), **dict(levers)}
    )


@cache
def attention_of(depth: int, causal: bool, consumers: int, keys: int, stages: int) -> neptune.Kernel:
    """Attention in its asynchronous form with these levers; one kernel serves all lengths."""
    levers = {"consumers": consumers, "stages": stages, "persistent": ORDERS[causal]}
    params = {"BLOCK_M": 64, "BLOCK_N": keys, **levers}
    program = attention(batch=1, depth=depth, causal=causal)
    return neptune.compile(program, "flash_attention", target=TARGET, form="asynchronous", params=params)


def _best(calls: Mapping[str, Callable[[], Callable[[], object]]], work: float, rounds: int) -> Row:
    forms: dict[str, Callable[[], object]] = {}
    refused: dict[str, str] = {}
    for name, make in calls.items():
        try:
            forms[name] = make()
        except neptune.NeptuneError as error:
            refused[name] = str(error)[:120]
    made = timed(forms, work, rounds)
    best = max(forms, key=lambda name: made[name])
    return {**made, "best": best, "refused": refused}


def best_product(m: int, n: int, k: int, rounds: int) -> Row:
    """TFLOP/s of a product with each choice of levers."""
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (k, n)))
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)

    def call(name: str) -> Callable[[], object]:
        return partial(product_of(name), a, b, out=out)

    return _best({name: partial(call, name) for name in PRODUCTS}, 2 * m * n * k, rounds)


def best_attention(depth: int, length: int, causal: bool, rounds: int) -> Row:
    """TFLOP/s of attention with each choice of levers."""
    torch.manual_seed(0)
    heads = heads_of(depth, length)
    qkv = [torch.randn(1, heads, length, depth, device="cuda", dtype=torch.float16) for _ in range(3)]
    out = torch.empty_like(qkv[0])

    def call(of: tuple[int, int, int]) -> Callable[[], object]:
        return partial(attention_of(depth, causal, *of), *qkv, out=out)

    calls = {f"{64 * of[0]}×{of[1]} s{of[2]}": partial(call, of) for of in ATTENTION}
    return _best(calls, 4 * heads * length**2 * depth / (2 if causal else 1), rounds)


def rows(shapes: Iterator[tuple[int, int, int]], rounds: int) -> Iterator[Planned]:
    """Products of all shapes, then short attention, where levers differ most."""
    of_products = tuple(partial(product_of, name) for name in PRODUCTS)
    for shape in shapes:
        name = f"tuned product {' '.join(map(str, shape))}"
        yield Planned(name, partial(best_product, *shape, rounds), of_products)
    for depth, length, causal in product((64, 128), (512, 1024, 2048, 4096), (True, False)):
        kernels = tuple(partial(attention_of, depth, causal, *of) for of in ATTENTION)
        name = f"tuned {depth} {length} {'causal' if causal else 'full'}"
        yield Planned(name, partial(best_attention, depth, length, causal, rounds), kernels)
