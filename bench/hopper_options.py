"""Rows of `bench.hopper`: options of attention, and products with what is fused to them.

Each option is measured beside the same kernel without it, its Triton form, and what torch has for it. A mask's rate is
per tile visited, counted by brute force for tiles of the form's own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

import neptune
from bench.hopper_timing import TARGET, Forms, Planned, Row, against, heads_of, timed, verdict
from neptune.frontend.builder import placeholder, var
from neptune.ir.program import Program
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.ops.cross_entropy import linear_cross_entropy
from neptune.ops.linear import gated_linear, linear, matmul
from neptune.ops.norm import rms_norm_linear

Tensor = torch.Tensor
DOCUMENT, WINDOW, PREFIX, CAP = 1024, 1024, 1024, 30.0
FORMS = ("auto", "triton")
"""What a user gets on such a GPU, and tiles alone."""
Sees = Callable[[Any, Any], Any]


def _causal(i: Any, j: Any) -> Any:
    return j <= i


@dataclass(frozen=True)
class Option:
    """Attention with an option: which keys a query sees, what is added to its scores, and what else it reads."""

    made: Callable[[], Mapping[str, Any]]
    sees: Sees = _causal
    score: Callable[..., Any] | None = None
    more: Callable[[int, int], Sequence[Tensor]] = lambda heads, length: ()
    by_flex: bool = True
    goal: float = 0.93


def _segments() -> Mapping[str, Any]:
    ends = (placeholder((var("batch"), var("s_q")), "int32", name) for name in ("start", "end"))
    return {"causal": True, "mask": masks.segments(*ends)}


def _documents(_heads: int, length: int) -> list[Tensor]:
    start = torch.arange(length, device="cuda", dtype=torch.int32) // DOCUMENT * DOCUMENT
    return [start[None], (start + DOCUMENT)[None].contiguous()]


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "alibi": Option(
            lambda: {"causal": True, "alibi": True},
            score=lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (j - i),
            more=lambda heads, _: [torch.rand(heads, device="cuda")],
        ),
        "window": Option(lambda: {"causal": True, "window": WINDOW}, sees=lambda i, j: (j <= i) & (i - j < WINDOW)),
        "sinks": Option(
            lambda: {"causal": True, "sinks": True},
            more=lambda heads, _: [torch.randn(heads, device="cuda")],
            by_flex=False,
        ),
        "prefix": Option(
            lambda: {"mask": masks.or_(masks.causal(), masks.prefix(PREFIX))},
            sees=lambda i, j: (j <= i) | (j < PREFIX),
        ),
        "documents": Option(_segments, sees=lambda i, j: (j <= i) & (j // DOCUMENT == i // DOCUMENT), more=_documents),
    }
)


@cache
def compiled(kind: str, depth: int, form: str, length: int, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    """A kernel of attention: `kind` is an option's, "full" or "causal"."""
    of = OPTIONS[kind].made() if kind in OPTIONS else {"causal": kind == "causal"}
    program = attention(batch=1, depth=depth, **{**of, **dict(options)})
    known = {s.name for s in program.scalars}
    sizes = {"heads": heads_of(depth, length), "s_q": length, "s_kv": length}
    shapes = {n: x for n, x in sizes.items() if n in known}
    return neptune.compile(program, "flash_attention", target=TARGET, shapes=shapes, form=form)


