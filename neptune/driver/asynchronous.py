"""The asynchronous form of a kernel, where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neptune.errors import TargetError
from neptune.runtime import accepted
from neptune.runtime.addressing import ASYNCHRONOUS, Asynchronous
from neptune.runtime.launch import Target
from neptune.tile.ir import TileProgram

if TYPE_CHECKING:
    from neptune.hopper.derive import Derived

AUTO = "auto"
"""The asynchronous form where a kernel has one, without an error where it has none."""
FORMS = ("triton", ASYNCHRONOUS, AUTO)
ARCHITECTURE = "90"
ENTRY = "asynchronous"
"""Of an explanation."""
CHOSEN = ("consumers", "stages", "persistent")
PERSISTENT = {
    "once": "a program each",
    "stride": "each program takes every so many",
    "table": "shared out by the host, the longest first to the program that is free first",
}


def checked_form(form: str | None, target: Target) -> str | None:
    """The form to make for a target: "auto" is none where the target has no other. TargetError for a form that is none,
    or that the target does not have."""
    if form is not None and form not in FORMS:
        raise TargetError(f"compile with form={form!r}", "there is no such form", legal=FORMS)
    here = target.kind == "cuda" and target.arch in ("", ARCHITECTURE)
    if form == ASYNCHRONOUS and not here:
        raise TargetError(
            f"compile for {target} with form={form!r}",
            "one warp that loads for warpgroups that compute is a form of sm_90",
            legal=(f"cuda:{ARCHITECTURE}", "cuda"),
            hint="form=None, which runs everywhere",
        )
    return form if here else None


def asynchronous_of(
    tiles: TileProgram, header: str, shapes: Mapping[str, int], differs: Callable[[TileProgram], str | None]
) -> Derived:
    """The asynchronous form of a TileProgram; TargetError with the reason where it has none. `differs` says how a tile
    program differs from the expression, if it does."""
    from neptune.hopper.derive import derived
    from neptune.hopper.refusal import Refusal

    try:
        # Compiled here, too, where no GPU is: the form is the same on all machines, and a saved one runs on another.
        return derived(tiles, header, shapes, differs, _broken)
    except Refusal as error:
        hint = error.hint or "form=None, which runs"
        asked = f"compile `{tiles.name}` with form={ASYNCHRONOUS!r}"
        raise TargetError(asked, str(error), legal=error.legal, hint=hint) from None


def _broken(form: Derived) -> bool:
    """True where the machine code of a form spills, or is refused otherwise: its verdict is kept for later."""
    from neptune.hopper.accept import judged

    try:
        found = judged(form.plain(), form.kernel.levers.registers, protocol=lambda: accepted.CLEAN)
    except TargetError:
        return True
    return found is not None and any(why != accepted.NOT_COMPARED for why in found.faults)


def with_verdict_said(e: dict[str, Any], of: Asynchronous | None) -> dict[str, Any]:
    """An explanation with what is known of the asynchronous form by now."""
    if of is None or ENTRY not in e:
        return e
    return {**e, ENTRY: {**e[ENTRY], "verdict": _verdict(of)}}


def _verdict(of: Asynchronous) -> dict[str, Any] | None:
    """The verdict as plain data; None where there is none, or one of something else."""
    found = None if of.record is None else accepted.read(of.record)
    if found is None or found.key != accepted.key_of(of):
        return None
    figures = {name: written for name, written in asdict(found).items() if name in ("compared", "timed")}
    return {"runs": accepted.runs(of), "forced": of.forced, "faults": list(found.faults), **figures}


def verdict_lines(v: Mapping[str, Any] | None) -> Iterator[str]:
    """What the verdict is, with its figures."""
    if v is None or v["faults"] == [accepted.NOT_COMPARED]:
        yield "verdict: none yet; it is made where there is a GPU for it"
        return
    said = "accepted" if not v["faults"] else "runs since it was asked for" if v["runs"] else "the Triton form runs"
    yield f"verdict: {'; '.join([said, *v['faults']])}"
    if c := v["compared"]:
        yield f"  results differ from those of the Triton form by {c['error']:.2g} at most, {c['limit']:.2g} may be"
    if t := v["timed"]:
        at = " ".join((t["device"] or "a GPU", "at", ", ".join(f"{n}={x}" for n, x in t["sizes"].items())))
        yield f"  {at}: {_range(t[ASYNCHRONOUS])}, Triton form {_range(t['triton'])}"


def _range(quartiles: Sequence[float]) -> str:
    lower, middle, upper = quartiles
    return f"{middle:.1f} µs ({lower:.1f} to {upper:.1f})"


def lines(e: Mapping[str, Any] | None) -> Iterator[str]:
    """The section of an explanation that speaks of the asynchronous form."""
    if e is None:
        return
    levers, registers, protocol = e["levers"], e["registers"], e["protocol"]
    tiles = ", ".join(f"{n}={v}" for n, v in levers.items() if n not in CHOSEN)
    yield from (
        "",
        f"asynchronous form for {e['architecture']}: {levers['consumers']} consumers and a producer, {tiles}",
    )
    for t in e["tiles"]:
        whose = "one for each consumer" if t["own"] else "shared"
        stages = f"{t['stages']} stage{'' if t['stages'] == 1 else 's'}"
        yield f"  {t['name']}: through shared memory, {whose}, {stages}"
    for name in e["late"]:
        yield f"  {name}: its product is issued one iteration late, and runs under what makes the next operand"
    yield from (f"  {why}" for why in e["kept"])
    yield f"  groups of rows: {PERSISTENT[levers['persistent']]}"
    split = f"{registers['consumer']} of a consumer's thread (about {registers['estimate']} in use)"
    yield f"  {e['shared_bytes']} bytes of shared memory; registers: {split}, {registers['producer']} of the producer's"
    yield f"  protocol: in step for all interleavings, {protocol['programs']} programs, {protocol['actions']} actions"
    yield from (f"  {line}" for line in verdict_lines(e.get("verdict")))
    on = ", ".join(e["aligned"])
    yield f"  runs once it is accepted, with {on} on 16 bytes, addresses and rows; else the Triton form does"
