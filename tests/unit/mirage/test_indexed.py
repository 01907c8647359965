"""Proofs by indexed normal forms: equal rewritings are proved, and what differs in float64 never is."""

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from neptune.errors import Unsupported
from neptune.ir.expr import Const, Var
from neptune.mirage.ir import Graph, Kernel, Load, Node, Output, Save, Tensor
from neptune.mirage.verifier.forms import Atom, Form
from neptune.mirage.verifier.indexed import Proof, indexed_forms, prove_equal
from neptune.mirage.verifier.verdict import REJECTED, verify
from tests.unit.mirage import verified
from tests.unit.mirage.expressions import (
    SIZES,
    E,
    axes,
    children,
    differ,
    drawn,
    graph,
    numbers,
    positions,
    replaced,
    valid,
    values,
)
from tests.unit.mirage.graphs import K, _reciprocal, rms_norm_linear


def _free(e: E, axis: str) -> bool:
    return axis not in axes(e)


def _squares(e: E) -> bool:
    """At least 0 by its form."""
    return e[0] in ("sqr", "exp", "sqrt", "rsqrt") or (e[0] == "sum" and _squares(e[2]))


def rewritten(e: E) -> list[E]:
    """What an axiom makes of an expression at its root."""
    found: list[E] = []
    match e:
        case ("add" | "mul", a, b):
            found.append((e[0], b, a))
            if a[0] == e[0]:
                found.append((e[0], a[1], (e[0], a[2], b)))
    match e:
        case ("mul", a, ("add", b, c)):
            found.append(("add", ("mul", a, b), ("mul", a, c)))
        case ("div", ("add", a, b), c):
            found.append(("add", ("div", a, c), ("div", b, c)))
        case ("mul", x, ("div", y, z)):
            found.append(("div", ("mul", x, y), z))
        case ("div", ("div", x, y), z):
            found.append(("div", x, ("mul", y, z)))
        case ("div", ("mul", x, y), z):
            found.append(("mul", x, ("div", y, z)))
        case ("sum", i, ("add", a, b)) if not _free(a, i) and not _free(b, i):
            found.append(("add", ("sum", i, a), ("sum", i, b)))
        case ("sum", i, ("mul" | "div" as op, a, b)) if _free(b, i):
            found.append((op, ("sum", i, a), b))
        case ("mul" | "div" as op, ("sum", i, a), b) if _free(b, i):
            found.append(("sum", i, (op, a, b)))
        case ("sum", i, ("sum", j, x)):
            found.append(("sum", j, ("sum", i, x)))
        case ("mul", ("exp", a), ("exp", b)):
            found.append(("exp", ("add", a, b)))
        case ("div", ("exp", a), ("exp", b)):
            found.append(("exp", ("sub", a, b)))
        case ("exp", ("add", a, b)):
            found.append(("mul", ("exp", a), ("exp", b)))
        case ("mul", ("sqrt", a), ("sqrt", b)) if _squares(a) and _squares(b):
            found.append(("sqrt", ("mul", a, b)))
        case ("sqrt", ("mul", a, b)) if _squares(a) and _squares(b):
            found.append(("mul", ("sqrt", a), ("sqrt", b)))
        case ("sub", a, b):
            found.append(("add", a, ("neg", b)))
        case ("sqr", a):
            found.append(("mul", a, a))
        case ("silu", a):
            found.append(("mul", a, ("sigmoid", a)))
        case ("rsqrt", a):
            found.append(("div", ("exp", ("sub", a, a)), ("sqrt", a)))
        case ("scale", c, ("mul", a, b)):
            found.append(("mul", a, ("scale", c, b)))
        case ("neg", a):
            found.append(("scale", -1.0, a))
    return found


