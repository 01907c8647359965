"""upright: a transpose of what is spread out of vectors is none."""

from __future__ import annotations

import re

import pytest
import torch

import neptune
from neptune.frontend.builder import compute, placeholder, reduce_axis, sum, var
from neptune.ir.expr import Const
from neptune.ops.attention import prefill_causal
from neptune.tile.index import oriented
from neptune.tile.ir import Assign, Full, Iota, LoadTile, Local, Rearrange, Scalar, TExpr, TileProgram
from neptune.tile.passes import upright as module
from neptune.tile.passes.upright import upright
from tests.examples.kernels import apply, assigned, keeps_meaning, kernel, load, map_, nodes, put, tile

THREE, FIVE = (Scalar(Const(n, "int32")) for n in (3, 5))
ROWS, COLUMNS = map_("lt", Iota("r"), THREE), map_("lt", Iota("c"), FIVE)
FLAT: TExpr = map_("and", Rearrange(COLUMNS, "c -> c 1"), Rearrange(ROWS, "r -> 1 r"))
"""The mask of the first three rows and five columns, over (c, r)."""


def transposed(e: TExpr) -> Rearrange:
    return Rearrange(e, "c r -> r c")


def transposes(program: TileProgram) -> int:
    return len([x for x in nodes(program) if isinstance(x, Rearrange) and "1" not in x.dims])


def test_a_mask_is_spread_the_other_way() -> None:
    before = kernel(Assign("a", load(mask=transposed(FLAT))), put(tile("a")))
    after = keeps_meaning(upright, before)
    assert (transposes(before), transposes(after)) == (1, 0)
    (value,) = assigned(after, "a")
    assert isinstance(value, LoadTile)
    assert value.mask == map_("and", Rearrange(COLUMNS, "c -> 1 c"), Rearrange(ROWS, "r -> r 1"))


def test_a_number_everywhere_is_one_in_any_order() -> None:
    full = Full(Scalar(Const(True, "bool")), ("c", "r"), "bool")
    before = kernel(Assign("a", load(mask=transposed(map_("and", FLAT, full)))), put(tile("a")))
    assert transposes(keeps_meaning(upright, before)) == 0


def test_a_tile_that_is_there_is_transposed_as_before() -> None:
    swapped = Assign("t", Rearrange(load(), "r c -> c r"))
    both = map_("add", Local("t", ("c", "r"), "float32"), Local("t", ("c", "r"), "float32"))
    before = kernel(swapped, put(transposed(both)))
    assert apply(upright, before) == before


def test_a_mask_that_lost_a_condition_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that turns the columns' half alone."""
    before = kernel(Assign("a", load(mask=transposed(FLAT))), put(tile("a")))
    monkeypatch.setattr(module, "oriented", lambda e, source, target: oriented(e.args[0], source, target))
    with pytest.raises(AssertionError):
        keeps_meaning(upright, before)


@pytest.mark.compared
def test_columns_that_are_summed_in_parts_load_what_is_left_without_a_transpose() -> None:
    m, n = var("m"), var("n")
    x, i = placeholder((m, n), "float32", "x"), reduce_axis((0, m), "i")
    made = neptune.compile(compute((n,), lambda j: sum(x[i, j], axis=i), "s"), "flash_decoding", target="interpret")
    assert "tl.trans(" not in made.source and re.search(r"mask=\(idx_j < n\)\[None, :\] & \(idx_i < m\)", made.source)
    given = torch.randn(70, 33)
    assert torch.allclose(made(given), given.sum(0), atol=1e-4)


@pytest.mark.compared
def test_attention_has_no_such_mask() -> None:
    forms = {s.name: s.made for s in neptune.compile(prefill_causal(), "flash_attention", target="llvm").build.trail}
    assert forms["tile-upright"] == forms["tile-outward"]
