"""Candidates and compilations: a template, check or model that fails loses a candidate, never the kernel.

Programs are text or the builder's, compared with torch in float64 where they run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ExpressionError, InternalError, ScheduleError
from neptune.frontend import builder as nb
from neptune.frontend.builder import Tensor, compute, placeholder, reduce_axis, var
from neptune.ir.evaluate.memory import Work
from neptune.ir.expr import Const, Var, select
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.tile.address import Box
from neptune.tile.ir import LoadTile, StoreTile, stmt_exprs, walk, walk_stmts
from neptune.tile.passes.addresses import addressed
from neptune.tune import choose, family
from neptune.verify.draws import WORK
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.field import FieldPair
from neptune.verify.shrink import _choices, shrink
from qa import fuzz_builder

Make = Callable[[], Any]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users compile: what is rejected is not raised, and nothing is kept."""
    monkeypatch.delenv("NEPTUNE_STRICT", raising=False)
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")


def compiled(program: Any, template: Any = None, **more: Any) -> neptune.Kernel:
    return neptune.compile(program, template, target="interpret", **more)


# --- L0: a choice alone ---------------------------------------------------------------------------


def _softmax(dtype: str = "float32") -> tuple[Tensor, Callable[..., Any]]:
    """(x, the weight of an element of a row)."""
    n, m = var("n"), var("m")
    x = placeholder((n, m), dtype, "x")
    a, b = reduce_axis((0, m), "a"), reduce_axis((0, m), "b")
    top = compute((n,), lambda i: nb.max(x[i, a], axis=a), "top")
    total = compute((n,), lambda i: nb.sum(nb.exp(x[i, b] - top[i]), axis=b), "total")
    return x, lambda i, j: nb.exp(x[i, j] - top[i]) / total[i]


@pytest.mark.parametrize("fold", [nb.argmax, nb.argmin])
def test_l0_the_place_of_a_choice_over_a_softmax_alone(fold: Callable[..., Any]) -> None:
    x, weight = _softmax()
    c = reduce_axis((0, x.shape[1]), "c")
    best = compute((x.shape[0],), lambda i: fold(weight(i, c), axis=c), "best")
    data = torch.randn(5, 19)
    want = data.argmax(-1) if fold is nb.argmax else data.argmin(-1)
    assert torch.equal(compiled(nb.build([best[1]]))(data).long(), want)


def test_l0_the_places_of_the_largest_of_a_softmax_alone() -> None:
    x, weight = _softmax()
    c = reduce_axis((0, x.shape[1]), "c")
    best = compute((x.shape[0],), lambda i: nb.top_k(weight(i, c), 2, axis=c), "best")
    data = torch.randn(4, 11)
    first, second = compiled(nb.build([best[2], best[3]]))(data)
    assert torch.equal(torch.stack([first, second], -1).long(), data.topk(2).indices)


def test_l0_a_place_over_a_mean_and_the_template_that_splits() -> None:
    n, m = var("n"), var("m")
    x = placeholder((n, m), "float32", "x")
    a, c = reduce_axis((0, m), "a"), reduce_axis((0, m), "c")
    total = compute((n,), lambda i: nb.sum(x[i, a], axis=a), "total")
    best = compute((n,), lambda i: nb.argmax(x[i, c] * total[i], axis=c), "best")
    program = nb.build([best[1]])
    data = torch.randn(5, 9)
    want = (data * data.sum(-1, keepdim=True)).argmax(-1)
    assert torch.equal(compiled(program)(data).long(), want)
    # By name, the template takes it or says why not: nothing raw.
    try:
        assert torch.equal(compiled(program, "flash_decoding")(data).long(), want)
    except neptune.NeptuneError as error:
        assert not isinstance(error, InternalError)


@pytest.mark.parametrize("ask", [nb.build, compiled])
def test_l11_a_pair_in_a_list_is_its_parts(ask: Callable[..., Any]) -> None:
    x, _ = _softmax()
    c = reduce_axis((0, x.shape[1]), "c")
    best = compute((x.shape[0],), lambda i: nb.argmax(x[i, c], axis=c), "best")
    made = ask([best])
    if isinstance(made, neptune.Kernel):
        data = torch.randn(4, 7)
        value, index = made(data)
        assert torch.equal(value, data.amax(-1)) and torch.equal(index.long(), data.argmax(-1))
    else:
        assert [b.name for b in made.outputs] == ["best_value", "best_index"]


