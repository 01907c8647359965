"""Programs as graphs of kernel-level nodes, and block graphs that compute them, for tests of the verifier."""

from dataclasses import replace

from neptune.ir.expr import Const, Expr, Var, binary, cast, op
from neptune.mirage.ir import Graph, Kernel, Load, Node, Output, Save, Step, Tensor

ONE = Const(1.0, "float32")


def per(size: str) -> Expr:
    """1/size."""
    return binary("div", ONE, cast(Var(size), "float32"))


def root_per(size: str) -> Expr:
    """1/√size."""
    return op("rsqrt", cast(Var(size), "float32"))


def n(name: str, kind: str, operands: str, axis: str = "", **more: object) -> Node:
    return Node(name, kind, tuple(operands.split()), axis, **more)  # type: ignore[arg-type]


def program(axes: str, tensors: str, output: str, *steps: Step) -> Graph:
    """A graph: "i k" axes of sizes of these names, tensors as "X:ik W:kj", the output as "y:ij"."""
    name, dims = output.split(":")
    return Graph(
        "graph",
        {a: Var(a) for a in axes.split()},
        tuple(Tensor(t.split(":")[0], tuple(t.split(":")[1]), "float16") for t in tensors.split()),
        steps,
        (Output("out", tuple(dims), "float16", name),),
    )


def kernel(grid: str, loop: str | None, loads: str, value: str, *body: Node, name: str = "fused") -> Kernel:
    """A kernel that loads "x=X w=W" and saves one value under its name with a capital letter."""
    pairs = (x.split("=") for x in loads.split())
    return Kernel(
        name,
        tuple(grid.split()),
        loop,
        tuple(Load(a, b.rstrip("!"), tuple(grid.split()) if b.endswith("!") else ()) for a, b in pairs),
        body,
        tuple(Save(v.capitalize(), v) for v in value.split()),
    )


def one(reference: Graph, fused: Kernel, *after: Step) -> Graph:
    """A graph of one kernel, with the inputs of a reference; nodes may follow."""
    last = after[-1].name if after else fused.saves[0].name
    return replace(reference, steps=(fused, *after), outputs=(replace(reference.outputs[0], value=last),))


def swapped(graph: Graph, **nodes: Node) -> Graph:
    """The graph with other nodes of these names."""

    def step(s: Step) -> Step:
        if isinstance(s, Kernel):
            return replace(s, body=tuple(nodes.get(x.name, x) for x in s.nodes))
        return nodes.get(s.name, s)

    return graph.with_steps(*map(step, graph.steps))


# --- the norm and a product --------------------------------------------------------------------------

_MEAN = (n("xx", "sqr", "X"), n("sum", "sum", "xx", "k"), n("mean", "scale", "sum", constant=per("k")))
RMS = program(
    "i k j",
    "X:ik W:kj",
    "y:ij",
    *_MEAN,
    n("root", "sqrt", "mean"),
    n("normed", "div", "X root"),
    n("y", "matmul", "normed W", "k"),
)
RMS_FUSED = one(
    RMS,
    kernel(
        "i j",
        "k",
        "x=X w=W",
        "y",
        n("xw", "matmul", "x w", "k"),
        n("product", "acc", "xw", "k"),
        n("xx", "sqr", "x"),
        n("squares", "acc_sum", "xx", "k"),
        n("mean", "scale", "squares", constant=per("k")),
        n("root", "sqrt", "mean"),
        n("y", "div", "product root"),
    ),
)

# --- attention ----------------------------------------------------------------------------------------

ATTENTION = program(
    "h i j d e",
    "Q:hid K:hjd V:hje",
    "o:hie",
    n("s", "matmul", "Q K", "d"),
    n("p", "exp", "s"),
    n("pv", "matmul", "p V", "j"),
    n("l", "sum", "p", "j"),
    n("o", "div", "pv l"),
)
ATTENTION_FUSED = one(
    ATTENTION,
    kernel(
        "h i",
        "j",
        "q=Q k=K v=V",
        "o",
        n("s", "matmul", "q k", "d"),
        n("p", "exp", "s"),
        n("pv", "matmul", "p v", "j"),
        n("a", "acc", "pv", "j"),
        n("l", "acc_sum", "p", "j"),
        n("o", "div", "a l"),
    ),
)
RESCALED = (
    n("s", "matmul", "q k", "d"),
    n("sm", "max", "s", "j"),
    n("m", "acc_max", "sm", "j"),
    n("shifted", "sub", "s m"),
    n("p", "exp", "shifted"),
    n("pv", "matmul", "p v", "j"),
    n("a", "acc_rescaled", "pv m", "j", constant=ONE),
    n("ps", "sum", "p", "j"),
    n("l", "acc_rescaled", "ps m", "j", constant=ONE),
    n("o", "div", "a l"),
)
ATTENTION_SAFE = one(ATTENTION, kernel("h i", "j", "q=Q k=K v=V", "o", *RESCALED))
FORGOTTEN = swapped(ATTENTION_SAFE, a=n("a", "acc", "pv", "j"))
"""The sum of products is not rescaled."""
GRID = frozenset({"grid"})


