"""translate: scheduled programs as tiles, run in the evaluator, in Triton's interpreter and on LLVM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neptune.errors import TargetError
from neptune.frontend import builder as te
from neptune.frontend.builder import Tensor, compute, exp, placeholder, reduce_axis, var
from neptune.fusion.schedule import Schedule
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.expr import Const, Expr
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.tile.ir import Branch, Dot, Loop, Reduce, TileProgram, walk_stmts
from neptune.tile.translate import translate
from neptune.tile.verify import verify_tiles
from neptune.verify.evaluate import evaluate
from neptune.verify.instances import draw_sizes, number
from tests.examples.kernels import nodes
from tests.examples.lowering import Arrange, Array, check_all, lowered, scheduled
from tests.examples.strategies import programs

pytest.importorskip("tvm")

m, n, k = var("m"), var("n"), var("k")
X = np.random.default_rng(0).standard_normal((7, 13)).astype(np.float32)


def rows(s: Schedule) -> None:
    """Rows of the last stage as tiles, columns as loops."""
    stage = s.stages[-1]
    i0, _ = s.split(s.loops(stage)[0], s.param("BM", [4]))
    s.bind(i0, "grid.x")


def grid(s: Schedule) -> None:
    """Both dimensions of the last stage as tiles."""
    stage = s.stages[-1]
    i, j = s.loops(stage)[:2]
    i0, j0, *_ = s.tile([i, j], [s.param("BM", [8]), s.param("BN", [4])])
    s.bind([i0, j0], ["grid.x", "grid.y"])


def stripes(s: Schedule) -> None:
    """Rows as tiles, the reduction as a loop over tiles."""
    stage = s.stages[-1]
    i0, i1 = s.split(s.loops(stage)[0], s.param("BM", [4]))
    r0, r1 = s.split(s.loops(stage)[-1], s.param("BN", [8]))
    s.reorder(i0, r0, i1, r1)
    s.bind(i0, "grid.x")


PARAMS = {"BM": 4, "BN": 8}


def loops(tiles: TileProgram) -> int:
    return sum(isinstance(s, Loop) for kernel in tiles.kernels for s in walk_stmts(kernel.body))


def find(tiles: TileProgram, kind: type) -> int:
    return sum(isinstance(e, kind) for e in nodes(tiles))


# --- matrix products -----------------------------------------------------------------------------


def product(rows: int | None = None, cols: int | None = None, depth: int | None = None) -> Program:
    a = placeholder((rows or m, depth or k), "float32", "a")
    b = placeholder((depth or k, cols or n), "float32", "b")
    r = reduce_axis((0, depth or k), "r")
    return te.build(
        compute((rows or m, cols or n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c"), name="product"
    )


def check_product(
    program: Program, arrange: Arrange | None, depth: int, sizes: tuple[int, int] = (19, 21)
) -> TileProgram:
    rng = np.random.default_rng(depth)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((sizes[0], depth), (depth, sizes[1])))
    wanted = {"c": a.astype(np.float64) @ b.astype(np.float64)}
    env = {"m": sizes[0], "n": sizes[1], "k": depth}
    program = scheduled(program, arrange)
    params = {t.name: 16 for t in program.tunables}
    return check_all(program, {"a": a, "b": b}, wanted, env, params, tolerance=1e-4)


def blocks(depth_too: bool = False) -> Arrange:
    def arrange(s: Schedule) -> None:
        i, j, _ = s.loops("c")
        i0, j0, i1, j1 = s.tile([i, j], [s.param("BM", [16, 32]), s.param("BN", [16])])
        if depth_too:
            r0, r1 = s.split(s.loops("c")[-1], s.param("BK", [16]))
            s.reorder(r0, i1, j1, r1)
        s.bind([i0, j0], ["grid.x", "grid.y"])

    return arrange


def test_tails_in_all_three_dimensions() -> None:
    tiles = check_product(product(), blocks(depth_too=True), 35)
    assert find(tiles, Dot) == 1 and loops(tiles) == 1


@pytest.mark.parametrize("depth", [5, 8, 80, 96])
def test_depths_are_padded_for_the_matrix_unit(depth: int) -> None:
    tiles = check_product(product(depth=depth), blocks(), depth)
    assert dict(tiles.kernels[0].axes)["r"] == Const(max(16, 1 << (depth - 1).bit_length()), "int32")
    assert find(tiles, Dot) == 1


def test_small_constant_products_are_one_dot() -> None:
    tiles = check_product(product(5, 6, 7), None, 7, (5, 6))
    assert {e for _, e in tiles.kernels[0].axes} == {Const(16, "int32")} and find(tiles, Dot) == 1


def test_a_product_with_an_axis_of_its_own() -> None:
    """No factor runs over z: that is no product of matrices."""
    a, b = placeholder((5, 7), "float32", "a"), placeholder((7, 6), "float32", "b")
    r = reduce_axis((0, 7), "r")
    c = compute((5, 6, 2), lambda i, j, z: te.sum(a[i, r] * b[r, j], axis=r), "c")
    data = {"a": X[:5, :7].copy(), "b": X[:7, 6:12].copy()}
    wanted = (data["a"].astype(np.float64) @ data["b"])[:, :, None].repeat(2, 2)
    assert find(check_all(scheduled(te.build(c, name="wide")), data, {"c": wanted}, {}), Dot) == 0


@pytest.mark.parametrize("depth", [2048, None])
def test_a_depth_that_fits_no_tile_is_a_loop(depth: int | None) -> None:
    """The loop moves outside of the tile axes."""
    tiles = check_product(product(depth=depth), blocks(), depth or 7, (5, 6))
    assert loops(tiles) == 1 and find(tiles, Dot) == 0


def test_a_tail_of_loops_is_a_branch() -> None:
    def arrange(s: Schedule) -> None:
        blocks()(s)
        r0, r1 = s.split(s.loops("c")[-1], 2048)
        s.reorder(r0, r1, *s.loops("c")[2:4])

    tiles = check_product(product(), arrange, 7, (5, 6))
    assert any(isinstance(s, Branch) for s in walk_stmts(tiles.kernels[0].body))


def test_nan_beyond_a_tail_does_not_leak() -> None:
    """Row factors that are infinite: 0 · inf is NaN where a padded element is multiplied."""
    x, z, r = placeholder((m, n), "float32", "x"), placeholder((m,), "float32", "z"), reduce_axis((0, n), "r")
    program = te.build(compute((m,), lambda i: te.sum(x[i, r] * z[i], axis=r), "y"), name="scaled")
    data = {"x": np.abs(X) + 1, "z": np.full(7, np.inf, np.float32)}
    check_all(scheduled(program, stripes), data, {"y": np.full(7, np.inf)}, {"m": 7, "n": 13}, PARAMS)


# --- lone reductions -----------------------------------------------------------------------------


def lone(reducer: str, dtype: str, cols: int | None = None) -> Program:
    x, r = placeholder((m, cols or n), dtype, "x"), reduce_axis((0, cols or n), "r")
    return te.build(compute((m,), lambda i: getattr(te, reducer)(x[i, r], axis=r), "y"), name="lone")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("reducer", ["sum", "max", "min", "prod"])
def test_tails_are_filled_with_the_identity(reducer: str, dtype: str) -> None:
    x = X[:, :9].copy()
    for sign in (1, -1):
        # All of one sign: a 0 in a tail would be the largest, or the smallest.
        data = (sign * (np.abs(x) + 1)).astype(dtype)
        if dtype == "int32":
            data = np.clip(data, -2, 2)
        wanted = {"y": getattr(np, reducer)(data.astype(np.float64), axis=1)}
        for program, arrange in (
            (lone(reducer, dtype), stripes),
            (lone(reducer, dtype), None),
            (lone(reducer, dtype, 9), rows),
        ):
            names = {t.name for t in scheduled(program, arrange).tunables}
            params = {a: b for a, b in PARAMS.items() if a in names}
            check_all(scheduled(program, arrange), {"x": data}, wanted, {"m": 7, "n": 9}, params)


def test_a_minimum_of_what_no_tail_is_known_of() -> None:
    x, r = placeholder((m, n), "float32", "x"), reduce_axis((0, n), "r")
    program = te.build(compute((m,), lambda i: te.min(te.abs(x[i, r]), axis=r), "y"), name="least")
    check_all(
        scheduled(program, stripes), {"x": X}, {"y": np.abs(X.astype(np.float64)).min(1)}, {"m": 7, "n": 13}, PARAMS
    )


def test_no_mask_where_the_identity_is_known() -> None:
    """Masked loads are 0, which a sum does not see; a maximum does."""
    assert " where" not in str(lowered(scheduled(lone("sum", "float32"), stripes)))
    assert "where" in str(lowered(scheduled(lone("max", "float32"), stripes)))


@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_one_number_of_two_axes(reducer: str) -> None:
    fold: Callable[..., te.Reduction] = getattr(te, reducer)
    r, q = reduce_axis((0, n), "r"), reduce_axis((0, m), "q")
    x = placeholder((m, n), "float32", "x")
    program = te.build(compute((), lambda: fold(x[q, r], axis=(q, r)), "y"), name="total")
    data = -1 - np.abs(X)
    wanted = {"y": getattr(np, reducer)(data.astype(np.float64))}
    assert len(check_all(scheduled(program), {"x": data}, wanted, {"m": 7, "n": 13}).kernels) == 1
    r, q = reduce_axis((0, 13), "r"), reduce_axis((0, 7), "q")
    x = placeholder((7, 13), "float32", "x")
    program = te.build(compute((), lambda: fold(x[q, r], axis=(q, r)), "y"), name="total")
    tiles = check_all(scheduled(program), {"x": data}, wanted, {})
    assert find(tiles, Reduce) == 2 and loops(tiles) == 0


def test_a_condition_on_rows_and_columns() -> None:
    x, r = placeholder((m, m), "float32", "x"), reduce_axis((0, m), "r")
    program = te.build(compute((m,), lambda i: te.max(x[i, r], axis=r, where=r <= i), "y"), name="triangle")
    data = (-1 - np.abs(X))[:, :7].copy()
    wanted = {"y": np.array([data[i, : i + 1].max() for i in range(7)], np.float64)}
    for arrange, params in ((stripes, PARAMS), (rows, {"BM": 4}), (None, {})):
        check_all(scheduled(program, arrange), {"x": data}, wanted, {"m": 7}, params)


# --- maps, transposes, gathers -------------------------------------------------------------------


def check_map(tensor: Tensor, data: dict[str, Array], wanted: Array, sizes: dict[str, int]) -> None:
    """A map in tiles, and as the slow kernel of an unscheduled program."""
    program = te.build(tensor, name="mapped")
    for arrange, params in ((grid, {"BM": 8, "BN": 4}), (None, {})):
        check_all(scheduled(program, arrange), data, {tensor.name: wanted}, sizes, params)


def test_a_transposed_store() -> None:
    x = placeholder((m, n), "float32", "x")
    check_map(
        compute((n, m), lambda i, j: exp(x[j, i]) * 2.0, "y"),
        {"x": X},
        np.exp(X.astype(np.float64)).T * 2,
        {"m": 7, "n": 13},
    )


def test_a_gather_never_leaves_the_tensor() -> None:
    """Indices beyond the tensor are the user's mistake, but read nothing of anybody else's."""
    x, at = placeholder((m, n), "float32", "x"), placeholder((k,), "int32", "at")
    program = scheduled(te.build(compute((k, n), lambda i, j: x[at[i], j], "y"), name="gather"), grid)
    text = str(lowered(program))
    assert ">= 0" in text and "< m" in text


def test_loads_that_a_condition_guards() -> None:
    x = placeholder((n,), "float32", "x")

    def shifted(i: Expr) -> Expr:
        before = te.if_then_else(te.all_of(i >= 1, i - 1 < n), x[i - 1], 7.0)
        return te.if_then_else(i < n, x[i], 0.0) + before

    program = te.build(compute((m,), shifted, "y"), name="shifted")
    data = X[0, :5].copy()
    wanted = np.concatenate([data, np.zeros(4)]) + np.concatenate([[7], data, [7, 7, 7]])
    for arrange, params in ((rows, {"BM": 4}), (None, {})):
        check_all(scheduled(program, arrange), {"x": data}, {"y": wanted}, {"m": 9, "n": 5}, params)


def test_a_long_constant_axis_is_a_loop() -> None:
    x = placeholder((3, 2048), "float32", "x")
    data = np.random.default_rng(2).standard_normal((3, 2048)).astype(np.float32)
    program = te.build(compute((3, 2048), lambda i, j: x[i, j] * 2.0, "y"), name="long")
    tiles = check_all(scheduled(program), {"x": data}, {"y": data.astype(np.float64) * 2}, {})
    assert loops(tiles) == 1 and [a for a, _ in tiles.kernels[0].axes] == ["i"]


# --- several stages ------------------------------------------------------------------------------


def test_transpose_exp_and_row_maximum() -> None:
    """Fig. 4 of the paper: dimension orders meet in one kernel."""
    x, r = placeholder((m, n), "float32", "x"), reduce_axis((0, m), "r")
    e = compute((n, m), lambda i, j: exp(x[j, i]), "e")
    program = te.build(compute((n,), lambda i: te.max(e[i, r], axis=r), "y"), name="figure4")

    def arrange(s: Schedule) -> None:
        i, j = s.loops("e")
        i0, j0, *_ = s.tile([i, j], [s.param("BM", [8]), s.param("BN", [4])])
        s.bind(i0, "grid.x")
        s.rolling_update("y", j0)

    wanted = {"y": np.exp(X.astype(np.float64)).max(0)}
    tiles = check_all(scheduled(program, arrange), {"x": X}, wanted, {"m": 7, "n": 13}, {"BM": 8, "BN": 4})
    assert len(tiles.kernels) == 1 and "-> i1 j1" in str(tiles)
    assert len(check_all(scheduled(program), {"x": X}, wanted, {"m": 7, "n": 13}).kernels) == 2


def test_an_intermediate_that_is_an_output_too() -> None:
    x, r = placeholder((m, n), "float32", "x"), reduce_axis((0, n), "r")
    a = compute((m,), lambda i: te.sum(x[i, r], axis=r), "a")
    program = te.build([a, compute((m,), lambda i: a[i] * 2.0, "b")], name="two")

    def arrange(s: Schedule) -> None:
        i0, _ = s.split(s.loops("a")[0], s.param("BM", [4]))
        s.bind(i0, "grid.x")
        s.fuse_at("b", i0)

    total = X.astype(np.float64).sum(1)
    for way, params in ((arrange, {"BM": 4}), (None, {})):
        check_all(scheduled(program, way), {"x": X}, {"a": total, "b": 2 * total}, {"m": 7, "n": 13}, params)


def test_truth_values_on_chip() -> None:
    x, r = placeholder((m, n), "float32", "x"), reduce_axis((0, n), "r")
    a = compute((m, n), lambda i, j: x[i, j] > 0.0, "a")
    program = te.build(compute((m,), lambda i: te.sum(te.if_then_else(a[i, r], 1, 0), axis=r), "b"), name="positive")

    def arrange(s: Schedule) -> None:
        i, j = s.loops("a")
        i0, j0, *_ = s.tile([i, j], [s.param("BM", [8]), s.param("BN", [4])])
        s.bind(i0, "grid.x")
        s.rolling_update("b", j0)

    for way, params in ((arrange, {"BM": 8, "BN": 4}), (None, {})):
        check_all(scheduled(program, way), {"x": X}, {"b": (X > 0).sum(1)}, {"m": 7, "n": 13}, params)


# --- loop bounds from memory ---------------------------------------------------------------------


def ragged() -> Program:
    x, length = placeholder((m, n), "float32", "x"), placeholder((m,), "int32", "length")

    def total(i: Expr) -> te.Reduction:
        r = reduce_axis((0, length[i]), "r")
        return te.sum(x[i, r], axis=r)

    return te.build(compute((m,), total, "y"), name="ragged")


def test_a_loop_bound_from_memory() -> None:
    length = np.array([0, 13, 3, 8, 1, 12, 5], np.int32)
    wanted = {"y": np.array([X[i, :h].astype(np.float64).sum() for i, h in enumerate(length)])}

    def arrange(s: Schedule) -> None:
        i, r = s.loops("y")
        s.bind(i, "grid.x")
        s.split(r, s.param("BN", [4]))

    for way, params in ((arrange, {"BN": 4}), (None, {})):
        check_all(scheduled(ragged(), way), {"x": X, "length": length}, wanted, {"m": 7, "n": 13}, params)


# --- written out ---------------------------------------------------------------------------------

ON_CHIP = """program p
  in x: f32[4, 8]
  out y: f32[{out}]
  scalar n: i32 lo 1
