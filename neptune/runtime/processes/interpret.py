"""Run a generated module in Triton's interpreter, in a worker process.

A process of its own, because the interpreter can be switched on only before triton's first import. The
worker is started at the first call and kept; tensors travel as raw bytes, and in the worker each lies
between guard zones (and around gaps between its rows) that are checked after the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from neptune.errors import InternalError
from neptune.runtime.processes.worker import Json, Worker

WORKER = Worker("neptune.runtime.processes.interpret_worker", {"TRITON_INTERPRET": "1"})


def run_interpreted(
    source: str,
    function: str,
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[int | float] = (),
    params: Mapping[str, int] | None = None,
) -> None:
    """Call `function(*tensors, *scalars, **params)` of the module `source`; tensors change in place.

    Raises InternalError where the kernel fails, or writes outside its tensors.

        run_interpreted(generate(program), program.name, [x, y], params={"BLOCK_R": 4})
    """
    cores = [distinct(t.detach()) for t in tensors]
    parts = [raw_bytes(c) for c in cores]
    request: Json = {
        "source": source,
        "function": function,
        "tensors": [_describe(t, len(p)) for t, p in zip(tensors, parts, strict=True)],
        "scalars": list(scalars),
        "params": dict(params or {}),
    }
    try:
        answer, body = WORKER.request(request, b"".join(parts))
    except EOFError:
        raise InternalError(f"the interpreter died while it ran {function}") from None
    if "error" in answer:
        raise InternalError(f"{function} failed in the interpreter: {answer['error'][:500]}")
    offset = 0
    for core, part in zip(cores, parts, strict=True):
        fresh = body[offset : offset + len(part)]
        offset += len(part)
        # Inputs may be expanded or shared: only what the kernel changed is written.
        if fresh != part:
            core.copy_(torch.frombuffer(bytearray(fresh), dtype=core.dtype).view(core.shape))


def distinct(t: torch.Tensor) -> torch.Tensor:
    """Each element once: dimensions of stride 0 have one."""
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if stride == 0 and size > 1:
            t = t.narrow(dim, 0, 1)
    return t


def raw_bytes(t: torch.Tensor) -> bytes:
    """The elements in order, as raw bytes."""
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def _describe(t: torch.Tensor, count: int) -> Json:
    return {
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "stride": list(t.stride()),
        "bytes": count,
    }
