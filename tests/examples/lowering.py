"""Lower a scheduled program and run every form of it: evaluator, Triton's interpreter, LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neptune.codegen.llvm import compile_llvm
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.runtime.processes.interpret import run_interpreted
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import PASSES, lower
from neptune.tile.translate import translate
from neptune.tile.verify import verify_tiles
from neptune.verify.evaluate import evaluate
from tests.examples.schedule_examples import matmul
from tests.texts import generate

Array = npt.NDArray[Any]
Arrange = Callable[[Schedule], None]


def scheduled(program: Program, arrange: Arrange | None = None) -> Program:
    """The program after a schedule, verified."""
    sch = Schedule(program)
    if arrange is not None:
        arrange(sch)
    verify(sch.program)
    verify(decompose(sch.program), lowered=True)
    return sch.program


def lowered(program: Program) -> TileProgram:
    """Its tile program, verified after every pass."""
    tiles = translate(program)
    verify_tiles(tiles)
    for p in PASSES:
        tiles = replace(tiles, kernels=tuple(p.run(k) for k in tiles.kernels))
        verify_tiles(tiles)
    assert tiles == lower(program)
    return tiles


def close(found: Array, wanted: Array, tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), tolerance, tolerance)


def check_all(
    program: Program,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    sizes: Mapping[str, int],
    params: Mapping[str, int] | None = None,
    *,
    tolerance: float = 1e-5,
) -> TileProgram:
    """Run a scheduled program in all its forms and compare with `wanted` (float64); returns its tiles."""
    params = dict(params or {})
    tiles = lowered(program)
    env = {**sizes, **params}
    for form in (translate(program), tiles):
        got = evaluate(form, inputs, env)
        for name, array in wanted.items():
            close(got[name], array, 1e-9)
    tensors = [torch.from_numpy(np.array(inputs[b.name])).to(getattr(torch, b.dtype)) for b in program.inputs]
    # Scalars that no input's shape binds are passed.
    extra = [sizes[s.name] for s in program.scalars if s.name not in program.shape_scalars]
    for run in ("interpreter", "llvm"):
        outs = [
            torch.zeros([evaluate_size(d, env) for d in b.shape], dtype=getattr(torch, b.dtype))
            for b in program.outputs
        ]
        if run == "interpreter":
            run_interpreted(generate(tiles), program.name, [*tensors, *outs], extra, params)
        else:
            compile_llvm(program)(tensors, outs, {n: sizes[n] for n in sizes}, params)
        for b, out in zip(program.outputs, outs, strict=True):
            close(out.double().numpy(), wanted[b.name], tolerance)
    return tiles


def check_matmul(arrange: Arrange, *tiles: str) -> TileProgram:
    """`check_all` of the product of `schedule_examples`, with these tiles of 16."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32).astype(np.float64) for s in ((17, 20), (20, 33)))
    sizes, params = {"m": 17, "n": 33, "k": 20}, dict.fromkeys(tiles, 16)
    program = scheduled(matmul(), arrange)
    return check_all(program, {"a": a, "b": b}, {"d": a @ b * 2}, sizes, params, tolerance=1e-4)
