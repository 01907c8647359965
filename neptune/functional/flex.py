"""Attention with mods: an operator of torch for each structure of what the mods are, named by its hash.

A mod is traced once for its code and what it holds (`captured`): dtypes and ranks of tensors, values of numbers. Where
torch.compile traces the call, the operator is looked up at compile time; captured tensors are inputs of the graph, and
captured numbers and functions are guarded.
"""

from __future__ import annotations

import hashlib
import threading
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from neptune.errors import ExpressionError
from neptune.functional.captured import Captured, Path, captured, reach
from neptune.functional.mods import Mod, traced
from neptune.functional.operators import check_tensors, is_plain, register
from neptune.functional.softmax_attention import Mods, Options, call
from neptune.functional.tensors import refuse
from neptune.runtime.custom_op import UNTYPED

Tensor = torch.Tensor
RESERVED = ("q", "k", "v", "slopes", "sinks")
REMEMBERED = 512
_MODS: dict[Any, Mod] = {}
_REGISTERED: dict[str, Any] = {}
_LOCK = threading.Lock()


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
    if torch.compiler.is_compiling():
        if _is_inside(score_mod) or _is_inside(mask_mod):
            # Behind the break the mod is a plain function, and the call is traced once more.
            UNTYPED._dynamo.graph_break(
                msg="neptune.functional.attention: a mod with captured values is defined inside of the compiled "
                "function; define it outside, in a function of what it captures"
            )
        read = _captured_in_a_trace(score_mod, "score_mod") + _captured_in_a_trace(mask_mod, "mask_mod")
        # What an operator's name depends on is given as constants: torch's tracer asks once.
        name = _operator(score_mod, mask_mod, *_constants(options))
        return getattr(torch.ops.neptune, name)(q, k, v, alibi_slopes, sinks, read)
    mods, read = mods_of(score_mod, mask_mod)
    given = {"q": q, "k": k, "v": v, "alibi_slopes": alibi_slopes, "sinks": sinks, "captured tensors": read}
    if not is_plain(given.values()):
        return _REGISTERED[_name(mods, options)](q, k, v, alibi_slopes, sinks, read)
    check_tensors("attention", given)
    return call(q, k, v, options, alibi_slopes, sinks, mods, read)


def mods_of(score_mod: Any, mask_mod: Any) -> tuple[Mods, list[Tensor]]:
    """The mods, traced, and the tensors that they read at present."""
    score = None if score_mod is None else _of(score_mod, "score_mod", ())
    taken = () if score is None else tuple(p.name for p in score[0].placeholders)
    mask = None if mask_mod is None else _of(mask_mod, "mask_mod", taken)
    found = [m for m in (score, mask) if m is not None]
    return Mods(score and score[0], mask and mask[0]), [t for _, read in found for t in read]


def _of(function: Any, kind: str, taken: tuple[str, ...]) -> tuple[Mod, list[Tensor]]:
    """A mod from memory, or traced; and its tensors, which may be others than when it was traced."""
    behind = captured(function)
    # An object that nothing is known of may change what a mod does without being another: it is traced each time.
    key = None if any(c.kind == "opaque" for c in behind) else (kind, taken, *((c.path, c.key) for c in behind))
    found = None if key is None else _MODS.get(key)
    if found is None:
        mod = traced(function, kind, (*RESERVED, *taken))
        known = all(c.path[0][0] != "unknown" for c in mod.tensors if c.path)
        if key is None or not known or mod.sized:
            return mod, [c.value for c in mod.tensors]
        with _LOCK:
            if len(_MODS) >= REMEMBERED:
                _MODS.clear()
            found = _MODS[key] = mod
    return found, [reach(function, c.path) for c in found.tensors]


def with_block_mask(mask_mod: Any, block_mask: Any, q: Tensor, k: Tensor) -> Any:
    """The mask_mod of a BlockMask. Raises ShapeError for one of other lengths, or beside another mask_mod."""
    if mask_mod is not None:
        refuse(
            "attention", "both mask_mod= and block_mask= were given", hint="and_masks(mask_mod, block_mask.mask_mod)"
        )
    found = getattr(block_mask, "mask_mod", None)
    lengths = getattr(block_mask, "seq_lengths", None)
    if found is None or lengths is None:
        refuse("attention", f"block_mask is {type(block_mask).__name__}", legal=["a BlockMask of FlexAttention"])
    if (q.shape[-2], k.shape[-2]) != tuple(lengths):
        refuse(
            "attention",
            f"block_mask is for {lengths[0]} queries and {lengths[1]} keys, q has {q.shape[-2]} and k {k.shape[-2]}",
            hint="mask_mod=block_mask.mask_mod, which serves all lengths",
        )
    return found


