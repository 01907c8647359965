"""Inputs on which kernels go wrong: large scores, needles, -inf, zeros, rows without keys.

They are those of docs/design/numerics.md, "Numerics".
"""

from __future__ import annotations

import math

import pytest
import torch

from neptune.frontend.builder import build, compute, exp, log, max, placeholder, reduce_axis, select, sum, var
from neptune.ir.program import Program
from neptune.runtime.modules import Form
from tests.numerics.cases import (
    DTYPES,
    attention_sizes,
    attention_subject,
    families,
    figure1_subject,
    random_inputs,
    rounded,
    shapes,
    softmax_subject,
)
from tests.numerics.harness import TARGETS, Interpreted, Reference, Subject, check, run
from tests.tiers import sampled

INF = math.inf
SIZES = (attention_sizes(21, 37), attention_sizes(35, 24))


@pytest.mark.parametrize("dtype", sampled(DTYPES, 3))
@pytest.mark.parametrize(
    "operator, template, depth, tiles",
    [
        ("prefill_causal", "flash_attention", 16, (16, 16)),
        ("prefill_global", "flash_attention", 32, (32, 16)),
        ("prefill_causal", "attention_unfused", 32, (16, 16)),
    ],
)
def test_attention(operator: str, template: str, depth: int, tiles: tuple[int, int], dtype: str) -> None:
    subject = attention_subject(operator, template, tiles, depth=depth, dtype=dtype)
    for sizes in SIZES:
        check(subject, families(subject.program, sizes))


@pytest.mark.parametrize("layout, axis, scale", [("bhsd", -2, -0.3), ("bshd", -3, 4.0), ("bshd", -3, 0.0)])
def test_layouts_and_scales(layout: str, axis: int, scale: float) -> None:
    # A negative scale turns the maximum of q·k into the minimum of the scores.
    subject = attention_subject("prefill_causal", layout=layout, scale=scale)
    check(subject, families(subject.program, SIZES[0], axis=axis))


@pytest.mark.parametrize("layout, axis", sampled([("bhsd", -2), ("bshd", -3)], 2))
@pytest.mark.parametrize("template", ["flash_attention", "attention_unfused"])
def test_every_form_of_the_module(template: str, layout: str, axis: int) -> None:
    """Descriptors and wide offsets, which a GPU or huge tensors would call for."""
    subject = attention_subject("prefill_causal", template, layout=layout)
    forms = (Interpreted(subject.kernels["interpret"], Form(*f)) for f in (("descriptor",), ("pointer", True)))
    check(subject, families(subject.program, SIZES[1], axis=axis), kernels={f.target: f for f in forms})


@pytest.mark.parametrize("template", ["flash_attention", "attention_unfused"])
@pytest.mark.parametrize("dtype", sampled(DTYPES, 3))
def test_rows_without_keys_are_zero(template: str, dtype: str) -> None:
    """s_q > s_kv: the first rows see nothing, in tiles of their own and in a tile with rows that do."""
    subject = attention_subject("prefill_causal", template, dtype=dtype)
    for s_q, s_kv in ((20, 1), (35, 3), (33, 32)):
        inputs = random_inputs(subject.program, attention_sizes(s_q, s_kv))
        check(subject, {f"{s_q} queries, {s_kv} keys": inputs})
        for target in TARGETS:
            like = [torch.empty_like(inputs[0]), torch.empty(1, 1, s_q)]
            o, lse = run(subject.kernels[target], inputs, like, strided=False)
            assert (o[:, :, : s_q - s_kv] == 0).all() and o[:, :, s_q - s_kv :].any(-1).all()
            assert (lse[:, :, : s_q - s_kv] == -INF).all() and lse[:, :, s_q - s_kv :].isfinite().all()


# --- -inf in the scores ---------------------------------------------------------------------------


