"""lower: every pass keeps the meaning of real programs, and all forms agree with float64."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from neptune.errors import InternalError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.softmax import figure1, softmax
from neptune.tile.pipeline import PASSES, lower
from neptune.tile.translate import translate
from neptune.tile.verify import verify_tiles
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.instances import number
from tests.examples.lowering import Arrange, check_all, scheduled

DEPTH = 16


def template(name: str) -> Arrange:
    found: Arrange = getattr(importlib.import_module(f"neptune.templates.{name}"), name)
    return found


def privatized(sch: Schedule) -> None:
    """Fig. 11 and 14 of the paper: a local accumulator per tile of columns."""
    i, j = sch.loops("xmax")
    i0, j0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [8])])
    sch.bind(i0, "grid.x")
    sch.rolling_update("xsum", j0)
    sch.privatize("xmax", j0)
    sch.privatize("xsum", j0)
    sch.partition(j0)


CASES = {
    "causal": lambda: scheduled(prefill_causal(1, 1, DEPTH, "float32", lse=True), template("flash_attention")),
    "global": lambda: scheduled(prefill_global(1, 1, DEPTH, "float32", lse=True), template("flash_attention")),
    "softmax online": lambda: scheduled(softmax(), template("softmax_online")),
    "softmax row": lambda: scheduled(softmax(), template("softmax_row")),
    "figure 1": lambda: scheduled(figure1(), template("softmax_online")),
    "figures 11 and 14": lambda: scheduled(figure1(), privatized),
    "unscheduled": lambda: scheduled(figure1()),
}
PROGRAMS: dict[str, Program] = {}


def program(name: str) -> Program:
    """Scheduled once: proofs take their time."""
    if name not in PROGRAMS:
        PROGRAMS[name] = CASES[name]()
    return PROGRAMS[name]


@pytest.mark.parametrize("name", CASES)
def test_every_pass_keeps_the_meaning(name: str) -> None:
    tiles = translate(program(name))
    assert not check_exact(program(name), tiles, draws=2).counterexample
    rng = np.random.default_rng(0)
    shapes = {"batch": 1, "heads": 1, "s_q": 7, "s_kv": 5, "rows": 5, "cols": 11, "m": 5, "n": 11}
    sizes = {s.name: shapes[s.name] for s in tiles.scalars} | {
        "BLOCK_M": 4,
        "BLOCK_N": 4 if "s_q" in str(tiles) else 16,
    }
    data = {b.name: rng.standard_normal([number(d, sizes) for d in b.shape]) for b in tiles.inputs}
    wanted = evaluate(tiles, data, sizes)
    for p in PASSES:
        after = replace(tiles, kernels=tuple(p.run(k) for k in tiles.kernels))
        verify_tiles(after)
        got = evaluate(after, data, sizes)
        for output in wanted:
            np.testing.assert_allclose(got[output], wanted[output], 1e-12, 1e-12, err_msg=p.name)
        tiles = after
    assert not check_exact(program(name), tiles, draws=2).counterexample
    assert tiles == lower(program(name))


def test_passes_are_idempotent_where_they_should_be() -> None:
    done = lower(program("causal"))
    for p in PASSES:
        again = replace(done, kernels=tuple(p.run(k) for k in done.kernels))
        assert str(again) == str(done), p.name


def test_every_pass_says_why_it_stands_where_it_stands() -> None:
    assert len({p.name for p in PASSES}) == len(PASSES) and all(p.why for p in PASSES)


def test_what_is_owed_cannot_be_lowered() -> None:
    sch = Schedule(figure1())
    i, j = sch.loops("xmax")
    _, j0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [8])])
    sch.fuse_at("xexp", j0)
    with pytest.raises(InternalError, match="still owes"):
        lower(sch.program)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["figure 1", "figures 11 and 14", "unscheduled"])
def test_row_sums_of_exponentials(name: str) -> None:
    pytest.importorskip("tvm")
    x = (np.random.default_rng(4).standard_normal((7, 13)) * 3).astype(np.float32)
    x[2, :5] = -np.inf
    wide = x.astype(np.float64)
    wanted = np.exp(wide - wide.max(1, keepdims=True)).sum(1)
    params = {} if name == "unscheduled" else {"BLOCK_M": 4, "BLOCK_N": 8}
    check_all(program(name), {"inp": x}, {"xsum": wanted}, {"m": 7, "n": 13}, params)
