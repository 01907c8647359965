"""argmax, argmin and the k largest, from the builder to kernels: ties, -inf, NaN, tails, too few elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import neptune
from neptune.errors import FusionError, InternalError, TargetError
from neptune.frontend import builder as te
from neptune.frontend.builder import Tensor, argmax, argmin, build, compute, placeholder, reduce_axis, stack, top_k
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Op, Var, rewrite
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.tile.ir import TileProgram, map_stmt
from neptune.tile.pipeline import lower
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from tests.tiers import sampled

pytestmark = pytest.mark.compared
M, N = Var("m"), Var("n")
INF, NAN = math.inf, math.nan
LAST = 2**31 - 1
Template = Callable[[Schedule], None]
native = pytest.mark.parametrize("target", ["llvm", "interpret"])


def rows(fold: Callable[..., te.TupleReduction], dtype: str = "float32", **options: Any) -> tuple[Tensor, ...]:
    x, j = placeholder((M, N), dtype, "x"), reduce_axis((0, N), "j")
    return compute((M,), lambda i: fold(x[i, j], axis=j, **options), "best")


def largest(k: int, dtype: str = "float32") -> list[Tensor]:
    parts = rows(top_k, dtype, k=k)
    return [stack(parts[:k], "values"), stack(parts[k:], "indices")]


def tiled(sch: Schedule) -> None:
    """One kernel: tiles of rows, a loop over tiles of columns."""
    i, j = sch.loops("best")
    i0, _, _, _ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [16])])
    rest(sch, i0)


def covered(sch: Schedule) -> None:
    """One kernel: a whole row is one tile."""
    i, j = sch.loops("best")
    i0, _ = sch.split(i, sch.param("BLOCK_M", [4]))
    sch.cover(j, "BLOCK_N")
    rest(sch, i0)


def cut(sch: Schedule) -> None:
    """`tiled`, with the tail a piece of its own."""
    tiled(sch)
    sch.partition(sch.loops("best")[1])


def rest(sch: Schedule, i0: Any, first: str = "best") -> None:
    sch.bind(i0, "grid.x")
    for stage in sch.stages:
        if stage != first:
            sch.fuse_at(stage, i0)


def data(n: int, dtype: str) -> torch.Tensor:
    """Rows with many ties, of extremes alone, with an infinity, with NaN last, of NaN alone."""
    torch.manual_seed(n)
    x = torch.randint(-3, 3, (6, n)).to(getattr(torch, dtype))
    if not x.dtype.is_floating_point:
        x[1], x[2] = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
        return x
    x[1], x[2, n // 2], x[3, -1], x[4] = -INF, INF, NAN, NAN
    x[5] = torch.randn(n).to(x.dtype)
    return x


def ranked(x: torch.Tensor, k: int, sign: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The first k in our order, in plain Python: NaN, then by value, then by index."""
    values, indices = [], []
    low = -sign * INF if x.dtype.is_floating_point else torch.iinfo(x.dtype).min if sign > 0 else None
    for row in x.double().tolist():
        order = sorted(enumerate(row), key=lambda p: (p[1] == p[1], -sign * p[1] if p[1] == p[1] else 0, p[0]))[:k]
        values.append([v for _, v in order] + [low] * (k - len(order)))
        indices.append([i for i, _ in order] + [LAST] * (k - len(order)))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(indices)


def check(kernel: Any, x: torch.Tensor, k: int = 1, sign: int = 1, *, stacked: bool = False) -> None:
    """Outputs are poisoned first; values and indices are exact."""
    shape = (x.shape[0], k) if stacked else (x.shape[0],)
    value = torch.full(shape, NAN if x.dtype.is_floating_point else 77, dtype=x.dtype)
    index = torch.full(shape, -77, dtype=torch.int32)
    kernel(x, out=[value, index])
    wanted, at = ranked(x, k, sign)
    torch.testing.assert_close(index.long().reshape(-1, k), at, rtol=0, atol=0)
    torch.testing.assert_close(value.double().reshape(-1, k), wanted, rtol=0, atol=0, equal_nan=True)


