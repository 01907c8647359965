"""Attention on tensors, from options to a kernel: what the plain operators and those with mods share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from neptune.functional.kernels import Structure, program_of, run, structure
from neptune.functional.mods import HELD, Mod
from neptune.functional.tensors import FLOATS, check_size, dense, dtype_of, refuse, shape_of
from neptune.ir.program import Program
from neptune.ops.attention import attention as expression
from neptune.ops.masks import LONGEST

NAME = "attention"
Tensor = torch.Tensor


@dataclass(frozen=True)
class Options:
    """The options of a call that are no tensors."""

    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    enable_gqa: bool = False
    lse: bool = False
    max_scores: bool = False

    @property
    def several(self) -> int:
        """How many results there are, 0 for o alone."""
        return (1 + self.lse + self.max_scores) * (self.lse or self.max_scores)


@dataclass(frozen=True, eq=False)
class Mods:
    """The traced mods of a call, and what tells them from others."""

    score: Mod | None = None
    mask: Mod | None = None

    @property
    def given(self) -> list[Mod]:
        """Those that there are, in the order of their tensors."""
        return [m for m in (self.score, self.mask) if m is not None]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Their expressions, with names and dtypes of the tensors that they read: of options of a structure."""
        return tuple((m.kind, f"{m.text} {[(t.name, t.dtype) for t in m.placeholders]}") for m in self.given)


NONE = Mods()


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    mods: Mods = NONE,
    captured: Sequence[Tensor] = (),
) -> Any:
    """The result of attention, or (o, lse). Raises ShapeError for tensors that do not fit."""
    dtype = dtype_of(NAME, (*FLOATS, torch.float64), q=q, k=k, v=v)
    if dtype == "float64" and q.device.type == "cuda":
        refuse(
            NAME, "kernels for a GPU multiply in 16 and 32 bits, and float64 would be slow", hint=".cpu(), or .float()"
        )
    shape, given_q = q.shape, q
    if q.dim() < 2 or k.dim() != q.dim() or v.dim() != q.dim():
        shapes = f"q is {shape_of(q)}, k {shape_of(k)}, v {shape_of(v)}"
        refuse(NAME, shapes, legal=["[batch, heads, length, depth], of one number of dimensions"])
    for name, t in (("k", k), ("v", v)):
        # Flattened, [2, 3] batches would pass for [3, 2].
        if q.dim() > 4 and t.shape[:-3] not in (q.shape[:-3], (1,) * (q.dim() - 3)):
            refuse(NAME, f"q is {shape_of(q)}, {name} {shape_of(t)}", legal=["the same leading dimensions, or all 1"])
    q, k, v = _of_four(q), _of_four(k), _of_four(v)
    batch, heads, s_q, depth = q.shape
    kv_heads, s_kv = k.shape[1], k.shape[2]
    if k.shape[3] != depth:
        refuse(NAME, f"the depths of q and k are {depth} and {k.shape[3]}", legal=["one depth"])
    if v.shape[1] != kv_heads or v.shape[2] != s_kv:
        refuse(NAME, f"k is {shape_of(k)}, v {shape_of(v)}", legal=["k and v of as many heads and rows"])
    if k.shape[0] != batch or v.shape[0] != batch:
        if k.shape[0] != 1 or v.shape[0] != 1:
            refuse(NAME, f"q has {batch} batches, k {k.shape[0]}, v {v.shape[0]}", legal=[f"{batch}", "1 of k and v"])
        k, v = (t.expand(batch, -1, -1, -1) for t in (k, v))
    grouped = heads != kv_heads
    if grouped and not options.enable_gqa:
        refuse(NAME, f"q has {heads} heads, k and v {kv_heads}", hint="enable_gqa=True")
    if grouped and (kv_heads == 0 or heads % kv_heads):
        refuse(NAME, f"{heads} heads do not share {kv_heads} key heads evenly", legal=["heads a multiple of kv_heads"])
    more: list[Tensor] = []
    for name, given in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if given is not None:
            if given.dtype != torch.float32:
                refuse(NAME, f"`{name}` is {given.dtype}", legal=["torch.float32"], hint=f"{name}.float()")
            check_size(NAME, name, given, (heads,), "a number per head")
            more.append(dense(given))
    sizes = {"b": batch, "h": heads, "q_idx": s_q, "kv_idx": s_kv}
    if options.window is not None and options.window >= LONGEST:
        options = replace(options, causal=True, window=None)
    read = _read(mods, captured, sizes)
    kind = structure(
        NAME,
        dtype=dtype,
        depth=int(depth),
        depth_v=int(v.shape[3]),
        heads=(int(heads), int(kv_heads)) if grouped else None,
        alibi=alibi_slopes is not None,
        sinks=sinks is not None,
        mods=mods.key,
        **{f.name: getattr(options, f.name) for f in fields(options) if f.name != "enable_gqa"},
    )
    # The expression reads what mods hold in an order of its own, and may read less.
    inputs = program_of(kind, lambda: program(kind, mods)).inputs[3 + len(more) :]
    more += [read[b.name] for b in inputs]
    out = _laid_out_as(given_q, (batch, heads, s_q, v.shape[3]), options.several)
    result = run(kind, lambda: program(kind, mods), *(dense(t) for t in (q, k, v)), *more, out=out)
    o, *sums = result if options.several else (result,)
    o = o.reshape((*shape[:-1], v.shape[3]))
    return (o, *(t.reshape(shape[:-1]) for t in sums)) if options.several else o


