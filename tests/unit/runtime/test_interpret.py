"""The interpreter worker: fixtures against float64, guards, failures, and the bfloat16 shim."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from neptune.errors import InternalError
from neptune.runtime.processes import interpret
from neptune.runtime.processes.bf16_shim import decode, encode
from neptune.runtime.processes.interpret import run_interpreted
from neptune.runtime.processes.interpreter_work import once
from tests.examples.tile_examples import attention
from tests.texts import generate
from tests.tiers import sampled

TOLERANCE = {"float16": 1e-3, "bfloat16": 6e-3, "float32": 2e-6}
LENGTHS = ((1, 1), (17, 17), (127, 127), (130, 130), (17, 130), (1, 127))


def float64(t: torch.Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(t.to(torch.float64).numpy(), dtype=np.float64)


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> npt.NDArray[np.float64]:
    """Causal attention in float64, bottom-right aligned."""
    s = float64(q) @ float64(k).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    n, m = s.shape[-2:]
    s = np.where(np.arange(m)[None, :] <= np.arange(n)[:, None] + m - n, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(p @ float64(v) / p.sum(-1, keepdims=True))


def error(found: torch.Tensor, wanted: npt.NDArray[np.float64]) -> float:
    return float(np.linalg.norm(float64(found) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("s_q, s_kv", sampled(LENGTHS, 2))
def test_attention(s_q: int, s_kv: int, dtype: str, loads: str) -> None:
    torch.manual_seed(s_q + s_kv)
    kind = getattr(torch, dtype)
    q, k, v = (torch.randn(1, 2, n, 64).to(kind) for n in (s_q, s_kv, s_kv))
    out = torch.full_like(q, float("nan"))
    source = generate(attention(64, dtype), loads=loads)
    run_interpreted(source, "attention", [q, k, v, out], params={"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4})
    assert error(out, exact_attention(q, k, v)) < TOLERANCE[dtype]


def test_a_launch_replaces_the_functions_of_a_module_once() -> None:
    """Device functions ask for it in every call; the next launch begins anew."""
    first, second = ModuleType("first"), ModuleType("second")
    asked: list[set[str]] = []

    def patch(fn: Any) -> Any:
        asked.append({x.__name__ for x in fn.__globals__.values()})
        return SimpleNamespace(restore=lambda: asked.append({"restored"}))

    patched = once(patch, lambda: SimpleNamespace(restore=lambda: asked.append({"nothing"})), (first, second))
    kernel, device = (SimpleNamespace(__globals__={"m": m}) for m in (first, second))
    for _ in range(2):
        scope = patched(kernel)
        for fn in (device, kernel, device):
            patched(fn)
        scope.restore()
    assert asked == [{"first"}, {"second"}, {"restored"}] * 2


def test_strides_survive() -> None:
    base = torch.randn(2, 9, 3, 64).half()
    q, k, v = (base[:, :, i].unsqueeze(1).expand(2, 2, 9, 64) for i in range(3))
    frame = torch.full((2, 9, 2, 80), float("nan")).half()
    out = frame[..., :64].permute(0, 2, 1, 3)
    before = base.clone()
    run_interpreted(generate(attention(64)), "attention", [q, k, v, out], params={"BLOCK_M": 16, "BLOCK_N": 16})
    assert error(out, exact_attention(q, k, v)) < TOLERANCE["float16"]
    assert torch.equal(base, before) and bool(frame[..., 64:].isnan().all())


HEAD = """
import torch
import triton
import triton.language as tl
"""


def module(body: str) -> str:
    return HEAD + textwrap.dedent(body)


FILL = module("""
    @triton.jit
    def kernel(x_ptr, at):
        tl.store(x_ptr + at, 1.0)

    def fill(x, at, *, start=0):
        kernel[(1,)](x, at + start)
""")


def test_results_come_back_in_place_and_arguments_arrive() -> None:
    x = torch.zeros(4)
    run_interpreted(FILL, "fill", [x], [1], {"start": 2})
    assert x.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("at", [-1, 4, 5000])
def test_writes_outside_are_found(at: int) -> None:
    x = torch.zeros(4)
    with pytest.raises(InternalError, match="wrote outside tensor 0"):
        run_interpreted(FILL, "fill", [x], [at])


def test_writes_between_rows_are_found() -> None:
    x = torch.zeros(2, 8)[:, :4]
    with pytest.raises(InternalError, match="wrote outside"):
        run_interpreted(FILL, "fill", [x], [5])
    run_interpreted(FILL, "fill", [x], [9])
    assert x[1, 1] == 1 and x.sum() == 1


def test_reads_outside_give_nan() -> None:
    source = module("""
        @triton.jit
        def kernel(x_ptr, y_ptr):
            tl.store(y_ptr, tl.load(x_ptr + 4))

        def run(x, y):
            kernel[(1,)](x, y)
    """)
    y = torch.zeros(1)
    run_interpreted(source, "run", [torch.zeros(4), y])
    assert bool(y.isnan().all())


def test_temporaries_are_poisoned() -> None:
    source = module("""
        @triton.jit
        def kernel(x_ptr, y_ptr):
            tl.store(y_ptr, tl.load(x_ptr))

        def run(y):
            part = torch.empty((3, 2), dtype=torch.float32, device=y.device)
            kernel[(1,)](part, y)
    """)
    y = torch.zeros(1)
    run_interpreted(source, "run", [y])
    assert bool(y.isnan().all())


def test_failures_are_short_and_the_worker_survives() -> None:
    with pytest.raises(InternalError, match="NameError") as e:
        run_interpreted(module("def run(x):\n    nothing(x)\n"), "run", [torch.zeros(1)])
    assert "Traceback" not in str(e.value)
    x = torch.zeros(1)
    run_interpreted(FILL, "fill", [x], [0])
    assert x.item() == 1


def test_a_crash_restarts_the_worker() -> None:
    with pytest.raises(InternalError, match="died"):
        run_interpreted(module("import os\n\ndef run(x):\n    os._exit(3)\n"), "run", [torch.zeros(1)])
    x = torch.zeros(1)
    run_interpreted(FILL, "fill", [x], [0])
    assert x.item() == 1


def test_prints_do_not_disturb_the_protocol() -> None:
    x = torch.zeros(1)
    run_interpreted(module('def run(x):\n    print("noise", flush=True)\n    x.fill_(2)\n'), "run", [x])
    assert x.item() == 2
    assert interpret.WORKER is not None


# --- bfloat16 ----------------------------------------------------------------------------------


def all_bf16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equal, but for which NaN."""
    both_nan = a.isnan() & b.isnan()
    return bool((both_nan | (a.view(torch.int16) == b.view(torch.int16))).all())


