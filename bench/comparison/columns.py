"""Who is measured: what Neptune makes of a subject, and what others have for it.

A column gives the forms that it has of a subject (tiles, paths), each a call; the fastest of them is its time. `Unfit`
says why it has none. Whatever is compiled is compiled when its form is asked for, beside other processes; what runs
meanwhile holds the gate.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import neptune
from bench.comparison import attention
from bench.comparison.gate import Gate, inductor
from bench.comparison.subjects import Subject
from neptune import config
from neptune.driver.device import machine_for
from neptune.errors import NeptunePerformanceWarning
from neptune.kernel import Kernel
from neptune.records.believe import Belief, best
from neptune.records.record import structure_of
from neptune.records.store import Store
from neptune.runtime.launch import parse_target
from neptune.versions import versions

Call: TypeAlias = "Callable[[], Any]"
Forms: TypeAlias = "Iterator[tuple[str, Call]]"
Tensors: TypeAlias = "Sequence[torch.Tensor]"
SCORES = 64 << 30
"""Bytes that the scores of an attention in plain torch may take: two copies in float16, one in float32."""
HAND = ((128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3))
"""Tiles of the kernel written by hand: BLOCK_M, BLOCK_N, num_warps, num_stages."""
BUDGET = "NEPTUNE_BENCH_BUDGET"
"""The environment's name of the time that a tuner may take for one subject."""
AUTOTUNED = "max-autotune-no-cudagraphs"
"""torch's mode that measures forms; the graph around a call is ours, the same for all columns."""


class Unfit(Exception):
    """Why a column has nothing for a subject."""


class Place(Protocol):
    """Where things run: torch's device, Neptune's target, and the lock of those who prepare."""

    device: str
    target: str
    gate: Gate


@dataclass(frozen=True)
class Column:
    """`forms` gives calls by name. `ours`: held to the stricter limit of errors. `families` are groups of subjects that
    it may have something for."""

    name: str
    forms: Callable[[Subject, Tensors, Place], Forms]
    families: tuple[str, ...] = ("attention", "linear", "rows", "chains")
    ours: bool = False


def shown(template: str, params: Mapping[str, int]) -> str:
    """A template with its values."""
    return " ".join((template, *(f"{n}={v}" for n, v in params.items())))


def compiled(subject: Subject, place: Place, template: str | None = None, **options: Any) -> Kernel:
    """`neptune.compile`, without remarks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        return neptune.compile(subject.program(), template, target=place.target, **options)


# --- ours ----------------------------------------------------------------------------------------


def default(subject: Subject, args: Tensors, place: Place) -> Forms:
    """`neptune.compile(expr)`, nothing given: the variant that a launch takes."""
    kernel = compiled(subject, place)
    v = kernel.chosen(**subject.sizes)
    kernel.warm(**subject.sizes)
    yield shown(v.template, v.params), partial(kernel, *args)


def tuned(subject: Subject, args: Tensors, place: Place) -> Forms:
    """The fastest record of these very sizes; with a budget, what `neptune.autotune` takes in that time, unless these
    versions have a record."""
    found, budget = recorded(subject, place.target), os.environ.get(BUDGET, "")
    if budget and (not found or found[0].weight < 1):
        workers = max(1, len(os.sched_getaffinity(0)) - 1)
        with place.gate:
            asked: dict[str, Any] = {
                "shapes": dict(subject.sizes),
                "budget": budget,
                "workers": workers,
                "target": place.target,
            }
            kernel = neptune.autotune(subject.program(), **asked, quiet=True)
        v = kernel.chosen(**subject.sizes)
        yield shown(v.template, v.params), partial(kernel, *args)
        return
    if not found:
        raise Unfit("there is no record of it")
    first = found[0]
    kernel = compiled(subject, place, first.choice.template, params=first.choice.params)
    kernel.warm(**subject.sizes)
    yield shown(first.choice.template, first.choice.params), partial(kernel, *args)


def recorded(subject: Subject, target: str) -> Sequence[Belief]:
    """Records of these sizes on this machine, the fastest first."""
    structure, machine = structure_of(subject.program()), machine_for(parse_target(target)).name
    sizes = dict(subject.sizes)
    records = Store(config.read().cache_dir).find(structure, machine)
    return best([r for r in records if dict(r.sizes) == sizes], structure, sizes, machine, versions())


# --- torch ---------------------------------------------------------------------------------------


def _dynamic_off(function: Callable[..., Any], place: Place, mode: str | None) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, backend=inductor(place.gate, mode), dynamic=False)
    return made


def sdpa(backend: SDPBackend, subject: Subject, args: Tensors, place: Place) -> Forms:
    """torch's attention by one of its libraries."""
    if lacks := sorted({"alibi", "softcap", "window"} & set(subject.row)):
        raise Unfit(f"it has no {', no '.join(lacks)}")
    q, k, v = args
    causal, grouped = bool(subject.row.get("causal")), q.shape[1] != k.shape[1]

    def run() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    yield "", run


