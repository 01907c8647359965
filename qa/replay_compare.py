"""Two replays beside each other: what differs, by kind, and which differences are the same one.

A record is taken apart into *aspects*, lists of lines each; aspects of two records differ by the lines that only one
of them has. Equal differences of many items are shown once, with their number.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from qa.replay_extract import Record

REPAIR = ("reducer", "verdict", "g", "h", "deferral", "letters", "obligations", "casts", "assumptions")
MADE = re.compile(r"\s+made \w+ as ")
"""A line of a program that says where a stage comes from: an aspect of its own."""
ORDERED = frozenset({"trace", "granted", "program", "fused", "tiles"})
"""Aspects in which the order of lines matters."""
CAUSES = {"status": ("status", "crash", "refusal"), "program": ("status", "crash", "refusal", "program")}
"""Aspects by which, where they differ, everything but these does too, and is not compared."""
ASPECTS = (
    *("status", "crash", "refusal", "program", "requests", "template", "trace", "granted"),
    *(f"repair.{part}" for part in REPAIR),
    *("decisions", "params", "facts", "checks", "made", "fused", "tiles", "source"),
)
"""In pipeline order: the first that differs is most often the cause of the others."""


def aspects(record: Record) -> dict[str, list[str]]:
    """A record as lines by aspect."""
    found: dict[str, list[str]] = {name: [] for name in ASPECTS}
    found["status"] = [record["status"]]
    if "error" in record:
        kind = "crash" if record["status"] == "crashed" else "refusal"
        found[kind] = [record["error"], *record["message"].splitlines()]
        found[kind] += [record["where"]] if "where" in record else []
    found["refusal"] += record.get("refusals", [])
    found["requests"] = [str(record["requests"])] if "requests" in record else []
    for name, key in (("program", "loops"), ("fused", "fused"), ("tiles", "tile")):
        lines = record.get(key, "").splitlines()
        found[name] = [x for x in lines if not MADE.match(x)]
        found["made"] += [f"{name}: {x.strip()}" for x in lines if MADE.match(x)]
    found["template"] = [record["template"]] if "template" in record else []
    for name in ("trace", "granted", "decisions"):
        found[name] = list(record.get(name, ()))
    for name in ("params", "facts", "checks", "source"):
        found[name] = list(_flat(record.get(name, {})))
    for repair in record.get("repairs", ()):
        whose = f"{repair['stage']} ({repair['by']})"
        for part in REPAIR:
            lines = [repair[part]] if isinstance(repair[part], str) else repair[part]
            found[f"repair.{part}"] += [f"{whose}: {line}" for line in lines]
    return found


def _flat(value: Any, path: str = "") -> Iterator[str]:
    """The leaves of nested values, a line each."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _flat(v, f"{path}.{k}" if path else str(k))
    elif isinstance(value, list):
        for k, v in enumerate(value):
            yield from _flat(v, f"{path}[{k}]")
    else:
        yield f"{path} = {value}"


def difference(name: str, old: list[str], new: list[str]) -> tuple[str, ...]:
    """The lines that only one side has, with "-" for the old and "+" for the new one; none where they agree.

    >>> difference("repair.h", ["l: h = t"], ["l: h = t*r"])
    ('- l: h = t', '+ l: h = t*r')
    """
    if old == new:
        return ()
    if name in ORDERED:
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        return tuple(f"{x[0]} {x[1:]}" for x in lines if not x.startswith("@@"))
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    return (*(f"- {x}" for x in sorted(gone.elements())), *(f"+ {x}" for x in sorted(come.elements())))


@dataclass
class Comparison:
    """`found`: aspect → difference → names of items; `gone` and `come`: items that only one file has."""

    found: dict[str, dict[tuple[str, ...], list[str]]] = field(default_factory=dict)
    same: int = 0
    gone: list[str] = field(default_factory=list)
    come: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Items that are new say nothing against a version."""
        return bool(self.found or self.gone)


def compare(old: Mapping[str, Record], new: Mapping[str, Record], ignored: frozenset[str] = frozenset()) -> Comparison:
    """The differences between two sets of records, all but those of ignored aspects."""
    made = Comparison(gone=[n for n in old if n not in new], come=[n for n in new if n not in old])
    found: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in (n for n in old if n in new):
        before, after = aspects(old[name]), aspects(new[name])
        differ = {a: d for a in ASPECTS if a not in ignored and (d := difference(a, before[a], after[a]))}
        made.same += not differ
        for cause, told in CAUSES.items():
            differ = {a: d for a, d in differ.items() if cause not in differ or a in told}
        for aspect, lines in differ.items():
            found[aspect][lines].append(name)
    made.found = {a: dict(found[a]) for a in ASPECTS if a in found}
    return made


def shown(c: Comparison, examples: int, width: int = 160, lines: int = 12) -> Iterator[str]:
    """A comparison as text: counts by kind of item, then each aspect with its most frequent differences."""
    for aspect, found in c.found.items():
        names = [n for where in found.values() for n in where]
        kinds = Counter(n.partition("/")[0] for n in names)
        by_kind = ", ".join(f"{k} {n}" for k, n in kinds.items())
        yield f"\n== {aspect}: {len(names)} items differ ({by_kind}), in {len(found)} ways"
        for difference, where in sorted(found.items(), key=lambda x: -len(x[1]))[:examples]:
            yield f"  {len(where)} ×, first {where[0]}"
            one_line = (x.replace("\n", " | ") for x in difference[:lines])
            yield from (f"    {x[:width]}{'…' * (len(x) > width)}" for x in one_line)
            if len(difference) > lines:
                yield f"    … {len(difference) - lines} more lines"
    for word, names in (("missing", c.gone), ("new, not compared", c.come)):
        if names:
            yield f"\n== {word}: {len(names)} items, first {names[0]}"
    counts = ", ".join(f"{a} {sum(map(len, f.values()))}" for a, f in c.found.items())
    yield f"\n{c.same} items the same; {'differences: ' + counts if counts else 'no difference'}"
