"""What a replay keeps of a compilation: texts and plain values, read off what a user can ask a kernel.

`compilation` makes a kernel and reads it; `decided` is the one place that takes decisions and repairs apart. Both ask
for what documentation promises (`explain`, `ir`, `source`, messages of errors), so that records of different versions
of Neptune are of one form.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import neptune

Record: TypeAlias = dict[str, Any]
TARGET = "interpret"
SOURCES = {"pointers": "interpret", "descriptors": "cuda:90"}
"""The forms of generated text by what loads tiles in them, and a target that has it."""
LINES = {
    "g": re.compile(r"g\d* = "),
    "h": re.compile(r"h\d* = "),
    "deferral": re.compile(r"deferred: "),
    "casts": re.compile(r"cast kept: "),
    "assumptions": re.compile(r"assumed, not proved: "),
}
"""How the lines of a repair begin in explain(); the others say what its letters stand for."""
PROVED = "proved "
FACTS = ("kernels", "temporaries", "traversals")
PASSED = ("does not apply", "too large tiles", "not fused to one kernel", "not taken")
"""Verdicts over templates that were not chosen."""


def compilation(make: Callable[[], Any], template: Any = None, **options: Any) -> Record:
    """The record of one compilation, or of what ended it."""
    try:
        return kernel_record(neptune.compile(make(), template, target=TARGET, **options))
    except Exception as error:
        return failure(error)


def kernel_record(kernel: neptune.Kernel) -> Record:
    """All that is kept of a kernel: how it came about, what is said of it, its programs, its text as digests."""
    e = kernel.explain(json=True)
    programs = {stage: kernel.ir(stage) for stage in ("loops", "fused", "tile")}
    return {
        "status": "compiled",
        "template": e["template"],
        "trace": e["schedule"],
        **decided(e["decisions"], programs.values()),
        "params": e["params"],
        "facts": {name: e[name] for name in FACTS},
        "checks": {name: c["verdict"] for name, c in e["checks"].items()},
        **programs,
        "source": {name: _digest(kernel, target) for name, target in SOURCES.items()},
    }


def _digest(kernel: neptune.Kernel, target: str) -> str:
    return hashlib.sha256(kernel.for_target(target).source.encode()).hexdigest()[:20]


def failure(error: BaseException) -> Record:
    """The record of an exception: `refused` where it is one that a user can cause, else `crashed`."""
    refused = isinstance(error, neptune.NeptuneError)
    record = {"status": "refused" if refused else "crashed", "error": type(error).__name__, "message": text(error)}
    if not refused:
        last = traceback.extract_tb(error.__traceback__)[-1]
        record["where"] = f"{last.filename.rpartition('/')[2]}: {last.name}"
    return record


def text(error: BaseException) -> str:
    """The message without places of this machine: paths, lines of files, addresses."""
    said = re.sub(r"(?:/[\w.+-]+)+/([\w.+-]+)", r"\1", str(error))
    said = re.sub(r"(\.py\S*?)(?:\"?, line |:)\d+", r"\1", said)
    return re.sub(r"\b0x[0-9a-f]+\b", "0x", said)


# --- decisions -------------------------------------------------------------------------------------


def decided(decisions: Iterable[Any], programs: Iterable[str]) -> Record:
    """Decisions by what they are about: `repairs`, `refusals` (of templates), and the other ones as lines.

    `decisions` are those of `explain(json=True)`, or of a schedule; `programs` are texts in which the reducers of
    repaired stages are looked up.
    """
    repairs, refusals, others = [], [], []
    for d in map(_plain, decisions):
        if any(LINES["g"].match(x) for x in d["details"]) or d["proved"]:
            repairs.append(_repair(d, programs))
        elif d["kind"] == "template" and d["verdict"] in PASSED:
            refusals.append(f"{d['subject']}: {d['verdict']}: {d['reason']}")
        else:
            others.append("; ".join([f"{d['kind']} {d['subject']}: {d['verdict']}: {d['reason']}", *d["details"]]))
    return {"repairs": repairs, "refusals": refusals, "decisions": others}


def _plain(d: Any) -> Mapping[str, Any]:
    """A decision as explain() has it: proofs apart from the other details."""
    if isinstance(d, Mapping):
        return d
    proved = [x.removeprefix(PROVED) for x in d.details if x.startswith(PROVED)]
    rest = [x for x in d.details if not x.startswith(PROVED)]
    said = {name: getattr(d, name) for name in ("kind", "subject", "verdict", "reason")}
    return {**said, "details": rest, "proved": proved}


def _repair(d: Mapping[str, Any], programs: Iterable[str]) -> Record:
    parts: dict[str, list[str]] = {name: [] for name in (*LINES, "letters")}
    for line in d["details"]:
        parts[next((n for n, start in LINES.items() if start.match(line)), "letters")].append(line)
    return {
        "stage": d["subject"],
        "by": d["kind"],
        "reducer": reducer(d["subject"], programs),
        "verdict": f"{d['verdict']}: {d['reason']}",
        "obligations": list(d["proved"]),
        **parts,
    }


def reducer(stage: str, programs: Iterable[str]) -> str:
    """How a stage folds, as the first program that has it writes it: "+=", "max=", "(argmax)=".

    >>> reducer("l", ["for j in [0, n):\\n  l: l[i] += x[i, j] init 0.0"])
    '+='
    """
    begins = re.compile(rf"^\s*{re.escape(stage)}: .*?(\S*=)\s", re.MULTILINE)
    found = (m for p in programs if (m := begins.search(p)))
    return next((m[1] for m in found), "")
