"""What a search for graphs came to, as explain() says it and as a kernel keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neptune.mirage.ir import Graph
from neptune.mirage.parser import parse_graph

ENTRY = "search"
"""The entry of an explanation."""
SHOWN = 3
"""Refused graphs that are named."""


@dataclass(frozen=True)
class Way:
    """A way to compute the program: the template of that name, or the graph, with the microseconds predicted (None
    where the model says nothing), and `measured`, where the GPU is at hand."""

    name: str
    us: float | None
    measured: float | None = None

    def __str__(self) -> str:
        timed = "" if self.measured is None else f" (measured {self.measured:.1f} µs)"
        return f"{self.name} {'not predicted' if self.us is None else f'{self.us:.1f} µs'}{timed}"

    def json(self) -> dict[str, Any]:
        """Plain values; `measured` where there is one."""
        timed = {} if self.measured is None else {"measured": self.measured}
        return {"name": self.name, "us": self.us, **timed}


@dataclass(frozen=True)
class Tier:
    """What one tier of the verifier says of the graph: how, with which draws and seeds, and the bound, in words."""

    name: str
    verdict: str


@dataclass(frozen=True)
class Report:
    """A search and its result. `graph`: as text, "" where the kernel is the template's, and `why` says why.

    `algebra`: the definitions that the graph computes. `refused`: better estimates of which no kernel came. `numbers`:
    states, tries, verified graphs, milliseconds, and what was pruned. `exhausted`: all within the bounds was looked at.
    `took`: seconds of each step of the call, in order.
    """

    graph: str
    why: str
    template: Way
    found: Way | None = None
    algebra: Sequence[str] = ()
    tiers: Sequence[Tier] = ()
    refused: Sequence[str] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    exhausted: bool = False
    recorded: bool = False
    took: Sequence[tuple[str, float]] = ()

    def json(self) -> dict[str, Any]:
        """Plain values."""
        ways = {n: None if w is None else w.json() for n, w in self._ways()}
        return {
            "graph": self.graph,
            "why": self.why,
            **ways,
            "algebra": list(self.algebra),
            "tiers": [{"name": t.name, "verdict": t.verdict} for t in self.tiers],
            "refused": list(self.refused),
            "numbers": dict(self.numbers),
            "bounds": dict(self.bounds),
            "exhausted": self.exhausted,
            "recorded": self.recorded,
            "took": [{"step": step, "seconds": seconds} for step, seconds in self.took],
        }

    def _ways(self) -> Iterable[tuple[str, Way | None]]:
        return (("template", self.template), ("found", self.found))


def graph_of(explanation: Mapping[str, Any]) -> Graph | None:
    """The graph that an explanation has, if it has one."""
    text = explanation.get(ENTRY, {}).get("graph")
    return parse_graph(text) if text else None


def lines(entry: Mapping[str, Any] | None) -> Iterator[str]:
    """The section of an explanation, from what `Report.json` gave."""
    if entry is None:
        return
    yield from ("", "graph: " + entry["why"])
    ways = [Way(**w) for w in (entry["found"], entry["template"]) if w is not None]
    yield f"  predicted: {', '.join(map(str, ways))}"
    yield from (f"  {line}" for line in entry["graph"].splitlines())
    yield from _listed("  algebra", entry["algebra"])
    yield from _listed("  verified", [f"{t['name']}: {t['verdict']}" for t in entry["tiers"]])
    yield from _listed("  estimated to be faster, and refused", entry["refused"][:SHOWN])
    yield f"  searched: {_numbers(entry)}"
    # What an earlier version has kept says nothing of it.
    steps = [f"{t['step']} in {t['seconds']:.1f} s" for t in entry.get("took", ())]
    if steps:
        yield f"  took: {'; '.join(steps)}"


def _listed(heading: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield heading
        yield from (f"    {text}" for text in texts)


def _numbers(entry: Mapping[str, Any]) -> str:
    if entry["recorded"]:
        return "nothing, since a record has the graph"
    counts = [f"{n} {name.replace('_', ' ')}" for name, n in entry["numbers"].items() if name != "milliseconds"]
    bounds = ", ".join(f"{name}={n}" for name, n in entry["bounds"].items())
    end = "everything" if entry["exhausted"] else "not everything"
    took = f"{entry['numbers'].get('milliseconds', 0) / 1e3:.1f} s"
    return f"{', '.join(counts) or 'nothing'} in {took}; {end} within {bounds or 'its bounds'}"
