"""The table of torch's operators against eager: a part of `python -m qa.torch_table`, and what it has to notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table

import neptune
from neptune.graph import aten as rows
from neptune.graph.aten import ROWS
from neptune.ir.expr import op
from neptune.torch_ops.scalars import as_dtype
from neptune.torch_ops.table import TABLE, overloads
from qa import torch_table
from qa.graphs import evaluated
from qa.torch_table import DTYPES, Case, database, is_dropped, judged, listed, overload_cases, samples

aten = torch.ops.aten
SOME = ("add", "sub", "mul", "pow", "remainder", "floor_divide", "gt", "bitwise_left_shift", "copysign", "hypot",
        "expm1", "log1p", "atan2", "round", "nn.functional.softplus", "sum", "mean", "amax", "any",
        "where", "clamp")  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_an_operator_of_torchs_database_is_eagers(name: str) -> None:
    dtypes = [d for d in DTYPES if d in database()[name].supported_dtypes("cpu")]
    dtype = dtypes[SOME.index(name) % len(dtypes)]
    found = [(c.place, *judged(c)) for c in samples(database()[name], dtype, 1)]
    assert not [f for f in found if f[1] in ("wrong", "raised")] and any(f[1] == "right" for f in found), found


def test_every_overload_that_torch_lists_is_a_row() -> None:
    taken = {*ROWS, *select_decomp_table()}
    assert not [n for n, target in listed().items() if target not in taken]
    assert len(listed()) > 150


@pytest.mark.parametrize("name", ["aten.add.Scalar", "aten.fmod.Scalar", "aten.pow.Scalar", "aten.eq.Scalar"])
def test_an_overload_is_eagers_on_edges(name: str) -> None:
    for dtype in (torch.int32, torch.bfloat16, torch.float32):
        found = [(c.place, *judged(c)) for c in overload_cases(listed()[name], dtype)]
        assert not [f for f in found if f[1] not in ("right", "eager")], found


SHORT = [
    lambda x, y, u: x + y, lambda x, y, u: (x * y) > 50, lambda x, y, u: (x + y).sum(1), lambda x, y, u: u * 2 // 7,
    lambda x, y, u: (x * 3 - y).amax(1), lambda x, y, u: x.float() * 0.1, lambda x, y, u: (u - 1).max(1),
    lambda x, y, u: (x + y).to(torch.uint8) * 2 > 9, lambda x, y, u: (x.long() * 99).to(torch.int8) > 0,
    lambda x, y, u: torch.where(x > 0, x + x, y), lambda x, y, u: (u + u).argmax(1), lambda x, y, u: x + 1000,
    lambda x, y, u: (x << 3) // 3, lambda x, y, u: (x.abs() + 1).half() * 2,
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(SHORT)))
def test_integers_of_8_bits_wrap_around(index: int) -> None:
    torch.manual_seed(index)
    x, y = (torch.randint(-128, 128, (6, 7), dtype=torch.int8) for _ in range(2))
    given = (x, y, torch.randint(0, 256, (6, 7), dtype=torch.uint8))
    for ours, right in zip(
        evaluated(SHORT[index], *given), torch.utils._pytree.tree_leaves(SHORT[index](*given)), strict=False
    ):
        assert ours.dtype == right.dtype and torch.equal(ours, right)


def test_a_region_of_8_bits_on_a_machine() -> None:
    x, w = torch.randint(-128, 128, (40, 70), dtype=torch.int8), torch.rand(70)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x + x).float() * w).softmax(-1)

    fused = neptune.fuse(function, target="llvm", take="all")
    torch.testing.assert_close(fused(x, w), function(x, w))
    assert fused.reports[0].taken


# --- mutants: what the harness has to notice ------------------------------------------------------------


def kinds(target: Any, dtype: torch.dtype) -> set[str]:
    return {judged(c)[0] for c in overload_cases(target, dtype)}


def planted(monkeypatch: pytest.MonkeyPatch, target: Any, **changes: Any) -> None:
    monkeypatch.setitem(ROWS, target, rows._mapped(replace(overloads()[target], **changes)))


def test_numbers_that_are_not_rounded_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(aten.eq.Scalar, torch.bfloat16) == {"right"}
    planted(monkeypatch, aten.eq.Scalar, jumps=False)
    x = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    assert judged(Case("eq", lambda x: x == 0.1, (x,)))[0] == "wrong"


def test_a_wrong_promotion_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.tensor([2**24 + 1, 7]), torch.tensor([2**24, 7])
    assert judged(Case("eq", torch.eq, (x, y)))[0] == "right"
    rule = TABLE["eq"].rule
    planted(monkeypatch, aten.eq.Tensor, rule=lambda dtype, a, b: rule("float32", a, b))
    assert judged(Case("eq", torch.eq, (x, y)))[0] == "wrong"


def test_formulas_that_are_equal_in_the_reals_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, aten.log1p.default, rule=lambda dtype, x: op("log", as_dtype(x, dtype) + 1.0))
    assert "wrong" in kinds(aten.log1p.default, torch.float32)
    planted(
        monkeypatch, aten.remainder.Scalar,
        rule=lambda dtype, x, y: as_dtype(x, dtype) - op("floor", as_dtype(x, dtype) / as_dtype(y, dtype)) * y,
    )  # fmt: skip
    x = torch.arange(16.0) * 0.1
    assert judged(Case("remainder", lambda x: x % 0.1, (x,)))[0] == "wrong"


def test_a_dropped_overload_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ROWS, aten.add.Scalar)
    assert any(is_dropped(f) for f in torch_table.of_operator(("aten.add.Scalar", 1, "float32")))
