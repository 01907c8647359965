"""The functions of rows and products: each row of a table against torch in float64, eager and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as torchs

import neptune.functional as F
from neptune.errors import ExpressionError, ShapeError
from neptune.functional import kernels

pytestmark = pytest.mark.compared


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 3


WEIGHT, GATE, UP, BIAS = draw(7, 12), draw(8, 12), draw(8, 12) + 1, draw(7)
TARGET = torch.tensor([[0, 3, 6, -100], [1, 1, -100, 5], [2, 4, 0, 0]])
GAIN, SHIFT = draw(12), draw(12) + 1
Call = Callable[..., torch.Tensor]


def _wide(*tensors):
    return [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in tensors]


def _float(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


def by_hand(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, **options) -> torch.Tensor:
    logits = x @ weight.t()
    return torchs.cross_entropy(logits.reshape(-1, 7), target.reshape(-1), **options)


def routed(x: torch.Tensor, k: int, _: bool) -> tuple[torch.Tensor, torch.Tensor]:
    weights, experts = torch.topk(torch.softmax(x, -1), k)
    return weights / weights.sum(-1, keepdim=True), experts.int()


def low_rank(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *rest) -> torch.Tensor:
    bias, scale = rest
    return x @ w.t() + scale * (x @ a.t()) @ b.t() + bias


def eight_bits(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    unit = x.abs().amax(-1, keepdim=True) / 127
    return ((x / unit).round() @ w.to(x.dtype).t()) * unit * scale


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    cos, sin = (t[positions][:, None] for t in (cos, sin))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def turned_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    cos, sin, a, b = cos[:, None], sin[:, None], x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def turned_rows(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return F.rope(x, cos, sin, convention="interleaved", layout="bshd")


ANGLES = draw(9, 4)
EIGHT = (draw(7, 12) * 20).round().clamp(-127, 127).to(torch.int8)
CHAINS: dict[str, tuple[Call, Call, tuple, dict]] = {
    "add_rms_norm": (
        F.add_rms_norm,
        lambda x, r, *rest: (torchs.rms_norm(x + r, *rest), x + r),
        (draw(3, 4, 12), draw(4, 3, 12).transpose(0, 1), (12,), GAIN, 1e-5),
        {},
    ),
    "softmax_top_k": (F.softmax_top_k, routed, (draw(3, 4, 12), 2, True), {}),
    "lora_linear": (F.lora_linear, low_rank, (draw(3, 4, 12), WEIGHT, draw(2, 12), draw(7, 2), BIAS, 0.5), {}),
    "quantised_linear": (F.quantised_linear, eight_bits, (draw(3, 4, 12), EIGHT, draw(7)), {}),
    "rope": (
        F.rope,
        turned,
        (draw(2, 3, 5, 8), ANGLES.cos(), ANGLES.sin(), torch.tensor([[0, 8, 3, 3, 1], [4, 5, 6, 7, 0]])),
        {},
    ),
    "rope, interleaved": (turned_rows, turned_pairs, (draw(2, 9, 3, 8), ANGLES.cos(), ANGLES.sin()), {}),
}
"""Chains that torch has no function of."""
ROWS: dict[str, tuple[Call, Call, tuple, dict]] = {
    "softmax": (F.softmax, torch.softmax, (draw(3, 4, 12), -1), {}),
    "softmax of another dimension": (F.softmax, torch.softmax, (draw(3, 4, 12), 1), {}),
    "log_softmax": (F.log_softmax, torch.log_softmax, (draw(3, 4, 12), -1), {}),
    "logsumexp": (F.logsumexp, torch.logsumexp, (draw(3, 4, 12), 1), {"keepdim": True}),
    "rms_norm": (F.rms_norm, torchs.rms_norm, (draw(3, 4, 12), (12,), GAIN), {"eps": 1e-5}),
    "rms_norm of two": (F.rms_norm, torchs.rms_norm, (draw(3, 4, 12), (4, 12), draw(4, 12)), {"eps": 1e-5}),
    "layer_norm": (F.layer_norm, torchs.layer_norm, (draw(3, 4, 12), (12,), GAIN, SHIFT), {}),
    "group_norm": (F.group_norm, torchs.group_norm, (draw(2, 12, 3, 2), 4, GAIN, SHIFT), {}),
    "linear": (F.linear, torchs.linear, (draw(3, 4, 12), WEIGHT, BIAS), {}),
    "linear, transposed": (F.linear, torchs.linear, (draw(3, 4, 12), draw(12, 7).t()), {}),
    "gated_linear": (
        F.gated_linear,
        lambda x, g, u: torchs.silu(x @ g.t()) * (x @ u.t()),
        (draw(3, 4, 12), GATE, UP),
        {},
    ),
    "linear_cross_entropy": (
        F.linear_cross_entropy,
        by_hand,
        (draw(3, 4, 12), WEIGHT, TARGET),
        {"label_smoothing": 0.1},
    ),
    "cosine_similarity": (F.cosine_similarity, torch.cosine_similarity, (draw(3, 4, 12), draw(4, 12) + 1), {"dim": -1}),
    "attention, causal as torch's": (
        F.scaled_dot_product_attention,
        torchs.scaled_dot_product_attention,
        (draw(2, 2, 5, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 16)),
        {"is_causal": True},
    ),
    "attention with a mask": (
        F.scaled_dot_product_attention,
        torchs.scaled_dot_product_attention,
        (draw(2, 2, 5, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 16), draw(2, 1, 5, 9) > -2),
        {},
    ),
    "attention with a bias": (
        F.scaled_dot_product_attention,
        torchs.scaled_dot_product_attention,
        (draw(2, 2, 5, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 16), draw(5, 9)),
        {},
    ),
    **CHAINS,
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", ROWS)
def test_a_function_agrees_with_torch(name: str) -> None:
    """Eager and compiled without breaks, of float32, against torch in float64; other lengths compile nothing."""
    ours, theirs, args, options = ROWS[name]
    exact = theirs(*_wide(*args), **options)
    wanted = tuple(map(_float, exact)) if isinstance(exact, tuple) else _float(exact)
    torch.testing.assert_close(ours(*args, **options), wanted, atol=2e-5, rtol=2e-5)
    before = len(kernels.compiled())
    compiled = torch.compile(lambda *a: ours(*a, **options), fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), wanted, atol=2e-5, rtol=2e-5)
    if name.startswith(("soft", "log", "rms_norm", "layer")) and "two" not in name:
        more = (torch.cat([args[0]] * 3), *args[1:])
        torch.testing.assert_close(ours(*more, **options), theirs(*more, **options), atol=2e-5, rtol=2e-5)
    assert len(kernels.compiled()) == before


@pytest.mark.parametrize("name", ROWS)
def test_fake_results_are_those_of_real_ones(name: str) -> None:
    """torch's fake tensors: shapes, dtypes and strides, of half precision too; nothing is compiled for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    ours, theirs, args, options = ROWS[name]
    before = len(kernels.compiled())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        half = [t.half() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in args]
        fake = ours(*(mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in half), **options)
    assert len(kernels.compiled()) == before
    real = theirs(*args, **options)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (fake, real)), strict=True):
        assert one.shape == other.shape
        stays = "entropy" in name or "top_k" in name
        assert one.dtype == (other.dtype if stays else torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_epsilon_of_rms_norm_is_torchs(dtype: torch.dtype) -> None:
    x = (draw(3, 5) * 1e-3).to(dtype)
    wanted = torchs.rms_norm(x, (5,)).float()
    torch.testing.assert_close(F.rms_norm(x, (5,)).float(), wanted, atol=0.02, rtol=0.02)


def test_a_loss_stores_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_KERNELS", {})  # other tests have losses of their own
    F.linear_cross_entropy(draw(3, 4, 12), WEIGHT, TARGET, label_smoothing=0.1)
    (kernel,) = (k for (s, _), k in kernels.compiled().items() if s.operator == "linear_cross_entropy")
    stored = {t for k in kernel.facts.kernels for t in k.temporaries}
    assert stored and all(t.endswith("_split") for t in stored), "numbers of parts of rows alone"


def test_torch_checks_operators() -> None:
    torch.library.opcheck(torch.ops.neptune.softmax, (draw(3, 4, 12), 1))
    torch.library.opcheck(torch.ops.neptune.linear, (draw(3, 4, 12), WEIGHT, BIAS))


@pytest.mark.parametrize("name", [n for n in CHAINS if "," not in n])
def test_torch_checks_operators_of_chains(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.neptune, name), CHAINS[name][2])


