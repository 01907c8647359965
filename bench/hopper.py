"""Hopper: generated asynchronous kernels beside their Triton form, the hand-written one, cuDNN and cuBLAS.

    python -m bench.hopper [--json FILE] [--seconds 900] [--each 120] [--rounds 5]
                           [--prepare 8] [--parts first,attention,products,options,fused,tuned,errors]
                           [--depths 64,128,256] [--lengths 1024,4096,16384]

Attention: 16384 tokens a call, 2048 columns of heads (32 × 64, 16 × 128, 8 × 256), float16. Errors are against
float64, relative to the largest element, at lengths that are no multiple of a tile; rates are medians of rounds in
which the forms take turns, with the caches cleared before each call, and their quartiles; plain products, some of a
few microseconds, are replayed from graphs. `ours` is what a call runs with form="auto"; `accepted` says whether that is
the asynchronous form, `faults` why not; `lost` that a goal is missed beyond the noise. The rows that tell most come
first. Every row is written when it is there; no row starts after `--seconds`, and one that takes longer than `--each`
ends the process, since a kernel that hangs never returns. Nothing here needs TVM.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

import neptune
from bench import hopper_options, hopper_tuned
from bench.baselines import flash_attention_gluon as gluon_form
from bench.hopper_prepare import prepare
from bench.hopper_timing import TARGET, Planned, against, at_most, heads_of, timed, verdict
from bench.record import as_json
from neptune.ops.attention import attention

PARTS = ("first", "attention", "products", "options", "fused", "tuned", "errors")
FORMS = hopper_options.FORMS
FIRST = ((128, 4096, True), (64, 4096, True), (256, 4096, True), (128, 4096, False))
"""Attention that tells most: depth, length, causal."""
PRODUCTS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096), (4096, 14336, 4096), (2048, 4096, 14336),
    (512, 4096, 4096), (128, 4096, 4096), (256, 256, 16384),
)  # fmt: skip
"""(m, n, k): square, tall, wide and skinny."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--each", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=_words, default=PARTS)
    parser.add_argument("--depths", type=_numbers, default=(64, 128, 256))
    parser.add_argument("--lengths", type=_numbers, default=(512, 1024, 2048, 4096, 8192, 16384, 32768))
    parser.add_argument("--prepare", type=int, default=0, metavar="PROCESSES", help="compile all kernels before")
    options = parser.parse_args(argv)
    rows: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    planned = list(_rows(options))
    if options.prepare:
        rows["prepared"] = prepare((k for row in planned for k in row.kernels), options.prepare)
    measured(planned, rows, options)
    if options.json:
        options.json.write_text(as_json(rows))


