"""The verifier of asynchronous kernels: derived ones pass, and every change of their synchronisation is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from neptune.errors import InternalError
from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Levers,
    Release,
    Send,
    Staged,
    inside,
    with_inside,
)
from neptune.hopper.printer import print_astmt
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Const, op
from neptune.templates.matmul import matmul
from neptune.tile.ir import Assign, Branch, Local, Loop, TileProgram
from neptune.tile.pipeline import lower
from tests.examples.float8_programs import scaled_matmul
from tests.examples.hopper_examples import attention, product
from tests.examples.lowering import scheduled
from tests.examples.walks import tiles_of, walked

Body = tuple[AStmt, ...]
TILES = {"attention": {"BLOCK_M": 64, "BLOCK_N": 128}, "product": {"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 64}}
SYNC = (Fill, Await, Release, Issue, Finish, Drain)


def kernel(name: str = "attention", **levers: object) -> tuple[AsyncKernel, TileProgram]:
    if name == "residual":
        return with_residual()
    walked, program = {"attention": attention, "product": product}[name]()
    return roles(walked, program, replace(Levers(tiles=TILES[name]), **levers)), program  # type: ignore[arg-type]


FORMS = [
    ("attention", {}),
    ("attention", {"own_out": False}),
    ("attention", {"persistent": "reverse"}),
    ("attention", {"persistent": "table"}),
    ("attention", {"persistent": "table", "own_out": False}),
    ("product", {"persistent": "stride", "stages": 3}),
    ("product", {"stages": 1}),
    ("residual", {}),
]


@pytest.mark.parametrize(("name", "levers"), FORMS)
def test_derived_kernels_are_well_formed(name: str, levers: dict[str, object]) -> None:
    verify_async(*kernel(name, **levers))


@cache
def with_residual() -> tuple[AsyncKernel, TileProgram]:
    """A product whose result leaves over the residual."""
    _, tiles = tiles_of("matmul", "matmul", residual=True)
    levers = Levers(2, 3, "stride", own_out=False, tiles={"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}, band=4)
    return roles(walked(tiles, levers), tiles, levers), tiles


def rejected(mutant: AsyncKernel, program: TileProgram) -> bool:
    try:
        verify_async(mutant, program)
    except InternalError:
        return True
    return False


def mutants(body: Body) -> Iterator[tuple[str, Body]]:
    """The body with one statement of its synchronisation dropped, or changed to another turn or wait."""
    for k, s in enumerate(body):
        text = print_astmt(s, 0)[0]
        before, behind = body[:k], body[k + 1 :]
        if isinstance(s, Loop | Branch):
            yield from ((what, (*before, with_inside(s, inner), *behind)) for what, inner in mutants(inside(s)))
        if isinstance(s, SYNC) or (isinstance(s, Assign) and s.name.endswith("turn")):
            yield f"without {text}", (*before, *behind)
            if not isinstance(s, Drain | Issue):
                yield f"twice {text}", (*before, s, s, *behind)
        if isinstance(s, Fill | Await | Release):
            later = replace(s, turn=op("add", s.turn, 1))
            yield f"a turn later {text}", (*before, later, *behind)
        if isinstance(s, Finish):
            yield f"one more in flight at {text}", (*before, replace(s, pending=s.pending + 1), *behind)
            if s.names:
                yield f"naming too little at {text}", (*before, replace(s, names=s.names[1:]), *behind)
            if s.also and not s.names:
                yield f"handing too little on at {text}", (*before, replace(s, also=s.also[1:]), *behind)
            for j in range(k + 1, len(body)):
                if isinstance(body[j], Assign | Send):
                    moved = (*before, *body[k + 1 : j + 1], s, *body[j + 1 :])
                    yield f"{text} behind {print_astmt(body[j], 0)[0]}", moved
        waits = [j for j in range(k) if isinstance(body[j], Finish | Await)]
        if isinstance(s, Release) and waits:
            yield f"earlier {text}", (*body[: waits[-1]], s, *body[waits[-1] : k], *behind)
        if isinstance(s, Issue):
            yield f"a wait missing before {text}", (*before[:-1], s, before[-1], *behind)


@pytest.mark.parametrize(("name", "levers"), FORMS)
def test_changes_of_the_synchronisation_are_found(name: str, levers: dict[str, object]) -> None:
    made, program = kernel(name, **levers)
    count, missed = 0, []
    for role in ("producer", "consumer"):
        for what, body in mutants(getattr(made, role)):
            count += 1
            changed: dict[str, Any] = {role: body}
            if not rejected(replace(made, **changed), program):
                missed.append(f"{role}: {what}")
    assert count > 20 and not missed


def test_findings_say_what_is_wrong() -> None:
    made, program = kernel()
    loop = next(s for s in made.producer if isinstance(s, Loop))
    wrong = replace(made, producer=(*made.producer[:-1], with_inside(loop, inside(loop)[1:])))
    with pytest.raises(InternalError, match=r"producer: an iteration of j0 has -1 turns of k beside its counter"):
        verify_async(wrong, program)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_no_running_sum_of_8_bits(dtype: str) -> None:
    """Hopper's unit cuts one to 14 bits: each tile's product is begun anew, and added in float32."""
    tiles = lower(scheduled(scaled_matmul(dtype), matmul))
    made = roles(walked(tiles), tiles, Levers(tiles={"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128}))
    verify_async(made, tiles)
    text = str(made)
    assert "issue c_product<i1 j1> = dot(" in text and "c<i1 j1> = (c + c_product)" in text
    wrong = replace(made, consumer=tuple(map(running, made.consumer)))
    with pytest.raises(InternalError, match="14 bits"):
        verify_async(wrong, tiles)


def running(s: AStmt) -> AStmt:
    """The statement with products that add to what they set."""
    if isinstance(s, Issue):
        return replace(s, dot=replace(s.dot, acc=Local(s.name, s.dot.dims, s.dot.dtype)))
    return with_inside(s, tuple(map(running, inside(s)))) if isinstance(s, Loop | Branch) else s


def test_declarations() -> None:
    made, program = kernel(own_out=False)
    (q, k, v) = made.rings
    for rings in ((q, k, v, k), (replace(q, stages=2), k, v), (replace(q, own=False), k, v), (q, k)):
        assert rejected(replace(made, rings=rings), program)
    (out,) = made.outs
    for changed in (replace(out, over="k"), replace(out, dtype="float32"), replace(out, tensor="q")):
        assert rejected(replace(made, outs=(changed,)), program)
    assert rejected(replace(made, group="g"), program)
    assert rejected(replace(made, axes=tuple((n, e if n != "e" else 128) for n, e in made.axes)), program)


def test_shapes_are_those_of_tiles() -> None:
    made, program = kernel()
    assigned = Assign("m", Const(1.0, "float32"), "m")  # type: ignore[arg-type]
    assert rejected(replace(made, consumer=(*made.consumer, assigned)), program)


def test_a_tile_in_registers_is_read_while_it_is_there() -> None:
    _, tiles = tiles_of("l2_normalise_matmul", "norm_linear_rolling")
    levers = Levers(tiles={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64})
    made = roles(walked(tiles, levers), tiles, levers)
    verify_async(made, tiles)
    (around,) = [s for s in made.consumer if isinstance(s, Branch)]
    (loop,) = [s for s in inside(around) if isinstance(s, Loop)]
    body = inside(loop)
    (read,) = [k for k, s in enumerate(body) if isinstance(s, Assign) and isinstance(s.value, Staged)]
    for place in (0, len(body)):
        moved = [*body[:read], *body[read + 1 :]]
        moved.insert(place, body[read])
        changed = with_inside(
            around, tuple(with_inside(loop, tuple(moved)) if s is loop else s for s in inside(around))
        )
        consumer = tuple(changed if s is around else s for s in made.consumer)
        with pytest.raises(InternalError, match="x reads a tile of x that it does not have"):
            verify_async(replace(made, consumer=consumer), tiles)
