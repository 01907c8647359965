"""walk: consumers compute what the kernel computes, and the producer loads what they load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from neptune.frontend.builder import placeholder, var
from neptune.hopper.ir import Levers
from neptune.ir.program import Program
from neptune.ops.masks import and_, causal, document, segments
from neptune.tile.ir import TileProgram
from neptune.tile.parser import parse_tiles
from neptune.tile.verify import verify_tiles
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.instances import number
from tests.examples.walks import Array, roles_agree, tiles_of, walked, with_kernel


@dataclass(frozen=True)
class Case:
    """A shipped operator by a template, with what is late and sizes for true tiles of 64 rows."""

    operator: str
    template: str
    options: Mapping[str, Any] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    sizes: tuple[Mapping[str, int], ...] = ()
    levers: Levers = field(default_factory=Levers)

    @property
    def programs(self) -> tuple[Program, TileProgram]:
        return tiles_of(self.operator, self.template, **self.options)


HEADS = {"depth": 16, "heads": 2}
GROUPED = {"depth": 16, "heads": 4, "kv_heads": 2}
LENGTHS = [(70, 1), (70, 0), (1, 130), (130, 130), (129, 300), (200, 97), (64, 128)]
ATTENTION = tuple({"batch": 1, "heads": 2, "s_q": q, "s_kv": kv} for q, kv in LENGTHS)
PRODUCTS = tuple({"m": m, "n": n, "k": k} for m, n, k in [(70, 24, 40), (1, 8, 72), (130, 64, 128), (64, 200, 0)])
ROWS = tuple({"rows": m, "cols": n, "depth": k, "width": k} for m, n, k in [(70, 72, 40), (130, 130, 64), (1, 8, 136)])


def attention(operator: str, options: Mapping[str, Any] = HEADS, late: tuple[str, ...] = ("acc",)) -> Case:
    return Case(operator, "flash_attention", options, late, ATTENTION)


@cache
def masked(kind: str) -> Callable[..., Any]:
    """A mask over tensors, by name: one object, so that its attention is made once."""
    b, q, kv = var("batch"), var("s_q"), var("s_kv")
    of_queries = [placeholder((b, q), "int32", n) for n in ("first", "last")]
    if kind == "segments":
        return segments(*of_queries)
    return and_(causal(), document(of_queries[0], placeholder((b, kv), "int32", "of_keys")))


CASES = {
    "global": attention("prefill_global"),
    "causal": attention("prefill_causal"),
    "alibi": attention("prefill_alibi"),
    "grouped": attention("prefill_gqa", GROUPED),
    "softcap": attention("prefill_softcap", GROUPED),
    "window": attention("prefill_window", {**GROUPED, "window": 100, "softcap": None}),
    "sinks": attention("attention_sinks", {"depth": 16}),
    "sigmoid": attention("sigmoid_attention", {"depth": 16}),
    "two maps": attention("differential_attention", {"depth": 16}, ("acc1", "acc2")),
    "padded depth": attention("attention", {"depth": 24, "heads": 2}),
    "documents": attention("attention", {**HEADS, "mask": masked("documents")}),
    "segments": attention("attention", {**HEADS, "mask": masked("segments")}),
    "matmul": Case("matmul", "matmul", sizes=PRODUCTS),
    "linear": Case("linear", "matmul", sizes=PRODUCTS),
    "gated": Case("gated_linear", "matmul", sizes=PRODUCTS),
    "swiglu": Case("swiglu", "matmul", sizes=PRODUCTS),
    "statistic": Case("l2_normalise_matmul", "norm_linear_rolling", sizes=ROWS),
    "computed operand": Case("rms_norm_linear", "norm_linear", sizes=PRODUCTS[:3]),
    "cross entropy": Case("linear_cross_entropy", "flash_attention", sizes=ROWS),
    "logsumexp": Case("linear_logsumexp", "flash_attention", sizes=ROWS),
}
BITWISE = {n for n, c in CASES.items() if not c.late}
"""Where tiles keep their order, so do the additions."""


def inputs_of(program: Program, sizes: Mapping[str, int], hard: bool) -> dict[str, Array]:
    rng = np.random.default_rng(sum(sizes.values()))
    made: dict[str, Array] = {}
    for b in program.inputs:
        shape = tuple(number(d, sizes) for d in b.shape)
        if b.dtype.startswith(("float", "bfloat")):
            made[b.name] = rng.standard_normal(shape)
            if hard and len(shape) > 1 and made[b.name].size:
                made[b.name][..., shape[-2] // 2, :] *= 30  # one row or key takes all weight
        else:
            made[b.name] = np.sort(rng.integers(0, sizes.get("cols", 5), shape))  # classes, or documents in order
            made[b.name] += 40 * (b.name == "last")
    return made


@pytest.mark.parametrize("name", CASES)
def test_the_exact_check_accepts(name: str) -> None:
    program, tiles = CASES[name].programs
    w = walked(tiles)
    verify_tiles(with_kernel(tiles, w.kernel))
    assert w.symbolic is not None
    report = check_exact(program, with_kernel(tiles, w.symbolic, numbers=False))
    assert report.accepted, str(report)
    assert w.late == CASES[name].late
    assert not w.kept
    assert w.read == (("x",) if name == "statistic" else ())


@pytest.mark.parametrize("name", CASES)
def test_odd_sizes_by_the_true_tile(name: str) -> None:
    program, tiles = CASES[name].programs
    w = walked(tiles, Levers(tiles={"BLOCK_N": 64, "BLOCK_K": 32}))
    for k, sizes in enumerate(CASES[name].sizes):
        inputs = inputs_of(program, sizes, hard=bool(k % 2))
        full = {**sizes, **{t.name: w.values.get(t.name, 16) for t in tiles.tunables}}
        got = evaluate(with_kernel(tiles, w.kernel), inputs, full)
        plain = evaluate(tiles, inputs, full)
        wanted = evaluate(program, inputs, sizes)
        for out, array in wanted.items():
            np.testing.assert_allclose(np.asarray(got[out]), np.asarray(array), 1e-9, 1e-9)
            if name in BITWISE:
                np.testing.assert_array_equal(np.asarray(got[out]), np.asarray(plain[out]))


@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_roles_load_the_same(name: str, consumers: int) -> None:
    program, tiles = CASES[name].programs
    w = walked(tiles, Levers(consumers=consumers, tiles={"BLOCK_N": 32, "BLOCK_K": 32}))
    total = 0
    for sizes in CASES[name].sizes:
        length = sizes.get("s_q", sizes.get("m", sizes.get("rows", 0)))
        inputs = inputs_of(program, sizes, hard=False)
        total += roles_agree(w, tiles, sizes, -(-length // (64 * consumers)), inputs)
    assert total > 25


def test_forwards_with_bounds_of_its_rows() -> None:
    """What keeps a product where it is changes nothing else: consumers load what others need on both sides."""
    program, tiles = CASES["window"].programs
    text = str(tiles)
    line = "    acc<i1 e> = (acc + dot(p_cast, v))\n"
    made = parse_tiles(text.replace(line, line + "    top<j1> = reduce(v, max, 'e')\n"), tiles)
    w = walked(made, Levers(consumers=3, tiles={"BLOCK_N": 32}))
    assert not w.late and "reads what is multiplied late" in w.kept[0]
    total = 0
    for sizes in ATTENTION:
        inputs = inputs_of(program, sizes, hard=True)
        total += roles_agree(w, made, sizes, -(-sizes["s_q"] // 192), inputs)
        got = evaluate(with_kernel(made, w.kernel), inputs, sizes)
        for out, array in evaluate(made, inputs, {**sizes, **w.values}).items():
            np.testing.assert_array_equal(np.asarray(got[out]), np.asarray(array))
    assert total > 100
    assert w.symbolic is not None
    assert check_exact(program, with_kernel(made, w.symbolic, numbers=False)).accepted