# --- operators -----------------------------------------------------------------------------------


def _constants(options: Options) -> tuple[Any, ...]:
    return (
        options.causal,
        options.window,
        options.softcap,
        options.scale,
        options.enable_gqa,
        options.lse,
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _operator(score_mod: Any, mask_mod: Any, *options: Any) -> str:
    """The name of the operator for these mods, which is registered where it is not there yet."""
    return _name(mods_of(score_mod, mask_mod)[0], Options(*options))


def _name(mods: Mods, options: Options) -> str:
    digest = hashlib.sha256(repr((mods.key, options)).encode()).hexdigest()[:16]
    name = f"attention_{digest}"
    with _LOCK:
        if name not in _REGISTERED:
            gives = "(Tensor, Tensor)" if options.lse else "Tensor"
            schema = (
                f"(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? sinks, Tensor[] captured) -> {gives}"
            )

            def function(q: Tensor, k: Tensor, v: Tensor, slopes: Any, sinks: Any, read: Sequence[Tensor]) -> Any:
                return call(q, k, v, options, slopes, sinks, mods, read)

            _REGISTERED[name] = register(name, schema, function, "attention")
    return name


# --- in a trace of torch.compile -------------------------------------------------------------------
# torch's tracer follows Python, but for functions whose results it takes as constants: strings and numbers.


def _is_inside(function: Any) -> bool:
    """True for a function with a closure that the traced code itself has defined: the tracer does not show it."""
    if not hasattr(function, "__code__") or not _has_closure(function.__code__):
        return False
    try:
        return function.__closure__ is None
    except AttributeError:
        return True


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_closure(code: Any) -> bool:
    return bool(code.co_freevars)


def _captured_in_a_trace(function: Any, kind: str) -> list[Tensor]:
    """The captured tensors as the tracer sees them; it guards everything that is looked at."""
    if function is None:
        return []
    for k in range(_count(function, kind, "guarded")):
        value = _reached(function, kind, "guarded", k)
        if not callable(value) and value != _value(function, kind, k):
            raise AssertionError("a captured value changes while torch traces")
    for k in range(_count(function, kind, "again")):
        # Looked at together, so that the tracer guards that the two are one.
        if _reached(function, kind, "again", k) is not _reached(function, kind, "before", k):
            raise AssertionError("a captured value changes while torch traces")
    return [_reached(function, kind, "tensors", k) for k in range(_count(function, kind, "tensors"))]


def _reached(function: Any, kind: str, which: str, k: int) -> Any:
    path: Path = ()
    for step in range(_steps(function, kind, which, k)):
        path = (*path, (_step_kind(function, kind, which, k, step), _step_where(function, kind, which, k, step)))
    return reach(function, path)


def _list(function: Any, kind: str, which: str) -> list[Captured]:
    behind = captured(function)
    mod, _ = _of(function, kind, ())
    unknown = [c.name for c in behind if c.kind == "opaque"]
    if unknown or mod.sized or any(c.path and c.path[0][0] == "unknown" for c in mod.tensors):
        what = f"reads the object `{unknown[0]}`" if unknown else "asks for a length or a number of a tensor"
        raise ExpressionError(
            f"attention with {kind}=",
            f"torch.compile traces this call, and the mod {what}, which it could not guard",
            hint="bind tensors and numbers to names in front of the mod: bias, length = self.bias, self.bias.shape[0]",
        )
    if which == "tensors":
        return list(mod.tensors)
    again = [c for c in behind if c.again is not None]
    if which == "again":
        return again
    if which == "before":
        return [replace(c, path=c.again or ()) for c in again]
    kinds = ("value", "function", "constant")
    return [c for c in behind if c.kind in kinds and c.path and not isinstance(c.value, types.ModuleType)]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _count(function: Any, kind: str, which: str) -> int:
    return len(_list(function, kind, which))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _steps(function: Any, kind: str, which: str, k: int) -> int:
    return len(_list(function, kind, which)[k].path)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _step_kind(function: Any, kind: str, which: str, k: int, step: int) -> str:
    return str(_list(function, kind, which)[k].path[step][0])


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _step_where(function: Any, kind: str, which: str, k: int, step: int) -> Any:
    return _list(function, kind, which)[k].path[step][1]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _value(function: Any, kind: str, k: int) -> Any:
    return _list(function, kind, "guarded")[k].value
