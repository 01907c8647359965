"""Points as columns: the same numbers as point by point, in much less time."""

from __future__ import annotations

import pytest

from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.modules import covers
from neptune.tile.ir import TileProgram
from neptune.tune.choose import lowered
from neptune.tune.model.columns import Points, columns_of
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import DEVICES
from neptune.tune.parts import parts_of
from neptune.tune.points import points
from neptune.tune.rank import _combinations, _space, predictions
from tests.work import calls

H200 = DEVICES["H200"]
PROGRAMS = {
    "matmul_split": matmul(),
    "flash_decoding": operator("decode_gqa"),
    "softmax_row": softmax(),
}


def tiles_of(template: str, program: Program) -> TileProgram:
    return lowered(template, program).tiles


@pytest.mark.parametrize("template", PROGRAMS)
def test_columns_are_what_each_launch_would_have(template: str) -> None:
    """Parts and tiles that cover a size are those that a launch computes, at every point."""
    tiles = tiles_of(template, PROGRAMS[template])
    some = [*_combinations(_space(tiles))][::7]
    asked = Points.product(some, points(PROGRAMS[template], {}, {})[::9])
    assert list(asked) == [(params, at) for params in asked.params for at in asked.sizes]
    columns = columns_of(tiles, asked, H200)
    followed = 0
    for k, (params, sizes) in enumerate(asked):
        known = {**sizes, **params}
        known |= covers(tiles, known)
        known |= {r.number: r.default(known, H200.processors) for r in parts_of(tiles)}
        followed += len(known) - len(params) - len(sizes)
        assert {n: column[k] for n, column in columns.items()} == known
    assert followed >= len(asked)


def test_a_number_that_is_given_does_not_follow() -> None:
    tiles = tiles_of("flash_decoding", PROGRAMS["flash_decoding"])
    (rule,) = parts_of(tiles)
    params = next(_combinations(_space(tiles)))
    at = {"batch": 1, "s_kv": 65536}
    asked = [{**params, rule.number: 3}, params, {**params, rule.number: 5}]
    of = columns_of(tiles, Points.at(asked, at), H200)[rule.number]
    assert list(of) == [3, rule.default({**at, **params}, H200.processors), 5]
    assert of[1] not in (1, 3, 5)
    assert list(columns_of(tiles, Points.at(asked[::2], at), H200)[rule.number]) == [3, 5]


def test_points_cost_little_each() -> None:
    """A choice of parameters at many sizes is no dictionary and no walk over expressions for each of them."""
    tiles = tiles_of("matmul_split", PROGRAMS["matmul_split"])
    params = next(_combinations(_space(tiles)))
    at = points(PROGRAMS["matmul_split"], {}, {})
    one, many = (Points.product([params], sizes) for sizes in (at[:1], at))
    model = Model(tiles)
    predictions(model, one, H200)
    assert len(many) > 500
    assert calls(lambda: predictions(model, many, H200)) - calls(lambda: predictions(model, one, H200)) < 12 * len(many)