# --- the expression ------------------------------------------------------------------------------


def test_one_stage_with_two_results() -> None:
    value, index = rows(argmax)
    program = build([index, value], name="p")
    verify(program)
    text = str(program)
    assert "best: best_value[i], best_index[i] argmax= x[i, j], j init -inf, 2147483647" in text
    assert [(b.name, b.dtype) for b in program.outputs] == [("best_index", "int32"), ("best_value", "float32")]
    assert parse_program(text) == program


def test_a_result_that_nothing_reads_is_a_temporary() -> None:
    program = build(rows(argmin, "int8")[1])
    assert [b.name for b in program.temporaries] == ["best_value"]
    assert "argmin= x[i, j], j init 127:i8, 2147483647" in str(program)


def test_the_k_largest_print_and_parse() -> None:
    program = build(largest(2), name="p")
    verify(program)
    assert "top2= x[i, j], -inf, j, 2147483647 init -inf, -inf, 2147483647, 2147483647" in str(program)
    assert parse_program(str(program)) == program


PROGRAM = """program p
  in x: f32[n]
  out a: f32[]
  out b: i32[]
  scalar n: i32 lo 1
body:
  for j in [0, n):
    s: a[], b[] argmax= x[j], j init -inf, 2147483647
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("out b: i32", "out b: f32", "folds 1 numbers and 1 int32 or int64 indices"),
        ("a[], b[] argmax= x[j], j init -inf, 2147483647", "a[] argmax= x[j] init -inf", "has width 2, not 1"),
        (
            "a[], b[] argmax= x[j], j init -inf, 2147483647",
            "a[], c[], b[], d[] top2= x[j], x[j], j, j init -inf, -inf, 2147483647, 2147483647",
            "folds one element at a time",
        ),
        ("a[], b[] argmax", "b[], b[] argmax", "writes a buffer twice"),
    ],
)
def test_programs_that_mean_nothing_are_refused(old: str, new: str, message: str) -> None:
    text = PROGRAM.replace(old, new)
    if "b: f32" in new:
        text = text.replace("j init -inf, 2147483647", "cast(f32, j) init -inf, 1.0")
    if "top2" in new:
        text = text.replace("  scalar", "  out c: f32[]\n  out d: i32[]\n  scalar")
    with pytest.raises(InternalError, match=message):
        verify(parse_program(text))


# --- kernels ---------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8"])
def test_argmax_of_rows(dtype: str, target: str) -> None:
    kernel = neptune.compile(rows(argmax, dtype), tiled, target=target)
    for n in (1, 17, 40):
        check(kernel, data(n, dtype))


@native
def test_argmin_of_rows(target: str) -> None:
    kernel = neptune.compile(rows(argmin), covered, target=target)
    for n in (1, 17):
        check(kernel, data(n, "float32"), sign=-1)


@native
@pytest.mark.parametrize(("k", "template"), [(1, tiled), (2, covered), (3, cut), (4, tiled), (8, covered)])
def test_the_k_largest_of_rows(k: int, template: Template, target: str) -> None:
    kernel = neptune.compile(largest(k), template, target=target)
    for n in (1, 3, 40):  # 1 and 3 have too few
        check(kernel, data(n, "float32"), k, stacked=True)


@native
@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_the_k_largest_of_other_dtypes(dtype: str, target: str) -> None:
    check(neptune.compile(largest(4, dtype), tiled, target=target), data(40, dtype), 4, stacked=True)


@native
def test_the_first_axis(target: str) -> None:
    x, r = placeholder((M, N), "float32", "x"), reduce_axis((0, M), "r")
    kernel = neptune.compile(compute((N,), lambda i: argmax(x[r, i], axis=r), "best"), tiled, target=target)
    values = data(21, "float32").T.contiguous()
    value, index = kernel(values)
    wanted, at = ranked(values.T, 1)
    assert torch.equal(index.long()[:, None], at)
    torch.testing.assert_close(value.double()[:, None], wanted, equal_nan=True)


def two_axes(k: int) -> tuple[Tensor, ...]:
    z, axes = placeholder((Var("b"), M, N), "float32", "z"), [reduce_axis((0, M), "r"), reduce_axis((0, N), "c")]
    return compute((Var("b"),), lambda i: top_k(z[i, axes[0], axes[1]], k, axis=axes), "best")


def both_tiled(sch: Schedule) -> None:
    i, r, c = sch.loops("best")
    i0, *_ = sch.tile([i, r, c], [sch.param("BLOCK_M", [4]), 2, sch.param("BLOCK_N", [16])])
    sch.bind(i0, "grid.x")


def one_tiled(sch: Schedule) -> None:
    i, r, c = sch.loops("best")
    i0, i1 = sch.split(i, sch.param("BLOCK_M", [4]))
    c0, c1 = sch.split(c, sch.param("BLOCK_N", [16]))
    sch.reorder(i0, r, c0, i1, c1)
    sch.bind(i0, "grid.x")


@native
@pytest.mark.parametrize(("k", "template"), [(1, both_tiled), (2, one_tiled)])
def test_two_axes_give_the_row_major_position(k: int, template: Template, target: str) -> None:
    z = torch.randint(-4, 4, (3, 5, 21)).float()
    found = neptune.compile(two_axes(k), template, target=target)(z)
    value, index = ranked(z.flatten(1), k)
    assert torch.equal(torch.stack(found[:k], 1).double(), value)
    assert torch.equal(torch.stack(found[k:], 1).long(), index)


@native
def test_rounds_over_two_tile_axes_need_different_indices(target: str) -> None:
    """What they are not shown for is folded element by element."""
    sch = Schedule(build(two_axes(2)))
    both_tiled(sch)
    with pytest.raises(TargetError, match="is not shown to differ along `r1`") as error:
        lower(sch.program)
    assert "make a tile of one reduction loop only" in str(error.value)
    z = torch.randint(-4, 4, (3, 5, 21)).float()
    found = neptune.compile(two_axes(2), both_tiled, target=target)(z)
    value, index = ranked(z.flatten(1), 2)
    assert torch.equal(torch.stack(found[:2], 1).double(), value)
    assert torch.equal(torch.stack(found[2:], 1).long(), index)


@native
def test_an_index_that_may_be_negative_is_folded_one_by_one(target: str) -> None:
    program = parse_program(
        PROGRAM.replace("x[j], j init", "x[j], j - 1 init").replace("[0, n):\n    s", "[0, n):\n    s")
    )

    def cut(sch: Schedule) -> None:
        sch.split(sch.loops("s")[0], 16)

    sch = Schedule(program)
    cut(sch)
    with pytest.raises(TargetError, match="is not shown to be >= 0"):
        lower(sch.program)
    values = torch.tensor([1.0, 5.0, float("nan"), 5.0, float("nan")])
    value, index = neptune.compile(program, cut, target=target)(values)
    assert value.isnan().item() and index.item() == 1


@native
@pytest.mark.parametrize("k", [1, 3])
def test_a_choice_in_memory(k: int, target: str) -> None:
    """No tiles, the reduction outside: state is read back element by element."""

    def turned(sch: Schedule) -> None:
        sch.reorder(*reversed(sch.loops("best")))

    check(neptune.compile(largest(k), turned, target=target), data(40, "float32"), k, stacked=True)


@native
def test_where_leaves_elements_out(target: str) -> None:
    x, j = placeholder((M, N), "float32", "x"), reduce_axis((0, N), "j")
    outs = compute((M,), lambda i: argmax(x[i, j], axis=j, where=j < i), "best")
    values = torch.randn(6, 19)
    value, index = neptune.compile(outs, tiled, target=target)(values)
    assert (value[0].item(), index[0].item()) == (-INF, LAST)
    left = torch.where(torch.arange(19) < torch.arange(6)[:, None], values, -INF)
    assert torch.equal(value, left.max(1).values) and torch.equal(index.long()[1:], left.argmax(1)[1:])


@native
def test_a_whole_tensor(target: str) -> None:
    q, j = placeholder((N,), "float32", "q"), reduce_axis((0, N), "j")
    outs = compute((), lambda: argmax(q[j], axis=j), "best")
    kernel = neptune.compile(outs, lambda sch: sch.split(sch.loops("best")[0], 16), target=target)
    values = torch.randn(37)
    value, index = kernel(values)
    assert (value.item(), index.item()) == (values.max().item(), values.argmax().item())


@native
def test_an_index_gathers(target: str) -> None:
    x, w, j = placeholder((M, N), "float32", "x"), placeholder((N,), "float32", "w"), reduce_axis((0, N), "j")
    _, at = compute((M,), lambda i: argmax(x[i, j], axis=j), "best")
    y = compute((M,), lambda i: w[at[i]] * 2.0, "y")
    kernel = neptune.compile(y, tiled, inputs=[x, w], target=target)
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    xs, ws = torch.randn(9, 37), torch.randn(37)
    assert torch.equal(kernel(xs, ws), ws[xs.argmax(1)] * 2)


def router(k: int) -> list[Tensor]:
    """Softmax over experts, then the k most probable."""
    x, axes = placeholder((M, N), "float32", "x"), [reduce_axis((0, N), "j") for _ in range(3)]
    m = compute((M,), lambda i: te.max(x[i, axes[0]], axis=axes[0]), "top")
    e = compute((M, N), lambda i, j: te.exp(x[i, j] - m[i]), "e")
    l = compute((M,), lambda i: te.sum(e[i, axes[1]], axis=axes[1]), "l")  # noqa: E741
    p = compute((M, N), lambda i, j: e[i, j] / l[i], "p")
    parts = compute((M,), lambda i: top_k(p[i, axes[2]], k, axis=axes[2]), "best")
    return [stack(parts[:k], "weights"), stack(parts[k:], "experts")]


def route_at_once(sch: Schedule) -> None:
    i, j = sch.loops("top")
    i0, _ = sch.split(i, sch.param("BLOCK_M", [4]))
    sch.cover(j, "BLOCK_N")
    rest(sch, i0, "top")


def route_apart(sch: Schedule) -> None:
    """The probabilities in one kernel, the choice in another."""
    i, j = sch.loops("top")
    i0, _ = sch.split(i, sch.param("BLOCK_M", [4]))
    sch.cover(j, "BLOCK_N")
    sch.bind(i0, "grid.x")
    for stage in ("e", "l", "p"):
        sch.fuse_at(stage, i0)
    i, j = sch.loops("best")
    r0, *_ = sch.tile([i, j], [sch.param("ROWS", [4]), sch.param("COLUMNS", [16])])
    sch.bind(r0, "grid.x")
    for stage in ("weights", "experts"):
        sch.fuse_at(stage, r0)


@native
@pytest.mark.parametrize(("template", "kernels"), [(route_at_once, 1), (route_apart, 2)])
def test_a_router(template: Template, kernels: int, target: str) -> None:
    kernel = neptune.compile(router(4), template, target=target)
    assert len(kernel.facts.kernels) == kernels
    x = torch.randn(7, 60)
    weights, experts = kernel(x)
    expected = x.double().softmax(1).topk(4)
    assert torch.equal(experts.long(), expected.indices)
    torch.testing.assert_close(weights.double(), expected.values, rtol=1e-5, atol=1e-7)


@native
def test_the_value_is_a_maximum_for_a_softmax(target: str) -> None:
    x, axes = placeholder((M, N), "float32", "x"), [reduce_axis((0, N), "j") for _ in range(2)]
    value, index = compute((M,), lambda i: argmax(x[i, axes[0]], axis=axes[0]), "best")
    s = compute((M,), lambda i: te.sum(te.exp(x[i, axes[1]] - value[i]), axis=axes[1]), "s")
    xs = torch.randn(6, 21)
    total, at = neptune.compile([s, index], covered, target=target)(xs)
    expected = (xs.double() - xs.double().max(1, keepdim=True).values).exp().sum(1)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=0)
    assert torch.equal(at.long(), xs.argmax(1))


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
@pytest.mark.parametrize(
    ("outputs", "template"),
    [(rows(argmax), tiled), (rows(argmin, "bfloat16"), covered), (largest(8), tiled), (router(2), route_at_once)],
    ids=["argmax", "argmin", "top8", "router"],
)
def test_they_compile_without_spills(outputs: Sequence[Tensor], template: Template, target: str) -> None:
    found = neptune.compile(outputs, template, target="llvm").resources(target)
    assert found and all(r.spill_bytes == 0 for r in found)


# --- checks ----------------------------------------------------------------------------------------


def tiles_of(outputs: Sequence[Tensor], template: Template) -> tuple[Program, TileProgram]:
    program = build(outputs, name="p")
    sch = Schedule(program)
    template(sch)
    return program, lower(sch.program)


@pytest.mark.parametrize("template", [tiled, covered, cut])
def test_the_evaluator_agrees_on_both_forms(template: Template) -> None:
    program, tiles = tiles_of(largest(4), template)
    for n in (1, 3, 40):
        x = data(n, "float32")
        value, index = ranked(x, 4)
        sizes = {"m": 6, "n": n, "BLOCK_M": 4, "BLOCK_N": 16 if template is not covered else 64}
        for form in (program, tiles):
            got = evaluate(form, {"x": x.numpy()}, sizes)
            assert (got["indices"] == index.numpy()).all()
            torch.testing.assert_close(torch.from_numpy(got["values"]), value, rtol=0, atol=0, equal_nan=True)


def changed(tiles: TileProgram, old: str, new: str) -> TileProgram:
    """The program with an operator of comparison replaced."""

    def fn(e: Any) -> Any:
        integers = isinstance(e, Op) and e.name == old and e.args[0].dtype == "int32"
        return replace(e, name=new) if integers else None

    kernels = [replace(k, body=tuple(map_stmt(s, lambda e: rewrite(e, fn)) for s in k.body)) for k in tiles.kernels]
    return replace(tiles, kernels=tuple(kernels))


def test_exact_checks_see_a_wrong_choice_of_equals() -> None:
    program, tiles = tiles_of(rows(argmax, "int32"), tiled)
    assert check_exact(program, tiles).accepted
    # `lt` decides between equal values of the state and of the tile.
    assert check_exact(program, changed(tiles, "lt", "gt"), draws=12).verdict == "rejected"
    program, tiles = tiles_of(largest(3, "float32"), tiled)
    assert check_exact(program, tiles).accepted
    # Without `won`, a winner wins again.
    assert check_exact(program, changed(tiles, "eq", "ne"), draws=12).verdict == "rejected"


# --- what reads a pair that still changes -----------------------------------------------------------


def test_what_reads_a_pair_that_still_changes() -> None:
    """A factor that does not vary waits for the winner; what mixes it with what is summed is refused."""
    x, axes = placeholder((M, N), "float32", "x"), [reduce_axis((0, N), "j") for _ in range(2)]
    value, _ = compute((M,), lambda i: argmax(x[i, axes[0]], axis=axes[0]), "best")
    s = compute((M,), lambda i: te.sum(x[i, axes[1]] * value[i], axis=axes[1]), "s")
    sch = Schedule(build(s))
    sch.rolling_update("s", sch.loops("best")[1])
    assert "s[i] = s_acc[i] * best_value[i]" in str(sch.program)
    mixed = compute((M,), lambda i: te.sum(te.tanh(x[i, axes[1]] - value[i]), axis=axes[1]), "s")
    sch = Schedule(build(mixed))
    before = str(sch.program)
    with pytest.raises(FusionError, match="tanh mixes r and c"):
        sch.rolling_update("s", sch.loops("best")[1])
    assert str(sch.program) == before and "best_value[i], best_index[i] argmax= x[i, j]" in before
