"""What `neptune calibrate` measures and keeps, as plain values and as a table."""

from __future__ import annotations

from typing import Any

from neptune import config
from neptune.autotune.calibrate import Gpu, calibrate
from neptune.tune.calibrated import MATRIX, RATES, keep
from neptune.tune.machine import machine_of

UNITS = {"clock": "GHz", "memory": "GB/s", "port": "bytes a cycle", "special": "a cycle"}


def measure(gpu: Gpu | None = None) -> dict[str, Any]:
    """Measure the GPU at hand and keep its constants; `kept` is their file, or None, and then `trouble` says why.
    Raises TargetError where nothing can be measured."""
    if gpu is None:
        from neptune.autotune.present import Present

        gpu = Present()
    found = calibrate(gpu)
    folder, path, trouble = config.read().cache_dir, None, "there is no cache folder"
    try:
        path = None if folder is None else str(keep(folder, gpu.name, gpu.arch, found.constants))
    except OSError as error:
        trouble = f"{folder}: {error.strerror}"
    return _said(gpu, found.constants, found.launch) | {"kept": path, "trouble": None if path else trouble}


def _said(gpu: Gpu, constants: Any, launch: float) -> dict[str, Any]:
    row = machine_of(gpu.arch.rpartition(":")[2], gpu.name)
    table = {n: getattr(row, n) for n in RATES} | {MATRIX: {d: row.matrix.get(d) for d in constants[MATRIX]}}
    return {
        "gpu": gpu.name, "arch": gpu.arch, "row": row.name, "measured": constants, "table": table, "launch": launch,
    }  # fmt: skip


def rows(said: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each constant: measured, and what the table has of the row that the GPU had so far."""
    measured, table = said["measured"], said["table"]
    found = [(n, UNITS[n], measured[n], table[n]) for n in RATES]
    found += [(f"matrix {d}", "FLOP a cycle", rate, table[MATRIX][d]) for d, rate in measured[MATRIX].items()]
    return [
        {"constant": n, "unit": unit, "measured": f"{x:.4g}", said["row"]: "–" if t is None else f"{t:.4g}"}
        for n, unit, x, t in found
    ]


def summary(said: dict[str, Any]) -> str:
    """The lines below the table."""
    kept = f"kept in {said['kept']}" if said["kept"] else f"not kept: {said['trouble']}"
    return f"{said['gpu']} ({said['arch']}): an empty launch takes {said['launch']:.1f} µs; {kept}"
