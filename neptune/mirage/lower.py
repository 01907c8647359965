"""From a µGraph to what the compiler takes: a template that brings its own definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neptune.base.boundary import public
from neptune.errors import NeptuneError, unless_refused
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, Stmt, for_loops, paths, seq, stages
from neptune.mirage.ir import Graph, Kernel
from neptune.mirage.lowering.definitions import Definitions, definitions
from neptune.mirage.lowering.rewriting import ordered, relaid
from neptune.mirage.lowering.roundings import rounded
from neptune.mirage.lowering.safe import safe as make_safe
from neptune.mirage.lowering.safe import unsafe
from neptune.mirage.lowering.schedule import Place, scheduled
from neptune.schedule.state import Decision
from neptune.schedule.template import Rewriting


@dataclass(frozen=True)
class Lowered:
    """A graph as definitions of the user's program, and the template that schedules these."""

    definitions: Program
    template: Rewriting
    decisions: tuple[Decision, ...]


@public
def lowered(
    graph: Graph, program: Program, safe: bool = True, orders: Mapping[str, tuple[str, ...]] | None = None
) -> Lowered:
    """A graph of `program` as what `neptune.compile(program, template=lowered(…).template)` takes.

    `orders`: the axes of tensors between kernels in the order in which they are stored, where that is another one.
    Raises FusionError, naming node and axis, where a tile's part of a fold is used as the whole.
    """
    return unless_refused(lowered_or_why(graph, program, safe, orders))


def lowered_or_why(
    graph: Graph, program: Program, safe: bool = True, orders: Mapping[str, tuple[str, ...]] | None = None
) -> Lowered | NeptuneError:
    """What `lowered` gives, or why it refuses the graph."""
    written = _written(graph, program, safe, orders or {})
    if isinstance(written, NeptuneError):
        return written
    text = "\n".join([repr(graph), f"safe={safe}", repr(sorted((orders or {}).items()))])
    definitions, places = written
    return _lowered(graph.name, definitions.program, places, text, definitions.decisions)


def _written(
    graph: Graph, program: Program, safe: bool, orders: Mapping[str, tuple[str, ...]]
) -> tuple[Definitions, tuple[Place, ...]] | NeptuneError:
    """The definitions of a graph and what each of its steps computes, or why it is refused."""
    algebra = definitions(graph, program)
    if isinstance(algebra, NeptuneError):
        return algebra
    algebra = make_safe(algebra) if safe else unsafe(algebra)
    algebra = relaid(rounded(algebra, program), orders)
    inside = _inside(graph, algebra)
    algebra = ordered(algebra, inside)
    return algebra, _places(graph, algebra, inside)


def _lowered(name: str, program: Program, places: Sequence[Place], text: str, notes: tuple[Decision, ...]) -> Lowered:
    def schedule(sch: Schedule) -> None:
        scheduled(sch, places)

    return Lowered(program, Rewriting(name, schedule, rewritten=program, text=text, notes=notes), notes)


def joined(
    program: Program, parts: Sequence[tuple[Program, Graph | None]], safe: bool = True
) -> Lowered | NeptuneError:
    """Parts of a program, in order, as one template of it: each by its graph, whose names are its own, or (None) with a
    kernel for each stage; else why a graph is refused, as by `lowered`."""
    bodies: list[Stmt] = []
    temporaries = {b.name: b for p, _ in parts for b in (*p.inputs, *p.outputs)}
    places: list[Place] = []
    notes: list[Decision] = []
    for number, (part, graph) in enumerate(parts):
        if graph is None:
            bodies.append(part.body)
            temporaries |= {b.name: b for b in part.temporaries}
            places.append(Place(f"p{number}", (), None, tuple(s.name for s in stages(part.body)), ()))
            continue
        written = _written(graph, part, safe, {})
        if isinstance(written, NeptuneError):
            return written
        algebra, own = written
        bodies.append(algebra.program.body)
        temporaries |= {b.name: b for b in algebra.program.temporaries}
        places += own
        notes += algebra.decisions
    outer = {b.name for b in (*program.inputs, *program.outputs)}
    kept = tuple(b for b in temporaries.values() if b.name not in outer)
    together = replace(program, temporaries=kept, tunables=(), owes=(), body=seq(*bodies))
    text = "\n".join([*(repr(g) for _, g in parts), f"safe={safe}"])
    return _lowered(f"{program.name}_parts", together, places, text, tuple(notes))


def _inside(graph: Graph, algebra: Definitions) -> frozenset[str]:
    """The stages that change in the loop of their kernel.

    What is folded in full for a tile's part is there behind the loop only.
    """
    loops = {k: algebra.axes[s.loop] for k, s in enumerate(graph.steps) if isinstance(s, Kernel) and s.loop}
    along = {s.name: {f.var for f in for_loops(path)} for path, s in paths(algebra.program.body)}
    return frozenset(n for n, h in algebra.placement.items() if h.loop and loops.get(h.step) in along[n])


def _places(graph: Graph, algebra: Definitions, changing: frozenset[str]) -> tuple[Place, ...]:
    """What each step of a graph computes, in order."""
    places: list[Place] = []
    sizes = frozenset(graph.axes.values())
    parted: dict[str, int] = {}
    for k, step in enumerate(graph.steps):
        own = tuple(s for s, h in algebra.placement.items() if h.step == k)
        looped = algebra.axes[step.loop] if isinstance(step, Kernel) and step.loop else ""
        inside = tuple(s for s in own if s in changing)
        if not isinstance(step, Kernel):
            places.append(Place(step.name, (), None, own, inside, sizes))
            continue
        combined = tuple(dict.fromkeys(parted[load.tensor] for load in step.loads if load.tensor in parted))
        split = algebra.split.get(k, "")
        grid = tuple(a for a in (algebra.axes[a] for a in step.grid) if a != split)
        loop = split or looped or None
        places.append(Place(step.name, grid, loop, own, inside if step.loop else own, sizes, split, combined))
        if split:
            parted |= {s.name: len(places) - 1 for s in step.saves}
    return tuple(places)