def test_sizes_of_zero() -> None:
    assert F.softmax(draw(0, 12)).shape == (0, 12)
    assert F.linear(draw(0, 12), WEIGHT).shape == (0, 7)
    assert F.linear(draw(3, 0), draw(7, 0)).abs().sum() == 0


def test_what_does_not_fit_is_one_screen() -> None:
    x = draw(3, 12)
    for call, words in (
        (lambda: F.softmax(x, 2), "dim=2"),
        (lambda: F.softmax(x.double()), r"`input` is torch\.float64"),
        (lambda: F.softmax([1.0]), "`input` is list"),
        (lambda: F.softmax(), "missing a required argument: 'input'"),
        (lambda: F.linear(x, WEIGHT.half()), r"`input` is torch\.float32, `weight` torch\.float16"),
        (lambda: F.linear(x, draw(7, 11)), r"`input` is \[3, 12\], the weight \[7, 11\]"),
        (lambda: F.linear(x, WEIGHT.to("meta")), "`weight` on meta"),
        (lambda: F.linear(x, WEIGHT, draw(3)), r"`bias` is \[3\]"),
        (lambda: F.rms_norm(x, (11,)), r"normalized_shape \[11\]"),
        (lambda: F.group_norm(x, 5), r"\[3, 12\] in 5 groups"),
        (lambda: F.linear_cross_entropy(x, WEIGHT, torch.zeros(3)), r"`target` is torch\.float32"),
        (lambda: F.linear_cross_entropy(x, WEIGHT, torch.zeros(3).long(), reduction="max"), "reduction='max'"),
        (lambda: F.add_rms_norm(x, x[:2], (12,)), r"`residual` is \[2, 12\]"),
        (lambda: F.softmax_top_k(x, 13), "k=13 of 12"),
        (lambda: F.lora_linear(x, WEIGHT, draw(2, 11), draw(7, 2)), r"`lora_a` is \[2, 11\]"),
        (lambda: F.lora_linear(x, WEIGHT, draw(2, 12), draw(7, 3)), r"`lora_b` is \[7, 3\]"),
        (lambda: F.quantised_linear(x, WEIGHT), r"`weight` is torch\.float32"),
        (lambda: F.quantised_linear(x, EIGHT, draw(3)), r"`scale` is \[3\]"),
        (lambda: F.rope(x, x, x), r"`input` is \[3, 12\]"),
        (lambda: F.rope(draw(1, 1, 9, 8), ANGLES, ANGLES[:, :3]), r"`sin` is \[9, 3\]"),
        (lambda: F.rope(draw(1, 1, 5, 8), ANGLES, ANGLES, torch.zeros(1, 5).int()), r"`positions` is torch\.int32"),
        (lambda: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "dropout_p=0.5"),
    ):
        with pytest.raises(ShapeError, match=words):
            call()
    with pytest.raises(ExpressionError, match="unknown activation 'mish'"):
        F.linear(x, WEIGHT, activation="mish")
    with torch.enable_grad(), pytest.raises(ShapeError, match="requires a gradient"):
        F.softmax(x.clone().requires_grad_())


def test_importing_neptune_is_light() -> None:
    light = "import sys, neptune; assert 'torch' not in sys.modules"
    code = f"{light}; neptune.functional.softmax; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kernel_from_the_cache_imports_nothing_that_compiles(tmp_path: Path) -> None:
    """The first process compiles, the second one reads: neither torch's tracer nor what schedules, proves or writes."""
    heavy = ["sympy", "torch._dynamo", "neptune.driver.passes", "neptune.fusion", "neptune.verify", "neptune.codegen"]
    code = (
        "import sys, torch, neptune.functional\n"
        f"heavy = {heavy}\n"
        "assert not sys.modules.keys() & set(heavy), 'imported'\n"
        "neptune.functional.softmax(torch.randn(3, 5))\n"
        "print(sorted(sys.modules.keys() & set(heavy)))"
    )
    environment = {**os.environ, "NEPTUNE_CACHE_DIR": str(tmp_path), "NEPTUNE_TARGET": "interpret"}
    runs = [subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True) for _ in range(2)]
    first, second = (r.stdout.decode().strip() for r in runs)
    assert "neptune.driver.passes" in first and second == "[]", (first, runs[1].stderr.decode())
