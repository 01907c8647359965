"""The words of the asynchronous form: its levers, and what explain() says of it and of the verdict on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neptune.ir.analysis.forms import INSTRUCTIONS
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.data import ASYNCHRONOUS

LEVERS: Mapping[str, tuple[Any, ...]] = {
    "consumers": (2, 3),
    "stages": (2, 3, 4, 5, 6),
    "persistent": ("once", "stride", "table", "reverse"),
    "own_out": (True, False),
    "ahead": (False, True),
}
"""The levers that a caller may settle, and their values."""
CHOSEN = ("consumers", "stages", "persistent")
PERSISTENT = {
    "once": "a program each",
    "reverse": "a program each, the last rows first",
    "stride": "each program takes every so many",
    "table": "shared out by the host, the longest first to the program that is free first",
}


def kernels_of(e: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The facts of an explanation about each asynchronous kernel; one from before there could be several has one."""
    return list(e["kernels"]) if "kernels" in e else [e]


def verdict_lines(v: Mapping[str, Any] | None) -> Iterator[str]:
    """Lines of the verdict with its figures."""
    if v is None or v["faults"] == [accepted.NOT_COMPARED]:
        yield "verdict: none yet; it is made where there is a GPU for it"
        return
    summary = "accepted" if not v["faults"] else "runs since it was asked for" if v["runs"] else "the Triton form runs"
    yield f"verdict: {'; '.join([summary, *v['faults']])}"
    if c := v["compared"]:
        yield f"  results differ from those of the Triton form by {c['error']:.2g} at most, {c['limit']:.2g} may be"
    if t := v["timed"]:
        place = " ".join((t["device"] or "a GPU", "at", ", ".join(f"{n}={x}" for n, x in t["sizes"].items())))
        yield f"  {place}: {_range(t[ASYNCHRONOUS])}, Triton form {_range(t['triton'])}"


def _range(quartiles: Sequence[float]) -> str:
    lower, middle, upper = quartiles
    return f"{middle:.1f} µs ({lower:.1f} to {upper:.1f})"


def lines(e: Mapping[str, Any]) -> Iterator[str]:
    """The section of an explanation that speaks of this form."""
    kernels, left, protocol = kernels_of(e), e.get("triton", ()), e["protocol"]
    if len(kernels) == 1 and not left:
        yield f"asynchronous form for {e['architecture']}: {_said(kernels[0])}"
        yield from (f"  {line}" for line in _lines_of(kernels[0]))
    else:
        yield f"asynchronous form for {e['architecture']}, of {len(kernels)} of {len(kernels) + len(left)} kernels"
        for kernel in kernels:
            yield f"  {kernel['name']}: {_said(kernel)}"
            yield from (f"    {line}" for line in _lines_of(kernel))
        yield from (f"  {k['name']} stays on tiles: {k['why']}" for k in left)
    yield f"  protocol: in step for all interleavings, {protocol['programs']} programs, {protocol['actions']} actions"
    yield from (f"  {line}" for line in verdict_lines(e.get("verdict")))
    on = ", ".join(e["aligned"])
    yield f"  runs once it is accepted, with {on} on 16 bytes, addresses and rows; else the Triton form does"


def _said(e: Mapping[str, Any]) -> str:
    """A kernel's roles and tiles."""
    levers = e["levers"]
    tiles = ", ".join(f"{n}={v}" for n, v in levers.items() if n not in CHOSEN)
    return f"{levers['consumers']} consumers and a producer, {tiles}"


def _lines_of(e: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a kernel: what is in shared memory, what runs late, who gets which groups, what it takes."""
    registers = e["registers"]
    for t in e["tiles"]:
        whose = "one for each consumer" if t["own"] else "shared"
        stages = f"{t['stages']} stage{'' if t['stages'] == 1 else 's'}"
        yield f"{t['name']}: through shared memory, {whose}, {stages}"
    for name in e["late"]:
        yield f"{name}: its product is issued one iteration late, and runs under what makes the next operand"
    for name in e["carried"]:
        yield f"{name}: its product is in flight until the next iteration's is issued"
    for name in e.get("short", ()):
        off = INSTRUCTIONS["tanh"]
        yield f"{name}: tanh by one instruction, off by {off:.0e} at most: casts to 16 bits move results as far"
    yield from e["kept"]
    band = f", in bands of {e['band']}" if e["band"] else ""
    yield f"groups of rows: {PERSISTENT[e['levers']['persistent']]}{band}"
    split = f"{registers['consumer']} of a consumer's thread (about {registers['estimate']} in use)"
    if times := e.get("predicted"):
        yield f"predicted, without the launch: {times['us']:.1f} µs, and {times['triton']:.1f} µs in the Triton form"
    yield f"{e['shared_bytes']} bytes of shared memory; registers: {split}, {registers['producer']} of the producer's"
