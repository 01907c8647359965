"""Mistakes planted in the passes: each is found by the exact check, or by comparing what the roles load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neptune.frontend.builder import placeholder
from neptune.frontend.builder import var as size
from neptune.hopper.bodies import backwards, bounds, pieces, write
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.ir import Levers
from neptune.ir.expr import Expr, binary
from neptune.ir.program import Program
from neptune.ops.masks import segments
from neptune.tile.ir import Assign, Branch, Loop, TileProgram
from neptune.tile.passes import rotate
from neptune.tile.passes.util import Block
from neptune.tile.scalars import var
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.instances import number
from tests.examples.walks import Array, roles_agree, tiles_of, walked, with_kernel

SIZES = [{"batch": 1, "s_q": q, "s_kv": kv} for q, kv in [(200, 97), (129, 300), (130, 130), (70, 1)]]
Patch = pytest.MonkeyPatch
SEGMENTS = segments(*(placeholder((size("batch"), size("s_q")), "int32", n) for n in ("first", "last")))


def programs(name: str) -> tuple[Program, TileProgram]:
    options = {"mask": SEGMENTS} if name == "attention" else {}
    return tiles_of(name, "flash_attention", depth=16, heads=2, **options)


def inputs_of(tiles: TileProgram, sizes: dict[str, int]) -> dict[str, Array]:
    shapes = {b.name: [number(d, sizes) for d in b.shape] for b in tiles.inputs}
    # Rows see other keys the further down they are.
    made = {n: np.sin(np.arange(np.prod(shape))).reshape(shape) for n, shape in shapes.items()}
    places = {n: np.arange(np.prod(made[n].shape)).reshape(made[n].shape) // 4 for n in ("first", "last") if n in made}
    return made | {n: at + 9 * (n == "last") for n, at in places.items()}


def wrong(w: RoleBodies, name: str) -> bool:
    """True if anything tells the walked kernel from a right one."""
    program, tiles = programs(name)
    try:
        for sizes in SIZES:
            roles_agree(w, tiles, sizes, -(-sizes["s_q"] // 128), inputs_of(tiles, sizes))
    except AssertionError:
        return True
    assert w.symbolic is not None
    if not check_exact(program, with_kernel(tiles, w.symbolic, numbers=False)).accepted:
        return True
    sizes = SIZES[0]
    inputs = inputs_of(tiles, sizes)
    got, wanted = evaluate(with_kernel(tiles, w.kernel), inputs, sizes), evaluate(program, inputs, sizes)
    return not all(np.allclose(np.asarray(got[n]), np.asarray(wanted[n]), 1e-9, 1e-9) for n in wanted)


def made(name: str) -> RoleBodies:
    return walked(programs(name)[1], Levers(tiles={"BLOCK_N": 32}))


def clean_body_first(patch: Patch) -> None:
    """The tile visited first has no mask."""
    general = backwards._general

    def other(of: Any, parts: list[Any]) -> int | None:
        k = general(of, parts)
        return None if k is None else (k + 1) % len(parts)

    patch.setattr(backwards, "_general", other)


def turned_by(change: Callable[[rotate.Rotated], rotate.Rotated]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        parts = rotate._parts

        def other(*args: Any) -> rotate.Rotated | str:
            found = parts(*args)
            return found if isinstance(found, str) else change(found)

        patch.setattr(rotate, "_parts", other)

    return plant


def _without_rescale(t: rotate.Rotated) -> rotate.Rotated:
    return replace(t, back=tuple(s for s in t.back if not (isinstance(s, Assign) and s.name == "acc")))


def _behind_rescale(t: rotate.Rotated) -> rotate.Rotated:
    """The product of the tile before stands behind the next tile's rescaling."""
    cast = tuple(s for s in t.back if isinstance(s, Assign) and s.name in t.carried)
    return replace(t, front=(*t.front, *(s for s in t.back if s not in cast)), back=cast)


