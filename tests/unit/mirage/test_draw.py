"""Pictures of graphs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from neptune.mirage.draw import dot, draw
from neptune.mirage.ir import Graph, Kernel, nodes
from tests.goldens import check_golden
from tests.unit.mirage.graphs import GRAPHS, SPLITS, n_trans

EVERY = [f() for f in (*GRAPHS.values(), *SPLITS.values())]


@pytest.mark.parametrize(("name", "graphs"), [("RMSNorm", GRAPHS), ("GQA", SPLITS), ("nTrans", GRAPHS)])
def test_pictures(name: str, graphs: dict[str, Callable[[], Graph]]) -> None:
    graph = graphs[name]()
    check_golden(f"mirage/{graph.name}.txt", draw(graph))
    check_golden(f"mirage/{graph.name}.dot", dot(graph))


def test_what_no_iteration_changes_stands_in_front_of_the_loop() -> None:
    lines = draw(SPLITS["QKNorm"]()).splitlines()
    loop = next(k for k, line in enumerate(lines) if "loop j" in line)
    assert any("load q" in line for line in lines[:loop]) and any("load k" in line for line in lines[loop:])
    assert any(line.endswith("h i (j‖) d") for line in lines)


def test_threads_are_boxes() -> None:
    lines = draw(n_trans()).splitlines()
    first = lines.index("│ ┌ thread")
    assert [line.split(" = ")[0] for line in lines[first + 1 : first + 5]] == [
        "│ │ div",
        "│ │ add",
        "│ │ mul",
        "│ │ add_1",
    ]
    assert lines[first + 5] == "│ └"


@pytest.mark.parametrize("graph", EVERY, ids=lambda g: f"{g.name}{len(g.kernels)}")
def test_pictures_have_everything(graph: Graph) -> None:
    text, made = draw(graph), dot(graph)
    assert all(f"{n.name} = {n.op}" in text for n in nodes(graph))
    declared = set(re.findall(r'^ *("[^"]+") \[', made, re.M))
    edges = re.findall(r'^ *("[^"]+") -> ("[^"]+")', made, re.M)
    assert {x for edge in edges for x in edge} <= declared and made.count("{") == made.count("}")
    inside = [s for s in graph.steps if isinstance(s, Kernel)]
    operands = sum(len(n.operands) for n in nodes(graph))
    assert len(edges) == operands + sum(len(k.loads) + len(k.saves) for k in inside) + len(graph.outputs)


def test_labels_are_quoted() -> None:
    assert 'digraph "a \\"b\\" \\\\" {' in dot(Graph('a "b" \\', {}, (), (), ()))