def test_l11_what_is_no_tensor_is_refused_in_words() -> None:
    x, _ = _softmax()
    for wrong in ([x.shape[0]], ["y"], [None], 3, [[x]]):
        with pytest.raises(ExpressionError, match="tensor"):
            nb.build(wrong)  # type: ignore[arg-type]


# --- L0c: float64 ---------------------------------------------------------------------------------


def _row(dtype: str, value: Callable[..., Any], fold: Callable[..., Any] = nb.max) -> Tensor:
    n, m = var("n"), var("m")
    x = placeholder((n, m), dtype, "x")
    a = reduce_axis((0, m), "a")
    made: Tensor = compute((n,), lambda i: fold(value(x[i, a]), axis=a), "o")
    return made


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (nb.exp, lambda x: x.exp().amax(-1)),
        (lambda x: nb.exp(x) * -1.0, lambda x: (-x.exp()).amax(-1)),
        (lambda x: x * 1e300, lambda x: (x * 1e300).amax(-1)),
        (lambda x: x * 1e-300, lambda x: (x * 1e-300).amax(-1)),
    ],
)
def test_l0c_values_of_float64_beyond_float32(value: Make, want: Callable[..., torch.Tensor]) -> None:
    data = torch.randn(4, 9, dtype=torch.float64) * 200
    torch.testing.assert_close(compiled(_row("float64", value))(data), want(data))


def test_l0c_a_minimum_and_a_sum_of_float64() -> None:
    data = torch.randn(3, 9, dtype=torch.float64) * 100
    small = compiled(_row("float64", lambda x: nb.exp(x) * -1e200, nb.min))(data)
    torch.testing.assert_close(small, (data.exp() * -1e200).amin(-1))
    x, weight = _softmax("float64")
    c = reduce_axis((0, x.shape[1]), "c")
    total = compute((x.shape[0],), lambda i: nb.sum(weight(i, c) * nb.exp(x[i, c]), axis=c), "o")
    torch.testing.assert_close(compiled(total)(data), (data.softmax(-1) * data.exp()).sum(-1))


# --- L3: ranges that depend on an outer axis ------------------------------------------------------

TRIANGLE = """program triangle
  in x: f32[n, n]
  out y: f32[n, n]
  temp m: f32[n]
  temp l: f32[n]
  scalar n: i32
body:
  for i in [0, n):
    for j in [LO, HI):
      m: m[i] max= x[i, j] init -inf
  for i in [0, n):
    for j in [LO, HI):
      l: l[i] += exp(x[i, j] - m[i]) init 0.0
  for i in [0, n):
    for j in [LO, HI):
      y: y[i, j] = exp(x[i, j] - m[i]) / l[i]
"""
PLAIN = """program plain
  in x: f32[n, n]
  out s: f32[n]
  temp t: f32[n, n]
  scalar n: i32
body:
  for i in [0, n):
    for j in [LO, HI):
      t: t[i, j] = tanh(x[i, j]) * x[i, j] + exp(x[i, j]) * tanh(x[i, j] * 2.0)
  for i in [0, n):
    for j in [LO, HI):
      s: s[i] += t[i, j] * t[i, j] + tanh(t[i, j]) * exp(t[i, j]) init 0.0
"""
RANGES = {"below": ("0", "i + 1"), "above": ("i", "n"), "window": ("max(0, i - 2)", "min(n, i + 2)")}


