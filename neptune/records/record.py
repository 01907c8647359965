"""A measurement as a value, and as a line of text that anybody may have written.

    {"record":1,"structure":"0d6c…","device":"H200","kind":"time","template":"softmax_row",
     "sizes":{"cols":1024,"rows":65536},"params":{"BLOCK_M":1,"num_warps":4},"us":[131.12], …}      (on one line)

The first four keys stand first, in this order, so that a reader finds a structure by its bytes. What is read is
checked and never evaluated: names are words of letters, digits, `_`, `.` and `-`, numbers are finite and of ordinary
size. A line of another kind, or of a later schema, is kept as it is and not looked into.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeAlias

from neptune.base.boundary import public
from neptune.base.choice import Choice
from neptune.errors import RecordError
from neptune.records.structure import DIGITS
from neptune.records.structure import keys_of as keys_of
from neptune.records.structure import kin_of as kin_of
from neptune.records.structure import structure_of as structure_of

SCHEMA = 1
KIND, FAILED, GRAPH = "time", "failed", "graph"
HOW = ("wrong", "hung", "died", "memory", "failed")
"""How a candidate may fail: other results than the unfused program's, no end, the end of its process, too little
memory, or an error."""
MAX_LINE = 1 << 16
"""Bytes of a line; a longer one is nobody's record."""
MAX_NAME, MAX_NAMES, MAX_SAMPLES, MAX_TEXT = 80, 64, 1000, 1 << 15
LEAST_US = 0.1
"""No launch takes less time: what says so was not measured."""
MAX_INT, MAX_US, MAX_MHZ = (1 << 63) - 1, 1e9, 1e6
NAME = re.compile(r"\w[\w.-]*", re.ASCII)
DEVICE = re.compile(r"\w[\w.-]*( [\w.-]+)*", re.ASCII)
VERSION = re.compile(r"\w[\w.+!-]*", re.ASCII)
STRUCTURE = re.compile(f"[0-9a-f]{{{DIGITS}}}")
WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
HEAD = re.compile(
    rb'\{"record":(\d{1,9}),"structure":"([0-9a-f]+)","device":"([\w. -]+)","kind":"([\w-]+)"[,}]', re.ASCII
)
Sizes: TypeAlias = Mapping[str, int]


def bucket_of(sizes: Sizes) -> dict[str, int]:
    """Each size rounded up to a power of two: sizes of one bucket are expected to have the same fast candidates.

    >>> bucket_of({"s_kv": 1025, "batch": 8})
    {'s_kv': 2048, 'batch': 8}
    """
    return {name: 1 << max(0, n - 1).bit_length() for name, n in sizes.items()}


def now() -> str:
    """The time as records have it: "2026-11-22T23:07:44Z"."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Base:
    """What every line of a store says, by name.

    `structure`: of the program (`structure_of`). `device`: as `neptune.tune.model.machine` names it, "H200". `template`
    and `params`: the candidate; `sizes`: at least 1 each; `numbers`: whole numbers beside. `versions`: as
    `neptune.versions.versions()`. `when`: UTC. `name`: what the program was called, for people.

    Raises RecordError for what could not be read back.
    """

    structure: str
    device: str
    template: str
    sizes: Sizes
    params: Mapping[str, int]
    versions: Mapping[str, str | None]
    numbers: Mapping[str, int] = field(default_factory=dict)
    when: str = field(default_factory=now)
    name: str = ""
    kind: str = ""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in ("kind", "structure", "device", *RESTS[type(self)])}
        wrong = fault(values)
        if wrong is not None:
            raise RecordError(*wrong)
        for name, value in values.items():
            if isinstance(value, Mapping):
                object.__setattr__(self, name, dict(sorted(value.items())))

    @property
    def choice(self) -> Choice:
        """What was measured, or failed: the numbers beside are values like others."""
        return Choice(self.template, {**self.params, **self.numbers})

    def line(self) -> bytes:
        """The line of a file, with its end; `parse` gives it back."""
        rest = {name: getattr(self, name) for name in RESTS[type(self)]}
        text = json.dumps({"kind": self.kind, **rest}, separators=(",", ":"), allow_nan=False)
        return prefix(self.structure, self.device) + text[1:].encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class Record(Base):
    """One measurement of one candidate, at exact sizes; `numbers` are what a launch was given beside (NUM_SPLITS=4).

    `us`: microseconds, a figure a round. `clocks`: MHz by name, {} where nobody knows. The rest is as in `Base`.
    """

    us: Sequence[float]
    clocks: Mapping[str, float] = field(default_factory=dict)
    kind: str = KIND

    def __post_init__(self) -> None:
        super().__post_init__()
        # One form for what was given and what is read back.
        object.__setattr__(self, "us", tuple(map(float, self.us)))

    @property
    def bucket(self) -> dict[str, int]:
        """The bucket of its sizes."""
        return bucket_of(self.sizes)


Record.__init__ = public(Record.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class Failure(Base):
    """A candidate that did not come to be timed: `how` is one of HOW, the rest is as of a Record."""

    how: str
    kind: str = FAILED


@dataclass(frozen=True, kw_only=True)
class Discovery(Base):
    """What a search for graphs came to: `graph` is the best as text, "" where a template's kernel is no worse.

    `sizes` are a bucket (`bucket_of`), `params` the bounds of the search, `numbers` what it took (states, tries, …).
    Whoever takes the graph checks it like any other.
    """

    graph: str
    template: str = "mirage"
    kind: str = GRAPH


Said: TypeAlias = Record | Failure | Discovery


@dataclass(frozen=True)
class Unknown:
    """A line of another kind or schema, which is kept and not looked into. Without its end."""

    text: bytes

    def line(self) -> bytes:
        """The line, with its end."""
        return self.text + b"\n"


def fault(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of these fields of a record that could not be read back, and what it must be."""
    name = next((n for n, value in values.items() if not FIELDS[n][0](value)), None)
    if name is None:
        return None
    return f"a tuning record with {name}={_short(values[name])}", f"{name} is {FIELDS[name][1]}"