def measured(of: Iterable[Planned], rows: dict[str, Any], options: argparse.Namespace) -> None:
    """Add row after row, each once, until the time is over; a row that fails says why, and the next is made."""
    end = time.monotonic() + options.seconds
    for row in of:
        name = row.name
        if name in rows:
            continue
        if time.monotonic() >= end:
            print(f"{name} and what follows: not measured, the time is over", flush=True)
            return
        with at_most(options.each, name):
            try:
                rows[name] = row.made()
            except Exception as error:
                rows[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
        print(name, {k: v for k, v in rows[name].items() if k not in ("samples", "quartiles")}, flush=True)
        if options.json:
            options.json.write_text(as_json(rows))


def _rows(options: argparse.Namespace) -> Iterator[Planned]:
    for part in options.parts:
        yield from _part(part, options)


def _part(part: str, options: argparse.Namespace) -> Iterator[Planned]:
    both, rounds = (False, True), options.rounds
    if part == "first":
        for depth, length, causal in FIRST:
            yield _attention(depth, length, causal, rounds)
        yield _product(PRODUCTS[0], rounds)
        for of in (hopper_options.rows(rounds), hopper_options.rows_of_products(rounds)):
            yield next(of)
    if part == "options":
        yield from hopper_options.rows(rounds)
    if part == "fused":
        yield from hopper_options.rows_of_products(rounds)
    if part == "tuned":
        yield from hopper_tuned.rows(iter(PRODUCTS), rounds)
    if part == "errors":
        for depth, causal, length in itertools.product(options.depths, both, (130, 512, 1000)):
            name = _name("error", depth, length, causal)
            yield Planned(
                name, partial(error, depth, length, causal), (partial(generated, depth, causal, "auto", 4096, True),)
            )
    if part == "attention":
        for depth, length, causal in itertools.product(options.depths, options.lengths, both):
            yield _attention(depth, length, causal, rounds)
    if part == "products":
        for shape in PRODUCTS:
            yield _product(shape, rounds)


def _product(shape: tuple[int, int, int], rounds: int) -> Planned:
    kernels = tuple(partial(hopper_options.product_kernel, *shape, form) for form in FORMS)
    return Planned(f"product {' '.join(map(str, shape))}", partial(product_rates, *shape, rounds), kernels)


def _attention(depth: int, length: int, causal: bool, rounds: int) -> Planned:
    kernels = tuple(partial(generated, depth, causal, form, length) for form in FORMS)
    return Planned(_name("rate", depth, length, causal), partial(rates, depth, length, causal, rounds), kernels)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@functools.cache
def generated(depth: int, causal: bool, form: str, length: int, lse: bool = False) -> neptune.Kernel:
    """Attention as a user gets it who says the sizes; `form` as in compile()."""
    program = attention(batch=1, depth=depth, causal=causal, lse=lse)
    shapes = {"heads": heads_of(depth, length), "s_q": length, "s_kv": length}
    return neptune.compile(program, target=TARGET, shapes=shapes, form=form)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _name(kind: str, depth: int, length: int, causal: bool) -> str:
    return f"{kind} {depth} {length} {'causal' if causal else 'full'}"


def _inputs(depth: int, length: int, heads: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(heads, length, depth, device="cuda", dtype=torch.float16) for _ in range(3)]


def error(depth: int, length: int, causal: bool) -> dict[str, Any]:
    """The largest error relative to the largest element, of results and log-sum-exps: generated, and by hand."""
    q, k, v = _inputs(depth, length, 3)
    found, lse, launch = gluon_form.prepared(q, k, v, causal=causal, return_lse=True)
    launch()
    ours = generated(depth, causal, "auto", 4096, lse=True)
    o, sums = ours(q[None], k[None], v[None])
    scores = q.double() @ k.double().mT / depth**0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    exact, total = scores.softmax(-1) @ v.double(), scores.logsumexp(-1)

    def off(x: torch.Tensor) -> float:
        return float((x.double() - exact).abs().max() / exact.abs().max())

    return {
        "ours": off(o[0]),
        "ours lse": float((sums[0].double() - total).abs().max()),
        "by hand": off(found),
        "by hand lse": float((lse.double() - total).abs().max()),
        **verdict(ours),
    }


def rates(depth: int, length: int, causal: bool, rounds: int) -> dict[str, Any]:
    """TFLOP/s of each form: the median over the rounds, and all samples."""
    heads = heads_of(depth, length)
    q, k, v = _inputs(depth, length, heads)
    _, _, by_hand = gluon_form.prepared(q, k, v, causal=causal)
    ours, tiles = (generated(depth, causal, form, length) for form in FORMS)
    out = torch.empty_like(q)[None]

    def by_torch(backend: SDPBackend) -> object:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)

    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(q[None], k[None], v[None], out=out),
        "triton": lambda: tiles(q[None], k[None], v[None], out=out),
        "by hand": by_hand,
        "cudnn": partial(by_torch, SDPBackend.CUDNN_ATTENTION),
        "flash 2": partial(by_torch, SDPBackend.FLASH_ATTENTION),
    }
    made = timed(forms, 4 * heads * length**2 * depth / (2 if causal else 1), rounds)
    return {**made, **against(made, "cudnn", 1.0 if length >= 4096 else 0.97), **verdict(ours)}


def product_rates(m: int, n: int, k: int, rounds: int) -> dict[str, Any]:
    """TFLOP/s of a plain product."""
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (k, n)))
    ours, tiles = (hopper_options.product_kernel(m, n, k, form) for form in FORMS)
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(a, b, out=out),
        "triton": lambda: tiles(a, b, out=out),
        "cublas": lambda: torch.mm(a, b, out=out),
    }
    made = timed(forms, 2 * m * n * k, rounds, graphs=True)
    ours(a, b, out=out)
    exact = a.double() @ b.double()
    off = float((out.double() - exact).abs().max() / exact.abs().max())
    return {**made, **against(made, "cublas", 0.95), "error": off, **verdict(ours)}


if __name__ == "__main__":
    main()
