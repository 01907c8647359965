"""Tiles in bands: every tile once, in an order that reads less; only where rows do not depend on the columns."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neptune.errors import InternalError
from neptune.hopper.choice.memory import forms
from neptune.hopper.emulate import load
from neptune.hopper.gluon.module import generate
from neptune.hopper.group_order import PROGRAMS, across_of, width
from neptune.hopper.ir import AsyncKernel, Levers
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.tile.ir import TileProgram
from tests.examples.hopper_examples import attention
from tests.examples.walks import tiles_of, walked

TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


def form(band: int, persistent: str = "stride", **options: Any) -> tuple[AsyncKernel, TileProgram]:
    _, tiles = tiles_of("matmul", "matmul", **options)
    levers = Levers(2, 2, persistent, band=band, tiles=TILES)
    return roles(walked(tiles, levers), tiles, levers), tiles


def decoded(text: str, sizes: dict[str, int], tiles: int) -> list[tuple[int, ...]]:
    """The grid variables of each tile, by the text of the consumer."""
    lines = text[text.index("_consumer(") :].splitlines()
    last = next(k for k, line in enumerate(lines) if line.strip().startswith("i0 = "))
    first = next(k for k, line in enumerate(lines) if line.strip().startswith("for tile in range"))
    names = {"gl": SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min), **sizes, **TILES}
    names |= {n: int(v) for n, v in re.findall(r"^(BAND|CONSUMERS) = gl.constexpr\((\d+)\)", text, re.M)}
    heads = [line.strip() for line in lines[:first] if "_count = " in line or "band_tiles = " in line]
    body = "\n".join(line.strip() for line in [*heads, *lines[first + 1 : last]])
    found = []
    for tile in range(tiles):
        exec(body, names | (made := {"tile": tile}), made)
        found.append(tuple(made[v] for v in ("z", "group", "j0") if v in made))
    return found


@pytest.mark.parametrize("band", [1, 2, 3, 5, 16])
@pytest.mark.parametrize(("groups", "columns", "batch"), [(1, 1, 1), (7, 5, 1), (5, 3, 3), (6, 4, 1), (3, 1, 2)])
def test_every_tile_comes_once(band: int, groups: int, columns: int, batch: int) -> None:
    kernel, tiles = form(band, batch=True) if batch > 1 else form(band)
    sizes = {"m": groups * 128 - 70, "n": columns * 64 - 1, "k": 64, "batch": batch}
    found = decoded(generate(tiles, kernel).text, sizes, groups * columns * batch)
    assert len(set(found)) == len(found) == groups * columns * batch
    ends = (batch, groups, columns)[-len(found[0]) :]
    assert all(0 <= x < end for at in found for x, end in zip(at, ends, strict=True))
    # A band is gone through before the next one begins.
    order = [at[-2] // band for at in found]
    each = groups * columns
    assert all(order[k : k + each] == sorted(order[k : k + each]) for k in range(0, len(found), each))


@pytest.mark.parametrize("persistent", ["once", "reverse", "stride", "table"])
def test_the_numbers_are_those_of_any_order(persistent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))
    kernel, tiles = form(2, persistent)
    verify_async(kernel, tiles)
    a, b = torch.randn(700, 72).half(), torch.randn(72, 200).half()
    out = torch.full((700, 200), math.nan).half()
    load(generate(tiles, kernel).text)["matmul"](a, b, out)
    want = a.double() @ b.double()
    assert float((out.double() - want).norm() / want.norm()) < 1e-3


@pytest.mark.parametrize("band", [0, 2])
def test_in_reverse_the_last_group_of_rows_comes_first(band: int) -> None:
    """The text of both roles mirrors the number of the group and nothing else."""
    once, back = (generate(form(band, how)[1], form(band, how)[0]).text.splitlines() for how in ("once", "reverse"))
    differ = [(a.strip(), b.strip()) for a, b in zip(once, back, strict=True) if a != b]
    assert len(differ) == 2 and len(set(differ)) == 1  # the producer's line is the consumer's
    values = {"group_count": 7, "band_begin": 2, "tile": 2, "pair": 4, "band_tiles": 10, "band_rows": 2}
    forth, mirrored = (eval(line.partition(" = ")[2], dict(values)) for line in differ[0])
    assert (forth, mirrored) == (2, 4)


def test_the_model_takes_about_as_many_rows_as_columns() -> None:
    _, tiles = tiles_of("matmul", "matmul")
    best = forms(walked(tiles), tiles)[0]
    # Of 128 rows and of 256 columns.
    assert best.band == 16 and PROGRAMS // best.band * 256 == best.band * 128
    assert [g.var for g in form(2)[0].grid] == ["group", "j0"] and across_of(form(2)[0]) == "j0"


def test_where_rows_are_other_ones_for_each_column_there_are_no_bands() -> None:
    """The queries of each head are its own."""
    _, tiles = tiles_of("prefill_global", "flash_attention", depth=64)
    w = walked(tiles)
    assert forms(w, tiles)[0].band == 0
    w, program = attention()
    levers = Levers(tiles={"BLOCK_M": 64, "BLOCK_N": 64})
    assert width(w, {"i1": 64, "e": 64, "j1": 64, "d": 64}) == 0
    made = roles(w, program, levers)
    with pytest.raises(InternalError, match="bands of 2 groups, of a grid that has no such order"):
        verify_async(replace(made, levers=replace(levers, band=2)), program)