def unused_by(one: int) -> Callable[[Patch], None]:
    """One tile more, or less, is skipped."""

    def plant(patch: Patch) -> None:
        unused = backwards.unused

        def other(above: Expr, below: Expr, *rest: Any) -> Block:
            return unused(above, binary("sub", below, one), *rest)

        patch.setattr(backwards, "unused", other)

    return plant


def loops_from(first: int) -> Callable[[Patch], None]:
    """Loops that begin a tile late."""

    def plant(patch: Patch) -> None:
        whole = write.backwards

        def other(*args: Any) -> Block:
            return tuple(_later(s, first) if isinstance(s, Branch) else s for s in whole(*args))

        patch.setattr(write, "backwards", other)

    return plant


def _later(s: Branch, first: int) -> Branch:
    body = tuple(replace(x, lo=binary("add", x.lo, first)) if isinstance(x, Loop) else x for x in s.body)
    return replace(s, body=body)


def no_last_product(patch: Patch) -> None:
    whole = write.backwards

    def other(*args: Any) -> Block:
        return tuple(replace(s, body=s.body[:-1]) if isinstance(s, Branch) else s for s in whole(*args))

    patch.setattr(write, "backwards", other)


def same_tile(patch: Patch) -> None:
    """What is multiplied late is of the tile at hand."""
    put = backwards.put

    def other(body: Block, variable: str, value: Expr) -> Block:
        late = any(isinstance(s, Assign) and s.name == "v" for s in body) and "t" in str(value)
        return put(body, variable, binary("sub", value, 1) if late and len(body) == 2 else value)

    patch.setattr(backwards, "put", other)


def bounds_of_the_first(patch: Patch) -> None:
    """The group ends where its first consumer does."""
    extreme = pieces.Group.extreme

    def other(self: pieces.Group, e: Expr, *, largest: bool) -> Expr:
        return extreme(self, e, largest=not largest)

    patch.setattr(pieces.Group, "extreme", other)


def no_clean_end(patch: Patch) -> None:
    """The tiles that need masks are taken for such as need none."""
    words = bounds.bounds

    def other(*args: Any) -> bounds.Bounds:
        b = words(*args)
        return replace(b, edges=(b.edges[0], *(b.edges[-1] for _ in b.edges[1:])))

    patch.setattr(write, "bounds", other)


def data_of_the_first(patch: Patch) -> None:
    """The group's bounds are those of its first tile of rows."""
    change = bounds._Change.__init__

    def other(self: Any, *args: Any) -> None:
        change(self, *args)
        self.extent = var(args[0].block)

    patch.setattr(bounds._Change, "__init__", other)


MUTANTS: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "the first tile without a mask": ("prefill_global", clean_body_first),
    "the first tile without a mask, causal": ("prefill_causal", clean_body_first),
    "a product that is not rescaled": ("prefill_causal", turned_by(_without_rescale)),
    "a product rescaled with the next tile": ("prefill_global", turned_by(_behind_rescale)),
    "one tile too many skipped": ("prefill_causal", unused_by(1)),
    "one tile too few skipped": ("prefill_causal", unused_by(-1)),
    "loops that begin late": ("prefill_global", loops_from(1)),
    "no product of the last tile": ("prefill_causal", no_last_product),
    "a product of the tile at hand": ("prefill_causal", same_tile),
    "bounds of the wrong consumer": ("prefill_causal", bounds_of_the_first),
    "data of one consumer's rows": ("attention", data_of_the_first),
    "masked tiles as clean ones": ("prefill_causal", no_clean_end),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_is_found(mutant: str, monkeypatch: Patch) -> None:
    name, plant = MUTANTS[mutant]
    right = made(name)
    plant(monkeypatch)
    w = made(name)
    assert w.kernel != right.kernel or w.producer != right.producer, "nothing was planted"
    assert wrong(w, name)


@pytest.mark.parametrize("name", ["prefill_global", "prefill_causal", "attention"])
def test_without_a_mistake_nothing_is_found(name: str) -> None:
    assert not wrong(made(name), name)
