"""What `neptune calibrate` measures and keeps, as plain values and as a table."""

from __future__ import annotations

from typing import Any

from neptune import config
from neptune.autotune.calibrate import Gpu, calibrate
from neptune.tune.model.calibrated import MATRIX, OF_UNKNOWN, RATES, far, keep, taken
from neptune.tune.model.machine import machine_of, named

UNITS = {"clock": "GHz", "memory": "GB/s", "port": "bytes a cycle", "special": "a cycle"}


def measure(gpu: Gpu | None = None) -> dict[str, Any]:
    """Measure the GPU at hand and keep its constants; `kept` is their file, or None, and then `trouble` says why.
    Raises TargetError where nothing can be measured."""
    if gpu is None:
        from neptune.autotune.present import Present

        gpu = Present()
    rates = calibrate(gpu)
    folder, path, trouble = config.read().cache_dir, None, "there is no cache folder"
    try:
        path = None if folder is None else str(keep(folder, gpu.name, gpu.arch, rates.constants))
    except OSError as error:
        trouble = f"{folder}: {error.strerror}"
    return _said(gpu, rates.constants, rates.launch) | {"kept": path, "trouble": None if path else trouble}


def _said(gpu: Gpu, constants: Any, launch: float) -> dict[str, Any]:
    arch = gpu.arch.rpartition(":")[2]
    row = machine_of(arch, gpu.name)
    table = {n: getattr(row, n) for n in RATES} | {MATRIX: {d: row.matrix.get(d) for d in constants[MATRIX]}}
    return {
        "gpu": gpu.name, "arch": gpu.arch, "row": row.name, "measured": constants, "table": table, "launch": launch,
        "taken": list(taken(named(arch, gpu.name) is not None)),
    }  # fmt: skip


def rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each constant: as measured, as in the row that the GPU had so far, and which of them is taken."""
    return [
        {
            "constant": n, "unit": unit, "measured": f"{x:.4g}", answer["row"]: "–" if t is None else f"{t:.4g}",
            "taken": "measured" if n.split()[0] in answer["taken"] else "table",
        }
        for n, unit, x, t in _both(answer)
    ]  # fmt: skip


def _both(answer: dict[str, Any]) -> list[tuple[str, str, float, float | None]]:
    """Each constant with its unit, as measured and as in the table."""
    measured, table = answer["measured"], answer["table"]
    both = [(n, UNITS[n], measured[n], table[n]) for n in RATES]
    return both + [(f"{MATRIX} {d}", "FLOP a cycle", rate, table[MATRIX][d]) for d, rate in measured[MATRIX].items()]


def summary(answer: dict[str, Any]) -> str:
    """The lines below the table."""
    compared = [(n, x, t) for n, _, x, t in _both(answer) if n.split()[0] in OF_UNKNOWN]
    off = ", ".join(f"{n} ({x / t:.2f}×)" for n, x, t in compared if t and far(x, t))
    warning = f"\nfar from the table: {off}: something else uses the GPU, or it is another one" if off else ""
    kept = f"kept in {answer['kept']}" if answer["kept"] else f"not kept: {answer['trouble']}"
    return f"{answer['gpu']} ({answer['arch']}): an empty launch takes {answer['launch']:.1f} µs; {kept}{warning}"