def wrong(e: E, rng: random.Random) -> list[E]:
    """Near misses: an axiom without its condition, another operator, operand or axis."""
    found: list[E] = []
    match e:
        case ("sum", i, ("mul" | "div" as op, a, b)) if not _free(a, i):
            found.append((op, ("sum", i, a), b))
        case ("sqrt", ("sqr", a)):
            found.append(a)
        case ("exp", ("mul", a, b)):
            found.append(("mul", ("exp", a), ("exp", b)))
        case ("add" | "mul" | "sub" | "div", a, b):
            found += [(rng.choice(("add", "mul", "sub")), a, b), (e[0], b, a), (e[0], a, a)]
        case ("sum", i, x):
            found += [("sum", j, x) for j in axes(x) if j != i]
            found += [("sum", i, c) for c in children(x) if not _free(c, i)]
        case ("scale", c, x):
            found.append(("scale", c / 2, x))
        case ("input", _):
            found.append(("input", rng.choice("ABCDEF")))
    return found


def _changed(e: E, rng: random.Random, by: object) -> E | None:
    choices = [(at, new) for at, part in positions(e) for new in by(part)]  # type: ignore[operator]
    return replaced(e, *rng.choice(choices)) if choices else None


def _proof(a: E, b: E) -> Proof:
    return prove_equal(graph(a), graph(b))


def test_random_equal_rewritings_are_proved() -> None:
    rng = random.Random(1)
    proved = 0
    while proved < 150:
        e = new = drawn(rng, 4)
        steps = 0
        for _ in range(rng.randrange(1, 7)):
            if (changed := _changed(new, rng, rewritten)) is not None:
                new, steps = changed, steps + 1
        if not steps or new == e:
            continue
        proof = _proof(e, new)
        assert proof.proved or "more than" in proof.why or "orders" in proof.why, (e, new, proof.why)
        proved += proof.proved


def _form_value(f: Form, at: Mapping[str, int], inputs: Mapping[str, np.ndarray]) -> float:
    """A form as a number, from its definition alone: loops over its variables."""
    total = 0.0
    for t, c in f.terms:
        ranges = [range(SIZES[d.key.removeprefix("n_")]) for _, d in t.bound]
        for chosen in itertools.product(*ranges):
            here = {**at, **{v: k for (v, _), k in zip(t.bound, chosen, strict=True)}}
            total += float(c) * math.prod(_atom_value(a, here, inputs) ** float(e) for a, e in t.factors)
    return total


def _atom_value(a: Atom, at: Mapping[str, int], inputs: Mapping[str, np.ndarray]) -> float:
    if a.kind == "input":
        return float(inputs[a.name][tuple(at[v] for (v,) in a.index)])
    if a.kind == "exp":
        return math.exp(_form_value(a.args[0], at, inputs))
    if a.kind == "base":
        return _form_value(a.args[0], at, inputs)
    return float(a.name) if a.kind == "number" else float(SIZES[a.name.removeprefix("n_")])


def test_a_form_has_the_value_of_its_expression() -> None:
    """Each rule of the normal form is an identity: the form, summed by loops, is the expression in float64."""
    rng = random.Random(3)
    inputs = values(0)
    compared = 0
    while compared < 250:
        e = drawn(rng, 5)
        over = [a for a in SIZES if a in axes(e)]
        found = indexed_forms(graph(e))
        if isinstance(found, Unsupported):
            continue
        form = found["out"][0]
        if form.height > 3 or len(form.terms) > 40:
            continue
        place = tuple(rng.randrange(SIZES[a]) for a in over)
        with np.errstate(all="ignore"):
            want = numbers(e, inputs)[tuple(place[over.index(a)] if a in over else 0 for a in SIZES)]
        if not np.isfinite(want):
            continue
        got = _form_value(form, {f"@{n}": k for n, k in enumerate(place)}, inputs)
        assert got == pytest.approx(want, rel=1e-6, abs=1e-9), (e, str(form))
        compared += 1


def test_what_differs_in_float64_is_never_proved() -> None:
    rng = random.Random(2)
    unequal = 0
    while unequal < 200:
        e = new = drawn(rng, 4)
        for _ in range(rng.randrange(3)):
            new = _changed(new, rng, rewritten) or new
        changed = _changed(new, rng, lambda x: wrong(x, rng))
        if changed is None or not valid(changed):
            continue
        if rng.random() < 0.5:
            changed = _changed(changed, rng, rewritten) or changed
        if _proof(e, changed).proved:
            assert not differ(e, changed), (e, changed)
        else:
            unequal += differ(e, changed)


