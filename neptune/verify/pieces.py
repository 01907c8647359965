"""Exact checks of large programs, in pieces: both are cut where the same buffer lies in global memory.

    original    x ─ a ─ b ─ c ─ y          x ─ a ─ b        b ─ c ─ y
    transformed x ─[k0]─ b ─[k1]─ y    →   x ─[k0]─ b   ,   b ─[k1]─ y

A *joint* is a global buffer that both programs have under one name, of one shape and dtype. A piece is a run of kernels
(of a loop program: of nests) between which nothing but joints is handed on, beside the slice of the original that
makes the same joints of what the piece reads. If every piece makes of any inputs what its slice does, the programs are
equal: by induction over the pieces, each reads what the original has there, so it writes that, too. A piece is given
more than what occurs in the whole, so that it may differ where the whole does not, as where a buffer of one name holds
something else; then the programs are compared as a whole.

The work of a check grows faster than the program: a draw evaluates all of it, and draws go on until each kernel's
cases have occurred. A piece has few cases, and sizes of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import Expr, loads, variables, walk
from neptune.ir.program import Alloc, Buffer, For, Program, Scalar, Stmt, Tunable, nests, seq, stages, written
from neptune.ir.program import walk as walk_stmt
from neptune.tile.ir import LoadTile, Loop, StoreTile, TileKernel, TileProgram, bound_exprs, stmt_exprs, walk_stmts
from neptune.tile.ir import Scalar as TileScalar
from neptune.verify.draws import Shared
from neptune.verify.exact import ExactReport, exact_report
from neptune.verify.instances import AnyProgram

LARGE = 12
"""Programs of more stages are checked in pieces: a whole attention is more telling than its halves, and quick."""


def check(
    original: Program,
    transformed: AnyProgram,
    *,
    ranges: Sequence[RangePredicate] = (),
    shared: list[Shared] | None = None,
    **options: Any,
) -> ExactReport | EvaluationError:
    """`exact_report`, in pieces where the original is large; as a whole where a piece is not accepted."""
    if len(stages(original.body)) > LARGE:
        reports: list[ExactReport] = []
        for mine, theirs in pieces(original, transformed):
            known = {b.name for b in mine.globals.values()}
            held = [r for r in ranges if r.buffers <= known]
            report = exact_report(mine, theirs, ranges=held, shared=shared, **options)
            if isinstance(report, EvaluationError):
                reports = []
                break
            reports.append(report)
            if not report.accepted:
                break
        if len(reports) > 1 and all(r.accepted for r in reports):
            return _together(reports)
    return exact_report(original, transformed, ranges=ranges, shared=shared, **options)


def _together(reports: Sequence[ExactReport]) -> ExactReport:
    """The report of a check of which all pieces were accepted."""
    draws, seeds = sum(r.draws for r in reports), tuple(dict.fromkeys(s for r in reports for s in r.seeds))
    notes = dict.fromkeys(n for r in reports for n in r.notes if n == "large constants were made small")
    return ExactReport(
        " and ".join(dict.fromkeys(r.model for r in reports)),
        draws,
        seeds,
        tuple(s for r in reports for s in r.sizes),
        "accepted",
        sum(r.compared for r in reports),
        None,
        f"{draws} draws, no bound",
        (f"in {len(reports)} pieces, cut at buffers that both programs have", *notes),
    )


# --- where to cut ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """A kernel or a nest: the global buffers that it reads and writes, and the names in its expressions."""

    code: Stmt | TileKernel
    reads: frozenset[str]
    writes: frozenset[str]
    names: frozenset[str]


def pieces(original: Program, transformed: AnyProgram) -> list[tuple[Program, AnyProgram]]:
    """Slices of the original, each with the piece of the transformed program that has to compute the same.

    Inputs and outputs of both have the same names. Empty where there are fewer than two.
    """
    if [b.name for b in original.outputs] != [b.name for b in transformed.outputs]:
        return []
    units, own = _units(transformed), _units(original)
    theirs = original.globals
    joints = {n for n, b in transformed.globals.items() if theirs.get(n) == b} - {b.name for b in original.inputs}
    runs = list(_runs(units, joints))
    outputs = {b.name for b in original.outputs}
    pairs: list[tuple[Program, AnyProgram]] = []
    for k, run in enumerate(runs):
        later = {n for other in runs[k + 1 :] for u in other for n in u.reads}
        written = frozenset[str]().union(*(u.writes for u in run))
        read = frozenset[str]().union(*(u.reads for u in run)) - written
        slice_ = _slice(own, (written & later) | (written & outputs), read)
        if slice_ is None:
            return []
        kept = {n: theirs[n] for n in theirs if n in written and n in later | outputs}
        given = read | (frozenset[str]().union(*(u.reads for u in slice_)) & {b.name for b in original.inputs})
        inputs = tuple(b for b in theirs.values() if b.name in given)
        if not kept or len(inputs) < len(read):
            return []
        sides = (_piece(p, us, inputs, tuple(kept.values())) for p, us in ((original, slice_), (transformed, run)))
        mine, piece = sides
        assert isinstance(mine, Program)
        pairs.append((mine, piece))
    return pairs if len(pairs) > 1 else []


def _runs(units: Sequence[_Unit], joints: set[str]) -> Iterator[list[_Unit]]:
    """The units in runs: between two of them a buffer is handed on only if it is a joint and complete."""
    written = {n for u in units for n in u.writes}
    last_write = {n: max(k for k, u in enumerate(units) if n in u.writes) for n in written}
    touched = {n: [k for k, u in enumerate(units) if n in u.writes | u.reads] for n in written}
    # A buffer ties the units from its first one to its last one; a joint those to its last write.
    ties = [(min(places), last_write[n] if n in joints else max(places)) for n, places in touched.items()]
    run: list[_Unit] = []
    for k, unit in enumerate(units):
        run.append(unit)
        if not any(a <= k < b for a, b in ties):
            yield run
            run = []


def _slice(units: Sequence[_Unit], wanted: Iterable[str], given: frozenset[str]) -> list[_Unit] | None:
    """The units that make what is wanted of what is given; None where one of them makes what is given."""
    needed, chosen = set(wanted), []
    for unit in reversed(units):
        if unit.writes & needed:
            chosen.append(unit)
            needed |= unit.reads - given
    return None if any(u.writes & given for u in chosen) else chosen[::-1]


# --- programs and their parts ----------------------------------------------------------------------


def _units(program: AnyProgram) -> list[_Unit]:
    known = frozenset(program.globals)
    if isinstance(program, TileProgram):
        return [_of_kernel(k, known) for k in program.kernels]
    return [_of_nest(s, known) for s in nests(program.body)]


def _of_nest(nest: Stmt, known: frozenset[str]) -> _Unit:
    exprs = [e for s in walk_stmt(nest) for e in statement_exprs(s)]
    inner = [e for s in walk_stmt(nest) for e in (s.facts if isinstance(s, For) else ())]
    inner += [d for s in walk_stmt(nest) if isinstance(s, Alloc) for d in s.buffer.shape]
    return _unit(nest, [*exprs, *inner], (), written(nest), known)


def _of_kernel(kernel: TileKernel, known: frozenset[str]) -> _Unit:
    body = list(walk_stmts(kernel.body))
    nodes = [x for s in body for e in stmt_exprs(s) for x in walk(e)]
    exprs = [g.extent for g in kernel.grid] + [e for _, e in kernel.axes]
    exprs += [e for s in body for e in (*bound_exprs(s), *(s.facts if isinstance(s, Loop) else ()))]
    exprs += [x.expr for x in nodes if isinstance(x, TileScalar)]
    loaded = [x.buffer for x in nodes if isinstance(x, LoadTile)]
    return _unit(kernel, exprs, loaded, {s.buffer for s in body if isinstance(s, StoreTile)}, known)


def _unit(
    code: Stmt | TileKernel, exprs: Sequence[Expr], loaded: Sequence[str], written: Iterable[str], known: frozenset[str]
) -> _Unit:
    read = {x.buffer for e in exprs for x in loads(e)} | {*loaded}
    names = frozenset[str]().union(*map(variables, exprs))
    return _Unit(code, known & read, known & frozenset(written), names)


def _piece(
    program: AnyProgram, units: Sequence[_Unit], inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]
) -> AnyProgram:
    """The program of some of its units, between these buffers."""
    outer = {b.name for b in (*inputs, *outputs)}
    touched = frozenset[str]().union(*(u.reads | u.writes for u in units)) - outer
    temporaries = tuple(b for b in program.globals.values() if b.name in touched)
    names = frozenset[str]().union(*(u.names for u in units))
    names |= {v for b in (*inputs, *outputs, *temporaries) for d in b.shape for v in variables(d)}
    scalars, tunables = _used(program.scalars, program.tunables, names)
    between: Mapping[str, Any] = {"inputs": inputs, "outputs": outputs, "temporaries": temporaries}
    between = {**between, "scalars": scalars, "tunables": tunables}
    if isinstance(program, TileProgram):
        return replace(program, kernels=tuple(u.code for u in units if isinstance(u.code, TileKernel)), **between)
    return replace(program, body=seq(*(u.code for u in units if not isinstance(u.code, TileKernel))), **between)


def _used(
    scalars: Sequence[Scalar], tunables: Sequence[Tunable], names: frozenset[str]
) -> tuple[tuple[Scalar, ...], tuple[Tunable, ...]]:
    """The scalars and tunables of these names, and what they are bounded by."""
    values = tuple(t for t in tunables if t.name in names)
    names |= {v for t in values if t.covers is not None for v in variables(t.covers)}
    names |= {v for s in scalars if s.name in names and s.upto is not None for v in variables(s.upto)}
    return tuple(s for s in scalars if s.name in names), values