def of_scores(q: Tensor) -> str:
    """The dtype of scores."""
    return "float64" if q.dtype == torch.float64 else "float32"


def _laid_out_as(q: Tensor, sizes: tuple[Any, ...], several: int) -> Any:
    """Results whose o has the order of strides of `q`, but for its last dimension, which is the innermost; None: they
    are made as a kernel makes them, which is so already."""
    if q.dim() != 4:
        return None
    inner = sorted((2, 1, 0), key=lambda d: q.stride(d))
    if inner == [2, 1, 0]:
        return None
    strides, step = [0, 0, 0, 1], sizes[3]
    for d in inner:
        strides[d], step = step, step * sizes[d]
    wide = getattr(torch, of_scores(q))
    o = q.new_empty_strided(sizes, strides)
    return (o, *(q.new_empty(sizes[:3], dtype=wide) for _ in range(several - 1))) if several else o


def program(kind: Structure, mods: Mods) -> Program:
    """The Program of a structure."""
    o = dict(kind.options)
    heads, kv_heads = o["heads"] or (None, None)
    score, mask = mods.score, mods.mask
    return expression(
        heads=heads,
        kv_heads=kv_heads,
        depth=o["depth"],
        depth_v=o["depth_v"],
        dtype=o["dtype"],
        scale=o["scale"],
        softcap=o["softcap"],
        alibi=o["alibi"],
        score=None if score is None else (lambda b, h, i, j, s: score.expression(s, b, h, i, j)),
        causal=o["causal"],
        window=o["window"],
        mask=None if mask is None else (lambda b, h, i, j: mask.expression(b, h, i, j)),
        sinks=o["sinks"],
        lse=o["lse"],
        maxima=o.get("max_scores", False),
    )


def _of_four(t: Tensor) -> Tensor:
    """[batch, heads, rows, depth]: further leading dimensions are flattened into the batch."""
    if t.dim() == 4:
        return t
    return t.reshape((1,) * (4 - t.dim()) + tuple(t.shape)) if t.dim() < 4 else t.flatten(0, t.dim() - 4)


def _read(mods: Mods, captured: Sequence[Tensor], sizes: dict[str, Any]) -> dict[str, Tensor]:
    """The captured tensors by name, as kernels take them: long enough for what reads them, a scalar as one element."""
    ready: dict[str, Tensor] = {}
    tensors = iter(captured)
    for mod in mods.given:
        by_name = {p.name: next(tensors) for p in mod.placeholders}
        for r in mod.reads:
            t = by_name[r.name]
            if t.shape[r.dimension] < sizes[r.axis]:
                refuse(
                    NAME,
                    f"the {mod.kind} reads `{r.name.removesuffix('_in')}`, {shape_of(t)}, at {r.axis} in dimension "
                    f"{r.dimension}, which reaches {sizes[r.axis] - 1}",
                    legal=[f"at least {sizes[r.axis]} elements there"],
                )
        ready |= {n: dense(_held(t.reshape(1) if t.dim() == 0 else t)) for n, t in by_name.items()}
    return ready


def _held(t: Tensor) -> Tensor:
    return t.to(HELD[t.dtype]) if t.dtype in HELD else t