def visited(sees: Sees, length: int, rows: int, columns: int) -> int:
    """Tiles in which some query sees some key.

    >>> visited(_causal, 256, 64, 128)
    6
    """
    across = -(-length // columns)
    keys = torch.arange(across * columns)
    count = 0
    for first in range(0, length, rows):
        seen = sees(torch.arange(first, min(first + rows, length))[:, None], keys) & (keys < length)
        count += int(seen.view(-1, across, columns).any(2).any(0).sum())
    return count


def tile(kernel: neptune.Kernel) -> tuple[int, int]:
    """Rows of a group that share keys, and keys of a tile, in the form that runs."""
    said = verdict(kernel)
    of = said["levers"] if said["accepted"] else kernel.params
    return of["BLOCK_M"] * (of.get("consumers", 1) if said["accepted"] else 1), of["BLOCK_N"]


def _inputs(depth: int, length: int, kv_heads: int | None = None) -> list[Tensor]:
    torch.manual_seed(0)
    heads = heads_of(depth, length)
    counts = (heads, kv_heads or heads, kv_heads or heads)
    return [torch.randn(1, n, length, depth, device="cuda", dtype=torch.float16) for n in counts]


def _flex(of: Option, qkv: list[Tensor], more: Sequence[Tensor]) -> Callable[[], object]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = qkv[0].shape[2]
    torch._dynamo.reset()
    call: Any = torch.compile(flex_attention)
    mask = create_block_mask(lambda b, h, i, j: of.sees(i, j), None, None, length, length)
    score = None if of.score is None else of.score(*more)
    return lambda: call(*qkv, score_mod=score, block_mask=mask)


def masked(name: str, depth: int, length: int, rounds: int) -> Row:
    """Rates of tiles visited with an option, beside causal attention, the Triton form and FlexAttention."""
    of, qkv = OPTIONS[name], _inputs(depth, length)
    more = of.more(qkv[0].shape[1], length)
    ours, causal, tiles = (
        compiled(kind, depth, form, length) for kind, form in ((name, "auto"), ("causal", "auto"), (name, "triton"))
    )
    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(*qkv, *more),
        "causal": lambda: causal(*qkv),
        "triton": lambda: tiles(*qkv, *more),
    }
    if of.by_flex:
        forms["flex"] = _flex(of, qkv, more)
    made = timed(forms, 1.0, rounds)
    (rows, keys), (of_rows, of_keys) = tile(ours), tile(causal)
    # Tiles of the same size, where the kernels' own are not.
    share = visited(of.sees, length, rows, keys) / visited(_causal, length, of_rows, of_keys)
    share *= rows * keys / (of_rows * of_keys)
    per_tile = share * made["ours"] / made["causal"]
    speedup = against(made, "flex", 1.5) if of.by_flex else {}
    of_causal = {"per tile of causal": per_tile, "goal per tile": of.goal}
    return {**made, **of_causal, **speedup, "correct": _near(forms), **verdict(ours)}


def _near(forms: Forms) -> bool:
    """Whether our result is that of the Triton form, within a few roundings."""
    a, b = (forms[name]() for name in ("ours", "triton"))
    assert isinstance(a, Tensor) and isinstance(b, Tensor)
    return bool((a.double() - b.double()).abs().max() <= 4e-3 * b.double().abs().max())


def with_more(kind: str, depth: int, length: int, rounds: int, goal: float, **options: Any) -> Row:
    """The rate with options as a share of the same kernel without, on the same queries."""
    grouped = options.get("kv_heads")
    heads = heads_of(depth, length)
    if grouped:
        options = _grouped(depth, length)
    qkv = _inputs(depth, length, options.get("kv_heads"))
    bare = _inputs(depth, length)
    kernels = {
        "ours": compiled(kind, depth, "auto", length, tuple(options.items())),
        "triton": compiled(kind, depth, "triton", length, tuple(options.items())),
    }
    without = compiled(kind, depth, "auto", length)
    forms: dict[str, Callable[[], object]] = {n: partial(k, *qkv) for n, k in kernels.items()}
    forms["without"] = lambda: without(*bare)
    made = timed(forms, 4 * heads * length**2 * depth / (2 if kind == "causal" else 1), rounds)
    return {**made, **against(made, "without", goal), **verdict(kernels["ours"])}


@dataclass(frozen=True)
class Fused:
    """A product with what is fused to it: x[m, k] and weights of `shapes`, and what torch.compile gets."""

    make: Callable[[], Program]
    shapes: Callable[[int, int], Sequence[tuple[int, ...]]]
    torchs: Callable[..., Tensor]
    flops: int = 2
    residual: bool = field(default=False)


def _norm(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], g, 1e-6) @ w


FUSED: Mapping[str, Fused] = MappingProxyType(
    {
        "gelu, bias": Fused(
            lambda: linear(activation="gelu", bias=True),
            lambda n, k: [(n, k), (n,)],
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ),
        "gated": Fused(gated_linear, lambda n, k: [(k, n), (k, n)], lambda x, w, u: F.silu(x @ w) * (x @ u), 4),
        "residual": Fused(
            lambda: linear(residual=True),
            lambda n, k: [(n, k)],
            lambda x, w, r: F.linear(x, w) + r,
            residual=True,
        ),
        "norm": Fused(rms_norm_linear, lambda n, k: [(k,), (k, n)], _norm),
    }
)


@cache
def fused_kernel(name: str, m: int, n: int, k: int, form: str | None) -> neptune.Kernel:
    """A product with what is fused to it, as a user gets it; `form` as in compile()."""
    return neptune.compile(FUSED[name].make(), target=TARGET, shapes={"m": m, "n": n, "k": k}, form=form)


@cache
def logits_kernel(rows: int, words: int, depth: int, form: str | None) -> neptune.Kernel:
    """Linear → cross-entropy; `form` as in compile()."""
    shapes = {"rows": rows, "cols": words}
    return neptune.compile(linear_cross_entropy(depth=depth), target=TARGET, shapes=shapes, form=form)


@cache
def product_kernel(m: int, n: int, k: int, form: str, trans_b: bool = False) -> neptune.Kernel:
    """A plain product; `form` as in compile()."""
    return neptune.compile(matmul(trans_b=trans_b), target=TARGET, shapes={"m": m, "n": n, "k": k}, form=form)