def _norm_linear(*steps: Node) -> Graph:
    return rms_norm_linear().with_steps(*steps)


NORM = (
    Node("xx", "sqr", ("X",)),
    Node("s", "sum", ("xx",), axis="k"),
    Node("mean", "scale", ("s",), constant=_reciprocal(K)),
    Node("root", "sqrt", ("mean",)),
    Node("n", "div", ("X", "root")),
    Node("Y", "matmul", ("n", "W"), axis="k"),
)


def test_norm_behind_the_product() -> None:
    proof = prove_equal(rms_norm_linear(), _norm_linear(*NORM))
    assert proof.proved, proof.why
    assert str(proof).startswith("proved for all sizes, where sizes are at least 1, denominators are not 0")


@pytest.mark.parametrize(
    "wrong",
    [
        (*NORM[:2], Node("mean", "scale", ("s",), constant=_reciprocal(Var("n"))), *NORM[3:]),
        (*NORM[:3], Node("root", "rsqrt", ("mean",)), *NORM[4:]),
        (NORM[0], Node("s", "max", ("xx",), axis="k"), *NORM[2:]),
        (*NORM[:4], Node("n", "mul", ("X", "root")), NORM[5]),
        (Node("xx", "silu", ("X",)), *NORM[1:]),
    ],
)
def test_another_constant_or_operator_is_not_proved(wrong: tuple[Node, ...]) -> None:
    assert not prove_equal(rms_norm_linear(), _norm_linear(*wrong)).proved


Q, KT, V = Tensor("Q", ("i", "d"), "float16"), Tensor("K", ("d", "j"), "float16"), Tensor("V", ("j", "e"), "float16")
AXES = {"i": Var("m"), "d": Var("d"), "j": Var("n"), "e": Var("d")}


def _attention(*steps: Node | Kernel) -> Graph:
    return Graph("attention", AXES, (Q, KT, V), steps, (Output("O", ("i", "e"), "float16", "O"),))


SOFTMAX = (
    Node("S", "matmul", ("Q", "K"), axis="d"),
    Node("P", "exp", ("S",)),
    Node("l", "sum", ("P",), axis="j"),
    Node("R", "div", ("P", "l")),
    Node("O", "matmul", ("R", "V"), axis="j"),
)
FLASH = Kernel(
    "flash",
    ("i",),
    "j",
    (Load("q", "Q"), Load("k", "K"), Load("v", "V")),
    (
        Node("s", "matmul", ("q", "k"), axis="d"),
        Node("p", "exp", ("s",)),
        Node("l", "acc_sum", ("p",), axis="j"),
        Node("pv", "matmul", ("p", "v"), axis="j"),
        Node("a", "acc", ("pv",), axis="j"),
        Node("o", "div", ("a", "l")),
    ),
    (Save("O", "o"),),
)
SPLIT = replace(FLASH, grid=("i", "j"), saves=(Save("A", "a"), Save("L", "l")))


def test_softmax_is_invariant_under_any_row_it_subtracts() -> None:
    shift = (
        Node("m", "max", ("S",), axis="j"),
        Node("T", "sub", ("S", "m")),
        Node("P", "exp", ("T",)),
    )
    assert prove_equal(_attention(*SOFTMAX), _attention(SOFTMAX[0], *shift, *SOFTMAX[2:])).proved
    along_keys = (Node("m", "max", ("S",), axis="i"), *shift[1:])
    assert not prove_equal(_attention(*SOFTMAX), _attention(SOFTMAX[0], *along_keys, *SOFTMAX[2:])).proved


def test_the_division_behind_the_loop() -> None:
    assert prove_equal(_attention(*SOFTMAX), _attention(FLASH)).proved


def test_a_split_is_the_sum_over_all_parts() -> None:
    combine = (
        Node("a", "sum", ("A",), axis="j", parts=frozenset({"grid"})),
        Node("l", "sum", ("L",), axis="j", parts=frozenset({"grid"})),
        Node("O", "div", ("a", "l")),
    )
    assert prove_equal(_attention(*SOFTMAX), _attention(SPLIT, *combine)).proved
    of_quotients = (
        Node("r", "div", ("A", "L")),
        Node("O", "sum", ("r",), axis="j", parts=frozenset({"grid"})),
    )
    assert not prove_equal(_attention(*SOFTMAX), _attention(SPLIT, *of_quotients)).proved