def biased_program(dtype: str, depth: int) -> Program:
    """Attention whose scores come with a bias from memory, in which -inf masks."""
    batch, heads, s_q, s_kv = (var(n) for n in ("batch", "heads", "s_q", "s_kv"))
    rows, scores = (batch, heads, s_q), (batch, heads, s_q, s_kv)
    q, k, v = (placeholder((batch, heads, n, depth), dtype, name) for n, name in ((s_q, "q"), (s_kv, "k"), (s_kv, "v")))
    bias = placeholder(scores, "float32", "bias")
    d, j = reduce_axis((0, depth), "d"), reduce_axis((0, s_kv), "j")

    def wide(t: object) -> object:
        return t.astype("float32")  # type: ignore[attr-defined]

    s = compute(scores, lambda b, h, i, j: sum(wide(q[b, h, i, d]) * wide(k[b, h, j, d]), axis=d), "s")
    score = compute(scores, lambda b, h, i, j: s[b, h, i, j] * depth**-0.5 + bias[b, h, i, j], "score")
    m = compute(rows, lambda b, h, i: max(score[b, h, i, j], axis=j), "m")
    p = compute(scores, lambda b, h, i, j: exp(score[b, h, i, j] - m[b, h, i]), "p")
    total = compute(rows, lambda b, h, i: sum(p[b, h, i, j], axis=j), "total")
    weight = compute(scores, lambda b, h, i, j: p[b, h, i, j].astype(dtype), "weight") if dtype != "float32" else p
    acc = compute((*rows, depth), lambda b, h, i, e: sum(wide(weight[b, h, i, j]) * wide(v[b, h, j, e]), axis=j), "acc")
    o = compute(
        (*rows, depth),
        lambda b, h, i, e: select(total[b, h, i] > 0, acc[b, h, i, e] / total[b, h, i], 0).astype(dtype),
        "o",
    )
    lse = compute(rows, lambda b, h, i: select(total[b, h, i] > 0, m[b, h, i] + log(total[b, h, i]), -INF), "lse")
    return build([o, lse], inputs=[q, k, v, bias], name="biased")


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same in float64."""
    s = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5 + bias.double()
    lse = torch.logsumexp(s, -1)
    o = torch.exp(s - lse.clamp_min(torch.finfo(torch.float32).min)[..., None]) @ v.double()
    return o, lse


def masks(s_q: int, s_kv: int, tile: int) -> dict[str, torch.Tensor]:
    """Additive masks: every key tile that can be missing, rows without keys, single keys, checkers."""
    some = torch.randn(s_q, s_kv, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {"none": some, "all": torch.full_like(some, -INF)}
    for start in range(0, s_kv, tile):
        found[f"tile {start} missing"] = some.clone()
        found[f"tile {start} missing"][:, start : start + tile] = -INF
        found[f"only tile {start}"] = torch.full_like(some, -INF)
        found[f"only tile {start}"][:, start : start + tile] = some[:, start : start + tile]
    found["every other row"] = some.clone()
    found["every other row"][::2] = -INF
    found["a tile of rows"] = some.clone()
    found["a tile of rows"][tile : 2 * tile] = -INF
    found["one key each"] = torch.full_like(some, -INF)
    found["one key each"][torch.arange(s_q), torch.arange(s_q) * 7 % s_kv] = 1.0
    found["checkers"] = torch.where((torch.arange(s_q)[:, None] + torch.arange(s_kv)) % 2 == 0, some, -INF)
    found["lowest"] = some.clone()
    found["lowest"][:, tile:] = torch.finfo(torch.float32).min
    return found


@pytest.mark.parametrize("dtype", sampled(DTYPES, 3))
def test_scores_of_minus_infinity(dtype: str) -> None:
    program = biased_program(dtype, 16)
    reference = Reference(biased, biased)
    subject = Subject(program, "flash_attention", reference, {"BLOCK_M": 16, "BLOCK_N": 16})
    sizes = attention_sizes(21, 37)
    q, k, v, _ = random_inputs(program, sizes)
    check(subject, {name: [q, k, v, m[None, None].float()] for name, m in masks(21, 37, 16).items()})


# --- rows of softmax and Figure 1 -----------------------------------------------------------------

LENGTHS = (1, 17, 127, 128, 1000, 1021)
ROWS = ((3, 37, 16), (1, 1, 16), (5, 300, 256))


def check_rows(subject: Subject) -> None:
    """Hostile columns, hostile rows, and -inf in both."""
    (x,) = subject.program.inputs
    names = [getattr(d, "name", "") for d in x.shape]
    for rows, cols, tile in ROWS:
        sizes = dict(zip(names, (rows, cols), strict=True))
        for axis in (-1, -2):
            for additive in ((), (x.name,)):
                check(subject, families(subject.program, sizes, tile=tile, axis=axis, additive=additive))
        lowest = {x.name: torch.full((rows, cols), torch.finfo(getattr(torch, x.dtype)).min).double().numpy()}
        check(subject, {"lowest": rounded(subject.program, lowest)})


def check_lengths(subject: Subject) -> None:
    names = [getattr(d, "name", "") for d in subject.program.inputs[0].shape]
    for rows, cols in zip((1, 17, 3, 4, 5, 2), LENGTHS, strict=True):
        check(subject, {f"{rows}×{cols}": random_inputs(subject.program, dict(zip(names, (rows, cols), strict=True)))})


@pytest.mark.parametrize("template", ["softmax_online", "softmax_row"])
def test_figure1(template: str) -> None:
    check_rows(figure1_subject(template))
    check_lengths(figure1_subject(template))


@pytest.mark.parametrize("template", ["softmax_online", "softmax_row"])
@pytest.mark.parametrize("dtype", sampled(DTYPES[::-1], 3))
def test_softmax(template: str, dtype: str) -> None:
    check_rows(softmax_subject(template, dtype))
    check_lengths(softmax_subject(template, dtype))


def test_shapes_follow_the_layout() -> None:
    subject = attention_subject("prefill_causal", layout="bshd")
    assert shapes(subject.program, attention_sizes(3, 5, 1, 2))["k"] == (1, 5, 2, 16)
