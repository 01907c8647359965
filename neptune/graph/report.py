"""What became of every node of a graph, as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neptune.graph.choose import Judged


@dataclass(frozen=True)
class Report:
    """One graph: the regions with what became of them, why other nodes are in none; `whole`: why no region was looked
    for; `nodes`: names in the order of the graph."""

    choices: tuple[Judged, ...]
    reasons: Mapping[str, str]
    whole: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def taken(self) -> tuple[Judged, ...]:
        """The regions that Neptune has."""
        return tuple(c for c in self.choices if c.taken)

    def json(self) -> dict[str, Any]:
        """Plain values for files."""
        return {
            "whole": self.whole,
            "regions": [_choice_json(c) for c in self.choices],
            "left": dict(self.reasons),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.whole:
            yield self.whole
            return
        taken = self.taken
        yield f"{len(self.nodes)} nodes, {len(self.choices)} regions, {len(taken)} of them Neptune's"
        inside: dict[str, str] = {}
        for k, c in enumerate(self.choices):
            yield ""
            yield from _region_lines(k, c)
            for n in c.region.nodes:
                word = "kernel" if c.taken else "left: Inductor's, region"
                inside.setdefault(n.name, f"{word} {k} {c.region.name}")
        yield ""
        yield "nodes"
        for name in self.nodes:
            yield f"  {name:<28} {inside.get(name) or 'Inductor: ' + self.reasons.get(name, 'no chain of reductions')}"


def _choice_json(c: Judged) -> dict[str, Any]:
    facts = None if c.kernel is None else c.kernel.facts
    return {
        "name": c.region.name,
        "nodes": [n.name for n in c.region.nodes],
        "taken": c.taken,
        "why": c.why,
        "predicted_us": c.predicted,
        "bound_us": None if c.bound is None else round(c.bound.us, 2),
        "inductor_launches": None if c.bound is None else c.bound.launches,
        "template": None if c.kernel is None else c.kernel.executable.artifact.template,
        "kernels": None if facts is None else len(facts.kernels),
        "temporaries": None if facts is None else list(facts.temporaries),
        "dropped": [] if c.made is None else list(c.made.dropped),
    }


def _region_lines(k: int, c: Judged) -> Iterator[str]:
    yield f"region {k} {c.region.name}: {'Neptune' if c.taken else 'Inductor'}, {c.why}"
    if c.predicted is not None:
        yield f"  predicted for Neptune's kernel: {c.predicted:.1f} µs"
    if c.bound is not None:
        b = c.bound
        parts = f"products {b.products:.1f}, other kernels {b.others:.1f}, {b.launches} launches"
        yield f"  at least, for Inductor's: {b.us:.1f} µs ({parts})"
    if c.kernel is not None:
        facts = c.kernel.facts
        words = ", ".join(facts.temporaries) or "none"
        yield f"  template {c.kernel.executable.artifact.template}: {len(facts.kernels)} kernels, temporaries: {words}"
    if c.made is not None and c.made.dropped:
        yield "  not rounded on the way, as in one kernel of Inductor's:"
        yield from (f"    {d}" for d in c.made.dropped)
