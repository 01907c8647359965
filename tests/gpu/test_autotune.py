"""The tuner on a real GPU: candidates are compared, timed and kept, and the result is no slower than the default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import neptune
from neptune.autotune.place import Bench
from neptune.autotune.task import task_of
from neptune.autotune.tuner import Options, tune_kernel, tuned
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.records.store import Store

pytestmark = pytest.mark.gpu
SIZES = {"m": 1024, "n": 1024, "k": 1024}


def options(folder: Path) -> Options:
    return Options(120.0, trials=8, records=Store(folder, shipped=folder / "none"), bench=Bench(workers=4), quiet=True)


def test_a_product_is_tuned(tmp_path: Path) -> None:
    found = tuned(task_of(matmul(), target="cuda"), SIZES, options(tmp_path))
    (at,) = found.shapes
    assert at.us is not None and at.default_us is not None and at.us <= at.default_us and not at.failed
    # 2 TFLOP in a second is far below any GPU, 10 PFLOP far above.
    assert 0.2 < at.us < 1100
    kept = Store(tmp_path, shipped=tmp_path / "none").all()
    assert len({str(r.params) + r.template for r in kept}) == at.measured and all(r.clocks for r in kept)
    a, b = (torch.randn(512, 512, device="cuda").half() for _ in range(2))
    torch.testing.assert_close(found.kernel(a, b), a @ b, rtol=2e-3, atol=2e-2)
    assert tuned(task_of(matmul(), target="cuda"), SIZES, options(tmp_path)).shapes[0].known == at.measured


def test_a_decode_is_tuned_on_tensors(tmp_path: Path) -> None:
    kernel = neptune.compile(operator("decode_gqa"), target="cuda")
    q = torch.randn(2, 64, 1, 128, device="cuda").half()
    k, v = (torch.randn(2, 8, 4096, 128, device="cuda").half() for _ in range(2))
    found = tune_kernel(kernel, (q, k, v), options(tmp_path))
    assert found.shapes[0].us is not None and not found.shapes[0].failed
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(found.kernel(q, k, v), wanted, rtol=2e-3, atol=2e-3)
