"""What Neptune makes of a torch function or a mod, by the evaluator: nothing is compiled, every value is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from neptune.functional import mods
from neptune.functional.mods import SIGNATURES
from neptune.graph.choose import example_sizes
from neptune.graph.importer import Imported, imported
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.evaluate.memory import Memory
from neptune.ir.evaluate.program import evaluate
from neptune.ir.expr import Var


def graph_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The graph that the backend sees of a function: torch's, decomposed as Inductor decomposes it."""
    from torch._inductor.decomposition import select_decomp_table

    with torch.no_grad():
        traced: Any = lambda *given: function(*given)  # noqa: E731
        module = make_fx(traced, select_decomp_table(), tracing_mode="fake")(*inputs)
        if any(
            n.op == "call_function" and getattr(n.target, "_schema", None) and n.target._schema.is_mutable
            for n in module.graph.nodes
        ):
            module = make_fx(torch.func.functionalize(module), tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module


def program_of(module: torch.fx.GraphModule) -> tuple[Imported, list[Node]]:
    """The whole of a graph as one Program, and what it returns, inputs too; Unsupported where it has none."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    (out,) = (n for n in module.graph.nodes if n.op == "output")
    results = list(torch.utils._pytree.tree_leaves(out.args[0]))
    return imported(nodes, [r for r in results if isinstance(r, Node) and r.op != "placeholder"], "graph"), results


def evaluated(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The results of a function of tensors, as its Program has them. Raises Unsupported for what has no Program."""
    module = graph_of(function, inputs)
    if not any(n.op == "call_function" for n in module.graph.nodes):
        return list(torch.utils._pytree.tree_leaves(function(*inputs)))
    made, results = program_of(module)
    given = dict(zip((n for n in module.graph.nodes if n.op == "placeholder"), inputs, strict=True))
    given |= {n: getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}
    arrays = {}
    for buffer, node, merges in zip(made.program.inputs, made.inputs, made.merges, strict=True):
        shape = [int(n) for n in given[node].shape]
        for d in merges:
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        arrays[buffer.name] = numbers(given[node]).reshape(shape)
    values = evaluate(made.program, arrays, example_sizes(made), Rounded())
    found = {
        n: torch.as_tensor(np.asarray(values[b.name])).to(n.meta["val"].dtype).reshape(n.meta["val"].shape)
        for n, b in zip(made.outputs, made.program.outputs, strict=True)
    }
    return [found[r] if r in found else given[r] for r in results]


def numbers(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as the evaluator takes it: floats as float64, bools as they are."""
    t = t.detach().resolve_neg()
    return t.double().numpy() if t.dtype.is_floating_point else t.numpy() if t.dtype == torch.bool else t.long().numpy()


def modded(function: Callable[..., Any], kind: str, *points: Any, wide: str = "float32") -> np.ndarray[Any, Any]:
    """The values of a mod at points, of scores in dtype `wide`: one array for each of its arguments."""
    names = SIGNATURES[kind]
    mod = mods.traced(function, kind, wide=wide)
    memory, env = Memory(Rounded(), None), dict[str, Any]()
    for c, t in zip(mod.tensors, mod.placeholders, strict=True):
        array = numbers(c.value.reshape(1) if c.value.dim() == 0 else c.value)
        memory.assign(t.name, array.shape, t.dtype, array)
        env |= {d.name: n for d, n in zip(t.shape, array.shape, strict=True) if isinstance(d, Var)}
    scalars = [Var(n, wide if n == "score" else "int32") for n in names]
    lanes = {n: np.asarray(p, np.float64 if n == "score" else np.int64) for n, p in zip(names, points, strict=True)}
    with np.errstate(all="ignore"):
        value = Evaluator(memory).run(mod.expression(*scalars), {**env, **lanes})
    return np.broadcast_to(np.asarray(value), lanes[names[0]].shape)
