"""The host's time for a call of a kernel, beside launching the same Triton kernel by hand.

    python -m bench.overhead [--json overhead.json]

By hand is the generated launch function with the result allocated by torch.empty_like, and nothing checked. On a
machine without a GPU Triton compiles for sm_90 and the driver's part of a launch is left out of both; on a GPU the
calls are enqueued as they are. `new lengths` meets each length for the first time (its kernel is compiled already).
All times in µs a call; samples are means over a batch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import neptune
from bench import record, stub_driver
from bench.cases import environment
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from neptune.runtime.modules import Form
from neptune.runtime.processes.source import load_source

BATCH, SAMPLES = 200, 15


def cases(device: str) -> Iterator[tuple[str, Any, str, list[torch.Tensor]]]:
    """(name, program, template, inputs)."""
    q, k, v = (torch.randn(2, 8, 256, 64, device=device).half() for _ in range(3))
    yield "attention", prefill_causal(depth=64), "flash_attention", [q, k, v]
    yield "attention with lse", prefill_causal(depth=64, lse=True), "flash_attention", [q, k, v]
    yield "softmax", softmax(), "softmax_row", [torch.randn(64, 128, device=device)]


def by_hand(kernel: neptune.Kernel, loads: str) -> Callable[..., None]:
    """The generated launch function."""
    function: Callable[..., None] = getattr(load_source(kernel.executable.modules.source(Form(loads))), kernel.name)
    return function


def sample(call: Callable[[], object]) -> list[float]:
    """Mean µs a call, for each batch."""
    found = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(BATCH):
            call()
        found.append((time.perf_counter() - start) / BATCH * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return found


def measure(program: Any, template: str, inputs: list[torch.Tensor], loads: str) -> dict[str, list[float]]:
    kernel = neptune.compile(program, template, target="cuda")
    launch, params = by_hand(kernel, loads), kernel.params
    outs = kernel(*inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    given = outs if len(outs) > 1 else outs[0]

    def hand() -> None:
        launch(*inputs, *(torch.empty_like(t) for t in outs), **params)

    def hand_out() -> None:
        launch(*inputs, *outs, **params)

    hand()
    rows = [torch.cat([t, t], -2 if t.dim() > 2 else 0) for t in inputs]

    def grown(n: int) -> list[torch.Tensor]:
        return [t[..., :n, :] for t in rows]

    fresh = iter([grown(n) for n in range(1, rows[0].shape[-2]) for _ in range(1)] * 50)
    found = {"by hand": sample(hand), "kernel": sample(lambda: kernel(*inputs))}
    found |= {"by hand, out": sample(hand_out), "kernel, out": sample(lambda: kernel(*inputs, out=given))}
    kernel(*grown(1)), kernel(*grown(3))

    def unseen() -> None:
        kernel.executable.plans._plans.clear()
        kernel.executable.signature._seen.clear()
        kernel.executable.modules._chosen.clear()
        kernel(*next(fresh))

    found["kernel, new lengths"] = sample(unseen)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every sample")
    options = parser.parse_args(argv)
    real = torch.cuda.is_available()
    results = {}
    with contextlib.nullcontext() if real else stub_driver.installed():
        from neptune.runtime.launching.launch import gpu_target

        present = gpu_target()
        loads = present.loads if present else "descriptor"
        for name, program, template, inputs in cases("cuda" if real else "cpu"):
            results[name] = measure(program, template, inputs, loads)
            medians = {what: statistics.median(s) for what, s in results[name].items()}
            print(f"{name:<20}" + "".join(f"  {what} {m:.1f}" for what, m in medians.items()), flush=True)
    if options.json:
        content = {"environment": environment(), "driver": "real" if real else "stub", "us": results}
        options.json.write_text(record.as_json(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
