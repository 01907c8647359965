"""Layouts by an integer linear program, beside all that there are."""

import builtins
import random
from collections.abc import Mapping
from itertools import product

import pytest

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Var
from neptune.mirage.ir import Graph, Kernel, Load, Node, Output, Save, Tensor
from neptune.mirage.layouts import Problem, layouts, problem, solve, temporaries
from neptune.tune.model.machine import DEFAULT


def least(posed: Problem) -> float:
    names = list(posed.axes)
    return min(posed.cost(dict(zip(names, axes, strict=True))) for axes in product(*map(posed.choices, names)))


def drawn(rng: random.Random) -> Problem:
    names, axes = [f"t{k}" for k in range(rng.randrange(2, 8))], "abcd"
    made = Problem()
    for n in names:
        made.axes[n] = tuple(rng.sample(axes, rng.randrange(1, 4)))
        if rng.random() < 0.2:
            made.fixed[n] = made.axes[n][0]
        made.own |= {(n, a): float(rng.randrange(10)) for a in made.axes[n] if rng.random() < 0.6}
    pairs = [rng.sample(names, 2) for _ in range(rng.randrange(10))]
    made.turned = [(a, b, float(rng.randrange(1, 10))) for a, b in pairs]
    return made


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_that_of_enumeration(seed: int) -> None:
    posed = drawn(random.Random(seed))
    assert posed.cost(solve(posed)) == pytest.approx(least(posed))


def split_by_two(first: tuple[str, ...] = ("i", "j")) -> Graph:
    """T = exp(A) in tiles of whole rows along j, then a sum over i whose programs take columns of one j each."""
    one = Kernel("one", ("i",), None, (Load("a", "A"),), (Node("t", "exp", ("a",)),), (Save("T", "t"),))
    two = Kernel(
        "two",
        ("j",),
        "i",
        (Load("x", "T"),),
        (Node("s", "acc_sum", ("x",), axis="i"),),
        (Save("S", "s"),),
    )
    return Graph(
        "two_kernels",
        {"i": Var("m"), "j": Const(64, "int32")},
        (Tensor("A", first, "float32"),),
        (one, two),
        (Output("S", ("j",), "float32", "S"),),
    )


SIZES = {"m": 4096}


def test_a_temporary_lies_as_those_who_read_it_in_small_tiles_need_it() -> None:
    narrow: Mapping[str, int] = {"i": 64, "j": 4}
    assert temporaries(split_by_two()) == ("T",)
    graph = split_by_two()
    found = layouts(graph, SIZES, DEFAULT, narrow)
    assert found.orders == {"T": ("j", "i")}
    assert found.cost == pytest.approx(least(problem(graph, SIZES, DEFAULT, narrow)))
    # Whole rows at a time: then it stays in the order in which A lies and is read.
    assert layouts(graph, SIZES, DEFAULT, {"i": 2, "j": 64}).orders == {"T": ("i", "j")}


def test_results_stay_as_the_caller_has_them() -> None:
    graph = split_by_two()
    shown = Graph(
        graph.name, graph.axes, graph.inputs, graph.steps, (*graph.outputs, Output("T", ("i", "j"), "float32", "T"))
    )
    assert layouts(shown, SIZES, DEFAULT, {"i": 64, "j": 4}).orders == {}


def test_without_scipy_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **more: object) -> object:
        if name.startswith("scipy"):
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        return real(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ScheduleError, match=r"needs scipy(.|\n)*pip install 'scipy>=1.9'"):
        layouts(split_by_two(), SIZES, DEFAULT)
