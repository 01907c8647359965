"""Masks that read tensors, and that data of rows says the end of: by the emulator beside float64, and compiled."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neptune.errors import Unsupported
from neptune.frontend.builder import placeholder, var
from neptune.hopper.choice.memory import forms
from neptune.hopper.emulate import load
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import AsyncKernel, Levers, walk_async
from neptune.hopper.parser import parse_async
from neptune.hopper.protocol.check import check
from neptune.hopper.protocol.trials import trials
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.hopper.validate.compile import compile_gluon
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import Assign, TileProgram
from neptune.tile.pipeline import lower
from qa.masks import Case, cases
from tests.examples.lowering import scheduled
from tests.examples.walks import walked

HALF = 5e-4
HEADS, DEPTH = 2, 64
TWO = Levers(2, 2, "table", False, True, {"BLOCK_N": 64})
THREE = Levers(3, 3, "stride", True, False, {"BLOCK_N": 64})


@pytest.fixture(autouse=True)
def three_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of three multiprocessors, so that programs have several groups."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))


@cache
def tiles_of(mask: masks.Mask, depth: int = DEPTH) -> TileProgram:
    return lower(scheduled(attention(heads=HEADS, depth=depth, causal=False, mask=mask), flash_attention))


def derived(tiles: TileProgram, levers: Levers) -> AsyncKernel:
    made = roles(walked(tiles, levers), tiles, levers)
    verify_async(made, tiles)
    assert str(parse_async(str(made), tiles)) == str(made)
    return made


REFUSED = {
    "lengths": "v is masked, as no row may see all of it, where it is multiplied",
    "window and lengths": "v is masked, as no row may see all of it, where it is multiplied",
    "lengths of both": "v is masked by more than the ends of v",
    "lengths and causal": "v is masked by more than the ends of v",
}
"""A product reads its right operand from shared memory, in which nothing is 0 that memory has otherwise."""


def of_data(names: tuple[str, ...]) -> list[Any]:
    return [pytest.param(n, marks=() if n in names else pytest.mark.slow) for n in cases() if n not in REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_no_row_may_see_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=REFUSED[name].removeprefix("v ")):
        walked(tiles_of(cases()[name].mask), TWO)


def wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sees: Any) -> torch.Tensor:
    """Attention in float64; a row without keys is 0."""
    s = q.double() @ k.double().mT / DEPTH**0.5
    return torch.softmax(s.masked_fill(~sees, -torch.inf), -1).nan_to_num() @ v.double()


def ran(case: Case, levers: Levers, s_q: int, s_kv: int, order: str) -> float:
    torch.manual_seed(s_q)
    tiles = tiles_of(case.mask)
    kernel = derived(tiles, levers)
    data = case.data(np.random.default_rng(s_kv), s_q, s_kv)
    q, k, v = (torch.randn(2, HEADS, n, DEPTH).half() for n in (s_q, s_kv, s_kv))
    at = np.arange(s_q)[:, None], np.arange(s_kv)[None, :]
    sees = np.stack([np.broadcast_to(case.sees(*at, s_q, s_kv, data, b), (s_q, s_kv)) for b in range(2)])
    given = {"q": q, "k": k, "v": v, **(case.scalars or {})}
    given |= {b.name: torch.from_numpy(data[b.name]).int().contiguous() for b in tiles.inputs if b.name in data}
    out = torch.full(q.shape, float("nan"), dtype=torch.float16)
    load(generate(tiles, kernel).text, seed=s_q, order=order)[tiles.name](**given, o=out)
    assert not out.isnan().any()
    right = wanted(q, k, v, torch.from_numpy(sees)[:, None])
    return float((out.double() - right).norm() / max(right.norm(), 1.0))


REACHED = ("document", "document and causal", "causal")
OFTEN = ("document", "document and causal", "segments and causal")


@pytest.mark.parametrize("name", of_data(OFTEN))
@pytest.mark.parametrize(
    ("levers", "s_q", "s_kv", "order"), [(TWO, 200, 330, "late"), (THREE, 230, 130, "random"), (TWO, 1, 65, "eager")]
)
def test_numbers(name: str, levers: Levers, s_q: int, s_kv: int, order: str) -> None:
    assert ran(cases()[name], levers, s_q, s_kv, order) < HALF


def beside(name: str) -> Case:
    """Masks whose loops end where data of rows says so, and where rows lie before what is known of a sequence."""
    start, end = (placeholder((var("batch"), var("s_q")), "int32", n) for n in ("start", "end"))
    length, until = (
        placeholder((var("batch"),), "int32", "q_len"),
        placeholder((var("batch"), var("s_kv")), "int32", "t"),
    )
    if name == "segments and rows":
        return Case(
            name,
            masks.and_(masks.segments(start, end), lambda b, h, i, j: i < length[b]),
            lambda i, j, s_q, s_kv, data, b: (
                (data["start"][b][i] <= j) & (j < data["end"][b][i]) & (i < data["q_len"][b])
            ),
            lambda rng, s_q, s_kv: {
                "start": rng.integers(-3, s_kv, (2, s_q)),
                "end": rng.integers(0, s_kv + 9, (2, s_q)),
                "q_len": rng.integers(0, s_q + 2, 2),
            },
        )
    return Case(
        name,
        lambda b, h, i, j: i <= until[b, j],
        lambda i, j, s_q, s_kv, data, b: i <= data["t"][b][j],
        lambda rng, s_q, s_kv: {"t": rng.integers(-3, s_q + 9, (2, s_kv))},
    )


@pytest.mark.parametrize("name", ["segments and rows", "until"])
@pytest.mark.parametrize(("levers", "s_q", "s_kv"), [(TWO, 200, 330), (THREE, 230, 130)])
def test_positions_of_rows_beside_data_of_rows(name: str, levers: Levers, s_q: int, s_kv: int) -> None:
    """Bounds are computed in int64 where data is compared: positions of rows, too."""
    assert ran(beside(name), levers, s_q, s_kv, "late") < HALF


@pytest.mark.parametrize("name", of_data(OFTEN))
def test_roles_are_in_step(name: str) -> None:
    tiles = tiles_of(cases()[name].mask)
    kernel = derived(tiles, TWO)
    report = check(generate(tiles, kernel).text, trials(tiles, kernel))
    assert report.ok, report
    assert name not in REACHED or report.unreached == ()


COMPILED = [
    ("document and causal", 64, 48),
    pytest.param("segments", 128, 40, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "columns", "producer"), COMPILED)
def test_they_compile_without_spills(name: str, columns: int, producer: int) -> None:
    tiles = tiles_of(cases()[name].mask, 128)
    made = generate(tiles, derived(tiles, Levers(2, 2, "stride", tiles={"BLOCK_N": columns})))
    built = compile_gluon(made.text, made.kernel)
    assert (built.spill_bytes, built.warnings, built.lint.findings, built.lint.local) == (0, (), (), 0)
    assert built.lint.in_flight == 2 and built.lint.exps > 0
    # A producer that looks for where rows of a group begin and end has more registers than others.
    assert built.lint.producers == (producer,)


@pytest.mark.parametrize("dtype", ["int8", "bool", "int64"])
def test_a_captured_table_compiles_beside_a_product_in_flight(dtype: str) -> None:
    """Triton's lowering of a wait fails on tiles of 8 bits that come out of it."""
    table = placeholder((var("s_q"), var("s_kv")), dtype, "table")
    tiles = tiles_of(lambda b, h, i, j: table[i, j] if dtype == "bool" else table[i, j] > 0)
    made = generate(tiles, derived(tiles, Levers(2, 2, "stride", tiles={"BLOCK_N": 64})))
    assert compile_gluon(made.text, made.kernel).lint.findings == ()


