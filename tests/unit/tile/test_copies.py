"""copies: originals instead of plain copies, and nothing that is not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.ir.expr import Var
from neptune.tile.ir import Assign, Branch, Loop, TExpr, TileProgram, TStmt, walk_stmts
from neptune.tile.passes.copies import copies
from tests.examples.kernels import (
    N,
    assigned,
    body_of,
    fold,
    full,
    keeps_meaning,
    kernel,
    load,
    loop,
    map_,
    put,
    row,
    tile,
)

W = fold("sum", load("w"))
A, B, S = row("a"), row("b"), row("s")


def add(name: str, x: TExpr, y: TExpr) -> Assign:
    return Assign(name, map_("add", x, y))


def mul(name: str, x: TExpr, y: TExpr) -> Assign:
    return Assign(name, map_("mul", x, y))


COPY = (Assign("a", W), Assign("b", A))
ZERO = Assign("s", full(0.0))
DEAD = add("dead", A, A)


def times(name: str, number: int) -> Callable[[TileProgram], bool]:
    """The local is assigned so often afterwards."""
    return lambda after: len(assigned(after, name)) == number


CASES: dict[str, tuple[tuple[TStmt, ...], Callable[[TileProgram], object]]] = {
    "a copy is read through": (
        (Assign("a", load()), Assign("b", tile("a")), Assign("d", tile("b")), put(fold("max", tile("d")))),
        lambda after: [s.name for s in body_of(after) if isinstance(s, Assign)] == ["a"],
    ),
    "the original changes before the use": ((*COPY, add("a", A, A), put(map_("sub", A, B))), times("b", 1)),
    "the copy is reassigned before the use": ((*COPY, mul("b", B, B), put(B)), lambda after: True),
    "a loop changes the original": ((*COPY, loop(add("a", A, B)), put(map_("add", A, B))), times("b", 1)),
    "a copy in a loop is not known in the next iteration": (
        (
            *(Assign("a", W), Assign("b", full(1.0)), ZERO),
            *(loop(add("s", S, B), mul("a", A, A), Assign("b", A)), put(S)),
        ),
        lambda after: True,
    ),
    "a copy made in a branch is not known behind it": (
        (
            *(Assign("a", W), Assign("b", full(1.0)), Assign("d", full(2.0))),
            *(Branch(N > 1, (Assign("b", A), Assign("d", B))), put(map_("add", B, row("d")))),
        ),
        lambda after: True,
    ),
    "copies pass through loops that leave both alone": ((*COPY, ZERO, loop(add("s", S, B)), put(S)), times("b", 0)),
    "a copy that the loop changes": (
        (*COPY, ZERO, loop(add("s", S, B), add("b", B, A)), put(S)),
        lambda after: assigned(after, "b")[0] == A,
    ),
    "what the next iteration reads is not dead": (
        (Assign("b", W), ZERO, loop(add("s", S, B), mul("b", B, B)), put(S)),
        times("b", 2),
    ),
    "a chain through iterations is not dead": (
        (
            *(Assign("a", W), Assign("b", full(0.0)), ZERO),
            *(loop(add("s", S, B), mul("b", A, A), add("a", A, A)), put(S)),
        ),
        times("a", 2),
    ),
    "dead assignments and empty bodies go": (
        (
            *(Assign("a", W), loop(DEAD), Branch(N > 0, (loop(DEAD, var="i"),))),
            *(Assign("dead", full(0.0)), put(A)),
        ),
        lambda after: (
            not any(isinstance(s, Loop | Branch) for s in walk_stmts(body_of(after))) and not assigned(after, "dead")
        ),
    ),
    "an overwritten start is dead only if the loop always runs": (
        (Assign("a", full(3.0)), loop(Assign("a", fold("sum", load("w", shift=Var("j"))))), put(A)),
        times("a", 2),
    ),
    "a name read only in a nested loop stays": (
        (
            *(Assign("a", W), ZERO),
            *(loop(Assign("b", A), loop(add("s", S, B), var="i"), add("a", A, S)), put(map_("add", S, A))),
        ),
        lambda after: True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_copies(name: str) -> None:
    body, holds = CASES[name]
    assert holds(keeps_meaning(copies, kernel(*body)))
