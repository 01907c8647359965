"""What is chosen where sizes are known: for any sizes, any values that a caller gives, and many parameters."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import prod

import pytest

import neptune
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, max, placeholder, reduce_axis, sum, top_k, var
from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.tile.ir import TileProgram
from neptune.tile.registers import registers
from neptune.tune import rank
from neptune.tune.choose import lowered
from neptune.tune.model.columns import Points
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import DEVICES
from neptune.tune.rank import MOST, _groups, _space, predictions, ranked, ranked_at
from tests.work import calls

H200 = DEVICES["H200"]
SQUARE = {"m": 64, "n": 64, "k": 64}
PROGRAMS = {
    "matmul_split": matmul(),
    "flash_decoding": operator("decode_gqa"),
    "softmax_row": softmax(),
}


def chain() -> Program:
    """A product, and folds of it along rows and columns: stagewise has tiles of each kind."""
    m, n, k = var("m"), var("n"), var("k")
    x, w = placeholder((m, k), "float16", "x"), placeholder((k, n), "float16", "w")
    p, q, r, z = reduce_axis((0, k), "p"), reduce_axis((0, k), "q"), reduce_axis((0, m), "r"), reduce_axis((0, n), "z")
    s = compute((m,), lambda i: sum(x[i, p].astype("float32"), axis=p), "s")
    c = compute((m, n), lambda i, j: sum(x[i, q].astype("float32") * w[q, j].astype("float32"), axis=q), "c")
    top = compute((m,), lambda i: max(c[i, z], axis=z), "top")
    col = compute((n,), lambda j: sum(c[r, j] * s[r] * top[r], axis=r), "col")
    return build(compute((m, n), lambda i, j: c[i, j] * col[j] + s[i] + top[i], "y"), name="chain")


@pytest.mark.parametrize("template", PROGRAMS)
@pytest.mark.parametrize("size", [0, 1, 2**31 - 1, 10**120, 10**400], ids=lambda n: f"{len(str(n))} digits, {n % 10}")
def test_any_sizes(template: str, size: int) -> None:
    program = PROGRAMS[template]
    tiles = lowered(template, program).tiles
    names = [s.name for s in program.scalars]
    for known in (dict.fromkeys(names, size), *({n: size if n == m else 48 for n in names} for m in names)):
        assert ranked(tiles, known, H200)


@pytest.mark.parametrize("template", ["flash_decoding", "stagewise", None])
def test_a_size_that_others_are_divided_by(template: str | None) -> None:
    m, n, groups = var("m"), var("n"), var("groups")
    x, p = placeholder((m, n), name="x"), reduce_axis((0, n), "p")
    program = build(compute((m // groups,), lambda i: sum(x[i * groups, p], axis=p), "y"), name="strided")
    for size in (0, 2):
        kernel = neptune.compile(program, template, shapes={"m": 8, "n": 8, "groups": size}, target="interpret")
        assert kernel.params["num_warps"] in (4, 8, 16)


@pytest.mark.parametrize(
    "params",
    [[("BLOCK_M", 64)], "BLOCK_M", {"BLOCK_M": 10**400}, {"num_warps": 10**400}, {"num_stages": 10**400}, {"no": 1}],
    ids=lambda p: f"{p!r:.20}",
)
def test_values_that_are_not_legal(params: object) -> None:
    with pytest.raises(ScheduleError):
        neptune.compile(matmul(), shapes=SQUARE, params=params, target="interpret")


def us(tiles: TileProgram, choices: list[dict[str, int]], sizes: dict[str, int]) -> list[float]:
    return [float(t) for t in predictions(Model(tiles), Points.at(choices, sizes), H200).us]


def test_many_parameters_are_not_all_combined() -> None:
    tiles = lowered("stagewise", chain()).tiles
    assert prod(len(values) for values in _space(tiles).values()) > 100 * MOST
    sizes = {"m": 1024, "n": 512, "k": 256}
    best = ranked(tiles, sizes, H200)[0]
    # No other value of one tile is much better, nor are any of two.
    tile = {n: values for n, values in _space(tiles).items() if n not in ("num_warps", "num_stages")}
    for first, second in combinations(tile, 2):
        others = [{**best.params, first: a, second: b} for a in tile[first] for b in tile[second]]
        assert min(us(tiles, others, sizes)) >= 0.98 * best.prediction.us / 1.02


def test_groups_of_kernels_are_told_apart() -> None:
    """What one kernel reads is looked for beside nothing else, and their times add up."""
    tiles = lowered("stagewise", chain()).tiles
    space = {n: values for n, values in _space(tiles).items() if n not in ("num_warps", "num_stages")}
    groups = _groups(Model(tiles), space)
    names = [n for of, _ in groups for n in of]
    assert len(groups) > 1 and len(names) == len(set(names)) and set(names) <= set(space)
    assert sorted(k for _, kernels in groups for k in kernels) == list(range(len(tiles.kernels)))


def test_a_kernel_with_too_many_values_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even one kernel has more combinations than are compared, one value at a time is changed: no worse."""
    tiles = lowered("matmul", matmul()).tiles
    whole = ranked_at(tiles, [SQUARE], H200, {})[0][0]
    monkeypatch.setattr(rank, "MOST", 8)
    found = ranked_at(tiles, [SQUARE], H200, {})[0][0]
    assert found.prediction.us <= 1.05 * whole.prediction.us


def test_a_kernel_with_many_values_does_not_take_long() -> None:
    """top_k keeps many values alive: what a thread holds of each is computed once."""
    m, n = var("m"), var("n")
    x, p = placeholder((m, n), name="x"), reduce_axis((0, n), "p")
    program = build(compute((m,), lambda i: top_k(x[i, p], 4, axis=p), "y"), name="best")
    (kernel,) = lowered("stagewise", program).tiles.kernels
    values = {"ROW_M": 4, "ROW_N": 128, "num_warps": 4, "num_stages": 2}
    assert calls(lambda: registers(kernel, values)) < 53_000


def test_the_first_of_an_order() -> None:
    """Where only the best is asked for, the others are not spelled out; it is the same one."""
    tiles = lowered("matmul", matmul()).tiles
    many = [SQUARE, {"m": 4096, "n": 512, "k": 2048}]
    whole, first = (ranked_at(tiles, many, H200, {}, most) for most in (None, 1))
    assert [len(order) for order in first] == [1, 1] and min(map(len, whole)) > 20
    assert [order[:1] for order in whole] == first
    every, least = (calls(partial(ranked_at, tiles, many, H200, {}, most)) for most in (None, 1))
    assert every - least > 3 * (len(whole[0]) + len(whole[1]) - 2)


def test_longer_pipelines_are_for_few_rows() -> None:
    """Nothing was measured of five stages beside tiles of a warp group, or where threads compute an operand."""
    every = ranked(lowered("matmul", matmul()).tiles, {"m": 16, "n": 6144, "k": 4096}, H200)
    deep = [r.params for r in every if r.params["num_stages"] == rank.DEEP]
    assert deep and all(p["BLOCK_M"] < rank.GROUP_ROWS for p in deep)
    attention = lowered("flash_attention", operator("decode_gqa")).tiles
    for candidates in (
        [r.params for r in ranked(attention, {"batch": 8, "s_kv": 1024}, H200)],
        rank.worth_trying(attention, [], H200, {}),
    ):
        assert candidates and all(p["num_stages"] in rank.STAGES for p in candidates)
    given = ranked(attention, {"batch": 8, "s_kv": 1024}, H200, {"num_stages": rank.DEEP})
    assert {r.params["num_stages"] for r in given} == {rank.DEEP}
