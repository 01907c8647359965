"""Attention with mods: an operator of torch for each structure of what the mods are, named by its hash.

A mod is traced once for its code and what it holds (`captured`): dtypes and ranks of tensors, values of numbers. Where
torch.compile traces the call, the operator is looked up at compile time; captured tensors are inputs of the graph, and
captured numbers and functions are guarded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from neptune.base.locks import Lock
from neptune.functional import inside
from neptune.functional.captured import captured, reach
from neptune.functional.mods import Mod, refuse_wrapped, traced
from neptune.functional.operators import check_tensors, is_plain, register
from neptune.functional.softmax_attention import Mods, Options, call, of_scores

Tensor = torch.Tensor
RESERVED = ("q", "k", "v", "slopes", "sinks")
REMEMBERED = 512
_MODS: dict[Any, Mod] = {}
_REGISTERED: dict[str, Any] = {}
_LOCK = Lock()


def attention(
    tensors: Sequence[Tensor],
    options: Options,
    score_mod: Any,
    mask_mod: Any,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> Any:
    """Attention with one or two mods; see `neptune.functional.attention`."""
    q, k, v = tensors
    if torch.compiler.is_dynamo_compiling():
        return inside.attention(tensors, options, score_mod, mask_mod, alibi_slopes, sinks)
    mods, read = mods_of(score_mod, mask_mod, of_scores(q))
    given = {"q": q, "k": k, "v": v, "alibi_slopes": alibi_slopes, "sinks": sinks, "captured tensors": read}
    if not is_plain(given.values()):
        return operator_of(mods, options)(q, k, v, alibi_slopes, sinks, read)
    check_tensors("attention", given)
    return call(q, k, v, options, alibi_slopes, sinks, mods, read)


def mods_of(score_mod: Any, mask_mod: Any, wide: str = "float32") -> tuple[Mods, list[Tensor]]:
    """The mods, traced on scores of dtype `wide`, and the tensors that they read at present."""
    score = None if score_mod is None else _of(score_mod, "score_mod", (), wide)
    taken = () if score is None else tuple(p.name for p in score[0].placeholders)
    mask = None if mask_mod is None else _of(mask_mod, "mask_mod", taken, wide)
    mods = [m for m in (score, mask) if m is not None]
    return Mods(score and score[0], mask and mask[0]), [t for _, read in mods for t in read]


def _of(function: Any, kind: str, taken: tuple[str, ...], wide: str) -> tuple[Mod, list[Tensor]]:
    """A mod from memory, or traced; and its tensors, which may be others than when it was traced."""
    behind = captured(function)
    refuse_wrapped(kind, function, behind)
    # An object that nothing is known of may change what a mod does without being another: it is traced each time.
    key = None if any(c.kind == "opaque" for c in behind) else (kind, taken, wide, *((c.path, c.key) for c in behind))
    wrapped = None if key is None else _MODS.get(key)
    if wrapped is None:
        mod = traced(function, kind, (*RESERVED, *taken), wide)
        known = all(c.path[0][0] != "unknown" for c in mod.tensors if c.path)
        if key is None or not known or mod.sized:
            return mod, [c.value for c in mod.tensors]
        with _LOCK:
            if len(_MODS) >= REMEMBERED:
                _MODS.clear()
            wrapped = _MODS[key] = mod
    return wrapped, [reach(function, c.path) for c in wrapped.tensors]


# --- operators -----------------------------------------------------------------------------------


def operator_of(mods: Mods, options: Options) -> Any:
    """The operator for these mods, which is registered where it is not there yet."""
    digest = hashlib.sha256(repr((mods.key, options)).encode()).hexdigest()[:16]
    name = f"attention_{digest}"
    with _LOCK:
        if name not in _REGISTERED:
            gives = f"({', '.join(['Tensor'] * options.several)})" if options.several else "Tensor"
            schema = (
                f"(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? sinks, Tensor[] captured) -> {gives}"
            )

            def function(q: Tensor, k: Tensor, v: Tensor, slopes: Any, sinks: Any, read: Sequence[Tensor]) -> Any:
                return call(q, k, v, options, slopes, sinks, mods, read)

            _REGISTERED[name] = register(name, schema, function, "attention")
    return _REGISTERED[name]