def fused(name: str, m: int, n: int, k: int, rounds: int) -> Row:
    """TFLOP/s of a product with what is fused to it, beside torch.compile and the bare product by cuBLAS."""
    of = FUSED[name]
    shapes = [(m, k), *of.shapes(n, k), *([(m, n)] if of.residual else [])]
    args = [torch.randn(*s, device="cuda", dtype=torch.float16) / s[-1] ** 0.25 for s in shapes]
    ours, tiles = (fused_kernel(name, m, n, k, form) for form in FORMS)
    torch._dynamo.reset()
    best: Any = torch.compile(of.torchs, mode="max-autotune-no-cudagraphs")
    x, w = args[0], torch.randn(k, n, device="cuda", dtype=torch.float16)
    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(*args),
        "triton": lambda: tiles(*args),
        "torch.compile": lambda: best(*args),
        "bare": lambda: torch.mm(x, w),
    }
    made = timed(forms, of.flops * m * n * k, rounds)
    return {**made, **against(made, "torch.compile", 1.25), "correct": _near(forms), **verdict(ours)}


def cross_entropy(rows: int, words: int, depth: int, rounds: int) -> Row:
    """TFLOP/s of linear → cross-entropy, beside the bare product, which stores the logits."""
    ours, tiles = (logits_kernel(rows, words, depth, form) for form in FORMS)
    x, w = (torch.randn(n, depth, device="cuda", dtype=torch.float16) / depth**0.25 for n in (rows, words))
    t = torch.randint(0, words, (rows,), device="cuda")
    bare, by_cublas = product_kernel(rows, words, depth, "auto", trans_b=True), w.mT
    forms: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(x, w, t),
        "triton": lambda: tiles(x, w, t),
        "our product": lambda: bare(x, w),
        "cublas": lambda: torch.mm(x, by_cublas),
    }
    made = timed(forms, 2 * rows * words * depth, rounds)
    return {**made, **against(made, "cublas", 0.9), "correct": _near(forms), **verdict(ours)}


def rows(rounds: int) -> Iterator[Planned]:
    """All rows, the most telling first."""
    length = 4096
    for name in OPTIONS:
        kernels = (partial(compiled, name, 128, form, length) for form in FORMS)
        yield Planned(f"option {name} 128 {length}", partial(masked, name, 128, length, rounds), tuple(kernels))
    caps = {(256, "full"): 0.95, (256, "causal"): 0.95, (128, "full"): 0.93, (128, "causal"): 0.87}
    for depth, kind in ((128, "causal"), (64, "causal"), (256, "causal"), (128, "full"), (64, "full"), (256, "full")):
        goal = caps.get((depth, kind), 0.74)
        made = partial(with_more, kind, depth, length, rounds, goal, softcap=CAP)
        yield Planned(f"softcap {depth} {length} {kind}", made, _with_and_without(kind, depth, length, softcap=CAP))
    for depth in (128, 64, 256):
        made = partial(with_more, "causal", depth, length, rounds, 0.98, lse=True)
        yield Planned(f"lse {depth} {length}", made, _with_and_without("causal", depth, length, lse=True))
        made = partial(with_more, "causal", depth, length, rounds, 0.98, kv_heads=True)
        grouped = _with_and_without("causal", depth, length, **_grouped(depth, length))
        yield Planned(f"grouped {depth} {length}", made, grouped)


def _grouped(depth: int, length: int) -> dict[str, int]:
    heads = heads_of(depth, length)
    return {"heads": heads, "kv_heads": heads // 4}


def _with_and_without(kind: str, depth: int, length: int, **options: Any) -> tuple[Callable[[], neptune.Kernel], ...]:
    of = tuple(options.items())
    kernels = [partial(compiled, kind, depth, form, length, of) for form in FORMS]
    return (*kernels, partial(compiled, kind, depth, "auto", length))


def rows_of_products(rounds: int) -> Iterator[Planned]:
    """Rows of products with something fused, the most telling first."""
    for depth in (4096, 256):
        sizes = (8192, 32768, depth)
        kernels = (
            *(partial(logits_kernel, *sizes, form) for form in FORMS),
            partial(product_kernel, *sizes, "auto", True),
        )
        yield Planned(f"cross-entropy {' '.join(map(str, sizes))}", partial(cross_entropy, *sizes, rounds), kernels)
    for sizes in ((8192, 4096, 4096), (2048, 14336, 4096)):
        for name in FUSED:
            of = tuple(partial(fused_kernel, name, *sizes, form) for form in FORMS)
            yield Planned(f"fused {name} {' '.join(map(str, sizes))}", partial(fused, name, *sizes, rounds), of)
