"""Graphs written by hand, for tests: what a search is to find."""

from __future__ import annotations

from dataclasses import replace

from bench.mirage_programs import BENCHMARKS
from neptune.ir.expr import Expr, Var
from neptune.mirage.builder import GraphBuilder, KernelBuilder, Value
from neptune.mirage.decompose import reciprocal
from neptune.mirage.ir import SPLIT, Graph
from neptune.mirage.parser import parse_graph
from neptune.mirage.reference import reference

M, K, N = Var("m"), Var("k"), Var("n")


def _reciprocal(size: Expr) -> Expr:
    return reciprocal(size.astype("float32"))


def rms_norm_linear(m: Expr = M, k: Expr = K, n: Expr = N) -> Graph:
    """rms(X)·W as one kernel: the norm behind the product (Fig. 3 of the paper)."""
    g = GraphBuilder("rms_norm_linear", i=m, k=k, j=n)
    big_x, big_w = g.input("X", "i k"), g.input("W", "k j")
    with g.kernel("fused", grid="i j", loop="k") as f:
        x, w = f.load(big_x, name="x"), f.load(big_w, name="w")
        product = x.matmul(w, "k").called("xw").acc().called("product")
        squares = x.sqr().called("xx").acc_sum().called("squares")
        root = squares.scale(_reciprocal(k)).called("mean").sqrt().called("root")
        f.save("Y", (product / root).called("y"))
    return g.output("Y", "i j").graph()


def with_kernel(graph: Graph, grid: str, loop: str, *body: str) -> Graph:
    """The graph of one kernel with this body, as text, instead of its steps. Inputs are loaded under their names, and
    the last value is saved."""
    (out,) = graph.outputs
    head = str(replace(graph, steps=(), outputs=(replace(out, value=out.name),)))
    loads = [f"{t.name} = load {t.name}" for t in graph.inputs]
    lines = [*loads, *body, f"save {out.name} = {body[-1].partition(' = ')[0]}"]
    return parse_graph(f"{head}  kernel fused grid ({grid}) loop {loop}:\n" + "".join(f"    {x}\n" for x in lines))


# --- the benchmarks: the best graph of each, of one kernel ---------------------------------------------


def _of(name: str, **sizes: int) -> GraphBuilder:
    return GraphBuilder.like(reference(BENCHMARKS[name].program(**sizes)))


def _root(mean_of: Value, g: GraphBuilder, axis: str) -> Value:
    """√(x / n) of a sum over n elements."""
    return (mean_of / g.size(axis)).sqrt()


def rms_norm(**sizes: int) -> Graph:
    g = _of("RMSNorm", **sizes)
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, w = map(f.load, g.tensors)
        f.save("y", x.matmul(w, "p").acc() / _root(x.sqr().acc_sum(), g, "p"))
    return g.graph()


def rms_norm_gain(**sizes: int) -> Graph:
    g = _of("RMSNorm-gain", **sizes)
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, gain, w = map(f.load, g.tensors)
        x = x * gain
        f.save("y", x.matmul(w, "p").acc() / _root(x.sqr().acc_sum(), g, "p"))
    return g.graph()


def rms_norm_split(**sizes: int) -> Graph:
    """The depth of the product split over programs; what adds up the products has the norm."""
    g = _of("RMSNorm", **sizes)
    with g.kernel("parts", grid="i j p", loop="p") as f:
        x, w = map(f.load, g.tensors)
        parts = f.save("parts", x.matmul(w, "p").acc())
    with g.kernel("combine", grid="i j", loop="p") as f:
        x, products = f.load(g.tensors[0]), f.load(parts)
        f.save("y", products.sum("p", SPLIT) / _root(x.sqr().acc_sum(), g, "p"))
    return g.graph()


def gated_mlp_split(**sizes: int) -> Graph:
    """The depth of both products split over programs."""
    g = _of("GatedMLP", **sizes)
    with g.kernel("parts", grid="i j p", loop="p") as f:
        x, w, u = map(f.load, g.tensors)
        gates, ups = f.save("gates", x.matmul(w, "p").acc()), f.save("ups", x.matmul(u, "p").acc())
    with g.kernel("combine", grid="i j") as f:
        gate, up = f.load(gates).sum("p", SPLIT), f.load(ups).sum("p", SPLIT)
        f.save("y", gate.silu() * up)
    return g.graph()


