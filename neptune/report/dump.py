"""NEPTUNE_DUMP: a folder per compilation with numbered files, one per step of the way.

flash/                                      $NEPTUNE_DUMP
  prefill_causal-1/
    00-import.txt                           the expression
    01-schedule-split.txt                   …one file per primitive of the template
    …
    24-generate.py                          the Triton source
    explain.txt  explain.json  report.html  or error.txt, where the compilation failed
    index.txt                               what each file is, and why the pass stands there
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from neptune.errors import NeptuneError
from neptune.report.explain import as_text
from neptune.report.snapshots import Snapshot


def dump_kernel(root: Path, e: dict[str, Any], page: str, trail: Sequence[Snapshot]) -> Path:
    """Write everything about a compiled kernel, with its explanation and its report, to a new folder of `root`, which
    is returned."""
    extra = {
        "explain.txt": as_text(e),
        "explain.json": json.dumps(e, indent=2) + "\n",
        "report.html": page,
    }
    return _write(root, e["name"], trail, extra)


def dump_failure(root: Path, name: str, trail: Sequence[Snapshot], error: BaseException) -> Path:
    """Write what a compilation made until it failed, with the error."""
    return _write(root, name, trail, {"error.txt": "".join(traceback.format_exception(error))})


def file_names(trail: Sequence[Snapshot]) -> list[str]:
    """A numbered name for each form, all of one width, safe in every file system."""
    width = max(2, len(str(len(trail) - 1)))
    kinds = [".py" if f.name == "generate" else ".txt" for f in trail]
    return [f"{k:0{width}}-{_plain(f.name)}{kind}" for k, (f, kind) in enumerate(zip(trail, kinds, strict=True))]


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)[:80]


def _write(root: Path, name: str, trail: Sequence[Snapshot], extra: dict[str, str]) -> Path:
    names = file_names(trail)
    index = [f"{file}\n    {f.title}\n    {f.why}\n" for file, f in zip(names, trail, strict=True)]
    files = dict(zip(names, (f.text for f in trail), strict=True)) | extra | {"index.txt": "".join(index)}
    try:
        folder = _fresh(root, _plain(name))
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NeptuneError(
            f"NEPTUNE_DUMP={root}", f"nothing can be written there: {error}", hint="name a folder of yours"
        ) from None
    return folder


def _fresh(root: Path, name: str) -> Path:
    """A folder of its own for each compilation, also where several processes write at once."""
    root.mkdir(parents=True, exist_ok=True)
    for k in count(1):
        folder = root / f"{name}-{k}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError
