"""Why a node of a graph is not Neptune's: what the importer raises, and reports show. Users never see it raised."""

from __future__ import annotations

from typing import Any


class Unknown(Exception):
    """A node, or what it is asked for, that no Program says. `str()` is the reason, in the words of a report; `node`:
    the one that is a boundary for it, where it is one's own."""

    node: Any = None
