"""How far single instructions are off, on all of float32: what `neptune.ir.forms.INSTRUCTIONS` states.

    python -m bench.instructions [--json FILE]

Each value from 0 to infinity is compared with float64; below 0 the bits must be those above it, negated. It takes a
few seconds of a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from bench.record import as_json
from neptune.ir.forms import INSTRUCTIONS

CHUNK = 1 << 26
INFINITY = 0x7F800000


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y_ptr + i, y, mask=i < n)


def _applied(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _tanh[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def worst() -> dict[str, float | bool]:
    """The largest absolute error of tanh.approx.f32, where it is, and whether the function is odd."""
    error, at, odd = 0.0, 0.0, True
    for start in range(0, INFINITY + 1, CHUNK):
        bits = torch.arange(start, min(start + CHUNK, INFINITY + 1), dtype=torch.int64, device="cuda")
        x = bits.to(torch.int32).view(torch.float32)
        y = _applied(x)
        off = (y.double() - torch.tanh(x.double())).abs()
        k = int(off.argmax())
        if float(off[k]) > error:
            error, at = float(off[k]), float(x[k])
        odd = odd and torch.equal(_applied(-x), -y)
    return {"error": error, "at": at, "odd": odd, "stated": INSTRUCTIONS["tanh"], "kept": error <= INSTRUCTIONS["tanh"]}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    rows: dict[str, Any] = {"device": torch.cuda.get_device_name(), "triton": triton.__version__, "tanh": worst()}
    print(rows)
    if options.json:
        options.json.write_text(as_json(rows))


if __name__ == "__main__":
    main()