def lora(**sizes: int) -> Graph:
    """Two products in one loop."""
    g = _of("LoRA", **sizes)
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, w, a, b = map(f.load, g.tensors)
        f.save("y", x.matmul(w, "p").acc() + x.matmul(a, "p").acc().matmul(b, "e"))
    return g.graph()


def gated_mlp(**sizes: int) -> Graph:
    g = _of("GatedMLP", **sizes)
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, w, u = map(f.load, g.tensors)
        f.save("y", x.matmul(w, "p").acc().silu() * x.matmul(u, "p").acc())
    return g.graph()


def n_trans(**sizes: int) -> Graph:
    """Rows as tiles; what is element by element stays in registers."""
    g = _of("nTrans", **sizes)
    with g.kernel("fused", grid="i") as f:
        x, h, alpha = map(f.load, g.tensors)
        root = _root(h.sqr().sum("j"), g, "j")
        with f.thread():
            t = x + alpha * (h / root + x)
        f.save("y", t / _root(t.sqr().sum("j"), g, "j"))
    return g.graph()


def _normed(x: Value, g: GraphBuilder, axis: str) -> Value:
    return x / _root(x.sqr().sum(axis), g, axis)


def _weighted(f: KernelBuilder, g: GraphBuilder, normed: str) -> tuple[Value, Value]:
    """Σ exp(q k) v and Σ exp(q k) over a kernel's loop, with norms of these tensors."""
    q, k, v = map(f.load, g.tensors)
    q = _normed(q, g, "d_1") if "q" in normed else q
    k = _normed(k, g, "d_1") if "k" in normed else k
    v = _normed(v, g, "d") if "v" in normed else v
    e = q.matmul(k, "d_1").exp()
    return e.matmul(v, "j").acc(), e.acc_sum()


def _attention(name: str, normed: str, sizes: dict[str, int]) -> Graph:
    """One loop over the keys."""
    g = _of(name, **sizes)
    with g.kernel("fused", grid="h i", loop="j") as f:
        weighted, total = _weighted(f, g, normed)
        f.save("o", weighted / total)
    return g.graph()


def _attention_split(name: str, normed: str, sizes: dict[str, int]) -> Graph:
    """Keys split over programs, each with a loop over its own."""
    g = _of(name, **sizes)
    with g.kernel("parts", grid="h i j", loop="j") as f:
        weighted, total = _weighted(f, g, normed)
        parts, totals = f.save("parts", weighted), f.save("totals", total)
    with g.kernel("combine", grid="h i") as f:
        f.save("o", f.load(parts).sum("j", SPLIT) / f.load(totals).sum("j", SPLIT))
    return g.graph()


def gqa(**sizes: int) -> Graph:
    return _attention("GQA", "", sizes)


def gqa_split(**sizes: int) -> Graph:
    return _attention_split("GQA", "", sizes)


def qk_norm(**sizes: int) -> Graph:
    return _attention("QKNorm", "qv", sizes)


def qk_norm_split(**sizes: int) -> Graph:
    return _attention_split("QKNorm", "qv", sizes)


def qk_norm_both(**sizes: int) -> Graph:
    return _attention("QKNorm-both", "qk", sizes)


GRAPHS = {
    "GQA": gqa,
    "QKNorm": qk_norm,
    "QKNorm-both": qk_norm_both,
    "RMSNorm": rms_norm,
    "RMSNorm-gain": rms_norm_gain,
    "LoRA": lora,
    "GatedMLP": gated_mlp,
    "nTrans": n_trans,
}
"""The best graph of one kernel by the names of the benchmarks."""
SPLITS = {"GQA": gqa_split, "QKNorm": qk_norm_split, "RMSNorm": rms_norm_split, "GatedMLP": gated_mlp_split}
"""Graphs of two kernels, the first of which splits what is folded over programs."""
