"""The enumeration against one that knows nothing: every sequence of operators, judged by types and forms of graphs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from neptune.errors import ExpressionError
from neptune.ir.expr import Const
from neptune.mirage.enumeration.abstract import Labels, values
from neptune.mirage.enumeration.algebra import Algebra
from neptune.mirage.enumeration.enumerate import ordered
from neptune.mirage.enumeration.operators import Operator
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import Graph, Kernel, Load, Node, Save
from neptune.mirage.ops import OPS
from neptune.mirage.search import search
from neptune.mirage.types import graph_types, kernel_types
from tests.unit.mirage.programs_by_hand import graph

PROGRAMS = {
    "exp of a product": graph({"X": "ik", "W": "kj"}, "ij", Node("p", "matmul", ("X", "W"), axis="k"),
                              Node("o", "exp", ("p",))),
    "square of a sum": graph({"X": "ik"}, "i", Node("s", "sum", ("X",), axis="k"), Node("o", "sqr", ("s",))),
    "sum of squares": graph({"X": "ik"}, "i", Node("s", "sqr", ("X",)), Node("o", "sum", ("s",), axis="k")),
    "quotient of sums": graph({"X": "ik"}, "i", Node("e", "exp", ("X",)), Node("s", "sum", ("e",), axis="k"),
                              Node("t", "sum", ("X",), axis="k"), Node("o", "div", ("t", "s"))),
}  # fmt: skip
OPERATORS = ("exp", "sqr", "mul", "div", "matmul", "acc", "acc_sum")


def naive(program: Graph, count: int) -> Iterator[Kernel]:
    """Kernels over k with so many operators, all but the last read, the last saved."""
    loads = tuple(Load(f"t{n}", t.name) for n, t in enumerate(program.inputs))
    tensors = graph_types(program)
    empty = Kernel("fused", (), "k", loads, (), ())

    def grow(kernel: Kernel) -> Iterator[Kernel]:
        if len(kernel.body) == count:
            read = {o for n in kernel.nodes for o in n.operands}
            if len(read) == kernel.size - 1:
                yield replace(kernel, saves=(Save("o", kernel.nodes[-1].name),))
            return
        names = [*(x.name for x in kernel.loads), *(x.name for x in kernel.nodes)]
        for op in OPERATORS:
            for operands in product(names, repeat=OPS[op].arity):
                if len(set(operands)) < len(operands):
                    continue
                axis = "k" if OPS[op].kind != "map" else ""
                grown = replace(kernel, body=(*kernel.body, Node(f"v{len(names)}", op, operands, axis=axis)))
                try:
                    typed = kernel_types(grown, tensors)
                except ExpressionError:
                    continue
                reads = [typed[o].type for o in operands]
                # The rules of docs/mirage.md that leave out graphs with another that does the same.
                outer = OPS[op].kind == "map" and all(set(r) != set(typed[f"v{len(names)}"].type) for r in reads)
                square = op == "matmul" and set(reads[0]) == set(reads[1])
                if not (outer or square or (op == "acc" and "tile" in reads[0]["k"])):
                    yield from grow(grown)

    yield from grow(empty)


def said(kernel: Kernel) -> str:
    at = {x.name: x.tensor for x in kernel.loads}
    for n in kernel.nodes:
        args = [at[o] for o in n.operands]
        at[n.name] = f"{n.op}({', '.join(sorted(args) if OPS[n.op].commutes else args)})"
    # Equal texts in one kernel are a value that is there twice.
    assert kernel.saves
    return at[kernel.saves[0].value] if len(set(at.values())) == len(at) else ""


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_all_small_kernels_are_found_and_no_others(name: str) -> None:
    program = PROGRAMS[name]
    labels = Labels(Algebra(), tuple(program.axes))
    wanted = values(program, labels)["o"]
    expected: set[str] = set()
    most = 4 if name == "quotient of sums" else 3
    for count in range(1, most + 1):
        for kernel in naive(program, count):
            grid = tuple(program.outputs[0].axes)
            try:
                found = values(program.with_steps(replace(kernel, grid=grid)), labels)["o"]
            except ExpressionError:
                continue
            if found == wanted and said(kernel):
                expected.add(said(kernel))
    bounds = Bounds(most + len(program.inputs), 1, operators=frozenset(OPERATORS))
    kernels = [f.graph.kernels[0] for f in search(program, bounds)]
    assert {said(k) for k in kernels if k.loop} == expected
    assert expected


def test_kernels_are_written_in_the_order_of_rank() -> None:
    exp, sqr, mul = Operator("exp"), Operator("sqr"), Operator("mul")
    steps = [(sqr, (1,)), (exp, (0,)), (mul, (2, 3))]
    made = ordered(steps, 2, (4,))
    assert made.steps == ((exp, (0,)), (sqr, (1,)), (mul, (3, 2))) and made.targets == (4,)
    shift = Operator("shift", label=Const(1.0, "float32"))
    assert ordered([(shift, (0,))], 1, (1,)).steps == ((shift, (0,)),)
