"""Traces: the calls that made a schedule, as values, as JSON and as code.

    sch.trace            (Step("param", ("BM", (64, 128))), Step("split", (Loop("c", "i"), Var("BM"))), …)
    trace_to_json(…)     {"format": "neptune-trace", "version": 1, "steps": [["param", "BM", [64, 128]],
                          ["split", {"stage": "c", "loop": "i"}, {"param": "BM"}], …]}
    sch.as_code()        def schedule(sch):
                             BM = sch.param("BM", [64, 128])
                             sch.split(sch.loop("c", "i"), BM)

Loops are written by stage and variable as they are called when the step runs, so every step stands for itself.

Calls are logged, and NEPTUNE_FUSION_FUEL limits how many of them are fusions. Every prefix of a schedule is a schedule:
what is not fused yet keeps a kernel of its own. A fusion that is at fault can so be found by bisection, without
touching the template.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neptune.base import private
from neptune.base.boundary import public
from neptune.errors import FusionError, RecordError
from neptune.ir.expr import Var
from neptune.ir.program import Program
from neptune.schedule.state import Decision, Loop

FORMAT = "neptune-trace"
VERSION = 1


@dataclass(frozen=True)
class Step:
    """One recorded call: the primitive's name and its arguments (loops as (stage, variable) pairs).

    `program` is what the call left behind; steps are equal where they ask for the same.
    """

    primitive: str
    args: tuple[Any, ...]
    program: Program | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"sch.{self.primitive}({', '.join(map(_show, self.args))})"


def _show(arg: Any) -> str:
    if isinstance(arg, Loop):
        return f"sch.loop({_show(arg.stage)}, {_show(arg.var)})"
    if isinstance(arg, Var):
        return _variable(arg.name)
    if isinstance(arg, tuple | list):
        return f"[{', '.join(map(_show, arg))}]"
    # In double quotes; what JSON escapes, Python does in the same way.
    return json.dumps(arg, ensure_ascii=False) if isinstance(arg, str) else repr(arg)


def _variable(param: str) -> str:
    return "sch_" if param == "sch" else param


def as_code(trace: Sequence[Step], name: str = "schedule") -> str:
    """The text of a function `name(sch)` that makes the calls of a trace.

    >>> print(as_code([Step("param", ("BM", (2, 4))), Step("split", (Loop("c", "i"), Var("BM")))]), end="")
    def schedule(sch):
        BM = sch.param("BM", [2, 4])
        sch.split(sch.loop("c", "i"), BM)
    """
    lines = [f"{_variable(step.args[0])} = {step}" if step.primitive == "param" else str(step) for step in trace]
    return "\n".join([f"def {name}(sch):", *(f"    {line}" for line in lines or ["pass"])]) + "\n"


# --- JSON --------------------------------------------------------------------------------------


def trace_to_json(trace: Sequence[Step]) -> str:
    """A trace as JSON text, one step a line; `trace_from_json` gives an equal trace back."""
    steps = ",\n  ".join(json.dumps([s.primitive, *map(_encode, s.args)]) for s in trace)
    head = f'"format": {json.dumps(FORMAT)}, "version": {VERSION}'
    return f'{{{head}, "steps": [\n  {steps}\n]}}\n' if trace else f'{{{head}, "steps": []}}\n'


def _encode(arg: Any) -> Any:
    if isinstance(arg, Loop):
        return {"stage": arg.stage, "loop": arg.var}
    if isinstance(arg, Var):
        return {"param": arg.name}
    return [_encode(x) for x in arg] if isinstance(arg, tuple | list) else arg


@public
def trace_from_json(text: str) -> tuple[Step, ...]:
    """The trace that `trace_to_json` wrote. Raises RecordError where the text is damaged or of another version."""
    try:
        document = private.understood(text)
    except (TypeError, ValueError) as error:
        raise RecordError("read a trace", f"this is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordError("read a trace", "this is no trace of a schedule", legal=(f'{{"format": "{FORMAT}", …}}',))
    if document.get("version") != VERSION:
        raise RecordError(
            "read a trace",
            f"it is of version {document.get('version')!r}, and this Neptune reads version {VERSION}",
            hint="record the schedule again",
        )
    steps = document.get("steps")
    if not isinstance(steps, list):
        raise RecordError("read a trace", "it has no list of steps")
    return tuple(_step(k, s) for k, s in enumerate(steps, 1))


def _step(k: int, entry: Any) -> Step:
    if not isinstance(entry, list) or not entry or not isinstance(entry[0], str) or not entry[0].isidentifier():
        raise RecordError(f"step {k} of a trace", "a step is a list: the name of a primitive, then its arguments")
    return Step(entry[0], tuple(_decode(k, x) for x in entry[1:]))


def _decode(k: int, arg: Any) -> Any:
    match arg:
        case {"stage": str(stage), "loop": str(var), **rest} if not rest:
            return Loop(stage, var)
        case {"param": str(name), **rest} if not rest:
            return Var(name)
        case list():
            return tuple(_decode(k, x) for x in arg)
        case str() | int():
            return arg
    raise RecordError(
        f"step {k} of a trace",
        f"{json.dumps(arg)[:80]} is no argument of a primitive",
        legal=("a string", "an integer", '{"stage": …, "loop": …}', '{"param": …}', "a list of these"),
    )


# --- log lines, and the limit on fusions ------------------------------------------------------------

FUSIONS = frozenset(
    {
        "fuse_at",
        "compute_at",
        "reverse_compute_at",
        "rolling_update",
        "split_k",
        "write_directly",
        "privatize",
        "hoist_factor",
        "inline",
    }
)
"""Primitives that count: those that change what is computed where."""
SCHEDULE, FUSION = logging.getLogger("neptune.schedule"), logging.getLogger("neptune.fusion")


class OutOfFuel(FusionError):
    """A fusion that NEPTUNE_FUSION_FUEL does not allow any more."""


def spend(fuel: int | None, done: Iterable[str], primitive: str, call: object) -> OutOfFuel | None:
    """Return the exception to raise if `primitive` is a fusion and `done` names `fuel` fusions already."""
    if fuel is None or primitive not in FUSIONS:
        return None
    count = sum(p in FUSIONS for p in done)
    if count < fuel:
        return None
    return OutOfFuel(
        str(call), f"this is fusion {count + 1}, and NEPTUNE_FUSION_FUEL={fuel}", hint="unset NEPTUNE_FUSION_FUEL"
    )


def tell(primitive: str, call: object, decisions: Iterable[Decision]) -> None:
    """Log a call, and what was decided in it."""
    logger = FUSION if primitive in FUSIONS else SCHEDULE
    logger.info("%s", call)
    for d in decisions:
        logger.info("  %s: %s: %s", d.subject, d.verdict, d.reason)
        for line in d.details:
            logger.debug("    %s", line)
