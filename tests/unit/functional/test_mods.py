"""Mods as expressions: each row of FlexAttention's zoo means what torch computes, and visits no tile in vain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, or_masks

from neptune.errors import ExpressionError
from neptune.functional import flex
from neptune.functional.captured import captured, reach
from neptune.functional.flex import mods_of
from neptune.functional.mods import traced
from neptune.ir.evaluate.program import evaluate
from neptune.ir.expr import Var
from neptune.ir.text.printer import print_expr
from neptune.torch_ops.table import TABLE
from qa.zoo import HEADS, ZOO, Mods, expression, inputs, needed, of_torch, visited

INDICES = [Var(n) for n in "bhij"]
SCORE = Var("s", "float32")


def shown(function) -> str:
    """A score_mod as an expression."""
    return print_expr(traced(function, "score_mod").expression(SCORE, *INDICES))


@pytest.mark.parametrize("s_q, s_kv", [(18, 33), (33, 18)])
@pytest.mark.parametrize("name", ZOO)
def test_a_row_of_the_zoo_means_what_torch_computes(name: str, s_q: int, s_kv: int) -> None:
    """The expression, in float64, against flex_attention in float64."""
    mods = ZOO[name](s_q, s_kv)
    q, k, v = (t.double() for t in inputs(s_q, s_kv, "float64"))
    program = expression(mods)
    made, held = mods_of(mods.score_mod, mods.mask_mod)
    names = [p.name for m in made.given for p in m.placeholders]
    arrays = {n: (t.reshape(1) if t.dim() == 0 else t).numpy() for n, t in zip(names, held, strict=True)}
    arrays = {n: a.astype(np.float64 if a.dtype.kind == "f" else np.int64) for n, a in arrays.items()}
    sizes = {f"{n}_{k}": d for n, a in arrays.items() for k, d in enumerate(a.shape)}
    sizes |= {"batch": q.shape[0], "heads": HEADS, "s_q": s_q, "s_kv": s_kv}
    arrays |= {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()}
    o = evaluate(program, {b.name: arrays[b.name] for b in program.inputs}, sizes)["o"]
    np.testing.assert_allclose(o, of_torch(mods, q, k, v).numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ZOO)
def test_no_tile_outside_of_a_mask_is_visited(name: str) -> None:
    mods = ZOO[name](50, 64)
    assert visited(mods, 50, 64) <= needed(mods, 50, 64)


def test_masks_in_scores_skip_tiles_too() -> None:
    as_mask, as_score = (visited(ZOO[n](50, 64), 50, 64) for n in ("causal", "causal as a score"))
    assert as_mask == as_score < 16


# --- what becomes of a function -------------------------------------------------------------------------


def test_promotion_is_torchs() -> None:
    assert shown(lambda s, b, h, i, j: s + (i - j)) == "s + cast(f32, i - j)"
    assert shown(lambda s, b, h, i, j: s + (i - j) / 2) == "s + cast(f32, i - j) / 2.0"
    assert shown(lambda s, b, h, i, j: s * (i // 2 % 3)) == "s * cast(f32, i // 2 % 3)"
    double = torch.ones(3, dtype=torch.float64)
    assert shown(lambda s, b, h, i, j: s + double[h]) == "cast(f32, cast(f64, s) + double_in[h])"


def test_a_captured_number_is_a_constant_and_a_scalar_tensor_an_input() -> None:
    w, t = 3, torch.tensor(2.0)
    assert shown(lambda s, b, h, i, j: s * w) == "s * 3.0"
    assert shown(lambda s, b, h, i, j: s * t) == "s * t_in[0]"
    assert shown(lambda s, b, h, i, j: s * torch.tensor(5.0)) == "s * 5.0"


def test_negative_indices_count_from_the_end_and_others_are_left_alone() -> None:
    t = torch.ones(3, 4)
    assert shown(lambda s, b, h, i, j: s + t[h, i // 2]) == "s + t_in[h, i // 2]"
    wrapped = "s + t_in[h, select(i - j < 0, i - j + t_in_1, i - j)]"
    assert shown(lambda s, b, h, i, j: s + t[h, i - j]) == wrapped
    assert shown(lambda s, b, h, i, j: s + t[h][i - j]) == wrapped
    assert shown(lambda s, b, h, i, j: s + t[0, j]) == "s + t_in[0, j]"


def test_a_distance_is_a_set_of_tiles() -> None:
    mask = traced(lambda b, h, i, j: torch.abs(i - j) <= 4, "mask_mod").expression(*INDICES)
    assert print_expr(mask) == "i - j <= 4 and i - j >= -4"


@pytest.mark.parametrize("name", ["exp", "log2", "sigmoid", "erf", "floor", "round", "trunc", "rsqrt", "sign", "relu"])
def test_functions_of_a_score(name: str) -> None:
    function = getattr(torch, name)
    e = traced(lambda s, b, h, i, j: function(s), "score_mod").expression(SCORE, *INDICES)
    assert name in TABLE and e.dtype == "float32"


def test_paths_lead_to_what_is_captured() -> None:
    table, numbers = torch.ones(3), (torch.zeros(2), 5)

    def inner(b, h, i, j):
        return table[h] > numbers[0][b]

    mask = and_masks(inner, or_masks(inner))
    found = {c.path: c for c in captured(mask)}
    assert {c.kind for c in found.values()} <= {"tensor", "value", "function", "constant"}
    for path, c in found.items():
        assert reach(mask, path) is c.value


def test_a_mod_is_traced_once_for_its_code_and_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []

    def counting(*args):
        traces.append(args)
        return traced(*args)

    monkeypatch.setattr(flex, "traced", counting)

    def made(table: torch.Tensor, w: int):
        return lambda b, h, i, j: (table[i] >= table[j]) & (i - j < w)

    first, _ = mods_of(None, made(torch.arange(9), 3))
    again, held = mods_of(None, made(torch.arange(5), 3))
    assert again.key == first.key and held[0].shape == (5,) and len(traces) == 1
    assert mods_of(None, made(torch.arange(9), 4))[0].key != first.key
    assert mods_of(None, made(torch.ones(9), 3))[0].key != first.key
    assert len(traces) == 3


@pytest.mark.parametrize("ask", [lambda t: t.shape[0], len, lambda t: t.size(0), lambda t: t.numel()])
def test_numbers_that_a_tensor_is_asked_for_are_never_remembered(ask) -> None:
    """A length or an element as a Python number is a constant of the expression: another tensor, another mod."""

    def made(table: torch.Tensor):
        return lambda b, h, i, j: j < ask(table)

    keys = [mods_of(None, made(torch.full((n,), n)))[0].key for n in (3, 4, 3)]
    assert keys[0] != keys[1] and keys[0] == keys[2]
    one = [torch.tensor(n) for n in (3, 4)]
    keys = [mods_of(None, lambda b, h, i, j, t=t: j < t.item())[0].key for t in one]
    assert keys[0] != keys[1]


def test_constants_of_a_mod_are_part_of_its_structure() -> None:
    def with_default(w: int):
        def mask(b, h, i, j, *, w=w):
            return j < w

        return mask

    assert mods_of(None, with_default(3))[0].key != mods_of(None, with_default(4))[0].key
    five, six = (
        mods_of(None, f)[0].key
        for f in (lambda b, h, i, j: j < torch.tensor(5), lambda b, h, i, j: j < torch.tensor(6))
    )
    assert five != six


def test_two_names_of_one_tensor_are_another_mod_than_two_tensors() -> None:
    def made(x: torch.Tensor, y: torch.Tensor):
        return lambda s, b, h, i, j: s + x[j] - 2 * y[j]

    one, two = torch.ones(3), torch.zeros(3)
    assert mods_of(made(one, one), None)[1] == [one]
    _, held = mods_of(made(one, two), None)
    assert len(held) == 2 and held[0] is one and held[1] is two
    _, held = mods_of(made(two, one), None)
    assert len(held) == 2 and held[0] is two and held[1] is one


def test_functions_of_torch_in_a_closure_are_part_of_what_a_mod_is() -> None:
    def made(f, g, h):
        return lambda s, *_: f(g(h(s)))

    functions = (torch.sin, torch.tanh, torch.nn.functional.relu, torch.nn.functional.silu, lambda s: s + 1)
    keys = [mods_of(made(f, torch.exp, g), None)[0].key for f in functions for g in functions]
    assert len(set(keys)) == len(functions) ** 2
    plus, twice = (lambda s: s + 1), (lambda s: s * 2)
    assert mods_of(made(plus, twice, plus), None)[0].key != mods_of(made(plus, twice, twice), None)[0].key


def test_flags_are_compared_with_numbers_as_numbers() -> None:
    flags = torch.tensor([True, False])
    mod = traced(lambda b, h, i, j: (flags[h] == 2) | (flags[h] < 2), "mask_mod")
    assert "i64" in print_expr(mod.expression(*INDICES))


ENDS = torch.arange(3.0)


def test_arguments_that_no_rule_takes_are_refused() -> None:
    assert "sorter=" in refused(lambda s, b, h, i, j: torch.searchsorted(ENDS, s, sorter=ENDS.long()), "score_mod")
    assert "bits" in refused(lambda s, b, h, i, j: s.view(torch.int32) % 7, "score_mod")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.offset = torch.ones(4), 0

    def score(self, s, b, h, i, j):
        return s + self.bias[h] + self.offset


def test_what_an_object_holds_is_read_each_time() -> None:
    model = Model()
    first, held = mods_of(model.score, None)
    assert held[0] is model.bias
    model.offset, model.bias = 3, torch.zeros(4)
    again, held = mods_of(model.score, None)
    assert held[0] is model.bias and again.key != first.key


# --- what is none -------------------------------------------------------------------------------------------


def refused(function, kind: str = "mask_mod") -> str:
    with pytest.raises(ExpressionError) as info:
        mod = traced(function, kind)
        mod.expression(*([SCORE] if kind == "score_mod" else []), *INDICES)
    return str(info.value)


def test_a_branch_on_a_value_is_refused_with_its_line() -> None:
    def branches(b, h, i, j):
        if i > j:  # the line
            return i >= j
        return i < j

    message = refused(branches)
    assert "if i > j:  # the line" in message or "if i > j:" in message
    assert "torch.where" in message
    assert "(i >= j) and (i < 5)" in refused(lambda b, h, i, j: (i >= j) and (i < 5))
    assert "min(i, 3)" in refused(lambda b, h, i, j: j < min(i, 3))
    assert "item" in refused(lambda b, h, i, j: j < i.item())


def test_side_effects_are_refused() -> None:
    table, count = torch.zeros(4), [0]

    def writes(b, h, i, j):
        table[0] = 1.0
        return table[i] > 0

    def counts(b, h, i, j):
        count[0] += 1
        return i - j < count[0]

    assert "changes nothing" in refused(writes)
    assert table.sum() == 0
    assert "something else each time" in refused(counts)
    assert "rand" in refused(lambda b, h, i, j: torch.rand(()) > 0.5)


def test_what_is_no_value_is_refused() -> None:
    table = torch.zeros(4, 5)
    assert "a slice of `table`" in refused(lambda b, h, i, j: table[i] > 0)
    assert "all of `table`" in refused(lambda b, h, i, j: table > 0)
    assert "too many indices for `table`" in refused(lambda b, h, i, j: table[i, j, b] > 0)
    assert "no integer" in refused(lambda b, h, i, j: table[i, i > j] > 0)
    assert "int32" in refused(lambda b, h, i, j: i - j)
    assert "returns a condition" in refused(lambda s, b, h, i, j: i > j, "score_mod")
    assert "not a function" in refused(3)
    assert "(b, h, q_idx, kv_idx)" in refused(lambda b, h, i: i > 0)
    assert "RuntimeError: mine" in refused(_fails)


def _fails(b, h, i, j):
    raise RuntimeError("mine")


def test_short_integers_are_read_and_do_not_compute() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        table = torch.zeros(4, dtype=dtype)
        assert "table_in" in shown(lambda s, b, h, i, j: s + torch.where(i > j, table[i], table[j]))  # noqa: B023
        assert "table_in" in shown(lambda s, b, h, i, j: s + table[i].to(torch.int32) * 3)  # noqa: B023
        for wraps in (lambda t, i: t[i] + t[i], lambda t, i: -t[i], lambda t, i: i.to(t.dtype)):
            wrong = refused(lambda s, b, h, i, j: s + wraps(table, i), "score_mod")  # noqa: B023
            assert f"computes in {dtype}" in wrong and ".to(torch.int32)" in wrong


def test_python_numbers_are_results() -> None:
    assert print_expr(traced(lambda b, h, i, j: True, "mask_mod").expression(*INDICES)) == "True"
    assert isinstance(ZOO["causal"](1, 1), Mods)
