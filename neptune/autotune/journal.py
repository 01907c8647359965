"""What was measured of one program on one device: kept at once, and read back when a search goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from neptune.autotune.learn import Lesson
from neptune.autotune.space import Trial
from neptune.base.choice import Choice
from neptune.driver.known import read, written
from neptune.records.believe import best
from neptune.records.record import Failure, Record, fault
from neptune.records.store import say_once
from neptune.versions import versions


class Records(Protocol):
    """What a journal needs of `neptune.records.store.Store`."""

    def append(self, record: Record | Failure) -> bool:
        """Keep a record; False where that failed."""

    def told(self, structures: Sequence[str], device: str) -> tuple[list[Record], list[Failure]]:
        """The records of a program on a device under each of its keys, and the candidates that failed, in the order in
        which they were kept."""


@dataclass(frozen=True)
class Journal:
    """The records of a program (`structure`, and its `name` for people) on a device; without `records` nothing is kept.
    `earlier` is another structure under which it may have some.

    `names` are the templates that records may name, by those of trials: others are not kept, since their code may
    change under the same name.
    """

    records: Records | None
    structure: str
    device: str
    name: str
    names: Mapping[str, str]
    parts: frozenset[str] = frozenset()
    """The names of numbers of parts, which records have beside, as they have levers of other forms."""
    earlier: str = ""

    def known(self, sizes: Mapping[str, int]) -> dict[Choice, float | None]:
        """Microseconds by trial, that the same versions have measured at these sizes, the last one counts; None for
        what failed."""
        here = versions()

        def same(r: Record | Failure) -> bool:
            return r.versions == here and r.sizes == sizes and r.template in self._back

        records, failures = self._kept()
        known: dict[Choice | None, float | None] = {self._of(r.choice): median(r.us) for r in records if same(r)}
        known |= {self._of(f.choice): None for f in failures if same(f)}
        return {choice: us for choice, us in known.items() if choice is not None}

    def lessons(self) -> list[Lesson]:
        """What the same versions have measured, at whatever sizes; where a launch was given its numbers, nothing."""
        here = versions()
        own = (r for r in self._kept()[0] if r.versions == here and r.template in self._back and not r.numbers)
        return [Lesson(Choice(self._back[r.template], r.params), r.sizes, median(r.us)) for r in own]

    def prior(self, sizes: Mapping[str, int]) -> list[Choice]:
        """The trials that records of other versions, or of other sizes of the bucket, put first."""
        beliefs = best(self._kept()[0], self.structure, sizes, self.device, versions())
        own = (self._of(b.choice) for b in beliefs if b.weight < 1 and b.choice.template in self._back)
        return [choice for choice in own if choice is not None]

    def keep(self, sizes: Mapping[str, int], trial: Trial, us: Sequence[float], clocks: Mapping[str, int]) -> None:
        """Append a measurement."""
        mhz = {n: float(x) for n, x in clocks.items() if x > 0}
        self._append(Record, {"us": list(us), "clocks": mhz}, sizes, trial)

    def lost(self, sizes: Mapping[str, int], trial: Trial, how: str) -> None:
        """Append how a candidate failed."""
        self._append(Failure, {"how": how}, sizes, trial)

    def _append(
        self, kind: type[Record | Failure], result: Mapping[str, Any], sizes: Mapping[str, int], trial: Trial
    ) -> None:
        own = self.names.get(trial.template)
        if self.records is None or own is None:
            return
        values = written(trial.choice).params
        numbers = {n: v for n, v in values.items() if n in self.parts or n not in trial.params}
        params = {n: v for n, v in values.items() if n not in numbers}
        program = {"structure": self.structure, "name": self.name, "device": self.device}
        choice = {"template": own, "sizes": sizes, "params": params, "numbers": numbers}
        fields: dict[str, Any] = {**program, **choice, "versions": versions(), **result}
        wrong = fault(fields)
        if wrong is None:
            self.records.append(kind(**fields))
        else:
            say_once(f"a measurement is not kept: {': '.join(wrong)}")

    def _kept(self) -> tuple[list[Record], list[Failure]]:
        """What is kept of the program under either key, as if all were under the one that is kept by now."""
        if self.records is None:
            return [], []
        records, failures = self.records.told([key for key in (self.earlier, self.structure) if key], self.device)
        return [replace(r, structure=self.structure) for r in records], failures

    @property
    def _back(self) -> dict[str, str]:
        """Templates by what records call them."""
        return {own: name for name, own in self.names.items()}

    def _of(self, recorded: Choice) -> Choice | None:
        """What a record is of, by the names of trials; None where it is nothing that there is."""
        own = read(recorded)
        return None if own is None else replace(own, template=self._back[own.template])