body:
  alloc t: f32[4, 8] @tile
  for i in [0, 4):
    for j in [0, 8):
      a: t[i, j] = x[i, j] * 2.0
"""


def on_chip(out: str, text: str, wanted: Array, size: int = 3) -> TileProgram:
    """A program that goes on with the tile t[i, j] = 2·x[i, j]."""
    indented = "".join(f"  {line}\n" for line in text.strip().splitlines())
    program = parse_program(ON_CHIP.format(out=out) + indented)
    return check_all(program, {"x": X.ravel()[:32].reshape(4, 8).copy()}, {"y": wanted}, {"n": size})


T = 2 * X.ravel()[:32].reshape(4, 8).astype(np.float64)


def test_a_tile_read_in_another_order() -> None:
    text = """
for a in [0, 8):
  for b in [0, 4):
    b: y[a, b] = t[b, a] + 1.0
"""
    assert "axes(i: 4, j: 8)" in str(on_chip("8, 4", text, T.T + 1))


def test_a_guard_that_only_the_reader_has() -> None:
    """What is known of x where the guard is false is known of its masked loads, not of the tile's."""
    text = """
alloc s: f32[] @tile
b: s[] = 0.0
for i in [0, 4):
  for j in [0, 8):
    c: s[] += t[i, j] when j < n
d: y[] = s[]
"""
    assert "where" in str(on_chip("", text, T[:, :3].sum()))