def test_a_function_of_a_part_of_a_sum_depends_on_the_tiles() -> None:
    """exp of what a tile sums is not exp of what the axis sums; the two agree with themselves alone."""
    kernel = Kernel(
        "parts",
        ("i",),
        "k",
        (Load("x", "X"),),
        (
            Node("t", "sum", ("x",), axis="k"),
            Node("e", "exp", ("t",)),
            Node("y", "acc", ("e",), axis="k"),
        ),
        (Save("Y", "y"),),
    )
    tensors, out = (Tensor("X", ("i", "k"), "float32"),), (Output("Y", ("i",), "float32", "Y"),)
    axes = {"i": Var("m"), "k": Var("k")}
    parts = Graph("parts", axes, tensors, (kernel,), out)
    whole = parts.with_steps(Node("t", "sum", ("X",), axis="k"), Node("Y", "exp", ("t",)))
    assert "how axes are cut, by `k.loop@parts`" in prove_equal(parts, whole).why
    assert not prove_equal(parts, parts).proved, "equal for equal tiles is no equality"


def test_products_of_parts_are_no_product_of_sums() -> None:
    """Σ over tiles of (Σ x)·(Σ y) within a tile is not (Σ x)·(Σ y)."""
    body = (
        Node("a", "sum", ("x",), axis="k"),
        Node("b", "sum", ("y",), axis="k"),
        Node("ab", "mul", ("a", "b")),
        Node("z", "acc", ("ab",), axis="k"),
    )
    kernel = Kernel("parts", ("i",), "k", (Load("x", "X"), Load("y", "Y")), body, (Save("Z", "z"),))
    tensors = (Tensor("X", ("i", "k"), "float32"), Tensor("Y", ("i", "k"), "float32"))
    axes = {"i": Var("m"), "k": Var("k")}
    parts = Graph("parts", axes, tensors, (kernel,), (Output("Z", ("i",), "float32", "Z"),))
    whole = parts.with_steps(
        Node("a", "sum", ("X",), axis="k"), Node("b", "sum", ("Y",), axis="k"), Node("Z", "mul", ("a", "b"))
    )
    assert not prove_equal(parts, whole).proved
    assert prove_equal(whole, whole.with_steps(*whole.steps[1::-1], whole.steps[2])).proved


ROWS = (Tensor("X", ("i",), "float32"), Tensor("Y", ("i",), "float32"))


def _rows(*steps: Node) -> Graph:
    return Graph("rows", {"i": Var("m")}, ROWS, steps, (Output("Z", ("i",), "float32", "Z"),))


def _number(value: float) -> Const:
    return Const(value, "float32")


