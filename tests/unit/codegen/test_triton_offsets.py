"""Addresses beyond 2**31 elements, in memory of which only a few pages are ever touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neptune.codegen.modules import tile_spans
from neptune.ir.expr import Const, Var, ceildiv, op
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as ScalarParam
from neptune.runtime.calls.addressing import int32_suffices
from neptune.tile.ir import GridAxis, Iota, LoadTile, Rearrange, Scalar, StoreTile, TileKernel, TileProgram
from tests.examples.tile_examples import at, attention, map_
from tests.texts import generate

ROWS, WIDTH = 16, 64
# A multiple of 16 with 15 rows beyond 2**31 elements, but not beyond 2**31 times one row.
STRIDE = (2**31 // (ROWS - 1) + 16) // 16 * 16

SCRIPT = """
import sys, torch
sys.path[:0] = [{folder!r}]
import generated
rows, width, stride = {rows}, {width}, {stride}
try:
    memory = torch.empty((rows - 1) * stride + width, dtype=torch.int8)
except RuntimeError:
    sys.exit(77)
x = memory.as_strided((rows, width), (stride, 1))
wanted = (torch.arange(rows * width) % 101).view(rows, width).to(torch.int8)
x.copy_(wanted)
y = torch.zeros(rows, width, dtype=torch.int8)
generated.copy(x, y, BLOCK={block})
assert torch.equal(y, wanted), "read"
x.zero_()
generated.copy(wanted, x, BLOCK={block})
assert torch.equal(x, wanted), "written"
"""


def copy() -> TileProgram:
    """y = x for int8 [n, 64], BLOCK rows a program."""
    n, block = Var("n"), Var("BLOCK")
    row = Rearrange(at(op("mul", Var("i0"), block), "r"), "r -> r 1")
    index, dims = (row, Rearrange(Iota("c"), "c -> 1 c")), ("r", "c")
    inside = map_("lt", row, Scalar(n))
    width = Const(WIDTH, "int32")
    out = StoreTile("y", index, LoadTile("x", index, inside, 0.0, dims, "int8"), inside, dims)
    kernel = TileKernel("copy", (GridAxis("i0", ceildiv(n, block), "x"),), (("r", block), ("c", width)), (out,))
    x, y = Buffer("x", (n, width), "int8"), Buffer("y", (n, width), "int8")
    return TileProgram("copy", (x,), (y,), (), (ScalarParam("n", lo=1),), (Tunable("BLOCK", (1, ROWS)),), (kernel,))


def run(folder: Path, source: str, block: int) -> None:
    """Copy from and to a tensor with huge strides, in an interpreter of its own."""
    (folder / "generated.py").write_text(source)
    script = SCRIPT.format(folder=str(folder), rows=ROWS, width=WIDTH, stride=STRIDE, block=block)
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this system grants no memory beyond what it has")
    assert done.returncode == 0, done.stderr[-2000:]


def test_bases_are_int64(tmp_path: Path) -> None:
    """A row a program: the tile is small, its place is not."""
    program = copy()
    assert int32_suffices(tile_spans(program), {"x": (STRIDE, 1), "y": (WIDTH, 1)}, {"BLOCK": 1})
    run(tmp_path, generate(program), 1)


def test_tiles_that_span_too_much_take_int64_offsets(tmp_path: Path) -> None:
    program = copy()
    for strides in ({"x": (STRIDE, 1), "y": (WIDTH, 1)}, {"x": (WIDTH, 1), "y": (STRIDE, 1)}):
        assert not int32_suffices(tile_spans(program), strides, {"BLOCK": ROWS})
    assert int32_suffices(tile_spans(program), {"x": (STRIDE - 32, 1), "y": (WIDTH, 1)}, {"BLOCK": ROWS})
    run(tmp_path, generate(program, int64_offsets=True), ROWS)


def test_int32_offsets_would_not_do(tmp_path: Path) -> None:
    """What the check guards against: were the offsets wide enough anyway, it could go."""
    with pytest.raises(AssertionError):
        run(tmp_path, generate(copy()), ROWS)


def test_descriptors_reach_everything(tmp_path: Path) -> None:
    program = copy()
    assert tile_spans(program, loads="descriptor") == ()
    run(tmp_path, generate(program, loads="descriptor"), ROWS)


def test_the_text_of_both_widths() -> None:
    narrow, wide = generate(attention()), generate(attention(), int64_offsets=True)
    assert "k_offs = offs_n[None, :] * stride_k_s_kv + offs_d[:, None]" in narrow
    assert "k_offs = offs_n.to(tl.int64)[None, :] * stride_k_s_kv + offs_d[:, None]" in wide
    assert tile_spans(attention(), loads="descriptor") == ()
    assert sorted({s.buffer for s in tile_spans(attention())}) == ["k", "out", "q", "v"]


def test_strides_of_factors_count() -> None:
    """x[2 r, c] reaches twice as far as x[r, c]; a factor known only at run time takes int64 at once."""
    program = copy()
    (kernel,) = program.kernels
    (out,) = kernel.body
    assert isinstance(out, StoreTile)

    def source(factor: Scalar) -> TileProgram:
        row = Rearrange(map_("mul", Iota("r"), factor), "r -> r 1")
        value = LoadTile("x", (row, out.index[1]), None, 0.0, out.dims, "int8")
        stmt = StoreTile("y", out.index, value, out.mask, out.dims)
        return TileProgram(
            "copy", program.inputs, program.outputs, (), program.scalars, program.tunables,
            (TileKernel("copy", kernel.grid, kernel.axes, (stmt,)),),
        )  # fmt: skip

    twice = source(Scalar(Const(2, "int32")))
    strides = {"x": (2**30 // (ROWS - 1) - WIDTH, 1), "y": (WIDTH, 1)}
    assert int32_suffices(tile_spans(twice), strides, {"BLOCK": ROWS})
    strides = {"x": (2**30 // (ROWS - 1), 1), "y": (WIDTH, 1)}
    assert int32_suffices(tile_spans(program), strides, {"BLOCK": ROWS})
    assert not int32_suffices(tile_spans(twice), strides, {"BLOCK": ROWS})
    assert "offs_r.to(tl.int64)[:, None] * n * stride_x_n" in generate(source(Scalar(Var("n"))))