def test_what_was_known_before_a_loop_is_forgotten_in_it() -> None:
    text = """
alloc s: f32[] @tile
b: s[] = 0.0
alloc u: f32[8] @tile
for j in [0, 8):
  c: u[j] = 0.0
for k in [0, n):
  for j in [0, 8):
    d: s[] += u[j] when j < n
  for j in [0, 8):
    e: u[j] = x[k, j]
f: y[] = s[]
"""
    on_chip("", text, T[:2, :3].sum() / 2)


def test_a_guard_without_axes_keeps_the_older_value() -> None:
    text = """
alloc s: f32[8] @tile
for j in [0, 8):
  b: s[j] = 1.0
for k in [0, 5):
  for j in [0, 8):
    c: s[j] = s[j] * 2.0 when k < n
  for j in [0, 8):
    d: s[j] += 1.0 when k < n
for j in [0, 8):
  e: y[j] = s[j]
"""
    on_chip("8", text, np.full(8, 15.0))


def test_a_guard_of_rows_and_a_loop_drops_what_it_forbids() -> None:
    text = """
alloc s: f32[4] @tile
for i in [0, 4):
  b: s[i] = -100.0
for k in [0, n):
  for i in [0, 4):
    c: s[i] max= x[i, k] * 0.0 - 1.0 when k < i
for i in [0, 4):
  d: y[i] = s[i]
"""
    on_chip("4", text, np.array([-100.0, -1, -1, -1]))