def split_attention(safe: bool) -> Graph:
    """Keys split over programs: the partial sums are added up by nodes behind the kernel."""
    first = (n("s", "matmul", "q k", "d"),)
    if safe:
        first = (*first, n("m", "max", "s", "j"), n("t", "sub", "s m"), n("p", "exp", "t"))
    else:
        first = (*first, n("p", "exp", "s"))
    body = (*first, n("a", "matmul", "p v", "j"), n("l", "sum", "p", "j"))
    made = kernel("h i j", None, "q=Q k=K v=V", "a l m" if safe else "a l", *body)
    after: tuple[Node, ...] = ()
    if safe:
        after = (
            n("top", "max", "M", "j", parts=GRID),
            n("less", "sub", "M top"),
            n("by", "exp", "less"),
            n("ar", "mul", "A by"),
            n("lr", "mul", "L by"),
        )
    a, low = ("ar", "lr") if safe else ("A", "L")
    after = (*after, n("as", "sum", a, "j", parts=GRID), n("ls", "sum", low, "j", parts=GRID), n("o", "div", "as ls"))
    return one(ATTENTION, made, *after)


# --- the others ---------------------------------------------------------------------------------------

LORA = program(
    "i k r j",
    "X:ik W:kj A:kr B:rj",
    "y:ij",
    n("xw", "matmul", "X W", "k"),
    n("xa", "matmul", "X A", "k"),
    n("xab", "matmul", "xa B", "r"),
    n("y", "add", "xw xab"),
)
LORA_FUSED = one(
    LORA,
    kernel(
        "i j",
        "k",
        "x=X w=W a=A b=B",
        "y",
        n("xw", "matmul", "x w", "k"),
        n("u", "acc", "xw", "k"),
        n("xa", "matmul", "x a", "k"),
        n("v", "acc", "xa", "k"),
        n("vb", "matmul", "v b", "r"),
        n("y", "add", "u vb"),
    ),
)
GATED = program(
    "i k j",
    "X:ik U:kj V:kj",
    "y:ij",
    n("a", "matmul", "X U", "k"),
    n("s", "silu", "a"),
    n("b", "matmul", "X V", "k"),
    n("y", "mul", "s b"),
)
GATED_FUSED = one(
    GATED,
    kernel(
        "i j",
        "k",
        "x=X u=U v=V",
        "y",
        n("xu", "matmul", "x u", "k"),
        n("a", "acc", "xu", "k"),
        n("xv", "matmul", "x v", "k"),
        n("b", "acc", "xv", "k"),
        n("g", "sigmoid", "a"),
        n("ab", "mul", "a b"),
        n("y", "mul", "ab g"),
    ),
)
NTRANS = program(
    "i k",
    "X:ik H:ik A:k",
    "y:ik",
    n("hh", "sqr", "H"),
    n("hs", "sum", "hh", "k"),
    n("hm", "scale", "hs", constant=per("k")),
    n("hr", "sqrt", "hm"),
    n("hn", "div", "H hr"),
    n("t", "add", "hn X"),
    n("at", "mul", "A t"),
    n("z", "add", "X at"),
    n("zz", "sqr", "z"),
    n("zs", "sum", "zz", "k"),
    n("zm", "scale", "zs", constant=per("k")),
    n("zr", "sqrt", "zm"),
    n("y", "div", "z zr"),
)
QK_NORM = program(
    "h i j d e",
    "Q:hid K:hjd V:hje",
    "o:hie",
    n("qq", "sqr", "Q"),
    n("qs", "sum", "qq", "d"),
    n("qm", "scale", "qs", constant=per("d")),
    n("qr", "sqrt", "qm"),
    n("qn", "div", "Q qr"),
    n("vv", "sqr", "V"),
    n("vs", "sum", "vv", "e"),
    n("vm", "scale", "vs", constant=per("e")),
    n("vr", "sqrt", "vm"),
    n("vn", "div", "V vr"),
    n("s", "matmul", "qn K", "d"),
    n("p", "exp", "s"),
    n("pv", "matmul", "p vn", "j"),
    n("l", "sum", "p", "j"),
    n("o", "div", "pv l"),
)
_QK_BODY = (
    n("qq", "sqr", "q"),
    n("qs", "sum", "qq", "d"),
    n("qm", "scale", "qs", constant=per("d")),
    n("qr", "rsqrt", "qm"),
    n("vv", "sqr", "v"),
    n("vs", "sum", "vv", "e"),
    n("vm", "scale", "vs", constant=per("e")),
    n("vr", "rsqrt", "vm"),
    n("raw", "matmul", "q k", "d"),
    n("s", "mul", "raw qr"),
    n("p", "exp", "s"),
    n("pr", "mul", "p vr"),
    n("pv", "matmul", "pr v", "j"),
    n("a", "acc", "pv", "j"),
    n("l", "acc_sum", "p", "j"),
    n("o", "div", "a l"),
)
QK_NORM_FUSED = one(QK_NORM, kernel("h i", "j", "q=Q k=K v=V", "o", *_QK_BODY))
PUBLISHED = one(
    QK_NORM,
    kernel(
        "h i",
        "j",
        "q=Q k=K v=V",
        "o",
        *_QK_BODY[:8],
        n("qsum", "sum", "q", "d"),
        n("ksum", "sum", "k", "d"),
        n("raw", "mul", "qsum ksum"),
        *_QK_BODY[9:],
    ),
)
"""What the published graphs of QKNorm compute in place of scores: (Σ_d Q)·(Σ_d K), in the place of Σ_d Q·K."""
