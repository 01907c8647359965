"""What no row of a tile may see is never used, and what the verdict on a form draws is legal (W5, C1, C3)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.driver.imports import as_program
from neptune.errors import NeptuneError
from neptune.frontend.builder import compute, exp, max, placeholder, reduce_axis, select, sigmoid, sum, var
from neptune.functional import softmax_attention
from neptune.functional.kernels import structure
from neptune.functional.mods import traced
from neptune.functional.softmax_attention import Mods
from neptune.hopper.emulate import ProtocolError, load
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import Levers
from neptune.hopper.protocol.check import Trial, check
from neptune.hopper.roles.kernel import roles
from neptune.hopper.validate.kernel import sizes as of_verdict
from neptune.ir.expr import loads, logical_and, logical_or
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program, for_loops, paths, values
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.templates.flash_decoding import flash_decoding
from neptune.templates.softmax_row import softmax_row
from neptune.templates.stagewise import stagewise
from neptune.tile import arrange
from neptune.tile.arrange import started
from neptune.tile.pipeline import lower
from neptune.verify.evaluate import evaluate
from qa import fuzz_hidden
from tests.examples import hopper_examples as examples
from tests.examples.lowering import scheduled

NAN = float("nan")
BATCH, S_Q, S_KV, DEPTH = 3, 5, 11, 16
LENS = np.array([0, 6, 11])
KEEP = np.array([[0] * 11, [1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0], [1] * 10 + [0]], bool)
TILES = {"BLOCK_M": 4, "BLOCK_N": 4, "C": 4, "BLOCK_S": 4, "BLOCK_K": 16}


def _integers(name: str, *shape: str, dtype: str = "int32") -> Any:
    return placeholder(tuple(var(s) for s in shape), dtype, name)


LIM, KEPT = _integers("lim", "batch"), _integers("keep", "batch", "s_kv", dtype="bool")
FROM = _integers("first", "batch")
# Masks, and which keys some query of a sequence may see.
J = np.arange(S_KV)[None]
CASES: dict[str, tuple[masks.Mask, Any]] = {
    "a length": (lambda b, h, i, j: j < LIM[b], LENS[:, None] > J),
    "a length, written otherwise": (lambda b, h, i, j: LIM[b] - j > 0, LENS[:, None] > J),
    "a mask of keys": (lambda b, h, i, j: KEPT[b, j], KEEP),
    "a length and a causal one": (lambda b, h, i, j: logical_and(j <= i + 6, j < LIM[b]), LENS[:, None] > J),
    "a mask of keys and a length": (lambda b, h, i, j: logical_and(KEPT[b, j], j < LIM[b]), KEEP & (LENS[:, None] > J)),
    "an interval": (lambda b, h, i, j: logical_and(FROM[b] <= j, j < LIM[b]), (J >= 2) & (LENS[:, None] > J)),
    "a prefix, and a causal one of kept keys": (
        lambda b, h, i, j: logical_or(logical_and(KEPT[b, j], j < 3), logical_and(KEPT[b, j], j <= i + 6)),
        KEEP,
    ),
    "a causal one by lengths": (lambda b, h, i, j: j <= i + LIM[b] - 5, LENS[:, None] > J),
    "a number": (lambda b, h, i, j: j < 6, np.array([[6]] * 3) > J),
}
TEMPLATES = {
    "flash_attention": flash_attention,
    "flash_decoding": flash_decoding,
    "stagewise": stagewise,
    "softmax_row": softmax_row,
}


def inputs(seen: Any, poison: float) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((BATCH, 2, S_Q, DEPTH))
    k, v = rng.standard_normal((2, BATCH, 2, S_KV, DEPTH))
    k, v = (np.where(np.broadcast_to(seen, (BATCH, S_KV))[:, None, :, None], x, poison) for x in (k, v))
    return {"q": q, "k": k, "v": v, "lim": LENS, "keep": KEEP, "first": np.full(BATCH, 2)}


def run(program: Any, given: dict[str, Any]) -> Any:
    named = {b.name: given[b.name] for b in program.inputs}
    sizes = {"batch": BATCH, "s_q": S_Q, "s_kv": S_KV}
    sizes |= {t.name: 16 if t.covers is not None else TILES.get(t.name, 4) for t in program.tunables}
    sizes |= {s.name: 2 for s in program.scalars if s.upto is not None}
    return evaluate(program, named, sizes)["o"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_w5_what_no_row_sees_reaches_nothing(template: str, case: str) -> None:
    mask, seen = CASES[case]
    program = attention(heads=2, depth=DEPTH, causal=False, dtype="float32", mask=mask)
    try:
        made = scheduled(program, TEMPLATES[template])
    except NeptuneError:
        pytest.skip("the template does not serve it")
    for form in (started(made), lower(made, relaxed=template == "stagewise")):
        clean, poisoned = (run(form, inputs(seen, x)) for x in (0.0, NAN))
        assert not np.isnan(clean[1:]).any()
        np.testing.assert_array_equal(np.nan_to_num(poisoned, nan=9e9), np.nan_to_num(clean, nan=9e9), strict=True)


def paged() -> Any:
    """One query of each sequence; its keys lie in pages, of which the last one has a tail."""
    b, pages, width, page = var("b"), var("pages"), var("width"), 4
    q = placeholder((b, DEPTH), "float32", "q")
    k, v = (placeholder((pages, page, DEPTH), "float32", n) for n in ("k", "v"))
    table, lens = placeholder((b, width), "int32", "table"), placeholder((b,), "int32", "lens")
    d, j, jj, jo = (reduce_axis((0, n), a) for n, a in ((DEPTH, "d"), *((width * page, x) for x in ("j", "jj", "jo"))))
    s0 = compute((b, width * page), lambda i, t: sum(q[i, d] * k[table[i, t // page], t % page, d], axis=d), "s0")
    s = compute((b, width * page), lambda i, t: select(t < lens[i], s0[i, t], float("-inf")), "s")
    m = compute((b,), lambda i: max(s[i, j], axis=j), "m")
    total = compute((b,), lambda i: sum(exp(s[i, jj] - m[i]), axis=jj), "l")
    return compute(
        (b, DEPTH),
        lambda i, e: sum(exp(s[i, jo] - m[i]) / total[i] * v[table[i, jo // page], jo % page, e], axis=jo),
        "o",
    )


@pytest.mark.parametrize("poison", [NAN, float("inf")])
@pytest.mark.parametrize(("target", "template"), [("llvm", "flash_attention"), ("interpret", "flash_attention")])
def test_w5_page_tails_and_unused_pages(target: str, template: str, poison: float) -> None:
    kernel = neptune.compile(paged(), template, target=target)
    torch.manual_seed(0)
    k, v = (torch.full((9, 4, DEPTH), poison) for _ in range(2))
    table, lens, q = torch.randperm(8).reshape(2, 4).int(), torch.tensor([6, 13]).int(), torch.randn(2, DEPTH)
    rows = []
    for i in range(2):
        at = [(table[i, t // 4], t % 4) for t in range(int(lens[i]))]
        for page, slot in at:
            k[page, slot], v[page, slot] = torch.randn(DEPTH), torch.randn(DEPTH)
        keys, worth = (torch.stack([x[page, slot] for page, slot in at]) for x in (k, v))
        rows.append(torch.softmax(q[i] @ keys.T, -1) @ worth)
    given = {"q": q, "k": k, "v": v, "table": table, "lens": lens}
    out = kernel(*(given[b.name] for b in kernel.executable.loops.inputs))
    assert (out - torch.stack(rows)).abs().max() < 1e-5


def test_w5_keys_are_hidden_from_functional_attention() -> None:
    """A mask of keys by a captured tensor, and one that is given, each with NaN in what no query sees."""
    q, k, v = torch.randn(2, 2, 3, DEPTH), torch.randn(2, 2, 21, DEPTH), torch.randn(2, 2, 21, DEPTH)
    keep = torch.rand(2, 21) < 0.5
    keep[:, 0], keep[:, -1] = True, False
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
    for x in (k, v):
        x.masked_fill_(~keep[:, None, :, None], NAN)
    found = neptune.functional.attention(q, k, v, mask_mod=lambda b, h, i, j: keep[b, j])
    given = neptune.functional.attention(q, k, v, attn_mask=keep[:, None, None])
    for out in (found, given):
        assert (out - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["a mean of the first elements", "sigmoid", "a maximum from -inf"])
@pytest.mark.parametrize("template", ["stagewise", "flash_attention"])
def test_w5_other_weights(name: str, template: str) -> None:
    """Weights that a choice makes 0, and a softmax whose maximum starts from -inf."""
    b, n = var("b"), var("n")
    x, q = (placeholder((b, n, DEPTH), "float32", s) for s in ("x", "q"))
    lens, w = placeholder((b,), "int32", "lens"), placeholder((b, n), "float32", "w")
    t, tt, d = reduce_axis((0, n), "t"), reduce_axis((0, n), "tt"), reduce_axis((0, DEPTH), "d")
    s = compute((b, n, n), lambda i, a, c: sum(q[i, a, d] * x[i, c, d], axis=d), "s")
    if name == "sigmoid":
        p = compute((b, n, n), lambda i, a, c: select(c < lens[i], sigmoid(s[i, a, c]), 0.0), "p")
        o = compute((b, n, DEPTH), lambda i, a, e: sum(p[i, a, t] * x[i, t, e], axis=t), "o")
    elif name == "a maximum from -inf":
        kept = compute((b, n, n), lambda i, a, c: select(c < lens[i], s[i, a, c], float("-inf")), "kept")
        m = compute((b, n), lambda i, a: max(kept[i, a, t], axis=t, init=float("-inf")), "m")
        o = compute((b, n, DEPTH), lambda i, a, e: sum(exp(kept[i, a, tt] - m[i, a]) * x[i, tt, e], axis=tt), "o")
    else:
        o = compute((b, DEPTH), lambda i, e: sum(select(t < lens[i], w[i, t], 0.0) * x[i, t, e], axis=t), "o")
    try:
        form = started(scheduled(as_program(o), TEMPLATES[template]))
    except NeptuneError:
        pytest.skip("the template does not serve it")
    rng = np.random.default_rng(0)
    given = {"q": rng.standard_normal((3, 7, DEPTH)), "w": rng.standard_normal((3, 7)), "lens": np.array([2, 5, 7])}
    for poison in (NAN, float("inf")):
        rows = rng.standard_normal((3, 7, DEPTH))
        rows[np.arange(7)[None] >= given["lens"][:, None]] = poison
        inputs = {k.name: {**given, "x": rows}[k.name] for k in form.inputs}
        out = evaluate(form, inputs, {"b": 3, "n": 7} | {u.name: 4 for u in form.tunables})["o"]
        assert np.isfinite(out).all()


def test_w5_masks_by_rows_cost_nothing() -> None:
    """A causal mask differs by row: its kernels choose nothing anew, and the clean tiles of a length do not either."""
    causal, length = (
        lower(scheduled(attention(heads=2, depth=DEPTH, causal=c, mask=m), flash_attention))
        for c, m in ((True, None), (False, lambda b, h, i, j: j < LIM[b]))
    )
    sums = [line for line in str(causal).splitlines() if "acc" in line and "dot" in line]
    clean, last = (line for line in str(length).splitlines() if "acc" in line and "dot" in line)
    assert not any("where" in line for line in sums) and "where" not in clean and "where" in last


# --- C1 ---


def _lengths(depth: int, dtype: str, score: bool) -> Program:
    """Attention under a mask by the length of each sequence, with a score function that reads a tensor or without."""
    lim, bias = torch.zeros(3, dtype=torch.int32), torch.zeros(3, 9)
    mods = Mods(mask=traced(lambda b, h, i, j: j < lim[b], "mask_mod"))
    if score:
        mods = Mods(traced(lambda s, b, h, i, j: s + bias[h, j - i + 512], "score_mod", ["lim_in"]), mods.mask)
    options = {"causal": False, "window": None, "softcap": None, "scale": None, "lse": False}
    named = {"dtype": dtype, "depth": depth, "depth_v": depth, "heads": None, "alibi": False, "sinks": False}
    return softmax_attention.program(structure("attention", mods=mods.key, **named, **options), mods)


def _outside(program: Program, at: dict[str, int]) -> list[str]:
    """The reads by position that leave their buffer at some corner of their loops."""
    found = []
    for path, stage in paths(program.body):
        loops = for_loops(path)
        corners = itertools.product(*((0, evaluate_size(f.hi, at) - 1) for f in loops))
        for corner in corners:
            env = {**at, **dict(zip((f.var for f in loops), corner, strict=True))}
            for x in (x for e in values(stage.action) for x in loads(e)):
                for i, n in zip(x.index, program.buffers[x.buffer].shape, strict=True):
                    # A read before the first element is under no size's control.
                    if not loads(i) and evaluate_size(i, env) >= evaluate_size(n, at):
                        found.append(f"{x.buffer} at {evaluate_size(i, env)} of {evaluate_size(n, at)}")
    return found


@pytest.mark.parametrize(("depth", "dtype"), [(40, "float16"), (64, "bfloat16"), (160, "float16")])
@pytest.mark.parametrize("score", [False, True])
def test_c1_forms_are_compared_on_what_is_there(depth: int, dtype: str, score: bool) -> None:
    """Beside 515 batches the verdict gave 33 lengths, and compared what two forms made of the memory behind them."""
    program = _lengths(depth, dtype, score)
    every = of_verdict(program)
    assert all(not _outside(program, at) for at in every)
    assert any(at["batch"] > 500 for at in every) and any(at["lim_in_0"] == 33 for at in every)


# --- C3 ---


@pytest.mark.parametrize(
    ("edit", "to"), [("[STAGES, 1]", "[STAGES, 0]"), ("[1, 1]", "[1, 0]"), ("[STAGES, 1]", "[STAGES, 2]")]
)
def test_c3_a_barrier_of_no_elements_is_rejected(edit: str, to: str) -> None:
    walked, program = examples.attention(2)
    text = generate(program, roles(walked, program, Levers(2, 2, "once", tiles={"BLOCK_M": 64, "BLOCK_N": 64}))).text
    q, k, v = (torch.randn(1, 1, n, 64).half() for n in (64, 128, 128))

    def launch(module: Any) -> None:
        module["prefill_causal"](q, k, v, torch.empty_like(q))

    assert check(text, [Trial(launch)]).ok
    assert edit in text
    mutant = text.replace(edit, to, 1)
    assert not check(mutant, [Trial(launch)]).ok
    with pytest.raises(ProtocolError):
        load(mutant)["prefill_causal"](q, k, v, torch.empty_like(q))


# --- the net ---


@pytest.mark.parametrize("seed", range(4))
def test_w5_drawn_masks(seed: int) -> None:
    outcome = fuzz_hidden.trial(seed)
    assert outcome.kind == "right", outcome


def test_w5_the_net_sees_a_compiler_that_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrange, "without_unseen", lambda program: program)
    assert "wrong" in {fuzz_hidden.trial(seed).kind for seed in range(4)}
