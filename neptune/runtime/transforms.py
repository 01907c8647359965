"""What torch does around a call beside running it: it differentiates what is computed, and records operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

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
