"""Mods in code that torch.compile traces: its tracer follows the mod with the call, and guards all that it reads.

    def forward(self, q, k, v):
        bias = self.table(k)
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j])

Mods may be made in that code. The call stands in torch's graph as a higher-order operator (`neptune_attention`) over a
graph that computes the mod for one score. Where that operator is run, be it on tensors or by the next tracer, it is the
operator of the mod's expression, with what the mod reads as inputs: no backend sees it.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from neptune.functional.mods import SIGNATURES, Mod, traced
from neptune.functional.operators import LIBRARY, NAMESPACE, number
from neptune.functional.softmax_attention import Mods, Options, call, of_scores
from neptune.runtime.custom_op import UNTYPED

Tensor = torch.Tensor
Operator = Callable[[Mods, Options], Any]
NAME = "neptune_attention"
_HIGHER: Any = None
_TRACED: weakref.WeakKeyDictionary[GraphModule, Any] = weakref.WeakKeyDictionary()

LIBRARY.define("mod_arguments(Tensor q) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    "attention_by_mods(Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? sinks, Tensor? score, Tensor? mask, "
    "bool causal, SymInt? window, float? softcap, float? scale, bool enable_gqa, bool lse, bool max_scores) "
    "-> (Tensor, Tensor, Tensor)"
)


@UNTYPED.library.register_fake(f"{NAMESPACE}::mod_arguments", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _arguments(q: Tensor) -> tuple[Tensor, ...]:
    return (
        q.new_empty((), dtype=getattr(torch, of_scores(q))),
        *(q.new_empty((), dtype=torch.int32) for _ in range(4)),
    )


@UNTYPED.library.register_fake(f"{NAMESPACE}::attention_by_mods", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _shapes(
    q: Tensor, k: Tensor, v: Tensor, slopes: Any, sinks: Any, score: Any, mask: Any, *options: Any
) -> tuple[Tensor, ...]:
    options_here = replace(Options(*map(number, options)), lse=True, max_scores=True)
    result: tuple[Tensor, ...] = call(q, k, v, options_here, slopes, sinks)
    return result


def attention(
    tensors: Sequence[Tensor],
    options: Options,
    score_mod: Any,
    mask_mod: Any,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> Any:
    """Attention with mods, in code that is traced."""
    if not _known():
        UNTYPED._dynamo.graph_break(msg="neptune.functional: this version of torch.compile follows no mods of others")
    given = [getattr(options, name) for name in OPTIONS]

    def body(q: Tensor, k: Tensor, v: Tensor) -> Any:
        score, *indices = torch.ops.neptune.mod_arguments(q)
        changed = None if score_mod is None else _as_tensor(score_mod(score, *indices))
        seen = None if mask_mod is None else _as_tensor(mask_mod(*indices))
        return torch.ops.neptune.attention_by_mods(q, k, v, alibi_slopes, sinks, changed, seen, *given)

    o, lse, top = _HIGHER(body, *tensors)
    return (o, *([lse] if options.lse else []), *([top] if options.max_scores else [])) if options.several else o


OPTIONS = tuple(f.name for f in fields(Options))


def _as_tensor(value: Any) -> Any:
    return torch.full((), value) if isinstance(value, bool | int | float) else value


def _known() -> bool:
    """Whether torch's tracer knows the operator now; called as it traces, so that nothing is imported before."""
    global _HIGHER
    if _HIGHER is not None:
        return True
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
        from torch._dynamo.variables import higher_order_ops as variables
        from torch._higher_order_ops.base_hop import BaseHOP

        table: Any = variables._hop_name_to_variable_class
    except (ImportError, AttributeError):
        return False

    class Attention(BaseHOP):
        def __call__(self, subgraph: Any, *operands: Any, **_: Any) -> Any:
            return _run(subgraph, operands)

    class Variable(variables.BaseHOPVariable):
        def _call_function(self, *args: Any, **named: Any) -> Any:
            # table[q_idx] reads at a symbol.
            with TransformGetItemToIndex():
                return super()._call_function(*args, **named)

    _HIGHER = Attention(NAME)
    table[NAME] = Variable
    return True


# As torch.compiler.assume_constant_result marks a function, which imports torch's tracer for it: seconds.
_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