A2, B2, AB = Node("a", "sqr", ("X",)), Node("b", "sqr", ("Y",)), Node("ab", "mul", ("a", "b"))


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        # A root of a product is the product of roots where both are squares, and only there.
        ((A2, B2, AB, Node("Z", "sqrt", ("ab",))),
         (A2, B2, Node("r", "sqrt", ("a",)), Node("s", "sqrt", ("b",)), Node("Z", "mul", ("r", "s"))), True),
        ((Node("ab", "mul", ("X", "Y")), Node("Z", "sqrt", ("ab",))),
         (Node("r", "sqrt", ("X",)), Node("s", "sqrt", ("Y",)), Node("Z", "mul", ("r", "s"))), False),
        # √(x²·y) is 0 at x = 0 for any y, √x²·√y has no value at y < 0.
        ((A2, Node("ab", "mul", ("a", "Y")), Node("Z", "sqrt", ("ab",))),
         (A2, Node("r", "sqrt", ("a",)), Node("s", "sqrt", ("Y",)), Node("Z", "mul", ("r", "s"))), False),
        ((A2, Node("Z", "sqrt", ("a",))), (Node("Z", "scale", ("X",), constant=_number(1.0)),), False),
        ((A2, Node("r", "sqrt", ("a",)), Node("Z", "sqr", ("r",))), (Node("Z", "sqr", ("X",)),), True),
        # x / x is not 1, and exp(x) / exp(x) is.
        ((Node("q", "div", ("X", "X")), Node("Z", "mul", ("q", "Y"))),
         (Node("Z", "scale", ("Y",), constant=_number(1.0)),), False),
        ((Node("e", "exp", ("X",)), Node("q", "div", ("e", "e")), Node("Z", "mul", ("q", "Y"))),
         (Node("Z", "scale", ("Y",), constant=_number(1.0)),), True),
        ((Node("n", "neg", ("X",)), Node("Z", "power", ("n",), constant=_number(-2.0))),
         (A2, Node("o", "power", ("a",), constant=_number(0.0)), Node("Z", "div", ("o", "a"))), True),
        ((Node("d", "sub", ("X", "Y")), Node("Z", "power", ("d",), constant=_number(-1.0))),
         (Node("d", "sub", ("Y", "X")), Node("q", "power", ("d",), constant=_number(-1.0)), Node("Z", "neg", ("q",))),
         True),
        # Three times 0.1 as a float is not 0.3 as a float.
        ((Node("Z", "scale", ("X",), constant=_number(0.3)),),
         (Node("t", "scale", ("X",), constant=_number(3.0)), Node("Z", "scale", ("t",), constant=_number(0.1))),
         False),
        ((Node("Z", "opaque", ("X",), function="erf"),), (Node("Z", "opaque", ("X",), function="erf"),), True),
        ((Node("Z", "opaque", ("X",), function="erf"),), (Node("Z", "opaque", ("Y",), function="erf"),), False),
        ((Node("Z", "opaque", ("X", "Y"), function="pow"),), (Node("Z", "opaque", ("Y", "X"), function="pow"),), False),
        ((Node("Z", "opaque", ("X",), function="exp"),), (Node("Z", "exp", ("X",)),), False),
        # An exponential is positive, and leaves a logarithm that has a value; other factors need not be.
        ((Node("e", "exp", ("X",)), Node("Z", "opaque", ("e",), function="log")),
         (Node("Z", "scale", ("X",), constant=_number(1.0)),), True),
        ((Node("e", "exp", ("X",)), Node("p", "div", ("Y", "e")), Node("Z", "opaque", ("p",), function="log")),
         (Node("l", "opaque", ("Y",), function="log"), Node("Z", "sub", ("l", "X"))), True),
        ((Node("e", "exp", ("X",)), Node("p", "mul", ("Y", "e")), Node("Z", "opaque", ("p",), function="log")),
         (Node("l", "opaque", ("Y",), function="log"), Node("Z", "sub", ("l", "X"))), False),
        ((Node("e", "exp", ("X",)), Node("p", "add", ("Y", "e")), Node("Z", "opaque", ("p",), function="log")),
         (Node("l", "opaque", ("Y",), function="log"), Node("Z", "add", ("l", "X"))), False),
        ((Node("p", "mul", ("X", "Y")), Node("Z", "opaque", ("p",), function="log")),
         (Node("l", "opaque", ("Y",), function="log"), Node("k", "opaque", ("X",), function="log"),
          Node("Z", "add", ("l", "k"))), False),
        ((Node("e", "exp", ("X",)), Node("Z", "opaque", ("e",), function="log2")),
         (Node("Z", "scale", ("X",), constant=_number(1.0)),), False),
        ((Node("Z", "maximum", ("X", "Y")),), (Node("Z", "maximum", ("Y", "X")),), True),
        ((Node("Z", "minimum", ("X", "Y")),), (Node("Z", "minimum", ("Y", "X")),), True),
        ((Node("Z", "minimum", ("X", "Y")),), (Node("Z", "maximum", ("X", "Y")),), False),
        ((Node("Z", "minimum", ("X", "Y")),),
         (Node("n", "neg", ("X",)), Node("o", "neg", ("Y",)), Node("m", "maximum", ("n", "o")),
          Node("Z", "neg", ("m",))), True),
        ((Node("c", "cast", ("X",), dtype="float16"), Node("Z", "exp", ("c",))), (Node("Z", "exp", ("X",)),), True),
    ],
)  # fmt: skip
def test_identities_and_their_false_neighbours(a: tuple[Node, ...], b: tuple[Node, ...], equal: bool) -> None:
    proof = prove_equal(_rows(*a), _rows(*b))
    assert proof.proved is equal, proof.why


