"""Which form of a module a call gets: by alignment, strides, and what the hardware has."""

from __future__ import annotations

import functools

import pytest
import torch

from neptune.driver.pipeline import compile
from neptune.ops.attention import prefill_causal
from neptune.ops.norm import rms_norm_linear
from neptune.runtime.calls.addressing import on_16_bytes
from neptune.runtime.hopper.data import ASYNCHRONOUS
from neptune.runtime.modules import Form, Modules, covers

pytestmark = pytest.mark.compared
PARAMS = {"BLOCK_M": 128, "BLOCK_N": 64}


@functools.cache
def modules() -> Modules:
    return compile(
        prefill_causal(depth=64, lse=True), "flash_attention", target="llvm", params=PARAMS
    ).executable.modules


def tensors(stride: int = 64) -> list[torch.Tensor]:
    """q, k, v, o and lse of one row each, with rows `stride` elements apart."""
    wide = [torch.empty(64, dtype=torch.float16).as_strided((1, 1, 1, 64), (64, 64, stride, 1)) for _ in range(4)]
    aligned = [torch.empty(1, 1, 1, 64, dtype=torch.float16) for _ in range(4)]
    return [*(aligned if stride == 64 else wide), torch.empty(1, 1, 1)]


SIZES = {"batch": 1, "heads": 1, "s_q": 1, "s_kv": 1}


def test_descriptors_where_the_hardware_has_them() -> None:
    m = modules()
    assert m.form(tensors(), SIZES, "descriptor") == Form("descriptor")
    assert m.form(tensors(), SIZES, "pointer") == Form("pointer")


def test_an_odd_address_falls_back_to_pointers() -> None:
    m, given = modules(), tensors()
    given[0] = torch.empty(65, dtype=torch.float16)[1:].view(1, 1, 1, 64)
    assert not on_16_bytes(given[0])
    assert m.form(given, SIZES, "descriptor") == Form("pointer")


def test_an_odd_log_sum_exp_does_not_matter() -> None:
    m, given = modules(), tensors()
    given[4] = torch.empty(2)[1:].view(1, 1, 1)
    assert m.form(given, SIZES, "descriptor") == Form("descriptor")


def test_huge_strides_get_int64_offsets() -> None:
    m = modules()
    assert m.form(tensors(stride=1 << 23), SIZES, "pointer") == Form("pointer", False)
    assert m.form(tensors(stride=1 << 25), SIZES, "pointer") == Form("pointer", True)
    assert m.source(Form("pointer", True)) != m.source(Form("pointer", False))


@pytest.mark.parametrize(("k", "asynchronous"), [(72, True), (68, False)])
def test_rows_of_a_temporary_are_looked_at(k: int, asynchronous: bool) -> None:
    """The normalised rows between two kernels are k elements apart, whatever those of x are."""
    m = compile(rms_norm_linear(), "stagewise", target="cuda:90", form="asynchronous").executable.modules
    x, y = torch.empty(200, 80, dtype=torch.float16)[:, :k], torch.empty(200, 136, dtype=torch.float16)
    given = [x, torch.empty(k, dtype=torch.float16), torch.empty(k, 136, dtype=torch.float16), y]
    found = m.form(given, {"m": 200, "k": k, "n": 136}, "descriptor", other=True)
    assert (found == Form(ASYNCHRONOUS)) == asynchronous


def test_covers_is_the_next_power_of_two() -> None:
    tiles = compile(prefill_causal(), "attention_unfused", target="llvm").build.tiles
    assert covers(tiles, {"s_kv": 129}) == {"BLOCK_ROW": 256}
    assert covers(tiles, {"s_kv": 1}) == {"BLOCK_ROW": 1}