def test_a_condition_on_a_tile_keeps_the_older_value() -> None:
    text = """
alloc s: f32[4] @tile
for i in [0, 4):
  b: s[i] = 1.0
alloc u: f32[] @tile
c: u[] = x[0, 0]
for i in [0, 4):
  d: s[i] = 2.0 when x[i, 0] > 0.0
for i in [0, 4):
  e: s[i] max= 3.0 when x[i, 1] > 0.0
for i in [0, 4):
  f: s[i] += 1.0 when u[] < 0.0
for i in [0, 4):
  g: y[i] = s[i]
"""
    first, second = T[:, 0] > 0, T[:, 1] > 0
    wanted = np.maximum(np.where(first, 2.0, 1.0), np.where(second, 3.0, -9.0)) + float(T[0, 0] < 0)
    assert len(set(wanted)) > 1
    on_chip("4", text, wanted)


def test_a_guard_that_all_stages_share_costs_nothing() -> None:
    """Rows beyond a tail are nobody's: no older value is kept for them."""
    text = """program p
  in x: f32[m, 8]
  out y: f32[m]
  scalar m: i32 lo 1
  tunable B in {4}
body:
  for i0 in [0, (m + (B - 1)) // B) grid.x:
    alloc s: f32[B] @tile
    for i in [0, B):
      a: s[i] = 0.0 when i0 * B + i < m
    for i in [0, B):
      for j in [0, 8):
        b: s[i] += x[i0 * B + i, j] when i0 * B + i < m
    for i in [0, B):
      c: s[i] = s[i] * 2.0 when i0 * B + i < m
    for i in [0, B):
      d: y[i0 * B + i] = s[i] when i0 * B + i < m
"""
    data = X[:, :8].copy()
    tiles = check_all(parse_program(text), {"x": data}, {"y": 2 * data.astype(np.float64).sum(1)}, {"m": 7}, {"B": 4})
    assert "where" not in str(tiles)


