"""Calls of kernels in code that torch traces. Imported there alone: torch's tracer takes seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neptune.base.boundary import public
from neptune.errors import ShapeError
from neptune.runtime.transforms import becomes_graph

if TYPE_CHECKING:
    from neptune.kernel import Kernel

OWN = "neptune_kernels"
"""The namespace of the operators that such calls become."""


@public
def traced(kernel: Kernel, args: tuple[Any, ...], *rest: Any) -> Any:
    """A call as an operator, or, where it has out=, workspace=, params= or launcher=, as it is, between two graphs.
    Raises ShapeError for the latter where what is recorded runs in place of the code (`make_fx`, `torch.jit.trace`)."""
    if all(x is None for x in rest):
        return getattr(torch.ops.neptune_kernels, _own_operator(kernel))(*args)
    if torch.compiler.is_compiling():
        return _untraced(kernel, args, *rest)
    *_, launcher = rest
    # A launcher, as torch.library.wrap_triton, is how the launches themselves are recorded.
    if launcher is None and becomes_graph():
        raise ShapeError(
            f"call of kernel `{kernel.name}`",
            "torch makes a graph of operators here, and none has out=, workspace= or params=",
            hint="a call with tensors and scalars alone, or launcher=torch.library.wrap_triton",
        )
    return kernel._call(args, *rest)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _own_operator(kernel: Kernel) -> str:
    """The name under which a kernel is an operator; torch asks once a trace."""
    name = f"{OWN}::{kernel.name}_{kernel._content[:16]}"
    kernel.torch_op(name)
    return name.removeprefix(f"{OWN}::")


@torch.compiler.disable(  # type: ignore[untyped-decorator, no-untyped-call]
    reason="a Neptune kernel with out=, workspace=, params= or launcher= is called as it is"
)
def _untraced(kernel: Kernel, *call: Any) -> Any:
    """A call that an operator cannot express: torch's graph ends before it, and goes on behind."""
    return kernel._call(*call)
