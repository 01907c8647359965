"""Constants of a GPU that `neptune calibrate` has measured, kept by its name, and laid over its row of the table.

    with_measured(DEVICES["H200"], {"memory": 4210.0, …}, known=True).name  →  "H200, measured 5d0c1a"

What one card has of its own is taken: processors, L2, clock under load, memory rate. What all of a kind have alike is
the table's where it knows the GPU by name; of others the measured rates of the matrix unit and of special functions
are taken. `port` is shown and not taken: all processors at once are held back by L2, before their ports are, and the
model was fitted with the port's own rate. On an H200, `bench.cost` with the measured port chooses worse (its first
choice is 3.2 % slower than the best instead of 1.9 %), and with the measured clock and memory rate does not.

They are a JSON file, `machines.json` of the cache folder, {"NVIDIA H200 (sm_90)": {"memory": 4210.0, …}}. What is
damaged or means nothing is not there, which is logged. The name tells measured constants from others wherever
predictions are kept by machine, as in the cache of kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from neptune.base import private
from neptune.tune.model.machine import MEASURED, Machine

FILE = "machines.json"
RATES = ("clock", "memory", "port", "special")
COUNTS = ("processors", "l2")
MATRIX = "matrix"
OF_CARDS = ("clock", "memory", *COUNTS)
OF_UNKNOWN = (*OF_CARDS, "special", MATRIX)
"""What is taken of any GPU, and of one that the table does not have."""
FAR = 1.6
"""What is further from the table's is said."""
Constants: TypeAlias = Mapping[str, Any]
"""RATES and COUNTS by name, and MATRIX: a mapping of rates by dtype; units are those of Machine."""
MOST = 1e18
"""What is more is the rate of no machine."""
LOG = logging.getLogger("neptune.tune")


def kept(folder: Path | None, device: str, arch: str) -> Constants | None:
    """The constants that were measured on a GPU; None where there are none that mean something."""
    constants = _read(folder).get(_key(device, arch))
    if constants is None or means_something(constants):
        return constants
    LOG.warning("the constants of %s in %s mean nothing, and are not used", device, FILE)
    return None


def keep(folder: Path, device: str, arch: str, constants: Constants) -> Path:
    """Keep constants beside those of other GPUs; the file. Raises OSError where it cannot be written."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    machines = _read(folder) | {_key(device, arch): constants}
    opened, fresh = tempfile.mkstemp(dir=folder, prefix=FILE)
    try:
        with open(opened, "w") as file:
            json.dump(machines, file, indent=1)
        os.replace(fresh, folder / FILE)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    return folder / FILE


def taken(known: bool) -> tuple[str, ...]:
    """The measured constants that are taken, for a GPU that the table has by its name or has not."""
    return OF_CARDS if known else OF_UNKNOWN


def with_measured(row: Machine, constants: Constants | None, known: bool) -> Machine:
    """A row of the table with what is taken of the constants that were measured, and with a name of its own. `known`:
    the row is that of the GPU, not the one of its architecture."""
    if constants is None:
        return row
    own = {n: constants[n] for n in taken(known)}
    if MATRIX in own:
        own[MATRIX] = {**row.matrix, **own[MATRIX]}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    return replace(row, **own, name=f"{row.name}{MEASURED}{digest[:6]}", source="measured by neptune calibrate")


def far(measured: float, table: float | None) -> bool:
    """True if what was measured is no small deviation from the table's.

    >>> far(29.57, 16), far(1.59, 1.75), far(100.0, None)
    (True, False, False)
    """
    return table is not None and max(measured / table, table / measured) > FAR


def means_something(value: Any) -> bool:
    """True for positive finite numbers by the names of Constants, and whole counts.

    >>> means_something({"clock": 1.7})
    False
    """
    if not isinstance(value, dict) or not isinstance(value.get(MATRIX), dict):
        return False
    rates = [*(value.get(n) for n in RATES), *value[MATRIX].values()]
    return all(_positive(x) for x in rates) and all(_positive(value.get(n)) and value[n] % 1 == 0 for n in COUNTS)


def _positive(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < MOST


def _key(device: str, arch: str) -> str:
    return f"{device} ({arch})"


def _read(folder: Path | None) -> dict[str, Any]:
    """The whole file; nothing where it is not there, is damaged, or others may have written it."""
    if folder is None:
        return {}
    try:
        wrong, text = private.wrong(folder), private.read(folder / FILE)
        if wrong is not None or text is None:
            raise ValueError(wrong or "others may write there (chmod 600)")
        machines = private.understood(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        LOG.warning("%s is not used: %s", folder / FILE, error)
        return {}
    return machines if isinstance(machines, dict) else {}
