"""What searches for graphs came to, kept as records: of whole programs, and of the parts of a larger one.

    keep(program, sizes, graph, seconds)  ──▶  a line: structure, device, bucket of sizes, bounds, graph, numbers
    known(program, sizes, seconds)        ◀──  the last one of as much time, or of a search that ended

Buffers have the names of their places there (`renamed.placed`), so that a graph of one program is one of every program
of its structure. Whoever takes a graph verifies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.errors import NeptuneError, or_refusal
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.parser import parse_graph
from neptune.mirage.printer import print_graph
from neptune.mirage.renamed import named, placed
from neptune.records.record import Discovery, bucket_of, structure_of
from neptune.records.store import Store
from neptune.versions import versions


@dataclass(frozen=True)
class Discoveries:
    """The searches with some bounds for a device. Without a store, or one in no folder, nothing is known or kept."""

    store: Store | None
    device: str
    bounds: Mapping[str, int]

    def known(
        self, program: Program, sizes: Mapping[str, int], seconds: float, timed: bool = False
    ) -> Discovery | None:
        """The last search of an equal program, in the same bucket of sizes, that ended or had as many seconds.

        With `timed` only one whose graphs were timed on the device.
        """
        if self.store is None:
            return None
        for d in reversed(self.store.discoveries(structure_of(program), self.device)):
            enough = d.numbers.get("exhausted") or d.numbers.get("milliseconds_given", 0) >= int(1e3 * seconds)
            as_asked = d.sizes == bucket_of(sizes) and d.params == self.bounds
            if as_asked and enough and (d.numbers.get("timed") or not timed):
                return d
        return None

    def keep(
        self,
        program: Program,
        sizes: Mapping[str, int],
        graph: Graph | None,
        seconds: float,
        exhausted: bool,
        numbers: Mapping[str, int],
    ) -> None:
        """Keep what a search of so many seconds came to; None where it found nothing better."""
        if self.store is None or self.store.root is None:
            return
        text = "" if graph is None else print_graph(placed(graph, program))
        numbers = {**numbers, "exhausted": exhausted + 0, "milliseconds_given": int(1e3 * seconds)}
        discovery = Discovery(
            structure=structure_of(program),
            device=self.device,
            sizes=bucket_of(sizes),
            params=self.bounds,
            graph=text,
            versions=versions(),
            numbers=numbers,
            name=program.name,
        )
        self.store.append(discovery)


def graph_of(known: Discovery, program: Program) -> Graph | None:
    """The graph of a record for this program; None where it has none, or one that cannot be read."""
    graph = or_refusal(lambda: named(parse_graph(known.graph), program)) if known.graph else None
    return None if isinstance(graph, NeptuneError) else graph