def flex(mode: str | None, subject: Subject, args: Tensors, place: Place) -> Forms:
    """FlexAttention, compiled for these sizes alone; where there is one query, also with blocks of all keys, by which
    its decode path splits them, and without that path."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v, *slopes = args
    s_q, s_kv = q.shape[2], k.shape[2]
    score, mask = attention.mods(subject.row, s_kv - s_q, slopes[0] if slopes else None)
    grouped = q.shape[1] != k.shape[1]

    def form(blocks: Any, options: Mapping[str, Any] | None = None) -> Call:
        run = _dynamic_off(flex_attention, place, mode)
        call = partial(run, q, k, v, score_mod=score, block_mask=blocks, enable_gqa=grouped, kernel_options=options)
        call()
        return call

    with place.gate:
        blocks = attention.block_mask(mask, s_q, s_kv, place.device) if mask or s_q == 1 else None
    if s_q > 1:
        yield "", form(blocks)
        return
    for name, given, options in (
        ("decode path", None, None),
        ("decode path, blocks", blocks, None),
        ("no decode path", None, {"FORCE_USE_FLEX_ATTENTION": True}),
    ):
        try:
            call = form(given, options)
        except Exception as error:  # the others are left
            call = partial(_failing, error)
        yield name, call


def _failing(error: Exception) -> None:
    raise error


def torch_compile(mode: str | None, subject: Subject, args: Tensors, place: Place) -> Forms:
    """The expression in plain torch, compiled for these sizes alone."""
    if subject.row:
        q, k = args[:2]
        size = 8 * attention.scores(subject.row, q.shape[0], q.shape[2], k.shape[2])
        if size > SCORES:
            raise Unfit(f"its scores would take {size / 2**30:.0f} GiB")
    run = _dynamic_off(subject.eager, place, mode)
    run(*args)
    yield "", partial(run, *args)


def eager(subject: Subject, args: Tensors, place: Place) -> Forms:
    """Plain torch: cuBLAS for products."""
    yield "", partial(subject.eager, *args)


def cublas(subject: Subject, args: Tensors, place: Place) -> Forms:
    """A product by cuBLAS."""
    if not subject.name.startswith("matmul"):
        raise Unfit("it has products alone")
    yield from eager(subject, args, place)


# --- by hand, and others -------------------------------------------------------------------------


def by_hand(subject: Subject, args: Tensors, place: Place) -> Forms:
    """Triton written by hand (`bench/baselines`), the best of its tiles."""
    if subject.row:
        from bench.baselines.flash_attention_triton import Tile, flash_attention

        if {"alibi", "softcap", "window", "queries"} & set(subject.row):
            raise Unfit("none was written by hand")
        causal = bool(subject.row.get("causal"))
        for tile in HAND:
            name = f"{tile[0]}×{tile[1]} w{tile[2]} s{tile[3]}"
            yield name, partial(flash_attention, *args, causal=causal, tile=Tile(*tile))
        return
    from bench.baselines import rows_triton

    forms = rows_triton.FORMS.get(subject.name.partition(" ")[0])
    if forms is None:
        raise Unfit("none was written by hand")
    yield from forms(*args)


def helion(subject: Subject, args: Tensors, place: Place) -> Forms:
    """Helion, tuned in the time that it is given."""
    try:
        from bench.baselines import helion_kernels
    except Exception as error:
        raise Unfit(f"helion cannot be imported: {type(error).__name__}: {str(error)[:120]}") from None
    with place.gate:
        call = helion_kernels.tuned(subject.name.partition(" ")[0], subject.row, args)
    if call is None:
        raise Unfit("none was written in Helion")
    yield call


# --- without one idea ----------------------------------------------------------------------------


def without_model(subject: Subject, args: Tensors, place: Place) -> Forms:
    """The template by structure, values by what it prefers: what there is where the model predicts nothing."""
    with mock.patch("neptune.tune.choose.choose", lambda *_: None), no_cache():
        kernel = compiled(subject, place)
    kernel.warm(**subject.sizes)
    yield shown(kernel.executable.artifact.template, kernel.params), partial(kernel, *args)


def without_fusion(subject: Subject, args: Tensors, place: Place) -> Forms:
    """One kernel a stage, values by the model."""
    kernel = compiled(subject, place, "stagewise", shapes=subject.sizes)
    kernel.warm(**subject.sizes)
    yield "stagewise", partial(kernel, *args)


def without_passes(names: tuple[str, ...], subject: Subject, args: Tensors, place: Place) -> Forms:
    """The template and values of the default, lowered without these tile passes. Unfit where that changes nothing."""
    from neptune.tile import pipeline

    v = compiled(subject, place).chosen(**subject.sizes)
    kept = tuple(p for p in pipeline.PASSES if p.name not in names)
    with mock.patch.object(pipeline, "PASSES", kept), no_cache():
        kernel = compiled(subject, place, v.template, params=v.params)
    if kernel.source == v.source:
        raise Unfit("it changes nothing here")
    kernel.warm(**subject.sizes)
    yield shown(v.template, v.params), partial(kernel, *args)


def no_cache() -> Any:
    """Kernels are compiled anew, and not kept: the cache's key does not know what is patched."""
    return mock.patch.dict(os.environ, {"NEPTUNE_CACHE_DIR": config.NO_CACHE})