@pytest.mark.parametrize("kind", RANGES)
def test_l3_maps_whose_range_depends_on_a_row(kind: str) -> None:
    lo, hi = RANGES[kind]
    kernel = compiled(parse_program(PLAIN.replace("LO", lo).replace("HI", hi)))
    x = torch.randn(6, 6)
    i, j = torch.arange(6)[:, None], torch.arange(6)[None]
    seen = {"below": j <= i, "above": j >= i, "window": (j >= i - 2) & (j < i + 2)}[kind]
    d = x.double()
    t = d.tanh() * d + d.exp() * (d * 2).tanh()
    want = torch.where(seen, t * t + t.tanh() * t.exp(), 0.0).sum(-1)
    torch.testing.assert_close(kernel(x).double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", RANGES)
def test_l3_a_map_alone_over_a_range_of_its_row(kind: str) -> None:
    text = """program alone
  in x: f32[n, n]
  out y: f32[n, n]
  scalar n: i32
body:
  for i in [0, n):
    for j in [LO, HI):
      y: y[i, j] = exp(x[i, j])
"""
    lo, hi = RANGES[kind]
    kernel = compiled(parse_program(text.replace("LO", lo).replace("HI", hi)))
    x = torch.randn(5, 5)
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    seen = {"below": j <= i, "above": j >= i, "window": (j >= i - 2) & (j < i + 2)}[kind]
    torch.testing.assert_close(kernel(x)[seen], x.exp()[seen])


def test_l3_equal_branches_are_no_choice() -> None:
    zero, one = Const(0, "int32"), Const(1, "int32")
    condition = Var("i") < Var("n")
    assert select(condition, zero, zero) == zero
    assert select(condition, zero, one) != zero
    # 0.0 == -0.0, and a NaN is not itself.
    plus, minus = Const(0.0, "float32"), Const(-0.0, "float32")
    assert select(condition, plus, minus) not in (plus, minus)


def test_l3_rows_of_a_length_from_memory_in_a_template() -> None:
    n, m = var("n"), var("m")
    x, length = placeholder((n, m), "float32", "x"), placeholder((n,), "int32", "length")

    def rows(fold: Callable[..., Any], value: Callable[..., Any], name: str) -> Tensor:
        def body(i: Var) -> Any:
            j = reduce_axis((0, length[i]), f"j_{name}")
            return fold(value(i, j), axis=j)

        made: Tensor = compute((n,), body, name)
        return made

    top = rows(nb.max, lambda i, j: x[i, j], "top")
    total = rows(nb.sum, lambda i, j: nb.exp(x[i, j] - top[i]), "total")
    try:
        compiled(total, "softmax_online")
    except ScheduleError as error:
        assert "select(" not in str(error)
    lengths = torch.tensor([3, 1, 7, 4], dtype=torch.int32)
    data = torch.randn(4, 7)
    kept = torch.where(torch.arange(7)[None] < lengths[:, None], data.double(), -torch.inf)
    want = (kept - kept.amax(-1, keepdim=True)).exp().sum(-1)
    torch.testing.assert_close(
        compiled(nb.build(total, [x, length]))(data, lengths).double(), want, rtol=1e-5, atol=1e-5
    )


# --- L6: what is marked as made, and is not ---------------------------------------------------------

MARKED = """program marked
  in x: f32[n]
  out y: f32[n]
  temp s: f32[n]
  scalar n: i32
  made A as KIND of B
body:
  for i in [0, n):
    a: s[i] = 1.0
  for i in [0, n):
    b: s[i] = s[i] + x[i]
  for i in [0, n):
    y: y[i] = s[i]
"""


@pytest.mark.parametrize("kind", ["init", "repair", "direct"])
@pytest.mark.parametrize(("of", "by"), [("a", "b"), ("b", "a")])
def test_l6_a_store_that_reads_itself_is_refused(kind: str, of: str, by: str) -> None:
    text = MARKED.replace("A as", f"{by} as").replace("KIND", kind).replace("of B", f"of {of}")
    with pytest.raises(ExpressionError):
        compiled(parse_program(text))


def test_l6_two_stores_of_one_name_that_read_the_output() -> None:
    text = """program twice
  in x: f32[n]
  out y: f32[n]
  scalar n: i32
  made a as init of y
body:
  for i in [0, n):
    a: y[i] = 1.0
  for i in [0, n):
    a: y[i] = y[i] + x[i]
"""
    with pytest.raises(ExpressionError):
        compiled(parse_program(text))


# --- W6: stores at rows that are loaded ---------------------------------------------------------------

SCATTER = """program scatter
  in x: f32[n, m]
  in row: i32[n]
  out o: f32[n, m]
  temp t: f32[n]
  scalar n: i32
  scalar m: i32
body:
  for i in [0, n):
    for j in [0, m):
      t: t[i] max= x[i, j] init -inf
  for i in [0, n):
    for j in [0, m):
      o: o[INDEX] = x[i, j] - t[i]
"""
INDICES = ("row[i], j", "row[i] + 1, j", "i - i % 2, j", "min(i, 3), j", "i // 2, j", "row[row[i]], j")


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("template", ["softmax_row", "softmax_online", "flash_attention", "flash_decoding"])
def test_w6_programs_of_a_grid_write_apart(index: str, template: str) -> None:
    with pytest.raises(neptune.NeptuneError) as caught:
        compiled(parse_program(SCATTER.replace("INDEX", index)), template)
    assert not isinstance(caught.value, InternalError)


def test_w6_the_automatic_choice_serves_rows_from_memory_in_order() -> None:
    kernel = compiled(parse_program(SCATTER.replace("INDEX", "row[i], j")))
    x, row = torch.randn(4, 5), torch.tensor([0, 2, 0, 3], dtype=torch.int32)
    got = kernel(x, row)
    want = x - x.amax(-1, keepdim=True)
    torch.testing.assert_close(got[[0, 2, 3]], want[[2, 1, 3]])  # the last one of a row's writers


@pytest.mark.parametrize("index", ["i, j", "n - 1 - i, j"])
def test_w6_what_writes_apart_is_still_fused(index: str) -> None:
    assert compiled(parse_program(SCATTER.replace("INDEX", index)), "stagewise") is not None
    if index == "i, j":
        assert compiled(parse_program(SCATTER.replace("INDEX", index)), "softmax_row") is not None


# --- L2: what addresses other loads is never a box ----------------------------------------------------

GATHERED = """program gathered
  in q: f16[n, 64]
  in k: f16[p, 64]
  in table: i32[n, 64]
  out s: f32[n, 64]
  scalar n: i32
  scalar p: i32
body:
  for i in [0, n):
    for j in [0, 64):
      for d in [0, 64):
        s: s[i, j] += cast(f32, q[i, d]) * cast(f32, k[INDEX, d]) init 0.0
"""


@pytest.mark.parametrize("index", ["table[i, j]", "table[i, j] * 2 + 1", "min(table[i, j], p - 1)", "table[0, j]"])
@pytest.mark.parametrize("template", ["stagewise", None])
def test_l2_rows_that_are_loaded_are_no_boxes(index: str, template: str | None) -> None:
    program = parse_program(GATHERED.replace("INDEX", index))
    made = next(choose.candidates(program)) if template is None else choose.lowered(template, program)
    for kernel in made.tiles.kernels:
        loads = addressed(made.tiles, kernel, boxes=True).kernel
        boxes = [x for s in walk_stmts(loads.body) for e in stmt_exprs(s) for x in walk(e) if _reads(x, "q")]
        assert any(isinstance(x.at, Box) for x in boxes), "what addresses nothing is a box as ever"
        tables = [x for s in walk_stmts(loads.body) for e in stmt_exprs(s) for x in walk(e) if _reads(x, "table")]
        tables += [x for s in walk_stmts(loads.body) if isinstance(s, StoreTile) for i in s.index for x in walk(i)
                   if _reads(x, "table")]  # fmt: skip
        assert not any(isinstance(x.at, Box) for x in tables if isinstance(x, LoadTile))


def _reads(x: Any, buffer: str) -> bool:
    return isinstance(x, LoadTile) and x.buffer == buffer


# --- a candidate that fails before a launch -------------------------------------------------------------


def _maximum() -> Any:
    return nb.build(_row("float32", lambda x: x * 2.0))


class Broken(Exception):
    """What no part of Neptune raises."""


def _breaks(*_: Any, **__: Any) -> Any:
    raise Broken("out of order")


@pytest.mark.parametrize("name", ["softmax_row", "softmax_online", "flash_decoding"])
def test_a_template_that_raises_loses_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = {**choose.shipped_templates(), name: neptune.Template(name, _breaks)}
    monkeypatch.setattr(choose, "shipped_templates", lambda: known)
    with caplog.at_level(logging.INFO, "neptune.compiler"):
        kernel = compiled(_maximum())
    x = torch.randn(3, 7)
    torch.testing.assert_close(kernel(x), (x * 2).amax(-1))
    assert any(r.levelno >= logging.WARNING and "out of order" in (r.exc_text or "") for r in caplog.records)
    monkeypatch.setenv("NEPTUNE_STRICT", "1")
    with pytest.raises(Broken):
        compiled(nb.build(_row("float32", lambda x: x * 3.0)))


@pytest.mark.parametrize(("room", "where"), [(choose, "choose"), (choose, "points"), (family, "space_of")])
def test_a_model_that_raises_loses_no_candidate(
    room: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, where, _breaks)
    with caplog.at_level(logging.WARNING, "neptune.compiler"):
        kernel = compiled(nb.build(_row("float32", lambda x: x * 4.0)))
    x = torch.randn(3, 7)
    torch.testing.assert_close(kernel(x), (x * 4).amax(-1))
    assert any("out of order" in (r.exc_text or "") for r in caplog.records)


@pytest.mark.parametrize("where", ["addressed", "generate", "localize", "check", "arrange", "started"])
def test_a_pass_that_raises_loses_one_candidate(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from neptune.driver import passes

    real, seen = getattr(passes, where), []

    def once(*args: Any, **more: Any) -> Any:
        if not seen:
            seen.append(where)
            raise Broken("out of order")
        return real(*args, **more)

    monkeypatch.setattr(passes, where, once)
    kernel = compiled(nb.build(_row("float32", lambda x: x * 5.0)))
    x = torch.randn(3, 7)
    torch.testing.assert_close(kernel(x), (x * 5).amax(-1))
    assert seen and "out of order" in kernel.explain()


def test_a_judgement_that_raises_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from neptune.driver import explanation

    monkeypatch.setattr(explanation, "outlook", _breaks)
    kernel = compiled(nb.build(_row("float32", lambda x: x * 6.0)))
    x = torch.randn(3, 7)
    torch.testing.assert_close(kernel(x), (x * 6).amax(-1))
    assert kernel.explain()


@pytest.mark.parametrize("shape", ["scalar", "reduced", "both"])
def test_programs_of_rank_0(shape: str) -> None:
    n = var("n")
    x, c = placeholder((n,), "float32", "x"), placeholder((), "float32", "c")
    a = reduce_axis((0, n), "a")
    total = compute((), lambda: nb.sum(x[a], axis=a), "total")
    data, one = torch.randn(9), torch.tensor(1.5)
    if shape == "scalar":
        torch.testing.assert_close(compiled(compute((), lambda: nb.exp(c[()]), "y"))(one), one.exp())
    elif shape == "reduced":
        torch.testing.assert_close(compiled(total)(data), data.sum())
    else:
        both = compute((), lambda: total[()] * c[()], "y")
        torch.testing.assert_close(compiled(both)(data, one), data.sum() * 1.5)


# --- L18, C2: checks have a bound on work, and their small constants mean what the large ones mean ------


def test_l18_tiles_of_large_constants_cover_what_they_covered() -> None:
    program = _attention(96, 10000)
    made = choose.lowered("flash_attention", program)
    for original, tiles in (shrink(program, made.tiles), shrink(program, made.tiles, edges=False)):
        depth = next(d.value for d in original.inputs[0].shape[-1:] if isinstance(d, Const))
        extents = [e.value for k in tiles.kernels for a, e in k.axes if isinstance(e, Const)]  # type: ignore[union-attr]
        assert extents and min(extents) >= depth


@pytest.mark.parametrize(("depth", "other"), [(72, 128), (96, 128), (80, 128), (48, 64), (160, 256), (33, 64)])
def test_c2_a_power_of_two_above_a_length_stays_above_it(depth: int, other: int) -> None:
    small = _choices({depth, other, 16})
    assert 1 < small[depth] <= small[other] and small[other] & (small[other] - 1) == 0
    both = _choices({depth, depth + 4, other})
    assert small[depth] < both[depth + 4] <= both[other]


@pytest.mark.parametrize("depth", [72, 96])
def test_c2_no_template_is_accused_falsely(depth: int) -> None:
    program = _attention(depth, 3, "float32")
    for template in ("flash_attention", "softmax_row"):
        made = choose.lowered(template, program)
        original, tiles = shrink(program, made.tiles)
        assert isinstance(original, Program)
        report = check_exact(original, tiles, draws=2)
        assert report.accepted, report


def _attention(depth: int, window: int, dtype: str = "bfloat16") -> Program:
    """Attention with a window and a bias by head."""
    n, m, h = var("n"), var("m"), var("h")
    q, k, v = (placeholder((h, s, depth), dtype, name) for s, name in ((n, "q"), (m, "k"), (m, "v")))
    bias = placeholder((h,), "float32", "bias")
    d, a, b, c = reduce_axis((0, depth), "d"), *(reduce_axis((0, m), x) for x in "abc")
    wide: Callable[..., Any] = lambda x: nb.cast(x, "float32")  # noqa: E731
    s = compute((h, n, m), lambda g, i, j: nb.sum(wide(q[g, i, d]) * wide(k[g, j, d]), axis=d), "s")
    seen = compute(
        (h, n, m),
        lambda g, i, j: nb.select(nb.all_of(j <= i, i < j + window), s[g, i, j] + bias[g], nb.min_value("float32")),
        "seen",
    )
    top = compute((h, n), lambda g, i: nb.max(seen[g, i, a], axis=a), "top")
    p = compute((h, n, m), lambda g, i, j: nb.exp(seen[g, i, j] - top[g, i]), "p")
    total = compute((h, n), lambda g, i: nb.sum(p[g, i, b], axis=b), "total")
    out = compute((h, n, depth), lambda g, i, e: nb.sum(p[g, i, c] * wide(v[g, c, e]), axis=c), "out")
    made: Tensor = compute((h, n, depth), lambda g, i, e: out[g, i, e] / total[g, i], "o")
    return nb.build(made)


def test_l18_a_check_has_a_bound_on_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where small constants accuse, those as they are decide as far as the work goes: then the accusation stands."""
    program = _attention(96, 10000)
    tiles = choose.lowered("flash_attention", program).tiles
    monkeypatch.setattr("neptune.verify.shrink._choices", lambda constants: dict.fromkeys(constants, 2))
    spent: list[int] = []
    real = Work.spend

    def spend(self: Work, elements: int) -> None:
        if self.whole is not None:
            spent.append(elements * self.times)
        real(self, elements)

    monkeypatch.setattr(Work, "spend", spend)
    check_exact(program, tiles, draws=1)
    assert sum(spent) <= 3 * WORK


def test_l18_work_counts_the_elements_of_tiles() -> None:
    program = _attention(96, 100)
    tiles = choose.lowered("flash_attention", program).tiles
    sizes = {"h": 1, "n": 2, "m": 2} | {t.name: 64 for t in tiles.tunables if t.covers is None}
    inputs = {b.name: np.zeros([1 if d == Var("h") else 2 if isinstance(d, Var) else d.value for d in b.shape])  # type: ignore[union-attr]
              for b in program.inputs}  # fmt: skip
    work = Work(1 << 30)
    evaluate(tiles, inputs, sizes, FieldPair(0), work)
    assert (1 << 30) - work.left > 64 * 64 * 128


def test_masks_of_int64() -> None:
    n, m = var("n"), var("m")
    x, k = placeholder((n, m), "float32", "x"), placeholder((m,), "int64", "k")
    a = reduce_axis((0, m), "a")
    big = nb.const(1 << 40, "int64")
    o = compute((n,), lambda i: nb.sum(nb.select(k[a] * big <= big * 3, x[i, a], 0.0), axis=a), "o")
    data, keys = torch.randn(3, 7), torch.arange(7)
    kernel = compiled(nb.build(o, [x, k]))
    torch.testing.assert_close(kernel(data, keys), torch.where(keys <= 3, data, 0.0).sum(-1))


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 11])
def test_random_programs_of_the_builder_compile_to_the_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of `qa.fuzz_builder`."""
    for name in ("NEPTUNE_VERIFY", "NEPTUNE_STRICT", "NEPTUNE_CACHE_DIR"):
        monkeypatch.setenv(name, "1")  # a trial sets them: what they were comes back
    outcome = fuzz_builder.trial(seed)
    assert outcome.kind in ("right", "refused"), outcome
