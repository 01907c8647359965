"""What was measured of one program on one device: kept at once, and read back when a search goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from neptune.autotune.space import Key, Trial, key_of
from neptune.errors import RecordError
from neptune.records.record import Record
from neptune.records.store import say_once
from neptune.versions import versions


class Records(Protocol):
    """What a journal needs of `neptune.records.store.Store`."""

    def append(self, record: Record) -> bool:
        """Keep a record; False where that failed."""

    def find(self, structure: str, device: str) -> list[Record]:
        """The records of a program on a device, in the order in which they were kept."""


@dataclass(frozen=True)
class Journal:
    """The records of a program (`structure`, and its `name` for people) on a device; without `records` nothing is kept.

    `names` are the templates that records may name, by those of trials: others are not kept, since their code may
    change under the same name.
    """

    records: Records | None
    structure: str
    device: str
    name: str
    names: Mapping[str, str]
    parts: frozenset[str] = frozenset()
    """The names of parameters that are numbers of parts."""

    def known(self, sizes: Mapping[str, int]) -> dict[Key, float]:
        """Microseconds by trial, that the same versions have measured at these sizes; the last one counts."""
        if self.records is None:
            return {}
        here, back = versions(), {own: n for n, own in self.names.items()}
        found = (r for r in self.records.find(self.structure, self.device) if r.versions == here and r.sizes == sizes)
        return {key_of(back[r.template], {**r.params, **r.numbers}): median(r.us) for r in found if r.template in back}

    def keep(self, sizes: Mapping[str, int], trial: Trial, us: Sequence[float], clocks: Mapping[str, int]) -> None:
        """Append a measurement."""
        own = self.names.get(trial.template)
        if self.records is None or own is None:
            return
        try:
            record = Record(
                structure=self.structure,
                device=self.device,
                template=own,
                sizes=sizes,
                params={n: v for n, v in trial.params.items() if n not in self.parts},
                numbers={n: v for n, v in trial.params.items() if n in self.parts},
                us=list(us),
                versions=versions(),
                clocks={n: float(mhz) for n, mhz in clocks.items() if mhz > 0},
                name=self.name,
            )
        except RecordError as error:
            say_once(f"a measurement is not kept: {error.asked}: {error.wrong}")
            return
        self.records.append(record)