def _passes() -> tuple[str, ...]:
    from neptune.tile.pipeline import PASSES

    return tuple(p.name for p in PASSES)


ATTENTION = ("attention",)
COLUMNS: Mapping[str, Column] = {
    c.name: c
    for c in (
        Column("default", default, ours=True),
        Column("tuned", tuned, ours=True),
        Column("cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION), ATTENTION),
        Column("FlashAttention-2", partial(sdpa, SDPBackend.FLASH_ATTENTION), ATTENTION),
        Column("FlexAttention", partial(flex, None), ATTENTION),
        Column("torch", eager, ("linear", "rows", "chains")),
        Column("torch.compile", partial(torch_compile, None)),
        Column("FlexAttention, max-autotune", partial(flex, AUTOTUNED), ATTENTION),
        Column("torch.compile, max-autotune", partial(torch_compile, AUTOTUNED)),
        Column("cuBLAS", cublas, ("linear",)),
        Column("by hand", by_hand, ("attention", "linear", "rows")),
        Column("Helion", helion, ("attention", "linear", "rows")),
        Column("no model", without_model, ours=True),
        Column("no fusion", without_fusion, ours=True),
        Column("no passes", partial(without_passes, _passes()), ours=True),
        *(Column(f"no pass {n}", partial(without_passes, (n,)), ours=True) for n in _passes()),
    )
}
