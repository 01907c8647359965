"""The machine that a compilation is for: the GPU at hand, a named architecture, else the default of the cost model."""

from __future__ import annotations

import warnings
from functools import cache

import torch

from neptune import config
from neptune.base.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning
from neptune.runtime.launching.launch import Target, gpu_target
from neptune.tune.model.calibrated import kept, with_measured
from neptune.tune.model.machine import DEFAULT, Machine, machine_of, named


def machine_for(target: Target) -> Machine:
    """The row of the table of machines for a target; for the GPU at hand with what `neptune calibrate` has measured.
    Targets that run on a CPU choose as the default GPU would, so that what is tested is what runs.

    >>> machine_for(Target("cuda", "80")).name, machine_for(Target("llvm")).name
    ('A100', 'H200')
    """
    if not target.on_gpu:
        return DEFAULT
    present = gpu_target()
    if present is not None and at_hand(target):
        name = torch.cuda.get_device_name()
        measured, known = kept(config.read().cache_dir, name, str(present)), named(present.arch, name) is not None
        if measured is None and not known:
            _say_unknown(name, machine_of(present.arch).name)
        return with_measured(machine_of(present.arch, name), measured, known)
    return machine_of(target.arch) if target.arch else DEFAULT


@cache
def _say_unknown(name: str, like: str) -> None:
    """Warn once that choices are made for another GPU than the one that is here."""
    measure = "`neptune calibrate` measures it in seconds"
    message = f"no figures are known of {name}: choices are those for {like}; {measure}"
    warnings.warn(NeptunePerformanceWarning(message), stacklevel=frames_of_package() + 1)


def at_hand(target: Target) -> bool:
    """True where the GPU of a target is here, so that kernels for it can be timed."""
    present = gpu_target() if target.on_gpu else None
    return present is not None and target.kind == present.kind and target.arch in ("", present.arch)