@pytest.mark.parametrize(("name", "how"), [("segments", "once"), ("document", "once"), ("causal", "table")])
def test_groups_whose_work_data_says_are_a_program_each(name: str, how: str) -> None:
    """No host knows how many tiles they visit: the next one goes to the processor that is free first."""
    tiles = tiles_of(cases()[name].mask)
    found = forms(walked(tiles, TWO), tiles)
    assert {x.persistent for x in found} == {how} and any(x.ahead for x in found) == (how == "table")
    assert (derived(tiles, found[0]).weight is None) == (how == "once")


def test_numbers_of_documents_that_rows_and_columns_share() -> None:
    """The producer reads rows of them that go through no ring: no band is made of these."""
    docs = placeholder((var("batch"), var("s_q")), "int32", "docs")
    program = attention(heads=HEADS, depth=DEPTH, causal=False, mask=masks.document(docs))
    tiles = lower(scheduled(program, flash_attention))
    (best, *_) = forms(walked(tiles, TWO), tiles)
    assert best.band == 0 and verify_async(roles(walked(tiles, best), tiles, best), tiles) is None


def test_a_producer_holds_rows_of_integers() -> None:
    """The bounds of a walk over documents come from rows and from steps of keys, which both roles look at."""
    kernel = derived(tiles_of(cases()["document"].mask), TWO)
    held = {s.name: s.value.dims for s in walk_async(kernel.producer) if isinstance(s, Assign) and s.value.dims}
    assert held.pop("q_doc_all") == ("i1_all",) and set(held.values()) == {("j0_lane",)}
    assert kernel.levers.registers == (224, 48)
