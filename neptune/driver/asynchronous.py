"""The asynchronous form of a kernel, where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neptune.errors import TargetError
from neptune.ir.forms import INSTRUCTIONS
from neptune.runtime import accepted
from neptune.runtime.addressing import ASYNCHRONOUS, Asynchronous
from neptune.runtime.launch import Target, gpu_target

if TYPE_CHECKING:
    from neptune.hopper.derive import Derived, Draft
    from neptune.hopper.wanted import Wanted
    from neptune.tile.ir import TileProgram

AUTO = "auto"
"""The asynchronous form where a kernel has one, without an error where it has none."""
TRITON = "triton"
"""Tiles alone."""
FORMS = (TRITON, ASYNCHRONOUS, AUTO)
ARCHITECTURE = "90"
ENTRY = "asynchronous"
"""Of an explanation."""
CHOSEN = ("consumers", "stages", "persistent")
LEVERS: Mapping[str, tuple[Any, ...]] = {
    "consumers": (2, 3),
    "stages": (2, 3, 4, 5, 6),
    "persistent": ("once", "stride", "table"),
    "own_out": (True, False),
    "ahead": (False, True),
}
"""What a caller may settle, and its values."""
PERSISTENT = {
    "once": "a program each",
    "stride": "each program takes every so many",
    "table": "shared out by the host, the longest first to the program that is free first",
}


def form_for(form: str | None, target: Target, usual: str | None, promised: bool) -> str | None:
    """The form to make where a caller says `form`: "auto" by default where the GPU here has the asynchronous form, else
    tiles alone. `usual` is what settings say instead. Where something is `promised` of bits a form that is taken for
    its speed is no default: both forms round differently."""
    here = target.kind == "cuda" and str(gpu_target()) == f"cuda:{ARCHITECTURE}" and not promised
    return checked_form(form or usual or (AUTO if here else None), target)


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
            hint='form="triton", which runs everywhere',
        )
    return form if here and form != TRITON else None


def asynchronous_of(
    tiles: TileProgram,
    header: str,
    shapes: Mapping[str, int],
    differs: Callable[[TileProgram], str | None],
    wanted: Wanted,
) -> Derived:
    """The asynchronous form of a TileProgram; TargetError with the reason where it has none. `differs` says how a tile
    program differs from the expression, if it does, `wanted` what the caller says of levers."""
    from neptune.hopper.derive import derived
    from neptune.hopper.refusal import Refusal

    try:
        # Compiled here, too, where no GPU is: the form is the same on all machines, and a saved one runs on another.
        return derived(tiles, header, shapes, differs, _broken, _begin, wanted)
    except Refusal as error:
        hint = error.hint or 'form="triton", which runs'
        asked = f"compile `{tiles.name}` with form={ASYNCHRONOUS!r}"
        raise TargetError(asked, str(error), legal=error.legal, hint=hint) from None


def _begin(form: Draft) -> None:
    from neptune.hopper.accept import begun

    begun(form.plain(), form.parts[0].kernel.levers.registers)


def _broken(form: Derived) -> dict[str, str]:
    """The kernels whose machine code spills, or is refused otherwise, and why; the verdict is kept for later."""
    from neptune.hopper.accept import judged

    names = [p.kernel.name for p in form.parts]
    try:
        found = judged(form.plain(), form.kernel.levers.registers, protocol=lambda: accepted.CLEAN)
    except TargetError as error:
        return dict.fromkeys(names, error.wrong)
    if found is None:
        return {}
    unfit = {n: "; ".join(f.unfit) for n, f in zip(names, (found, *found.others), strict=True) if f.unfit}
    # What is known from an earlier run is of the program.
    rest = "; ".join(why for why in found.faults if why != accepted.NOT_COMPARED)
    return unfit or (dict.fromkeys(names, rest) if rest else {})


def checked_levers(levers: Any, form: str | None) -> dict[str, int | str]:
    """The levers of a request; TargetError for one that there is not, for a value that it does not have, and where no
    asynchronous form was asked for."""
    asked = f"compile with levers={levers!r:.60}"
    if not isinstance(levers or {}, Mapping):
        raise TargetError(asked, "levers is a mapping of names to values", legal=tuple(LEVERS))
    if levers and form not in (ASYNCHRONOUS, AUTO):
        raise TargetError(
            asked, f"these are levers of the asynchronous form, and form is {form!r}", legal=(ASYNCHRONOUS,)
        )
    for name, value in (levers or {}).items():
        if name not in LEVERS:
            raise TargetError(asked, f"there is no lever {name!r}", legal=tuple(LEVERS))
        if not any(type(value) is type(v) and value == v for v in LEVERS[name]):
            raise TargetError(asked, f"{name} is not {value!r}", legal=tuple(map(str, LEVERS[name])))
    return dict(levers or {})


def kernels_of(e: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What an explanation says of each asynchronous kernel; one from before there could be several has one."""
    return list(e["kernels"]) if "kernels" in e else [e]


def with_verdict_said(e: dict[str, Any], of: Asynchronous | None) -> dict[str, Any]:
    """An explanation with what is known of the asynchronous form by now; without it on a target that has none."""
    if ENTRY not in e:
        return e
    if of is None:
        return {name: said for name, said in e.items() if name != ENTRY}
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
    kernels, left, protocol = kernels_of(e), e.get("triton", ()), e["protocol"]
    yield ""
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
    """What is in shared memory, what runs late, who gets which groups, what it takes."""
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
