"""Compile the kernels of `bench.hopper` before its rows, in several processes that see no GPU.

They come from the cache then, with what compiling tells of their asynchronous forms; what is left to each row is what
needs the GPU by itself. So a GPU that is lent for some minutes measures, while all cores compile.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest.mock import patch

import neptune
from neptune.errors import NeptuneError
from neptune.hopper.accept import judged
from neptune.hopper.acceptance import form_of, split_of

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def compiled(make: Callable[[], neptune.Kernel]) -> str:
    """Make a kernel, and look at its asynchronous form; what went wrong, or nothing."""
    try:
        with warnings.catch_warnings(action="ignore"):
            kernel = make()
        artifact = kernel.executable.artifact
        if artifact.form is not None:
            found = judged(form_of(artifact), split_of(artifact))
            if isinstance(found, NeptuneError):
                raise found
        else:
            kernel.resources()
    except NeptuneError as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def prepare(kernels: Iterable[Callable[[], neptune.Kernel]], processes: int) -> dict[str, Any]:
    """Seconds and the number of kernels; those that fail say so, and again in their rows."""
    start, wanted = time.monotonic(), list({str(k): k for k in kernels}.values())
    with (
        patch.dict(os.environ, HIDDEN),
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
    ):
        failed = [x for x in pool.map(compiled, wanted) if x]
    made = {"kernels": len(wanted), "seconds": time.monotonic() - start, "failed": failed}
    print("prepared", made, flush=True)
    return made
