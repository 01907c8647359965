"""The table of torch's operators against eager: a part of `python -m qa.torch_table`, and what it has to notice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch
from torch._inductor.decomposition import select_decomp_table

import neptune
from neptune.graph import aten as rows
from neptune.graph.aten import ROWS
from neptune.ir.expr import op
from neptune.torch_ops import special
from neptune.torch_ops.scalars import as_dtype
from neptune.torch_ops.table import TABLE, overloads
from qa import torch_table
from qa.graphs import evaluated, graph_of, program_of
from qa.torch_table import DTYPES, Case, database, difference, is_dropped, judged, listed, overload_cases, samples

aten = torch.ops.aten
SOME = ("add", "sub", "mul", "pow", "remainder", "floor_divide", "gt", "bitwise_left_shift", "copysign", "hypot",
        "expm1", "log1p", "atan2", "round", "nn.functional.softplus", "sum", "mean", "amax", "any",
        "where", "clamp", "i0", "special.i1e", "special.modified_bessel_k1", "digamma", "polygamma.polygamma_n_3",
        "special.ndtri", "special.chebyshev_polynomial_w", "long")  # fmt: skip


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


FLOATS = torch.tensor([5e9 + 1027, -5e9 - 1027, 2**31 - 0.5, -(2.0**31) - 0.5, 300.7, -300.7, 2.0**63, -(2.0**63), -0.5,
                       1e300, math.inf, -math.inf, math.nan, 65535.0, -1.0, 127.5], dtype=torch.float64)  # fmt: skip


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("to", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cast_to_integers_is_torchs_on_every_target(dtype: torch.dtype, to: torch.dtype, target: str) -> None:
    x = FLOATS.to(dtype)
    (made,) = evaluated(lambda x: x.to(to), x)
    kernel = neptune.compile(program_of(graph_of(lambda x: x.to(to), [x]))[0].program, target=target)
    assert torch.equal(made, x.to(to)) and torch.equal(kernel(x), x.to(to))


def test_a_sum_in_integers_cuts_what_bfloat16_holds() -> None:
    x = (torch.arange(60.0).reshape(4, 15) / 3).bfloat16()
    (made,) = evaluated(lambda x: (x * 1.37).sum(-1, dtype=torch.int64), x)
    assert torch.equal(made, (x * 1.37).long().sum(-1))


SPECIAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "i0": (torch.special.i0, lambda x: mpmath.besseli(0, x)),
    "i1e": (torch.special.i1e, lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x))),
    "k0": (torch.special.modified_bessel_k0, lambda x: mpmath.besselk(0, x)),
    "k1e": (torch.special.scaled_modified_bessel_k1, lambda x: mpmath.besselk(1, x) * mpmath.exp(x)),
    "digamma": (torch.digamma, mpmath.digamma),
    "polygamma": (lambda x: torch.polygamma(4, x), lambda x: mpmath.polygamma(4, x)),
    "ndtri": (lambda x: torch.special.ndtri(torch.exp(-x)),
              lambda x: mpmath.findroot(lambda y: mpmath.log(mpmath.ncdf(y)) + x, -math.sqrt(2 * x))),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_function_has_the_digits_of_float64(name: str) -> None:
    function, true = SPECIAL[name]
    x = torch.tensor([1e-3, 0.05, 0.3, 0.9, 1.9, 2.1, 3.7, 7.9, 8.1, 12.5, 31.0, 33.0, 90.0], dtype=torch.float64)
    (made,) = evaluated(function, x)
    with mpmath.workdps(40):
        right = torch.tensor([float(true(mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(made, right, rtol=2e-13, atol=0.0)


@pytest.mark.parametrize("word", ["chebyshev_polynomial_u", "shifted_chebyshev_polynomial_w"])
def test_polynomials_of_nan_are_nan(word: str) -> None:
    x, n = torch.full((5,), math.nan), torch.tensor([-1, 0, 1, 2, 40])
    (made,) = evaluated(getattr(torch.special, word), x, n)
    assert made.tolist()[:2] == [0.0, 1.0] and made[2:].isnan().all()


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


@pytest.mark.parametrize("ours", [1.0, -math.inf, math.nan])
def test_what_is_not_infinite_is_noticed(ours: float) -> None:
    assert difference(torch.tensor([ours]), torch.tensor([math.inf]), None, [torch.ones(1)])


def test_a_fit_of_fewer_digits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(aten.special_i0e.default, torch.float64) == {"right"}
    monkeypatch.setattr(special, "DEGREE", 6)
    monkeypatch.setattr(special, "fitted", special.fitted.__wrapped__)
    assert kinds(aten.special_i0e.default, torch.float64) == {"wrong"}


def test_a_dropped_overload_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ROWS, aten.add.Scalar)
    assert any(is_dropped(f) for f in torch_table.of_operator(("aten.add.Scalar", 1, "float32")))
