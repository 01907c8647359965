"""outward: what no iteration changes is asked in front of the loop, and programs with nothing to do end at once."""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import Const, Load, Var, binary
from neptune.tile.ir import Assign, Branch, GridAxis, TStmt
from neptune.tile.passes.guards import outward
from tests.examples.kernels import TILE, N, body_of, full, inputs, keeps_meaning, kernel, loop, put, tile
from tests.examples.tile_examples import map_

FEW = binary("lt", N, Const(3, "int32"))
S0 = Assign("s", full(0.0, TILE))
ADD = Assign("s", map_("add", tile("s"), full(1.0, TILE)))


def _made(*body: TStmt) -> tuple[TStmt, ...]:
    return body_of(keeps_meaning(outward, kernel(*body, put(tile("s")))))


def test_it_moves_out_of_loops() -> None:
    assert _made(S0, loop(Branch(FEW, (ADD,))))[1] == Branch(FEW, (loop(ADD),))
    nested = loop(loop(Branch(FEW, (ADD,)), var="i"))
    assert _made(S0, nested)[1] == Branch(FEW, (loop(loop(ADD, var="i")),))


def test_neighbours_are_one_first() -> None:
    other = Assign("s", map_("add", tile("s"), full(2.0, TILE)))
    assert _made(S0, loop(Branch(FEW, (ADD,)), Branch(FEW, (other,))))[1] == Branch(FEW, (loop(ADD, other),))


def test_what_an_iteration_changes_stays() -> None:
    per_step = Branch(binary("lt", Var("j"), Const(1, "int32")), (ADD,))
    assert _made(S0, loop(per_step))[1] == loop(per_step)
    # A loop that does more than what is asked for runs in any case.
    more = loop(ADD, Branch(FEW, (ADD,)))
    assert _made(S0, more)[1] == more


def test_what_is_loaded_stays() -> None:
    given = Branch(binary("lt", Load("t", (Const(0, "int32"),), "int32"), Const(2, "int32")), (ADD,))
    program = kernel(S0, loop(given), put(tile("s")))
    assert body_of(keeps_meaning(outward, program, inputs()))[1] == loop(given)


def test_what_tells_programs_apart_comes_first() -> None:
    one = replace(kernel(S0, put(tile("s"))).kernels[0], grid=(GridAxis("i0", Const(4, "int32"), "grid.x"),))
    here = binary("lt", Var("i0"), Const(2, "int32"))
    made = outward(replace(one, body=(S0, Branch(FEW, (Branch(here, (ADD,)),)))))
    assert made.body[1] == Branch(here, (Branch(FEW, (ADD,)),))
    assert outward(made) == made