def _log_sum(by: str, back: Node | None, *more: Node) -> Graph:
    """log Σₖ exp(x - t) + …, with t the maximum of the row, or (by "i") of the column."""
    tensors, out = (Tensor("X", ("i", "k"), "float32"),), (Output("Y", ("i",), "float32", "Y"),)
    steps = (
        Node("t", "max", ("X",), axis=by), Node("d", "sub", ("X", "t")), Node("e", "exp", ("d",)),
        Node("s", "sum", ("e",), axis="k"), Node("l" if back else "Y", "opaque", ("s",), function="log"), *more,
    )  # fmt: skip
    return Graph("log_sum", {"i": Var("m"), "k": Var("k")}, tensors, (*steps, *([back] if back else [])), out)


def test_a_logarithm_of_a_sum_is_free_of_its_maximum() -> None:
    """log Σ exp(x - max x) + max x = log Σ exp x, by a proof; draws take log for an arbitrary function."""
    made = _log_sum("k", Node("Y", "add", ("l", "t")))
    plain = (Node("e", "exp", ("X",)), Node("s", "sum", ("e",), axis="k"), Node("Y", "opaque", ("s",), function="log"))
    expression = made.with_steps(*plain)
    verdict = verify(made, expression)
    assert verdict.equal and {t.name: t.outcome for t in verdict.tiers}["fields"] == REJECTED
    for wrong in (
        _log_sum("k", None),
        _log_sum("k", Node("Y", "sub", ("l", "t"))),
        _log_sum("k", Node("Y", "add", ("l", "t2")), Node("t2", "scale", ("t",), constant=_number(2.0))),
        _log_sum("i", Node("Y", "add", ("l", "t2")), Node("t2", "max", ("X",), axis="k")),
    ):
        assert not prove_equal(wrong, expression).proved
        assert verify(wrong, expression).counterexample is not None


def test_an_axis_of_one_element_is_its_own_sum() -> None:
    """x = Σ x over an axis of length 1, whatever cuts it."""
    axes = {"i": Var("m"), "o": Const(1, "int32")}
    tensors, out = (Tensor("X", ("i", "o"), "float32"),), (Output("Y", ("i",), "float32", "Y"),)
    one = Graph("one", axes, tensors, (Node("s", "sum", ("X",), axis="o"), Node("Y", "exp", ("s",))), out)
    other = one.with_steps(Node("e", "exp", ("X",)), Node("Y", "sum", ("e",), axis="o"))
    assert prove_equal(one, other).proved
    assert not prove_equal(replace(one, axes=AXES | axes | {"o": Var("n")}), other).proved


def test_equally_long_axes_are_not_one_axis() -> None:
    """x·xᵀ and xᵀ·x of a square matrix, whose dimensions have one size."""
    axes = {"i": Var("m"), "j": Var("m"), "k": Var("m")}
    out = (Output("Z", ("i", "j"), "float32", "Z"),)

    def product(a: tuple[str, str], b: tuple[str, str]) -> Graph:
        tensors = (Tensor("X", a, "float32"), Tensor("X2", b, "float32", buffer="X"))
        return Graph("product", axes, tensors, (Node("Z", "matmul", ("X", "X2"), axis="k"),), out)

    assert not prove_equal(product(("i", "k"), ("j", "k")), product(("k", "i"), ("k", "j"))).proved
    assert prove_equal(product(("i", "k"), ("j", "k")), product(("j", "k"), ("i", "k"))).proved


def test_a_sum_of_what_became_a_number_counts_elements() -> None:
    """Σ exp(x - x) over k is the length of the axis, however a kernel cuts it."""
    tensors, out = (Tensor("X", ("i", "k"), "float32"),), (Output("Y", ("i",), "float32", "Y"),)
    axes = {"i": Var("m"), "k": Var("k")}
    ones = (Node("z", "sub", ("x", "x")), Node("e", "exp", ("z",)), Node("y", "acc_sum", ("e",), axis="k"))
    kernel = Kernel("ones", ("i",), "k", (Load("x", "X"),), ones, (Save("Y", "y"),))
    graph = Graph("ones", axes, tensors, (kernel,), out)
    assert str(indexed_forms(graph)["Y"][0]) == "k"


