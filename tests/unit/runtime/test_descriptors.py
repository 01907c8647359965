"""Descriptors that hold no address: by hand, and in what ptxas makes for sm_90."""

from __future__ import annotations

import contextlib

import pytest
import torch
from triton import knobs

from bench import stub_driver
from neptune.driver.pipeline import compile
from neptune.errors import TargetError
from neptune.ir.text.parser import parse_program
from neptune.runtime.family import Members
from neptune.runtime.machine_code import descriptors
from neptune.runtime.machine_code.descriptors import lost
from neptune.runtime.machine_code.listing import functions

SASS = """
.text.kernel:
        /*0000*/                   ULDC.64 UR8, c[0x0][0x208] ;
        /*0010*/                   USGXT.U32 UR20, UR20, 0xe ;
        /*0020*/                   UMOV UR21, 0xc0000010 ;
{}
        /*0200*/                   EXIT ;
"""
ATTENTION = """program values
  in q: bf16[heads, s_q, 64]
  in k: bf16[heads, s_kv, 64]
  in v: bf16[heads, s_kv, 16]
  out o: bf16[heads, s_q, 16]
  temp s: f32[heads, s_q, s_kv]
  temp m: f32[heads, s_q]
  temp p: f32[heads, s_q, s_kv]
  temp l: f32[heads, s_q]
  temp p_cast: bf16[heads, s_q, s_kv]
  temp acc: f32[heads, s_q, 16]
  scalar heads: i32 lo 1
  scalar s_q: i32 lo 1
  scalar s_kv: i32 lo 1
body:
  for h in [0, heads):
    for i in [0, s_q):
      for j in [0, s_kv):
        for d in [0, 64):
          s: s[h, i, j] += cast(f32, q[h, i, d]) * cast(f32, k[h, j, d]) init 0.0
  for h in [0, heads):
    for i in [0, s_q):
      for j in [0, s_kv):
        m: m[h, i] max= s[h, i, j] init -3.4028234663852886e+38
  for h in [0, heads):
    for i in [0, s_q):
      for j in [0, s_kv):
        p: p[h, i, j] = exp(s[h, i, j] - m[h, i])
  for h in [0, heads):
    for i in [0, s_q):
      for j in [0, s_kv):
        l: l[h, i] += p[h, i, j] init 0.0
  for h in [0, heads):
    for i in [0, s_q):
      for j in [0, s_kv):
        p_cast: p_cast[h, i, j] = cast(bf16, p[h, i, j])
  for h in [0, heads):
    for i in [0, s_q):
      for e in [0, 16):
        for j in [0, s_kv):
          acc: acc[h, i, e] += cast(f32, p_cast[h, i, j]) * cast(f32, v[h, j, e]) init 0.0
  for h in [0, heads):
    for i in [0, s_q):
      for e in [0, 16):
        o: o[h, i, e] = cast(bf16, acc[h, i, e] / l[h, i])
"""
TILES = {"BLOCK_M": 64, "BLOCK_N": 64}
PRODUCT = "HGMMA.64x16x16.F32.BF16 R56, R24, gdesc[UR4].tnspB, R56"
"""Of a left operand in registers: its descriptor's place, UR4 and UR5, nobody reads."""
COPIED = ["UMOV UR6, UR20", "UMOV UR7, UR21"]


def taken(*lines: str) -> list[str]:
    code = "\n".join(x if x.startswith(".") else f"        /*{k + 3:03x}0*/    {x} ;" for k, x in enumerate(lines))
    return [register for f in functions(SASS.format(code)) for _, register in lost(f)]


@pytest.mark.parametrize(
    ("lines", "registers"),
    [
        ([*COPIED, PRODUCT], []),
        ([PRODUCT], ["UR6", "UR7"]),
        (["UIADD3 UR6, UP0, UR20, 0x20, URZ", "UIADD3.X UR7, URZ, -0x3ffffff0, URZ, UP0, !UPT", PRODUCT], []),
        (
            ["UIADD3 UR6, UP0, UR19, 0x20, URZ", "UIADD3.X UR7, UR19, -0x3ffffff0, URZ, UP0, !UPT", PRODUCT],
            ["UR6", "UR7"],
        ),
        # A counter is no address, an address no constant, and two addresses are none.
        (["UMOV UR6, 0x1", "UMOV UR7, UR21", PRODUCT], ["UR6"]),
        (["UMOV UR6, UR20", "UMOV UR7, UR20", PRODUCT], ["UR7"]),
        (["UIADD3 UR6, UR20, UR20, URZ", "UMOV UR7, UR21", PRODUCT], ["UR6"]),
        (["ULEA UR6, UR20, UR20, 0x3", "UMOV UR7, UR21", PRODUCT], ["UR6"]),
        ([*COPIED, "UIADD3.64 UR6, UR6, 0x20, URZ", PRODUCT], []),
        (["UIADD3.64 UR6, UR8, 0x20, URZ", PRODUCT], ["UR6"]),
        (["ULOP3.LUT UR6, UR14, 0x3fff, URZ, 0xc0, !UPT", "UMOV UR7, 0x80000020", PRODUCT], []),
        # Triton 3.9 keeps 15 bits; 16 are no address.
        (["USGXT.U32 UR6, UR14, 0xf", "UMOV UR7, 0x80000020", PRODUCT], []),
        (["USGXT.U32 UR6, UR14, 0x10", "UMOV UR7, 0x80000020", PRODUCT], ["UR6"]),
        (["R2UR UR6, R2", "R2UR UR7, R3", PRODUCT], []),
        # Both operands in shared memory: the left one's is in front.
        (
            ["UMOV UR6, UR20", "UMOV UR7, 0x40000040", "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT"],
            ["UR4", "UR5"],
        ),
        # What one path or a predicate may leave out is not there; what both bring is.
        ([*COPIED, "@P0 BRA `(.L_x_1)", "UMOV UR6, URZ", ".L_x_1:", PRODUCT], ["UR6"]),
        ([*COPIED, "@P0 BRA `(.L_x_1)", "UIADD3 UR6, UR6, 0x2, URZ", ".L_x_1:", PRODUCT], []),
        ([*COPIED, "@P0 UMOV UR6, UR14", PRODUCT], ["UR6"]),
        # Of a loop that comes back with a counter in the place of the address the second round is wrong.
        ([*COPIED, ".L_x_1:", PRODUCT, "UMOV UR6, 0x1", "@P0 BRA `(.L_x_1)"], ["UR6"]),
        # What an indirect branch leads to knows what was there before.
        ([*COPIED, "BRX R2 -0x180", ".L_x_2:", PRODUCT], []),
        (["BRX R2 -0x180", ".L_x_2:", PRODUCT], ["UR6", "UR7"]),
    ],
)
def test_a_descriptor_holds_the_address_of_a_tile_on_every_path(lines, registers):
    assert taken(*lines) == registers


@pytest.fixture
def kernels(monkeypatch):
    """Kernels of which ptxas 12.8 makes wrong code (in the loop, and behind it), and right code."""
    monkeypatch.setattr(stub_driver.Launcher, "calls", [])
    with stub_driver.installed():
        kernel = compile(parse_program(ATTENTION), "flash_attention", params=TILES, form="triton", target="cuda")
        yield [kernel.with_params(num_warps=w, num_stages=s) for w, s in ((4, 1), (4, 2), (8, 2))]


@pytest.fixture
def only_one_assembler(monkeypatch):
    monkeypatch.setattr(descriptors, "_newer_assembler", contextlib.nullcontext)
    # Triton keeps kernels by their options.
    monkeypatch.setattr(descriptors, "NEWER", {"ptx_options": "-O3"})


TENSORS = [torch.zeros(2, 200, n, dtype=torch.bfloat16) for n in (64, 64, 16)]


def test_wrong_code_of_the_assembler_is_made_anew_by_the_newer_one(kernels, monkeypatch):
    """ptxas 12.8 loses the descriptor of the values' tile where its swizzle is 32 bytes and keys lay there before."""
    made = []

    def heard(compiled):
        made.append(found := fault(compiled))
        return found

    fault = descriptors._fault
    monkeypatch.setattr(descriptors, "_fault", heard)
    ours = knobs.nvidia.ptxas.path
    for kernel, tried in zip(kernels, (2, 2, 1), strict=True):
        made.clear()
        kernel(*TENSORS)
        assert [f is None for f in made] == [*[False] * (tried - 1), True]
    assert len(stub_driver.Launcher.calls) == 3 and knobs.nvidia.ptxas.path == ours


def test_wrong_code_of_either_assembler_is_refused_before_it_runs(kernels, only_one_assembler):
    for wrong in kernels[:2]:
        with pytest.raises(TargetError, match=r"ptxas made wrong code[^!]*holds no address"):
            wrong(*TENSORS)
    assert not stub_driver.Launcher.calls


def test_a_variant_that_is_refused_at_its_first_launch_gives_way_to_another(kernels, only_one_assembler, caplog):
    _, wrong, right = (k.executable for k in kernels)
    variants = [{"template": "flash_attention", "params": {}, "numbers": []}] * 2
    wrong.members = Members({"tree": 0, "own": 0, "variants": variants}, wrong, lambda _: right)
    for _ in range(2):
        wrong.call(tuple(TENSORS), None, None, None)
    assert len(stub_driver.Launcher.calls) == 2
    assert caplog.text.count("is not used") == 1 and "ptxas made wrong code" in caplog.text
    wrong.members = Members({"tree": 0, "own": 0, "variants": variants[:1]}, wrong, lambda _: right)
    with pytest.raises(TargetError, match="ptxas made wrong code"):
        wrong.call(tuple(t[:1] for t in TENSORS), None, None, None)
