"""The GPU at hand, as `neptune.autotune.calibrate` measures it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.testing

from neptune.autotune import probes
from neptune.autotune.calibrate import SPENT, Probe, Reading, of_processors
from neptune.errors import TargetError
from neptune.ir.dtypes import FLOAT8
from neptune.runtime.bench import graph_of
from neptune.runtime.launching.launch import gpu_target

LEAST = 80
"""The first compute capability whose matrix unit takes the products that are measured."""
MEMORY = 1 << 30
"""Bytes that are read: many times what an L2 cache holds."""
BLOCK = 4096
EXPONENTIALS = 1024
TILE, DEPTH = 128, 32
RESIDENT = 2
"""Programs of products on each processor: all that run at one time, so that none waits for another."""
MATRIX = {
    "float16": (torch.float16, torch.float32, 80),
    "bfloat16": (torch.bfloat16, torch.float32, 80),
    "tf32": (torch.float32, torch.float32, 80),
    "int8": (torch.int8, torch.int32, 80),
    "float8_e4m3fn": (torch.float8_e4m3fn, torch.float32, 89),
    "float8_e5m2": (torch.float8_e5m2, torch.float32, 89),
}
"""Operands and sum of each product, and the first compute capability that has it."""
assert set(FLOAT8) <= set(MATRIX)


class Present:
    """The present GPU. Raises TargetError where there is none that can be measured."""

    def __init__(self) -> None:
        target = gpu_target()
        if target is None:
            raise TargetError(
                "calibrate", "torch sees no GPU here", hint="run it on the machine whose GPU kernels are for"
            )
        if target.kind != "cuda" or int(target.arch) < LEAST:
            raise TargetError("calibrate", f"the GPU here is {target}", legal=("cuda:80 and later",))
        properties = torch.cuda.get_device_properties()
        self.name, self.arch = torch.cuda.get_device_name(), str(target)
        self.capability = int(target.arch)
        self.processors, self.l2 = properties.multi_processor_count, properties.L2_cache_size
        self.out = torch.empty(self.processors * RESIDENT * TILE * TILE, device="cuda")
        self.spent = torch.zeros(64 * self.processors, len(SPENT), dtype=torch.int64, device="cuda")

    def probes(self) -> Iterator[Probe]:
        """All that this GPU has something to measure for."""
        yield Probe("launch", 1, lambda: probes.nothing[(1,)]())
        yield self._memory()
        yield self._port()
        yield self._special()
        for name, (operand, total, since) in MATRIX.items():
            if self.capability >= since:
                yield self._product(name, operand, total)

    def read(self, probe: Probe) -> Reading:
        """Samples over replays of a CUDA graph, the L2 cache cleared before each."""
        self.spent.zero_()
        replay = graph_of(probe.launch)
        ms = triton.testing.do_bench(replay, warmup=50, rep=200, return_mode="all")
        counted = self.spent[self.spent[:, -1] > 0].cpu().numpy()
        us = tuple(1e3 * t for t in ms)
        return Reading(us, *of_processors(counted, self.processors)) if len(counted) else Reading(us)

    def _memory(self) -> Probe:
        steps = 16
        x = torch.zeros(MEMORY // 4, device="cuda")
        programs = len(x) // (steps * BLOCK)
        return Probe("memory", MEMORY, lambda: probes.read[(programs,)](x, self.out, steps, BLOCK, num_warps=8))

    def _port(self) -> Probe:
        """Every processor reads a quarter of what L2 holds, over and over."""
        steps, programs = 1024, 4 * self.processors
        length = max(1, self.l2 // 16 // BLOCK) * BLOCK
        x = torch.zeros(length, device="cuda")
        return Probe(
            "port",
            4.0 * programs * steps * BLOCK,
            lambda: probes.read_again[(programs,)](x, self.out, self.spent, length, steps, BLOCK, num_warps=8),
        )

    def _special(self) -> Probe:
        steps, programs = 4096, 8 * self.processors
        return Probe(
            "special",
            1.0 * programs * steps * EXPONENTIALS,
            lambda: probes.exponentials[(programs,)](self.out, self.spent, steps, EXPONENTIALS, num_warps=4),
        )

    def _product(self, name: str, operand: torch.dtype, total: torch.dtype) -> Probe:
        steps, programs = 4096, RESIDENT * self.processors
        x, y = (torch.randint(-2, 3, (TILE, DEPTH), device="cuda").float().to(operand) for _ in range(2))
        out = self.out.view(total)
        return Probe(
            f"matrix {name}",
            2.0 * programs * steps * TILE * TILE * DEPTH,
            lambda: probes.multiply[(programs,)](x, y, out, self.spent, steps, TILE, TILE, DEPTH, num_warps=4),
        )
