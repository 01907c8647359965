"""Uniform registers that code reads and nothing has written: by hand, and in what ptxas makes for sm_90."""

from __future__ import annotations

import pytest
import torch

from bench import stub_driver
from neptune.driver.pipeline import compile
from neptune.errors import TargetError
from neptune.ir.parser import parse_program
from neptune.runtime.family import Members
from neptune.runtime.listing import functions
from neptune.runtime.unwritten import unwritten

SASS = """
.text.kernel:
        /*0000*/                   ULDC.64 UR8, c[0x0][0x208] ;
        /*0010*/                   UMOV UR14, 0x400 ;
{}
        /*0100*/                   EXIT ;
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
TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}


def lost(*lines: str) -> list[str]:
    code = "\n".join(x if x.startswith(".") else f"        /*{k + 2:03x}0*/    {x} ;" for k, x in enumerate(lines))
    return [register for f in functions(SASS.format(code)) for _, register in unwritten(f)]


@pytest.mark.parametrize(
    ("lines", "registers"),
    [
        (["UIADD3 UR18, UP0, UR18, 0x20, URZ", "UIADD3.X UR19, UR19, 0x1, URZ, UP0, !UPT"], ["UR18", "UR19"]),
        (["UIADD3 UR18, UP0, UR14, 0x20, URZ"], []),
        (["USHF.L.U64.HI UR17, UR14, 0x7, UR8", "UMOV UR4, UR18"], ["UR18"]),
        (["UIADD3.64 UR16, UR8, 0x2, URZ", "UMOV UR4, UR17"], []),
        (["LDG.E R6, desc[UR8][R2.64]", "STS.128 [R4+UR14+0x1800], R12"], []),
        # Of a left operand in registers nobody reads the descriptor's place.
        (["UMOV UR15, 0x1", "HGMMA.64x16x16.F32.BF16 R56, R24, gdesc[UR12].tnspB, R56"], []),
        (["HGMMA.64x16x16.F32.BF16 R56, R24, gdesc[UR12].tnspB, R56"], ["UR15"]),
        # It may have been written on a path; and what an indirect branch leads to knows what was there before.
        (["@P0 BRA `(.L_x_1)", "UMOV UR5, 0x1", ".L_x_1:", "UMOV UR6, UR5"], []),
        (["BRX R2 -0x180", ".L_x_2:", "UMOV UR5, UR14", "UMOV UR6, UR7"], ["UR7"]),
    ],
)
def test_a_register_that_no_path_has_written_is_found(lines, registers):
    assert lost(*lines) == registers


@pytest.fixture
def kernels():
    """Kernels of which the assembler makes wrong code, and right code."""
    with stub_driver.installed():
        kernel = compile(parse_program(ATTENTION), "flash_attention", params=TILES, form="triton", target="cuda")
        yield kernel.with_params(num_stages=1), kernel.with_params(num_stages=3)


TENSORS = [torch.zeros(2, 200, n, dtype=torch.bfloat16) for n in (64, 64, 16)]


def test_wrong_code_of_the_assembler_is_refused_before_it_runs(kernels, monkeypatch):
    """ptxas 12.8 loses the descriptor of the values' tile where its swizzle is 32 bytes and keys lay there before."""
    monkeypatch.setattr(stub_driver.Launcher, "calls", [])
    wrong, right = kernels
    with pytest.raises(TargetError, match="ptxas made wrong code"):
        wrong(*TENSORS)
    assert not stub_driver.Launcher.calls
    right(*TENSORS)
    assert len(stub_driver.Launcher.calls) == 1


def test_a_variant_that_is_refused_at_its_first_launch_gives_way_to_another(kernels, monkeypatch, caplog):
    monkeypatch.setattr(stub_driver.Launcher, "calls", [])
    wrong, right = (k.executable for k in kernels)
    variants = [{"template": "flash_attention", "params": {}, "numbers": []}] * 2
    wrong.members = Members({"tree": 0, "own": 0, "variants": variants}, wrong, lambda _: right)
    for _ in range(2):
        wrong.call(tuple(TENSORS), None, None, None)
    assert len(stub_driver.Launcher.calls) == 2
    assert caplog.text.count("is not used") == 1 and "ptxas made wrong code" in caplog.text
    wrong.members = Members({"tree": 0, "own": 0, "variants": variants[:1]}, wrong, lambda _: right)
    with pytest.raises(TargetError, match="ptxas made wrong code"):
        wrong.call(tuple(t[:1] for t in TENSORS), None, None, None)
