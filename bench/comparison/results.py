"""The file of results: one line a measurement, in the order of the plan, rewritten whole after each.

    {"environments": [{"torch": …, "gpu": …}],
     "rows": [{"part": "grid", "subject": "prefill_causal 1×1024", "column": "default", "us": 41.2, …}, …],
     "not measured": ["grid | prefill_causal 1×1024 | cuDNN", …]}

A run that is cut off leaves the file of its last measurement, and the same command goes on from there. `rows` say for
each how it went: `us` is the median of the fastest form, `samples` are all, by form and round; or `failed` says why
there are none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.record import as_json

Row = dict[str, Any]


class Key(NamedTuple):
    """What is measured: a column of a subject, for one of the parts."""

    part: str
    subject: str
    column: str

    def __str__(self) -> str:
        return " | ".join(self)


class Results:
    """The rows of one file; `plan` gives their order, and what is missing."""

    def __init__(self, file: Path | None, plan: Sequence[Key], environment: Mapping[str, Any]) -> None:
        """Reads what is there. A file that is damaged is a ValueError: it is not written over."""
        self._file, self._plan = file, list(plan)
        self._environments: list[dict[str, Any]] = []
        self.rows: dict[Key, Row] = {}
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            self._environments = list(kept["environments"])
            self.rows = {Key(r["part"], r["subject"], r["column"]): r for r in kept["rows"]}
        if dict(environment) not in self._environments:
            self._environments.append(dict(environment))
        self.environment = self._environments.index(dict(environment))

    def missing(self, again: bool = False) -> list[Key]:
        """What has no row yet; with `again`, or one that failed."""
        return [k for k in self._plan if k not in self.rows or (again and "failed" in self.rows[k])]

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Keep a row, on the disk before this returns."""
        self.rows[key] = {**key._asdict(), **row, "environment": self.environment}
        self.write()

    def write(self) -> None:
        """The whole file, by a rename."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(f".{os.getpid()}.part")
        part.write_text(self.text())
        part.replace(self._file)

    def text(self) -> str:
        """The content of the file."""
        order = {k: n for n, k in enumerate(self._plan)}
        keys = sorted(self.rows, key=lambda k: (order.get(k, len(order)), k))
        missing = [str(k) for k in self.missing()]
        return as_json(
            {"environments": self._environments, "rows": [self.rows[k] for k in keys], "not measured": missing}
        )
