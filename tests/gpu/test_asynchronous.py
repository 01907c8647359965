"""Both forms of a kernel on a Hopper GPU: options, products, odd lengths, repeats, graphs, saved kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neptune
from bench import references
from bench.operator_references import rms
from neptune.ir.program import Program
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.ops.cross_entropy import linear_cross_entropy, linear_logsumexp
from neptune.ops.linear import gated_linear, linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.runtime.bench import drawn
from neptune.templates.flash_decoding import flash_decoding

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
FORMS = ("asynchronous", "triton")
ROUNDINGS = 1
"""How many roundings of the narrowest dtype a result may be off by, relative to the largest element of its row: several
times what it is. A tile that is left out of eight moves some results by tenths of that element."""
REPEATS = 1000
Exact = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """An operator, what it should give of tensors of float64, and sizes that are of no use to its tiles."""

    make: Callable[[], Program]
    exact: Exact
    sizes: tuple[Mapping[str, int], ...]
    template: Any = "flash_attention"
    roundings: float = field(default=ROUNDINGS)
    parts: tuple[int, ...] = ()
    """Numbers of parts beside those that launches choose."""


LENGTHS = ((130, 130), (512, 512), (1000, 1000), (33, 700), (700, 33), (1, 513))
"""Rows and keys; of 700 rows with 33 keys most see none where they see no later one."""
SQUARE = (130, 1000)
PRODUCTS = (
    {"m": 130, "n": 136, "k": 264}, {"m": 1000, "n": 520, "k": 64}, {"m": 64, "n": 2048, "k": 1032},
    {"m": 3000, "n": 3000, "k": 192},
)  # fmt: skip
"""The last has more tiles than a GPU has programs for."""


def _attention(depth: int, *, heads: int = 4, batch: int = 2, **options: Any) -> Case:
    known = {n: options[n] for n in ("causal", "layout", "lse", "softcap", "alibi", "window", "sinks") if n in options}
    of = references.attention(**known)
    square = "window" in options
    lengths = [(n, n) for n in SQUARE] if square else LENGTHS
    sizes = tuple({"batch": batch, "heads": heads, "s_q": q, "s_kv": k} for q, k in lengths)
    return Case(lambda: attention(depth=depth, **options), lambda *t: of.float64(*t), sizes)


def _prefix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[-2], k.shape[-2]))
    sees = (columns <= rows[:, None] + k.shape[-2] - q.shape[-2]) | (columns < 100)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=sees)


PARTS = (1, 2, 7, 40)
"""Of some of these sizes there are parts that are empty."""
DEEP = ({"m": 256, "n": 256, "k": 16384}, {"m": 130, "n": 136, "k": 4104}, {"m": 64, "n": 64, "k": 72})


def _in_parts(case: Case, template: Any = "flash_decoding") -> Case:
    """A case whose keys, or columns, launches fold in parts."""
    return replace(case, template=template, parts=PARTS)


ROWS = tuple({"rows": rows, "cols": cols} for rows, cols in ((130, 520), (1000, 1000), (33, 4104)))


CASES: Mapping[str, Case] = {
    **{f"causal {d}": _attention(d, causal=True) for d in (64, 128, 256)},
    **{f"full {d}": _attention(d, causal=False) for d in (64, 128, 256)},
    "many tiles": Case(
        lambda: attention(depth=64, causal=True),
        references.attention(causal=True).float64,
        ({"batch": 4, "heads": 32, "s_q": 1000, "s_kv": 1000},),
    ),
    "softcap": _attention(64, causal=True, softcap=30.0),
    "window": _attention(128, causal=True, window=200),
    "softcap, window, log-sum-exp": _attention(128, causal=True, softcap=20.0, window=300, lse=True),
    "alibi": _attention(128, causal=True, alibi=True),
    "sinks": _attention(128, causal=True, sinks=True),
    "log-sum-exp": _attention(128, causal=True, lse=True),
    "grouped heads": Case(
        lambda: attention(depth=128, causal=True, heads=8, kv_heads=2),
        references.attention(causal=True).float64,
        tuple({"batch": 2, "s_q": q, "s_kv": k} for q, k in LENGTHS),
    ),
    "rows first": _attention(128, causal=True, layout="bshd"),
    "bfloat16": _attention(128, causal=True, dtype="bfloat16"),
    "depth of v": _attention(128, causal=True, depth_v=64),
    "prefix": Case(
        lambda: attention(depth=128, causal=False, mask=masks.or_(masks.causal(), masks.prefix(100))),
        _prefix,
        tuple({"batch": 2, "heads": 4, "s_q": n, "s_kv": n} for n in (130, 1000)),
    ),
    "matmul": Case(matmul, lambda a, b: a @ b, PRODUCTS, "matmul"),
    "linear, gelu": Case(
        lambda: linear(activation="gelu", bias=True), lambda x, w, b: F.gelu(x @ w.mT + b), PRODUCTS, "matmul"
    ),
    "gated linear": Case(gated_linear, lambda x, w, u: F.silu(x @ w) * (x @ u), PRODUCTS, "matmul"),
    "norm, linear": Case(rms_norm_linear, lambda x, g, w: rms(x, g) @ w, PRODUCTS, "norm_linear"),
    "linear, log-sum-exp": Case(lambda: linear_logsumexp(depth=256), lambda x, w: torch.logsumexp(x @ w.mT, -1), ROWS),
    "linear, cross-entropy": Case(
        lambda: linear_cross_entropy(depth=256),
        lambda x, w, t: F.cross_entropy(x @ w.mT, t.long(), reduction="none"),
        ROWS,
    ),
    "matmul in parts": Case(matmul, lambda a, b: a @ b, DEEP, "matmul_split", parts=PARTS),
    "linear, gelu, in parts": Case(
        lambda: linear(activation="gelu", bias=True), lambda x, w, b: F.gelu(x @ w.mT + b), DEEP, "matmul_split"
    ),
    "causal 128 in parts": _in_parts(_attention(128, causal=True)),
    "full 64 in parts": _in_parts(_attention(64, causal=False)),
    "grouped heads as rows, in parts": _in_parts(
        Case(
            lambda: attention(depth=128, causal=True, heads=32, kv_heads=4),
            references.attention(causal=True).float64,
            tuple({"batch": 2, "s_q": q, "s_kv": k} for q, k in ((16, 4096), (33, 1000), (130, 130))),
        ),
        flash_decoding.with_choices(packed=True),
    ),
    "linear, cross-entropy, in parts": _in_parts(
        Case(
            lambda: linear_cross_entropy(depth=256),
            lambda x, w, t: F.cross_entropy(x @ w.mT, t.long(), reduction="none"),
            ROWS,
        )
    ),
}


@pytest.fixture(autouse=True)
def hopper(gpu: None) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the form is of sm_90")


@cache
def compiled(name: str, form: str) -> neptune.Kernel:
    case = CASES[name]
    return neptune.compile(case.make(), case.template, target="cuda:90", form=form)


def called(
    kernel: neptune.Kernel, args: list[Any], params: Mapping[str, int] | None = None
) -> tuple[torch.Tensor, ...]:
    out = kernel(*args, params=params)
    return out if isinstance(out, tuple) else (out,)


def given(kernel: neptune.Kernel, sizes: Mapping[str, int], seed: int = 0) -> list[Any]:
    args = drawn(kernel.executable.loops, sizes, DEVICE, seed)
    # Integers are labels.
    return [x.abs() if isinstance(x, torch.Tensor) and not x.is_floating_point() else x for x in args]


def off(kernel: neptune.Kernel, case: Case, sizes: Mapping[str, int], params: Mapping[str, int] | None = None) -> float:
    """The largest error in roundings of the narrowest dtype, relative to the largest element of a row."""
    args = given(kernel, sizes)
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    exact = case.exact(*wide)
    worst = 0.0
    for found, wanted in zip(
        called(kernel, args, params), exact if isinstance(exact, tuple) else (exact,), strict=True
    ):
        narrow = max(torch.finfo(x.dtype).eps for x in (*args, found) if getattr(x, "is_floating_point", bool)())
        off, finite = found.double() - wanted, wanted.isfinite()
        assert torch.equal(found.isfinite(), finite) and torch.equal(found[~finite].double(), wanted[~finite])
        size = torch.where(finite, wanted, 0).abs()
        largest = (size.amax(-1, keepdim=True) if size.ndim > 1 else size.amax()).expand_as(off)
        assert not off[finite & (largest == 0)].any(), "rows of zeros"
        worst = max(worst, float((off / largest)[finite & (largest > 0)].abs().max()) / narrow)
    return worst


@pytest.mark.parametrize("name", CASES)
def test_the_asynchronous_form_is_what_runs(name: str) -> None:
    verdict = compiled(name, "asynchronous").explain(json=True)["asynchronous"]["verdict"]
    assert verdict is not None and verdict["runs"], verdict


def test_it_is_the_default_here_unless_bits_are_promised() -> None:
    of = CASES["full 128"].make()
    forms = [neptune.compile(of, **options).executable.artifact.form for options in ({}, {"deterministic": True})]
    assert forms[0] is not None and forms[0].record and forms[1] is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, form: str) -> None:
    case, kernel = CASES[name], compiled(name, form)
    errors = {str(sizes): off(kernel, case, sizes) for sizes in case.sizes}
    assert all(e <= case.roundings for e in errors.values()), errors


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.parts])
def test_any_number_of_parts(name: str, form: str) -> None:
    case, kernel = CASES[name], compiled(name, form)
    numbers = [{"NUM_SPLITS": n} for n in case.parts]
    errors = {f"{at} {n}": off(kernel, case, at, n) for at in case.sizes for n in numbers}
    assert all(e <= case.roundings for e in errors.values()), errors


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["causal 64", "full 128", "softcap, window, log-sum-exp", "matmul", "matmul in parts"])
def test_every_launch_gives_the_same_bits(name: str, form: str) -> None:
    kernel = compiled(name, form)
    args = given(kernel, CASES[name].sizes[2 if len(CASES[name].sizes) > 2 else -1])
    first = called(kernel, args)
    differ = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(REPEATS):
        for a, b in zip(called(kernel, args), first, strict=True):
            differ += (a.view(torch.uint8) != b.view(torch.uint8)).sum()
    assert int(differ) == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["causal 128", "matmul", "matmul in parts"])
def test_a_call_is_captured_and_replayed(name: str, form: str) -> None:
    kernel = compiled(name, form)
    args, others = (given(kernel, CASES[name].sizes[0], seed) for seed in (0, 1))
    expected, theirs = called(kernel, args), called(kernel, others)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = called(kernel, args)
    for new, wanted in ((others, theirs), ([x.clone() for x in args], expected)):
        for t, value in zip(args, new, strict=True):
            t.copy_(value)
        for t in out:
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if new is others:
            assert all(map(torch.equal, out, wanted))
    assert not all(map(torch.equal, expected, theirs))


@pytest.mark.parametrize("name", ["causal 128", "matmul", "matmul in parts"])
def test_a_saved_kernel_runs_the_same_form(name: str, tmp_path: Path) -> None:
    kernel = compiled(name, "asynchronous")
    kernel.save(tmp_path / "kernel")
    loaded = neptune.load(tmp_path / "kernel")
    verdict = loaded.explain(json=True)["asynchronous"]["verdict"]
    assert verdict["runs"] and loaded.source == kernel.source
    args = given(kernel, CASES[name].sizes[0])
    assert all(map(torch.equal, called(kernel, args), called(loaded, args)))


def test_other_tensors_take_the_triton_form() -> None:
    kernel, plain = (compiled("causal 64", form) for form in FORMS)
    q, k, v = given(kernel, CASES["causal 64"].sizes[0])
    odd = torch.empty(q.numel() + 1, dtype=q.dtype, device=DEVICE)[1:].view(q.shape).copy_(q)
    assert all(map(torch.equal, called(kernel, [odd, k, v]), called(plain, [odd, k, v])))
    assert off(kernel, CASES["causal 64"], CASES["causal 64"].sizes[0]) <= ROUNDINGS
