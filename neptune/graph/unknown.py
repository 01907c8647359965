"""Why a node of a graph is not Neptune's: what the importer raises, and reports show. Users never see it raised."""

from __future__ import annotations


class Unknown(Exception):
    """A node, or what it is asked for, that no Program says. `str()` is the reason, in the words of a report."""
