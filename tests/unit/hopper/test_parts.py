"""Kernels whose launches choose in how many parts an axis is folded: the form computes the same for any number."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

import neptune
from bench.cost import MACHINE
from neptune.errors import Unsupported
from neptune.forms import Wanted
from neptune.hopper.bodies.write import bodies_of
from neptune.hopper.choice.predict import Predictor
from neptune.hopper.choice.wanted import ordered, predictor
from neptune.hopper.derive import Derived, form_of
from neptune.hopper.emulate import load
from neptune.hopper.ir import Levers, Loop, walk_async
from neptune.hopper.protocol.check import check
from neptune.hopper.protocol.trials import sizes, trials
from neptune.hopper.validate.kernel import PARTS
from neptune.hopper.validate.kernel import sizes as compared_at
from neptune.kernel import Kernel
from neptune.ops.linear import matmul
from neptune.runtime.artifact import pack, unpack
from neptune.runtime.launching.launch import Target
from neptune.runtime.parts import count_parts
from neptune.tile.ir import TileKernel, TileProgram
from neptune.tune.params import resolve_params
from neptune.tune.parts import BUSY, MOST
from neptune.tune.rank import model_of
from neptune.verify.instances import number
from tests.examples.walks import tiles_of

HALF = 1e-3
PRODUCT = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
SCORES = {"BLOCK_M": 64, "BLOCK_N": 64}
COUNTS = (1, 2, 3, 7)
"""Of five tiles: all; three and two; two, two and one; one each, and two that are empty."""
LONG = {"m": 256, "n": 256, "k": 16384}
HEAD = {"depth": 32, "heads": 1}


def split_of(program: TileProgram) -> TileKernel:
    return next(k for k in program.kernels if any(g.var == "part" for g in k.grid))


@cache
def form(name: str, template: str, persistent: str = "table", consumers: int = 2, **options: object) -> Derived:
    program = tiles_of(name, template, **options)[1]
    tiles = PRODUCT if template == "matmul_split" else SCORES
    return form_of(program, {split_of(program).name: Levers(consumers, 2, persistent, tiles=tiles)})


def ran(made: Derived, name: str, inputs: list[torch.Tensor], out: torch.Tensor, parts: int, seed: int = 0) -> None:
    out.fill_(torch.nan)
    load(made.text.text, seed=seed, order=("late", "random", "eager")[seed % 3])[name](*inputs, out, parts)
    assert not out.isnan().any()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def off(out: torch.Tensor, exact: torch.Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", COUNTS)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 160), (256, 256, 152), (130, 72, 8)])
@pytest.mark.parametrize(("persistent", "consumers"), [("once", 2), ("stride", 2), ("table", 3)])
def test_a_product(persistent: str, consumers: int, m: int, n: int, k: int, parts: int) -> None:
    made = form("matmul", "matmul_split", persistent, consumers)
    assert [p.kernel.name for p in made.parts] == ["matmul_c_split_kernel"] and "def matmul_y_kernel" in made.text.text
    torch.manual_seed(parts)
    a, b, out = half(m, k), half(k, n), half(m, n)
    ran(made, "matmul", [a, b], out, parts, seed=k)
    assert off(out, a.double() @ b.double()) < HALF


@pytest.mark.parametrize("parts", COUNTS)
@pytest.mark.parametrize(("s_q", "s_kv"), [(70, 300), (129, 64), (200, 257)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, s_q: int, s_kv: int, parts: int) -> None:
    """Where a row sees a part of the keys, parts lie wholly behind it, and where there are few keys it sees none."""
    name = "prefill_causal" if causal else "prefill_global"
    made = form(name, "flash_decoding", **HEAD)
    torch.manual_seed(parts)
    q, k, v = (half(1, 1, n, 32) for n in (s_q, s_kv, s_kv))
    out = torch.empty_like(q)
    ran(made, name, [q, k, v], out, parts, seed=s_kv)
    scores = q.double() @ k.double().mT * 32**-0.5
    if causal:
        sees = torch.arange(s_kv) <= torch.arange(s_q)[:, None] + s_kv - s_q
        scores = scores.masked_fill(~sees, -torch.inf)
    assert off(out, scores.softmax(-1).nan_to_num() @ v.double()) < HALF


@pytest.mark.parametrize("parts", COUNTS)
def test_a_loss(parts: int) -> None:
    name = "linear_cross_entropy"
    made = form(name, "flash_decoding", depth=64)
    torch.manual_seed(parts)
    x, w, t = half(130, 64), half(300, 64), torch.randint(0, 300, (130,))
    out = torch.empty(130)
    ran(made, name, [x, w, t], out, parts)
    assert off(out, F.cross_entropy(x.double() @ w.double().mT, t, reduction="none")) < HALF


# --- the protocol --------------------------------------------------------------------------------


def test_parts_have_all_lengths() -> None:
    """Loops of 0 to 2 S + 1 tiles in several parts as well, and parts of two lengths beside each other."""
    program = tiles_of("matmul", "matmul_split")[1]
    kernel = form("matmul", "matmul_split").kernel
    loop = next(s for s in walk_async(kernel.producer) if isinstance(s, Loop))
    seen: dict[int, set[int]] = {}
    for values in sizes(program, kernel):
        many = values["NUM_SPLITS"]
        every = ({**values, "part": p} for p in range(many))
        lengths = [max(0, number(loop.hi, at) - number(loop.lo, at)) for at in every]
        seen.setdefault(many, set()).update(lengths)
    assert seen[1] >= set(range(1, 6)) and seen[2] >= set(range(6)) and 0 in seen[3] & seen[5]
    assert set(seen) == {1, 2, 3, 5}


@pytest.mark.parametrize(
    ("name", "template", "options"), [("matmul", "matmul_split", {}), ("prefill_causal", "flash_decoding", HEAD)]
)
def test_a_wait_that_is_dropped_is_found(name: str, template: str, options: dict[str, int]) -> None:
    made = form(name, template, **options)
    program = tiles_of(name, template, **options)[1]
    text = made.text.text
    assert made.protocol.unreached == ()
    for line in dict.fromkeys(x for x in text.splitlines() if "mbarrier.wait(" in x):
        report = check(text.replace(f"{line}\n", "", 1), trials(program, made.kernel, alone=True))
        assert not report.ok, line


# --- how many ------------------------------------------------------------------------------------


@cache
def compiled() -> Kernel:
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "consumers": 2, "stages": 4}
    return neptune.compile(matmul(), "matmul_split", target="cuda:90", form="asynchronous", shapes=LONG, params=params)


def test_launches_choose_parts_for_their_own_groups() -> None:
    """Two consumers of 64 rows: 256 rows are two groups, where programs of 64 rows on tiles would be four."""
    kernel = compiled()
    of = kernel.executable.artifact.form
    assert of is not None
    (rule,), (plain,) = of.parts, kernel.executable.artifact.parts
    assert rule.sizes == {"m", "n", "k"}, "tile sizes are numbers"
    assert rule.default(LONG, 132) == count_parts(2 * 4, 256, 132, MOST, BUSY) == 15
    assert plain.default({**LONG, **kernel.params}, 132) == count_parts(4 * 4, 256, 132, MOST, BUSY) == 8
    resources = kernel.resources()[0]
    assert resources.form == "asynchronous" and resources.spill_bytes == 0
    again = unpack(pack(kernel.executable.artifact, {})).form
    assert again is not None and again.parts == of.parts


def test_a_call_takes_the_parts_of_the_form_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled()
    e = kernel.executable
    a, b = torch.zeros(256, 16384).half(), torch.zeros(16384, 256).half()
    y, odd = torch.zeros(256, 256).half(), torch.zeros(256 * 16384 + 1).half()[1:].view(256, 16384)
    at = {**LONG, "NUM_SPLITS": 1}
    assert not e._in_own_parts((a, b, y), at)
    monkeypatch.setattr("neptune.runtime.executable.gpu_target", lambda: Target("cuda", "90"))
    assert not e._in_own_parts((a, b, y), at), "there is no verdict"
    monkeypatch.setattr("neptune.runtime.executable.runs_other", lambda *_: True)
    assert e._in_own_parts((a, b, y), at)
    assert not e._in_own_parts((odd, b, y), at), "rows that no copy in bulk takes"


def test_a_workspace_is_large_enough_for_either_form(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled()
    e, device = kernel.executable, torch.device("cpu")
    monkeypatch.setattr("neptune.runtime.parts.processors", lambda _: 132)
    numbers = [r.of_call(e._sizes(LONG), device)["NUM_SPLITS"] for r in (e._numbers, e._own_numbers)]
    assert numbers[0] != numbers[1]
    assert kernel.workspace(**LONG) >= 4 * 256 * 256 * max(numbers)
    fixed = kernel.with_params(NUM_SPLITS=3).executable
    assert [r.of_call(LONG, device)["NUM_SPLITS"] for r in (fixed._numbers, fixed._own_numbers)] == [3, 3]
    assert fixed.workspace(LONG) == 4 * 256 * 256 * 3


def test_both_forms_are_compared_in_several_parts() -> None:
    every = compared_at(matmul(), ["NUM_SPLITS"])
    assert {x.get("NUM_SPLITS") for x in every} == {None, *PARTS} and len(every) == 3 * len(compared_at(matmul()))
    assert all("NUM_SPLITS" not in x for x in compared_at(matmul()))


# --- what is predicted ---------------------------------------------------------------------------


def predicted(shape: dict[str, int]) -> tuple[Predictor, TileProgram]:
    program = tiles_of("matmul", "matmul_split")[1]
    return Predictor(model_of(program), shape, MACHINE, late=False, name=split_of(program).name), program


def test_parts_are_more_groups() -> None:
    asked, program = predicted(LONG)
    levers = Levers(2, 4, "table", tiles={"BLOCK_N": 64, "BLOCK_K": 128})
    kernel = form_of(program, {split_of(program).name: replace(levers, tiles={"BLOCK_M": 64, **levers.tiles})}).plain()
    (rule,) = kernel.parts
    (parts,) = asked.parts(levers).values()
    assert parts == rule.default(LONG, MACHINE.processors) and asked.of(levers).groups == 8 * parts
    alone = replace(asked, sizes={**LONG, "NUM_SPLITS": 1})
    assert alone.of(levers).groups == 8 and alone.of(levers).us > 5 * asked.of(levers).us


def test_what_adds_the_parts_counts() -> None:
    asked, program = predicted(LONG)
    on_tiles = resolve_params(program, {}, LONG, MACHINE, None)
    levers = Levers(2, 4, "table", tiles={"BLOCK_N": 64, "BLOCK_K": 128})
    theirs = {**on_tiles, "NUM_SPLITS": asked.parts(levers)["NUM_SPLITS"]}
    assert asked.beside(levers, theirs) == 0
    assert asked.beside(levers, {**on_tiles, "NUM_SPLITS": 1}) > 1


@pytest.mark.parametrize(
    ("name", "template", "at", "far"),
    [
        ("matmul", "matmul_split", {"m": 1, "n": 256, "k": 16384}, True),
        ("linear_cross_entropy", "flash_decoding", {"rows": 8192, "cols": 32768, "depth": 256}, False),
    ],
)
def test_auto_leaves_out_what_is_far_behind(name: str, template: str, at: dict[str, int], far: bool) -> None:
    """Of a single row most of a group is empty."""
    program = tiles_of(name, template)[1]
    walked = bodies_of(program, split_of(program), {})
    levers = {"consumers": 3, "stages": 2}
    wanted = Wanted(levers, {}, at, MACHINE, resolve_params(program, {}, at, MACHINE, None), ahead=True)
    found = ordered(walked, program, wanted)
    if far:
        assert isinstance(found, Unsupported) and "it is predicted to take" in str(found)
    else:
        assert found and not isinstance(found, Unsupported)


def test_a_number_that_a_caller_gives_is_that_of_both_forms() -> None:
    asked, program = predicted(LONG)
    walked = bodies_of(program, split_of(program), {})
    given = predictor(Wanted({}, {"NUM_SPLITS": 3}, LONG, MACHINE), program, walked)
    levers = Levers(2, 4, "table", tiles={"BLOCK_N": 64, "BLOCK_K": 128})
    assert given.parts(levers) == {"NUM_SPLITS": 3} != asked.parts(levers)