def prefix(structure: str, device: str) -> bytes:
    """How every line of a structure on a device begins.

    >>> prefix("ab", "H200")
    b'{"record":1,"structure":"ab","device":"H200",'
    """
    return f'{{"record":{SCHEMA},"structure":"{structure}","device":"{device}",'.encode()


def parse(line: bytes) -> Said | Unknown | None:
    """What a line says; None for one that is torn, damaged or no record. Raises nothing, whatever the bytes are."""
    line = line.rstrip(b"\r\n")
    head = HEAD.match(line) if len(line) <= MAX_LINE else None
    if head is None:
        return None
    try:
        values = _DECODER.decode(line.decode("ascii"))
        kind = KINDS.get(values["kind"])
        if head[1] != b"%d" % SCHEMA or kind is None:
            return Unknown(line)
        if values.keys() != {"record", "structure", "device", "kind", *RESTS[kind]}:
            return None
        del values["record"]
        return kind(**values) if fault(values) is None else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


# --- what is taken -------------------------------------------------------------------------------


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values for one, readers may take either."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError
    return values


def _refuse(_text: str) -> None:
    raise ValueError


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse)


def _text(form: re.Pattern[str]) -> Callable[[Any], bool]:
    # Names come again and again in a store.
    @lru_cache(1024)
    def fits(x: str) -> bool:
        return form.fullmatch(x) is not None

    return lambda x: isinstance(x, str) and len(x) <= MAX_NAME and fits(x)


def _int(least: int) -> Callable[[Any], bool]:
    return lambda x: type(x) is int and least <= x <= MAX_INT


def _positive(most: float) -> Callable[[Any], bool]:
    return lambda x: type(x) in (int, float) and 0 < x <= most and math.isfinite(x)


def _mapping(value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    named = _text(NAME)
    return lambda x: (
        isinstance(x, (dict, Mapping)) and len(x) <= MAX_NAMES and all(named(k) and value(v) for k, v in x.items())
    )


def _samples(x: Any) -> bool:
    return (
        isinstance(x, list | tuple)
        and 0 < len(x) <= MAX_SAMPLES
        and all(_positive(MAX_US)(v) and v >= LEAST_US for v in x)
    )


def _moment(x: Any) -> bool:
    if not (isinstance(x, str) and WHEN.fullmatch(x)):
        return False
    try:
        datetime.fromisoformat(x[:-1])
    except ValueError:
        return False
    return True


def _is_text(x: Any) -> bool:
    return isinstance(x, str) and len(x) <= MAX_TEXT and x.isascii() and x.replace("\n", "").isprintable()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_NAME else text[:MAX_NAME] + "…"


_named, _version = _text(NAME), _text(VERSION)
A_NAME = f"a name of at most {MAX_NAME} letters, digits, _, . and -"
FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda x: x in KINDS, " or ".join(f'"{k}"' for k in (KIND, FAILED, GRAPH))),
    "structure": (_text(STRUCTURE), f"what structure_of gives, {DIGITS} hexadecimal digits"),
    "device": (_text(DEVICE), 'the name of a GPU, such as "H200"'),
    "template": (_named, A_NAME),
    "name": (lambda x: x == "" or _named(x), f'"", or {A_NAME}'),
    "sizes": (_mapping(_int(1)), "a mapping from names to integers of at least 1"),
    "params": (_mapping(_int(0)), "a mapping from names to integers of at least 0"),
    "numbers": (_mapping(_int(0)), "a mapping from names to integers of at least 0"),
    "us": (_samples, f"1 to {MAX_SAMPLES} microseconds, each at least {LEAST_US} and at most {MAX_US:.0e}"),
    "how": (lambda x: x in HOW, f"one of {', '.join(HOW)}"),
    "graph": (_is_text, f"printable lines of at most {MAX_TEXT} characters"),
    "versions": (_mapping(lambda x: x is None or _version(x)), "a mapping from packages to versions or None"),
    "clocks": (_mapping(_positive(MAX_MHZ)), "a mapping from names to MHz above 0"),
    "when": (_moment, 'a moment in UTC, such as "2026-11-22T23:07:44Z"'),
}
KINDS: Mapping[str, type[Said]] = {KIND: Record, FAILED: Failure, GRAPH: Discovery}


RESTS: Mapping[type, tuple[str, ...]] = {
    kind: tuple(n for n in FIELDS if n not in ("kind", "structure", "device") and n in {f.name for f in fields(kind)})
    for kind in KINDS.values()
}
"""The fields of a line behind its head, in order."""
