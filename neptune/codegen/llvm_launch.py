"""The launcher of target "llvm": the fused program's loops, compiled for this machine's CPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch

from neptune.codegen.llvm import compile_llvm
from neptune.ir.program import Program
from neptune.runtime.launching.launch import NONE, Launch, Scalars, Temporaries
from neptune.runtime.launching.plans import Plan
from neptune.runtime.modules import Modules

LOG = logging.getLogger("neptune.runtime")


def on_llvm(fused: Program, modules: Modules) -> Launch:
    """The launch of a program in its executable form, for `neptune.runtime.launching.launch.LAUNCHERS`."""
    start = time.perf_counter()
    kernel = compile_llvm(fused)
    LOG.info("`%s` compiled by LLVM, %.0f ms", fused.name, 1e3 * (time.perf_counter() - start))
    tunables = {t.name: modules.params[t.name] for t in fused.tunables if t.name in modules.params}

    def launch(
        inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], scalars: Scalars, own: Temporaries = NONE
    ) -> Plan | None:
        kernel(inputs, outputs, scalars, tunables)
        return None

    return launch