def test_outputs_are_compared_in_order_and_shape() -> None:
    two = (Output("P", ("i",), "float32", "p"), Output("N", ("i",), "float32", "n"))
    steps = (Node("p", "exp", ("X",)), Node("n", "neg", ("X",)))
    graph = replace(_rows(*steps), outputs=two)
    assert prove_equal(graph, graph).proved
    assert not prove_equal(graph, replace(graph, outputs=two[::-1])).proved
    assert "outputs" in prove_equal(graph, replace(graph, outputs=two[:1])).why
    assert "shape" in prove_equal(graph, replace(graph, axes={"i": Var("n")})).why


def test_a_maximum_of_maxima_of_tiles() -> None:
    """The maximum over tiles, iterations and programs, scaled and shifted, is that over the axis."""
    body = (
        Node("h", "scale", ("x",), constant=_number(0.5)),
        Node("t", "max", ("h",), axis="k"),
        Node("y", "acc_max", ("t",), axis="k"),
    )
    kernel = Kernel("rows", ("i", "k"), "k", (Load("x", "X"),), body, (Save("M", "y"),))
    tensors, out = (Tensor("X", ("i", "k"), "float32"),), (Output("Y", ("i",), "float32", "Y"),)
    parts = Graph("rows", {"i": Var("m"), "k": Var("k")}, tensors, (kernel,), out)
    cut = parts.with_steps(kernel, Node("Y", "max", ("M",), axis="k", parts=frozenset({"grid"})))
    whole = (Node("t", "max", ("X",), axis="k"), Node("Y", "scale", ("t",), constant=_number(0.5)))
    assert prove_equal(cut, parts.with_steps(*whole)).proved
    minus = (whole[0], replace(whole[1], constant=_number(-0.5)))
    assert not prove_equal(cut, parts.with_steps(*minus)).proved
    summed = Node("Y", "sum", ("M",), axis="k", parts=frozenset({"grid"}))
    assert not prove_equal(parts.with_steps(kernel, summed), parts.with_steps(*whole)).proved


@pytest.mark.parametrize(
    ("program", "fused"),
    [
        (verified.ATTENTION, verified.ATTENTION_FUSED),
        (verified.ATTENTION, verified.ATTENTION_SAFE),
        (verified.ATTENTION, verified.split_attention(safe=True)),
        (verified.LORA, verified.LORA_FUSED),
        (verified.GATED, verified.GATED_FUSED),
        (verified.QK_NORM, verified.QK_NORM_FUSED),
    ],
)
def test_graphs_of_the_benchmarks(program: Graph, fused: Graph) -> None:
    proof = prove_equal(program, fused)
    assert proof.proved, proof.why


def _safe(**nodes: Node) -> Graph:
    return verified.swapped(verified.ATTENTION_SAFE, **nodes)


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        (verified.QK_NORM, verified.PUBLISHED),
        (verified.ATTENTION, verified.FORGOTTEN),
        (verified.ATTENTION, _safe(a=Node("a", "acc_rescaled", ("pv", "m"), "j", constant=_number(2.0)))),
        (verified.ATTENTION, _safe(shifted=Node("shifted", "add", ("s", "m")))),
        (verified.ATTENTION, _safe(o=Node("o", "mul", ("a", "l")))),
    ],
)
def test_wrong_graphs_of_the_benchmarks(program: Graph, wrong: Graph) -> None:
    """A scale of sums where a product belongs, a sum that is not rescaled, or by another degree, …"""
    assert not prove_equal(program, wrong).proved


def test_a_running_maximum_that_stays_is_no_value_of_the_expression() -> None:
    """A sum of what the first tiles' maximum scales, without any rescaling, is a function of the tiles."""
    wrong = _safe(a=Node("a", "acc", ("pv",), "j"), l=Node("l", "acc", ("ps",), "j"))
    assert "how axes are cut" in prove_equal(verified.ATTENTION, wrong).why