# --- where the graph is run ------------------------------------------------------------------------


def _run(module: GraphModule, operands: Sequence[Any]) -> Any:
    """(o, lse, max_scores) of the traced call; what was not asked for is empty."""
    from neptune.functional.flex import operator_of

    bound = dict(zip((n for n in module.graph.nodes if n.op == "placeholder"), operands, strict=True))
    call = next(n for n in module.graph.nodes if _is(n, "attention_by_mods"))
    q, k, v, slopes, sinks, score, mask, *given = torch.fx.node.map_arg(call.args, lambda n: bound.get(n, n))
    options = Options(*map(number, given))
    mods_here = _TRACED.get(module)
    if mods_here is None:
        mods_here = _traced(module, {"score_mod": score, "mask_mod": mask}, bound, of_scores(q))
        if all(isinstance(x, Tensor) for x in operands):
            _TRACED[module] = mods_here
    mods, read = mods_here
    results = operator_of(mods, options)(q, k, v, slopes, sinks, [_beside(q, bound[n]) for n in read])
    o, *more = results if options.several else (results,)
    return tuple(
        o if n == "o" else more.pop(0) if n else q.new_empty(0) for n in ("o", options.lse, options.max_scores)
    )


def _beside(q: Tensor, t: Tensor) -> Tensor:
    return t.to(q.device) if t.dim() == 0 else t


def _is(node: Any, name: str) -> bool:
    packet = getattr(torch.ops.neptune, name)
    return isinstance(node, Node) and node.target in (packet, packet.default)


def _traced(module: GraphModule, values: dict[str, Any], bound: dict[Node, Any], wide: str) -> tuple[Mods, list[Node]]:
    """The mods, and the graph's inputs that they read, in order."""
    mods: dict[str, Mod] = {}
    nodes: list[Node] = []
    for kind, value in values.items():
        if value is not None:
            function, held = _function(module, kind, value, bound, wide)
            by_value = {id(t): n for n, t in held.items()}
            mods[kind] = traced(function, kind, [p.name for m in mods.values() for p in m.placeholders], wide, True)
            nodes += [by_value[id(c.value)] for c in mods[kind].tensors]
    return Mods(mods.get("score_mod"), mods.get("mask_mod")), nodes


def _function(
    module: GraphModule, kind: str, value: Node, bound: dict[Node, Any], wide: str
) -> tuple[Callable[..., Any], dict[Node, Any]]:
    """What computes a value of the graph, as a function of a mod's arguments, on stand-ins for the tensors it reads."""
    needed, left = set[Node](), [value]
    while left:
        if (node := left.pop()) not in needed:
            needed.add(node)
            left += node.all_input_nodes
    graph, copies, held = Graph(), dict[Node, Any](), dict[Node, Any]()
    scalars: list[Node | None] = [None] * (kind == "mask_mod")
    scalars += [graph.placeholder(n) for n in SIGNATURES[kind]]
    for node in module.graph.nodes:
        if node not in needed or _is(node, "mod_arguments"):
            continue
        if node.op == "placeholder":
            copies[node], held[node] = graph.placeholder(node.name), _stand_in(bound[node])
        elif node.target is operator.getitem and _is(node.args[0], "mod_arguments"):
            copies[node] = scalars[node.args[1]]
        elif node.op == "call_method" and node.target == "item":
            # A Python number that torch has made an input of: a float bends to the scores' dtype.
            number: Any = copies[node.args[0]]
            floats = bound[node.args[0]].is_floating_point()
            copies[node] = graph.call_method("to", (number, getattr(torch, wide))) if floats else number
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[value])
    replayed, tensors = GraphModule(module, graph), {n.name: t for n, t in held.items()}

    def mod(*scalars: Any) -> Any:
        return replayed(*scalars, *tensors.values())

    return mod, held


def _stand_in(value: Any) -> Any:
    """A tensor of the same dtype, shape and place, of one element in memory; a number as it is."""
    if not isinstance(value, Tensor):
        return float(value) if isinstance(value, float | torch.SymFloat) else int(value)
    shape = [n if isinstance(n, int) else int(n.node.hint) for n in value.shape]
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.zeros((1,) * len(shape), dtype=value.dtype, device=value.device).expand(shape)
