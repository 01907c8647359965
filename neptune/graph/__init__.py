"""Plain torch programs: ATen graphs as Programs, regions of them as kernels, what is left by Inductor.

Importing it registers `torch.compile(model, backend="neptune")`, also where the package's entry point is not installed.
"""

from __future__ import annotations

from typing import Any

import torch

from neptune.graph.backend import Backend


def neptune_backend(module: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """The backend "neptune" of torch.compile; `options`: those of `neptune.graph.backend.Backend`."""
    return Backend(**options)(module, inputs)


if "neptune" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(neptune_backend, name="neptune")
