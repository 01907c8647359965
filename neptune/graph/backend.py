"""torch.compile's backend "neptune": regions of the ATen graph become Neptune's kernels, the rest is Inductor's.

    torch.compile(model, backend="neptune")

torch traces the program, guards it and takes out what cannot be traced; AOTAutograd makes it functional and decomposes
it. Sizes stay symbols where torch has made them symbols (`dynamic=True`, or after the second length).

What Neptune leaves is compiled by Inductor, or runs op by op in torch where that has no compiler for this machine.
"""

from __future__ import annotations

import logging
import operator as operators
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from neptune.errors import Unsupported, answered
from neptune.graph.aten_attention import ATTENTION
from neptune.graph.choose import Judged, Take, choice, example_sizes, serving
from neptune.graph.launch import Result, operator
from neptune.graph.regions import proposed
from neptune.graph.report import Report
from neptune.graph.symbols import SizeNodes, from_arguments, specialise
from neptune.ir.analysis.facts import of_dtype
from neptune.runtime.custom_op import UNTYPED
from neptune.runtime.launching.devices import chosen_on
from neptune.runtime.transforms import takes_tangents

LOG = logging.getLogger("neptune.graph")
LIMITS = of_dtype("int32")


@dataclass
class Backend:
    """A backend of torch.compile. `target`: where Neptune's kernels run, by default where the tensors are; `take`:
    which regions ("predicted": those below the bound for Inductor, "all", "none"); `reports`: one for each graph."""

    target: str | None = None
    take: Take = "predicted"
    reports: list[Report] = field(default_factory=list)

    def __call__(self, module: GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        function = self._compiled(module, inputs)

        def run(*args: Any) -> Any:
            # Compiled graphs, Inductor's too, know no tangents: operators of torch alone do.
            return module(*args) if takes_tangents() else function(*args)

        return run

    def _compiled(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch.aot_autograd import aot_module_simplified
        from torch._inductor.decomposition import select_decomp_table

        if torch.is_grad_enabled() and _needs_gradients(module, inputs):
            why = "gradients are asked for, and Neptune has none yet: the whole graph is Inductor's"
            LOG.warning("%s (torch.no_grad() gives it to Neptune)", why)
            self.reports.append(Report((), {}, why))
            return whole_by_inductor(module, inputs)

        def forward(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
            return compiled_rest(self._rewritten(gm, example_inputs), example_inputs, device_of(example_inputs))

        function: Callable[..., Any] = aot_module_simplified(
            module,
            list(inputs),
            fw_compiler=forward,
            inference_compiler=forward,
            decompositions=select_decomp_table(),
        )
        return function

    def _rewritten(self, module: GraphModule, example: Sequence[Any]) -> GraphModule:
        """The graph with Neptune's kernels in it; as it was where anything is in the way."""
        device = device_of(example)
        module = as_inductor_sees_it(module, device)
        kept = copied(module)
        try:
            return self._with_kernels(module, device)
        except Exception as error:
            # A graph that cannot be imported must still run: whatever is wrong, Inductor has it.
            LOG.warning("the graph is left as it was: %r", error)
            self.reports.append(Report((), {}, f"a defect of Neptune's: {error!r:.300}"))
            return kept

    def _with_kernels(self, module: GraphModule, device: str) -> GraphModule:
        specialise(module.graph.nodes)
        from_arguments(module.graph)
        choices, reasons = self._chosen(module.graph, device)
        names = _text(module)
        for k, c in enumerate(choices):
            if c.taken:
                done = answered(replace_region, module, c)
                if isinstance(done, Unsupported):
                    choices[k] = replace(c, taken=False, why=f"not expressed: {done}")
        self.reports.append(Report(tuple(choices), {n.name: w for n, w in reasons.items()}, "", names))
        if any(c.taken for c in choices):
            torch.fx.passes.tools_common.legalize_graph(module)
            module.graph.eliminate_dead_code()
            module.recompile()
        return module

    def _chosen(self, graph: torch.fx.Graph, device: str) -> tuple[list[Judged], dict[Node, str]]:
        """What becomes of every region, and why nodes are in none. A node that cannot be imported is a boundary: what
        is left of its region is looked at again."""
        refused: dict[Node, str] = {}
        while True:
            regions, reasons = proposed(graph, refused)
            choices: list[Judged] = []
            for region in regions:
                choice_here = self._choice(region, device)
                choices.append(choice_here)
                if choice_here.boundary is not None:
                    refused[choice_here.boundary] = choice_here.why
                    break
            else:
                for c in choices:
                    LOG.info("region %s: %s", c.region.name, c.why)
                return choices, reasons

    def _choice(self, region: Any, device: str) -> Judged:
        devices = {t.device.type for n in region.nodes if isinstance(t := n.meta.get("val"), torch.Tensor)}
        if len(devices) > 1:
            return Judged(region, False, f"tensors of several devices: {', '.join(sorted(devices))}")
        try:
            judged = choice(region, self.target or chosen_on(devices.pop() if devices else device), self.take)
            if judged.taken and judged.made is not None and not _are_narrow(judged.made.scalars):
                return replace(judged, taken=False, why="a number that a kernel is passed does not fit 32 bits")
            return judged
        except Exception as error:
            # A graph that cannot be imported must still run: whatever is wrong, Inductor has it.
            LOG.warning("region %s is left: %s", region.name, str(error).splitlines()[0] if str(error) else repr(error))
            return Judged(region, False, f"a defect of Neptune's: {error!r:.200}")


def _needs_gradients(module: GraphModule, inputs: Sequence[Any]) -> bool:
    tensors = (*inputs, *module.parameters())
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def _are_narrow(numbers: Sequence[Any]) -> bool:
    """True where the sizes and numbers that a call passes fit 32 bits: torch guards that, and asks anew for others."""
    mode = UNTYPED._guards.detect_fake_mode()
    env = None if mode is None else mode.shape_env
    for e in numbers:
        fits = sympy.And(sympy.Le(e, int(LIMITS.hi)), sympy.Ge(e, int(LIMITS.lo)))
        if not (env.evaluate_expr(fits) if env is not None else fits == True):  # noqa: E712
            return False
    return True


def _text(module: GraphModule) -> tuple[str, ...]:
    return tuple(n.name for n in module.graph.nodes if n.op == "call_function")


def _looked_at(graph: torch.fx.Graph, index: Node, size: Any) -> Node:
    """A node that raises where an index leads out of a dimension; a kernel that takes its result runs behind it."""
    checked = graph.call_function(torch.ops.neptune_graph.check_index.default, (index, size))
    checked.meta["val"] = index.meta["val"].new_empty(0)
    return checked


def replace_region(module: GraphModule, c: Judged) -> None:
    """Put a call of the kernel's operator in the place of a region's results."""
    assert c.made is not None and c.kernel is not None
    graph, compiled = module.graph, c.made
    vals = [n.meta["val"] for n in compiled.outputs]
    serves = serving(c.kernel, compiled.program, tuple(example_sizes(compiled).items()))
    op = operator(serves, c.region.name, tuple(map(Result.of, vals)), compiled.merges, bool(compiled.gathers))
    last = c.region.nodes[-1]
    assert len(set(compiled.inputs)) == len(compiled.inputs)
    sizes = SizeNodes(graph, last.next)
    shapes = [[sizes.node(d) for d in v.shape] for v in vals]
    scalars = [sizes.node_of(e) for e in compiled.scalars]
    with graph.inserting_before(sizes.before):
        looked_at = [_looked_at(graph, index, sizes.node_of(n)) for index, n in compiled.gathers]
        anchor = graph.call_function(op, (*compiled.inputs, scalars, *shapes, *([looked_at] if looked_at else [])))
    anchor.meta["val"] = vals[0] if len(vals) == 1 else tuple(vals)
    results: list[Node] = [anchor]
    if len(vals) > 1:
        results = []
        with graph.inserting_after(anchor):
            for k, v in reversed(list(enumerate(vals))):
                one = graph.call_function(operators.getitem, (anchor, k))
                one.meta["val"] = v
                results.insert(0, one)
    own = set(c.region.nodes)
    for old, new in zip(compiled.outputs, results, strict=True):
        for u in list(old.users):
            if u not in own and u not in (anchor, *results):
                u.replace_input_with(old, new)


# --- what Neptune leaves ----------------------------------------------------------------------------


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
