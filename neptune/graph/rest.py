"""Who compiles what Neptune leaves: Inductor, or torch op by op where it has no compiler for this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule

from neptune.graph.aten_attention import ATTENTION

LOG = logging.getLogger("neptune.graph")


@cache
def inductor_here(device: str) -> str | None:
    """None where Inductor can compile for a device type; else why it cannot, which is logged once."""
    why = None
    if device == "cpu":
        try:
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
        except Exception as error:
            why = f"Inductor has no C++ compiler here ({str(error).splitlines()[0]}): the rest runs op by op"
    if why is not None:
        LOG.warning(why)
    return why


def as_inductor_sees_it(module: GraphModule, device: str) -> GraphModule:
    """The graph with torch's own kernels for attention where Inductor would find them, so that regions are compared
    with these; as it is where it would find none."""
    if inductor_here(device) is not None:
        return module
    there = joint_passes(copied(module))
    own, there_are = (sum(n.target in ATTENTION for n in m.graph.nodes) for m in (module, there))
    return there if there_are > own else module


def joint_passes(module: GraphModule) -> GraphModule:
    """Inductor's rewrites of a whole graph, which come before its kernels."""
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    joined: GraphModule = joint_graph_passes(module)
    return joined


def copied(module: GraphModule) -> GraphModule:
    """A module with a graph of its own, over the same tensors."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def compiled_rest(module: GraphModule, inputs: Sequence[Any], device: str) -> Callable[..., Any]:
    """The graph that is left, as a function of a list of arguments (torch's boxed convention)."""
    if inductor_here(device) is None:
        from torch._inductor.compile_fx import compile_fx_inner

        function: Any = compile_fx_inner(joint_passes(module), list(inputs), is_inference=True)
        return function  # type: ignore[no-any-return]
    from torch._functorch._aot_autograd.utils import make_boxed_func

    boxed: Callable[..., Any] = make_boxed_func(module.forward)
    return boxed


def whole_by_inductor(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph as torch.compile's own backend compiles it, gradients included."""
    if inductor_here(device_of(inputs)) is None:
        from torch._inductor.compile_fx import compile_fx

        function: Any = compile_fx(module, list(inputs))
        return function  # type: ignore[no-any-return]
    return module.forward  # type: ignore[no-any-return]


def device_of(inputs: Sequence[Any]) -> str:
    """The device type of the tensors among arguments: the first that is not the CPU."""
    kinds = [x.device.type for x in inputs if isinstance(x, torch.Tensor)]
    return next((k for k in kinds if k != "cpu"), "cpu")
