"""What torch does around a call beside running it: it differentiates what is computed, records operators, and goes over
batches."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from neptune.base.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning

UNPACK: Any = forward_ad.unpack_dual
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
"""The key under which `make_fx(…, pre_dispatch=True)` records."""


class Derivative(NamedTuple):
    """A derivative that torch would need of a tensor: what is wrong, and what to write for a tensor in its place."""

    wrong: str
    instead: str


BACKWARD = Derivative(
    "requires a gradient, and there is no backward pass yet", "{0}.detach(), or call under torch.no_grad()"
)
FORWARD = Derivative("has a tangent, and there is no forward-mode derivative yet", "{0}.detach()")


def derivative_of(t: torch.Tensor) -> Derivative | None:
    """The derivative that torch would have to take of what is computed from a tensor, None for none."""
    if t.requires_grad and torch.is_grad_enabled():
        return BACKWARD
    # A tangent is found wherever torch.no_grad() is.
    return FORWARD if takes_tangents() and UNPACK(t).tangent is not None else None


def takes_tangents() -> bool:
    """True inside of `torch.autograd.forward_ad.dual_level`, where `torch.func.jvp` runs a function."""
    return forward_ad._current_level >= 0


def is_recorded() -> bool:
    """True where a dispatch mode of torch or its TorchScript tracer sees every operator that is called: a kernel that
    is launched beside torch's dispatcher would be missing in what they write down."""
    return torch._C._len_torch_dispatch_stack() > 0 or _is_traced()


def becomes_graph() -> bool:
    """True where what is recorded is to be run again in place of the function: `make_fx`, `torch.jit.trace`."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None or _is_traced()


def _is_traced() -> bool:
    return torch._C._get_tracing_state() is not None or torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH)


# --- torch.vmap ---------------------------------------------------------------------------------------------


def one_by_one(overload: Any, name: str, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """torch.vmap of an operator. torch goes over a batch by itself only where no argument is a list of tensors, and
    where the batch is not empty."""
    _tell_vmap(name)
    each = [overload(*_member(args, dims, k)) for k in range(info.batch_size)]
    if not each:
        call = overload(*_member(args, dims, None))
        empty = tuple(t.new_empty((0, *t.shape)) for t in ((call,) if isinstance(call, torch.Tensor) else call))
        return (empty[0], 0) if isinstance(call, torch.Tensor) else (empty, (0,) * len(empty))
    if isinstance(each[0], torch.Tensor):
        return torch.stack(each), 0
    return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(each[0])


def _member(value: Any, dim: Any, k: int | None) -> Any:
    """Member k of a batch of arguments, along the dimension that is told for each tensor (None: it is shared); of no
    batch, zeros of a member's shape."""
    if isinstance(value, list | tuple):
        return [_member(v, d, k) for v, d in zip(value, dim, strict=True)] if isinstance(dim, list | tuple) else value
    if dim is None:
        return value
    return value.movedim(dim, 0).new_zeros(value.movedim(dim, 0).shape[1:]) if k is None else value.select(dim, k)


@cache
def _tell_vmap(name: str) -> None:
    wrong = f"neptune.functional.{name} runs once for each member of torch.vmap's batch"
    warning = NeptunePerformanceWarning(f"{wrong}; a batch dimension of the tensors themselves is one call")
    warnings.warn(warning, stacklevel=frames_of_package() + 1)
