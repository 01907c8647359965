"""Reference graphs, written with operators on whole tensors, for tests of the search."""

from neptune.mirage.ir import Graph, Node
from tests.unit.mirage.verified import per, program


def graph(inputs: dict[str, str], out: str, *steps: Node) -> Graph:
    """A graph whose inputs have these axes, one letter each; the last step is the result, with the axes `out`."""
    axes = " ".join(dict.fromkeys("".join(inputs.values()) + out))
    return program(axes, " ".join(f"{n}:{a}" for n, a in inputs.items()), f"{steps[-1].name}:{out}", *steps)


def rms(x: str, axis: str, name: str) -> tuple[Node, ...]:
    """x/√(mean x²) along an axis."""
    return (
        Node(f"{name}_squares", "sqr", (x,)),
        Node(f"{name}_sum", "sum", (f"{name}_squares",), axis=axis),
        Node(f"{name}_mean", "scale", (f"{name}_sum",), constant=per(axis)),
        Node(f"{name}_root", "sqrt", (f"{name}_mean",)),
        Node(name, "div", (x, f"{name}_root")),
    )


def attention(q: str, k: str, v: str) -> tuple[Node, ...]:
    return (
        Node("s", "matmul", (q, k), axis="d"),
        Node("p", "exp", ("s",)),
        Node("l", "sum", ("p",), axis="n"),
        Node("w", "div", ("p", "l")),
        Node("o", "matmul", ("w", v), axis="n"),
    )


RMS_NORM = graph({"X": "ik", "W": "kj"}, "ij", *rms("X", "k", "y"), Node("o", "matmul", ("y", "W"), axis="k"))

LORA = graph(
    {"X": "ik", "W": "kj", "A": "kr", "B": "rj"},
    "ij",
    Node("xw", "matmul", ("X", "W"), axis="k"),
    Node("xa", "matmul", ("X", "A"), axis="k"),
    Node("xab", "matmul", ("xa", "B"), axis="r"),
    Node("o", "add", ("xw", "xab")),
)

GATED_MLP = graph(
    {"X": "ik", "W": "kj", "V": "kj"},
    "ij",
    Node("a", "matmul", ("X", "W"), axis="k"),
    Node("g", "silu", ("a",)),
    Node("b", "matmul", ("X", "V"), axis="k"),
    Node("o", "mul", ("g", "b")),
)

LESSER = graph(
    {"X": "ik", "W": "kj", "V": "kj"},
    "ij",
    Node("a", "matmul", ("X", "W"), axis="k"),
    Node("b", "matmul", ("X", "V"), axis="k"),
    Node("o", "minimum", ("a", "b")),
)

GQA = graph({"Q": "bmd", "K": "bdn", "V": "bne"}, "bme", *attention("Q", "K", "V"))

QK_NORM = graph(
    {"Q": "bmd", "K": "bdn", "V": "bne"},
    "bme",
    *rms("Q", "d", "q"),
    *rms("V", "e", "v"),
    *attention("q", "K", "v"),
)

QK_NORM_BOTH = graph(
    {"Q": "bmd", "K": "bdn", "V": "bne"},
    "bme",
    *rms("Q", "d", "q"),
    *rms("K", "d", "k"),
    *attention("q", "k", "V"),
)

N_TRANS = graph(
    {"X": "id", "H": "id", "A": "id"},
    "id",
    *rms("H", "d", "h"),
    Node("t", "add", ("h", "X")),
    Node("u", "mul", ("A", "t")),
    Node("z", "add", ("X", "u")),
    *rms("z", "d", "o"),
)

PROGRAMS = {
    "rms_norm": RMS_NORM,
    "lora": LORA,
    "gated_mlp": GATED_MLP,
    "gqa": GQA,
    "qk_norm": QK_NORM,
    "qk_norm_both": QK_NORM_BOTH,
    "n_trans": N_TRANS,
}
