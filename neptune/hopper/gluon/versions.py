"""Where Gluon's interface differs between releases of Triton. All that Neptune knows of it stands here.

| in generated text | Triton 3.6 | Triton 3.9 |
| --- | --- | --- |
| `async_load(descriptor, coordinates, barrier, tile)` | `tma.async_copy_global_to_shared` | `tma.async_load` |
| `async_store(descriptor, coordinates, tile)` | `tma.async_copy_shared_to_global` | `tma.async_store` |
| `barrier()` | `gl.thread_barrier` | `gl.barrier` |

What else the text uses (`gluon.jit`, `gl.warp_specialize`, `warpgroup_mma`, `warpgroup_mma_init`,
`warpgroup_mma_wait`, `mbarrier`, `fence_async_shared`, `TensorDescriptor`, layouts) has the same names and arguments in
both. The text of a kernel does not depend on the release: its head gives these functions one name, the new one where it
is there, since 3.9 still has the old ones and refuses to run them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType

from neptune.errors import TargetError

OLDEST, NEWEST = "3.6.0", "3.9.0"
"""The releases that are tried, by `make test-all` after `make newest`."""
GLUON = "triton.experimental.gluon"
SOURCE = f"{GLUON}._runtime:GluonASTSource"
"""The source that Triton's compiler takes for a Gluon kernel."""
LAYOUT = f"{GLUON}.language:NVMMASharedLayout"
"""The layout of a descriptor's box in shared memory, by `get_default_for`."""

RENAMED: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "async_load": ("tma", "async_load", "async_copy_global_to_shared"),
        "async_store": ("tma", "async_store", "async_copy_shared_to_global"),
        "barrier": ("gl", "barrier", "thread_barrier"),
    }
)
"""Names of generated text: the module that has the function, its name in the newest release, and in the oldest."""
NEEDED: Mapping[str, str] = MappingProxyType(
    {
        GLUON: "jit",
        f"{GLUON}._runtime": "GluonASTSource",
        f"{GLUON}.language": "warp_specialize allocate_shared_memory inline_asm_elementwise convert_layout "
        "static_range constexpr NVMMADistributedLayout NVMMASharedLayout DotOperandLayout SliceLayout barrier",
        f"{GLUON}.language.nvidia.hopper": "fence_async_shared warpgroup_mma warpgroup_mma_init warpgroup_mma_wait",
        f"{GLUON}.language.nvidia.hopper.mbarrier": "MBarrierLayout init wait arrive expect",
        f"{GLUON}.language.nvidia.hopper.tma": "async_load async_store store_wait",
        f"{GLUON}.nvidia.hopper": "TensorDescriptor",
    }
)
"""The names that a release must have, by module, as the newest spells them."""


def head() -> tuple[str, ...]:
    """The lines of a generated module, behind its imports of `gl` and `tma`, that name what releases name differently.

    >>> head()[1]
    'async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared'
    """
    lines = [f'{n} = getattr({m}, "{new}", None) or {m}.{old}' for n, (m, new, old) in RENAMED.items()]
    return (f"# The names of Triton {NEWEST}, or those that {OLDEST} has for them.", *lines)


@functools.cache
def missing() -> str | None:
    """The names that the Triton here lacks for generated Gluon; None where it has all."""
    for where, wanted in NEEDED.items():
        try:
            module = importlib.import_module(where)
        except ImportError:
            return f"there is no {where}"
        for name in wanted.split():
            older = RENAMED[name][2] if name in RENAMED else name
            if not hasattr(module, name) and not hasattr(module, older):
                return f"{where} has no {name}"
    return None


def fault(task: str) -> TargetError | None:
    """The error that the Triton here has no Gluon, or one without what generated text uses; None where it has all."""
    if (lacks := missing()) is None:
        return None
    import triton

    return TargetError(
        task,
        f"the asynchronous form is written in Gluon, and Triton {triton.__version__} lacks it: {lacks}",
        legal=(f"Triton {OLDEST} to {NEWEST}",),
        hint="without it the form in plain Triton runs: leave the choice to Neptune",
        kind="package",
    )
