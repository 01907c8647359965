"""Asynchronous kernels as Gluon text: what it says, and what it compiles to for sm_90 beside the form by hand."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest

from neptune.hopper.gluon.launch import BALANCED
from neptune.hopper.gluon.module import GluonText, generate, spelled
from neptune.hopper.ir import Levers
from neptune.hopper.roles.kernel import roles
from neptune.hopper.validate.compile import compile_gluon
from neptune.hopper.validate.verdicts import verdict
from neptune.runtime.hopper.accepted import Verdict
from tests.examples.hopper_examples import attention, product
from tests.examples.sass import LoopStats, analyse, clean_loop
from tests.examples.walks import tiles_of, walked
from tests.goldens import check_golden

LEVERS = {
    64: Levers(3, 2, "stride", True, True, {"BLOCK_M": 64, "BLOCK_N": 128}),
    128: Levers(2, 2, "table", True, False, {"BLOCK_M": 64, "BLOCK_N": 128}),
    256: Levers(2, 2, "once", False, False, {"BLOCK_M": 64, "BLOCK_N": 64}),
}
BY_HAND = {64: 412, 128: 447, 256: 402}
"""Instructions in the loop over keys of `bench/baselines/flash_attention_gluon.py`, by depth."""
UNCHECKED = ("its protocol is not checked", "not compared")
PRODUCT = Levers(stages=3, persistent="table", tiles={"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 64})


def of_attention(depth: int, levers: Levers | None = None) -> GluonText:
    levers = levers or LEVERS[depth]
    walked, program = attention(levers.consumers, depth)
    return generate(program, roles(walked, program, levers))


def of_product(levers: Levers = PRODUCT) -> GluonText:
    walked, program = product(levers.consumers)
    return generate(program, roles(walked, program, levers))


def verdict_of(made: GluonText, levers: Levers) -> tuple[Verdict, list[LoopStats]]:
    """What compiling for sm_90 tells."""
    built = compile_gluon(made.text, made.kernel)
    return verdict("", built, levers.registers), analyse(built.cubin)


@pytest.mark.parametrize("depth", LEVERS)
def test_attention_compiles_to_the_loop_by_hand(depth: int) -> None:
    found, loops = verdict_of(of_attention(depth), LEVERS[depth])
    assert found.faults == UNCHECKED and found.in_flight == 2
    inner = clean_loop(loops)
    assert inner is not None and inner.hgmma == {64: 12, 128: 16, 256: 20}[depth]
    assert inner.instructions <= 1.025 * BY_HAND[depth]
    assert depth > 64 or inner.overlapped == inner.ex2, "the exponentials do not run under the product"


@pytest.mark.parametrize("depth", [64, 128])
def test_what_is_derived_has_that_loop_too(depth: int) -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=depth)
    text = generate(tiles, roles(walked(tiles, LEVERS[depth]), tiles, LEVERS[depth]))
    found, loops = verdict_of(text, LEVERS[depth])
    assert found.faults == UNCHECKED
    # The loop over tiles that need a mask, then the one over all others.
    *_, inner = (loop for loop in loops if loop.hgmma)
    assert inner.instructions <= 1.015 * BY_HAND[depth]


def test_no_mask_is_kept_in_registers_through_all_groups() -> None:
    """Where all groups have the same keys, the mask of the last ones is made anew for each: kept, it took 32 registers
    of each thread, and three consumers have none to spare (140 bytes of spills)."""
    _, tiles = tiles_of("prefill_global", "flash_attention", depth=64)
    text = generate(tiles, roles(walked(tiles, LEVERS[64]), tiles, LEVERS[64]))
    assert text.text.count("j0_end = gl.cdiv(s_kv, 128) + (tile >> 31)") == 1
    found, _ = verdict_of(text, LEVERS[64])
    assert found.faults == UNCHECKED


def test_a_product_keeps_its_sum_in_registers() -> None:
    found, loops = verdict_of(of_product(), PRODUCT)
    assert found.faults == UNCHECKED
    assert min((loop for loop in loops if loop.hgmma), key=lambda loop: loop.instructions).hgmma == 4


@pytest.mark.parametrize("name", ["attention", "product"])
def test_the_text(name: str) -> None:
    check_golden(f"gluon_{name}.py.txt", (of_attention(128) if name == "attention" else of_product()).text)


@pytest.mark.parametrize("made", [*map(of_attention, LEVERS), of_product()])
def test_what_a_module_has_it_uses(made: GluonText) -> None:
    tree = ast.parse(made.text)

    def read(node: ast.AST) -> set[str]:
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}

    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    imported = {a.asname or a.name.split(".")[-1] for n in imports for a in n.names}
    constants = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    assert imported | constants <= read(tree)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    launch = functions[-1]
    assert {f.name for f in functions} - read(tree) == {launch.name}
    for f in functions:
        assert {a.arg for a in f.args.args} <= read(f)


def test_every_tile_is_given_once_and_evenly() -> None:
    names: dict[str, Any] = {}
    exec("import heapq, torch\n" + BALANCED, names)
    weights = [1 + (7 * t) % 13 for t in range(200)]
    tiles, first = (t.tolist() for t in names["balanced"](weights, 9, 200, 0, "cpu"))
    # One more is read ahead, and not visited.
    assert tiles.pop() == 0
    assert sorted(tiles) == list(range(200)) and (first[0], first[-1]) == (0, 200)
    work = [sum(weights[t] for t in tiles[a:b]) for a, b in itertools.pairwise(first)]
    assert max(work) - min(work) <= 13
    assert [weights[t] for t in tiles[: first[1]]] == sorted((weights[t] for t in tiles[: first[1]]), reverse=True)


@pytest.mark.parametrize(("length", "heads", "together"), [(512, 512, 64), (4096, 64, 8), (16384, 16, 2)])
def test_heads_that_l2_keeps_are_given_together_and_evenly(length: int, heads: int, together: int) -> None:
    """Causal attention of depth 256: of keys and values of 268 MB, 32 MB are read at a time."""
    names: dict[str, Any] = {}
    exec("import heapq, torch\n" + BALANCED, names)
    row = length // 128
    weights = [2 * (m + 1) + 1 for _ in range(heads) for m in range(row)]
    read = 2 * heads * length * 256 * 2
    tiles, first = (t.tolist() for t in names["balanced"](weights, 132, row, read, "cpu"))
    assert sorted(tiles[:-1]) == list(range(len(weights)))
    given = [tiles[a:b] for a, b in itertools.pairwise(first)]
    work = [sum(weights[t] for t in of) for of in given]
    assert max(work) <= 1.03 * sum(work) / len(work)
    bands = [[t // row // together for t in of] for of in given]
    assert all(of == sorted(of) for of in bands)
    assert max(map(max, bands)) == heads // together - 1


def test_words_of_triton_are_spelled_in_gluon() -> None:
    assert spelled("y = _sigmoid(x) + tl.sigmoid(tl.exp(x))") == "y = _sigmoid(x) + _sigmoid(gl.exp(x))"