# --- random programs -----------------------------------------------------------------------------


def draw(dtype: str, shape: list[int], rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape) if is_float(dtype) else rng.integers(0, 3, shape)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 2**16))
def test_random_programs(program: Program, seed: int) -> None:
    """What has a tile form means the same; what has none says so."""
    try:
        tiles = translate(program)
    except TargetError:
        return
    verify_tiles(tiles)
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(program, tiles, rng)
    env = {**sizes, "alpha": 0.5}
    data = {b.name: draw(b.dtype, [number(d, sizes) for d in b.shape], rng) for b in program.inputs}
    try:
        wanted = evaluate(program, data, env)
        found = [evaluate(form, data, env) for form in (tiles, lowered(program))]
    except EvaluationError:
        # An instance out of bounds; or a choice between something and what was never written.
        return
    for got in found:
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, 1e-8, 1e-8)


# --- what has no tile form -----------------------------------------------------------------------


def refused(program: Program) -> str:
    with pytest.raises(TargetError) as caught:
        translate(program)
    text = str(caught.value)
    assert len(text.splitlines()) <= 12 and max(map(len, text.splitlines())) <= 200
    return text


def test_a_reduction_loop_outside_of_its_results() -> None:
    """It goes inside of those that stay loops: each element still folds in the same order."""

    def arrange(s: Schedule) -> None:
        i, j, r = s.loops("c")
        s.reorder(r, i, j)

    check_product(product(), arrange, 4, (3, 2))


def test_rows_of_different_lengths_in_one_tile() -> None:
    assert "no other loop's bounds use it" in refused(scheduled(ragged(), rows))


@pytest.mark.parametrize(
    "text, said",
    [
        ("for a in [0, 4):\n  for b in [0, 4):\n    b: y[a, b] = t[a, 0] - t[b, 0]", "t[i, 0] is not a plain list"),
        ("for a in [0, 4):\n  b: y[a, a] = t[a, a]", "t[i, i] is not a plain list"),
    ],
)
def test_elements_of_tiles(text: str, said: str) -> None:
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    assert said in refused(parse_program(ON_CHIP.format(out="4, 4") + indented))