def test_rounding_is_to_nearest_even_for_every_half_way_case() -> None:
    bits = torch.cat([torch.arange(2**16, dtype=torch.int64) * 2**16 + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001)])
    x = (bits - (bits >= 2**31) * 2**32).to(torch.int32).view(torch.float32)
    found = torch.from_numpy(encode(x.numpy()).astype(np.int16)).view(torch.bfloat16)
    assert same(found, x.to(torch.bfloat16))
    assert np.array_equal(
        decode(all_bf16().view(torch.int16).numpy().view(np.uint16)), all_bf16().float().numpy(), equal_nan=True
    )


def test_float64_is_rounded_once() -> None:
    # Rounding first to float32 would give the tie 1 + 2^-8, and that 1.
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert decode(encode(x)).tolist() == [1 + 2.0**-7]


BINARY = module("""
    @triton.jit
    def kernel(x_ptr, y_ptr, z_ptr, N: tl.constexpr, OP: tl.constexpr):
        offs = tl.arange(0, N)
        x = tl.load(x_ptr + offs)
        y = tl.load(y_ptr + offs)
        if OP == "add":
            z = x + y
        elif OP == "sub":
            z = x - y
        elif OP == "mul":
            z = x * y
        elif OP == "max":
            z = tl.maximum(x, y)
        elif OP == "min":
            z = tl.minimum(x, y)
        elif OP == "neg":
            z = -x
        elif OP == "abs":
            z = tl.abs(x)
        elif OP == "where":
            z = tl.where(x < y, x, y)
        elif OP == "div":
            z = (x / y).to(tl.bfloat16)
        elif OP == "widen":
            z = (x.to(tl.float32) * y.to(tl.float32)).to(tl.bfloat16)
        elif OP == "full":
            z = tl.full([N], 1.7, tl.bfloat16) * x
        tl.store(z_ptr + offs, z)

    def run(x, y, z, *, OP):
        kernel[(1,)](x, y, z, N=x.shape[0], OP=OP)
""")
OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": torch.maximum,
    "min": torch.minimum,
    "neg": lambda x, y: 0 - x,
    "abs": lambda x, y: x.abs(),
    "where": lambda x, y: torch.where(x < y, x, y),
    "div": lambda x, y: x / y,
    "widen": lambda x, y: x * y,
    "full": lambda x, y: torch.tensor(1.7).bfloat16() * x,
}


@pytest.mark.parametrize("name", OPS)
def test_bf16_arithmetic_is_that_of_torch(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(1024).mul(10).bfloat16()
    y = torch.randn(1024).bfloat16()
    z = torch.full_like(x, float("nan"))
    run_interpreted(BINARY, "run", [x, y, z], params={"OP": name})  # type: ignore[dict-item]
    assert same(z, OPS[name](x, y))


def test_bf16_dot_and_reductions() -> None:
    source = module("""
        @triton.jit
        def kernel(a_ptr, b_ptr, c_ptr, top_ptr, low_ptr):
            i = tl.arange(0, 16)
            a = tl.load(a_ptr + i[:, None] * 16 + i[None, :])
            b = tl.load(b_ptr + i[:, None] * 16 + i[None, :])
            tl.store(c_ptr + i[:, None] * 16 + i[None, :], tl.dot(a, b))
            tl.store(top_ptr + i, tl.max(a, axis=1))
            tl.store(low_ptr + i, tl.sum(a, axis=1))

        def run(a, b, c, top, low):
            kernel[(1,)](a, b, c, top, low)
    """)
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    c, top, low = torch.zeros(16, 16), torch.zeros(16).bfloat16(), torch.zeros(16).bfloat16()
    run_interpreted(source, "run", [a, b, c, top, low])
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-6, atol=1e-5)
    assert same(top, a.amax(1))
    torch.testing.assert_close(low, a.float().sum(1).bfloat16())


def test_fp32_dot_is_not_tf32() -> None:
    source = module("""
        @triton.jit
        def kernel(a_ptr, c_ptr):
            i = tl.arange(0, 16)
            a = tl.load(a_ptr + i[:, None] * 16 + i[None, :])
            tl.store(c_ptr + i[:, None] * 16 + i[None, :], tl.dot(a, tl.trans(a)))

        def run(a, c):
            kernel[(1,)](a, c)
    """)
    a, c = torch.eye(16) * (1 + 2.0**-20), torch.zeros(16, 16)
    run_interpreted(source, "run", [a, c])
    assert c[0, 0].item() == np.float32(1 + 2.0**-20) ** 2
