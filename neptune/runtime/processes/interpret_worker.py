"""The process that interprets: see `neptune.runtime.processes.interpret`. Runs with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from neptune.runtime.processes import bf16_shim, interpreter_work
from neptune.runtime.processes.interpret import distinct, raw_bytes
from neptune.runtime.processes.source import load_source
from neptune.runtime.processes.worker import Json, serve

GUARD_BYTES = 1 << 18
POISON = 0xFF  # in every byte: a NaN in each float format, -1 in each integer


@dataclass
class Guarded:
    """A tensor in the middle of a poisoned allocation."""

    name: str
    allocation: torch.Tensor  # uint8
    view: torch.Tensor

    @property
    def core(self) -> torch.Tensor:
        """The view with each element once."""
        return distinct(self.view)

    def intact(self) -> bool:
        """True where no byte outside the view has changed."""
        owned = torch.zeros(self.allocation.numel(), dtype=torch.bool, device="cpu")
        core, item = self.core, self.view.element_size()
        if core.numel():
            strides = [s * item for s in core.stride()]
            owned.as_strided([*core.shape, item], [*strides, 1], core.storage_offset() * item)[...] = True
        return bool(((self.allocation == POISON) | owned).all())


def guarded(name: str, dtype: torch.dtype, shape: list[int], stride: list[int]) -> Guarded:
    """Poisoned memory for a tensor of these strides, poisoned inside too."""
    item = torch.empty(0, dtype=dtype, device="cpu").element_size()
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    # Room for whole elements on both sides, and a start that is aligned as torch aligns.
    total = 2 * GUARD_BYTES + -(-span * item // 64) * 64
    allocation = torch.full((total,), POISON, dtype=torch.uint8, device="cpu")
    view = allocation.view(dtype).as_strided(shape, stride, GUARD_BYTES // item)
    return Guarded(name, allocation, view)


class GuardedTorch:
    """Stands for `torch` in a generated module: temporaries are guarded and poisoned as well."""

    def __init__(self, made: list[Guarded]) -> None:
        self._made = made

    def empty(self, shape: Any, *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        """`torch.empty` on the CPU."""
        sizes = [int(n) for n in shape]
        strides = list(torch.empty(sizes, device="meta").stride())
        temporary = guarded(f"temporary {len(self._made)}", dtype, sizes, strides)
        self._made.append(temporary)
        return temporary.view

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def place(description: Json, data: bytes, name: str) -> Guarded:
    """A received tensor."""
    dtype = getattr(torch, description["dtype"])
    tensor = guarded(name, dtype, description["shape"], description["stride"])
    if data:
        tensor.core.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(tensor.core.shape))
    return tensor


def run(request: Json, body: bytes) -> tuple[Json, bytes]:
    """Run one call."""
    bf16_shim.install()
    interpreter_work.install()
    module: ModuleType = load_source(request["source"])
    made: list[Guarded] = []
    offset = 0
    for k, d in enumerate(request["tensors"]):
        made.append(place(d, body[offset : offset + d["bytes"]], f"tensor {k}"))
        offset += d["bytes"]
    tensors = list(made)
    if hasattr(module, "torch"):
        module.__dict__["torch"] = GuardedTorch(made)
    getattr(module, request["function"])(*(t.view for t in tensors), *request["scalars"], **request["params"])
    for m in made:
        if not m.intact():
            return {"error": f"the kernel wrote outside {m.name}"}, b""
    return {}, b"".join(raw_bytes(t.core) for t in tensors)


if __name__ == "__main__":
    serve(run)
