"""The protocol of the hand-written attention in Gluon: proved, explored, and broken in every small way.

    python -m qa.protocol [--states 100000] [--json FILE]

The first table has a row for each form: the launches that are checked, what their roles do together, seconds of the
check (reading the text, then the order of one run, which speaks for all interleavings), and states that are visited
one by one where a program has no more than `--states`. The second counts mutants of the text (`qa.gluon_mutants`)
by what rejects them: the check, or the emulator's numbers and errors. The exit status is 1 if one lives that is not
known to be the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.baselines.flash_attention_gluon import Form
from neptune.hopper.check import Trial, check
from neptune.hopper.emulate import ProtocolError, run
from qa.gluon_launch import Launch, text
from qa.gluon_mutants import mutants

FORMS = (Form(2, 64, 2, False), Form(2, 128, 2, True), Form(2, 128, 3, True), Form(3, 128, 2, True))
LENGTHS = (1, 64, 65, 200, 450, 1000)
SMALL = (
    # Tiles of 128 or 192 rows: more of them than programs, and some with fewer iterations than there are stages.
    Launch(Form(2, 64, 2, True), 300, programs=2, heads=1),
    Launch(Form(2, 64, 3, False), 64, programs=1, heads=4, lse=False),
    Launch(Form(3, 64, 3, False), 200, programs=1, heads=1),
)
SAME = {
    "mbarrier.wait(qe, (done & 1) ^ 1) before row =": "what moves behind the wait is a number of the producer's own",
    "mbarrier.wait(ke.index(st), phase) before key =": "as above",
    "mbarrier.wait(kf.index(st), (k // ST) & 1) before pst =": "as above",
    "tma.store_wait(0) before acc = acc *": "what moves behind the wait is in registers",
    "async_load(k_desc, [key, 0], kf.index(st), ks.index(st)) before mbarrier.expect": (
        "the phase ends with the arrival of the expect at the earliest, and bytes may land before they are expected"
    ),
    "async_load(v_desc, [key, 0], vf.index(st), vs.index(st)) before mbarrier.expect": "as above",
    "mbarrier.wait(ve.index(st), phase) before async_load(k_desc": "waits for more than it needs",
    "mbarrier.wait(kf.index(k % ST), (k // ST) & 1) before mbarrier.wait(qf": "both waits are before the product",
    "mbarrier.wait(vf.index(k % ST), (k // ST) & 1) before mbarrier.arrive(ke": "waits for more than it needs",
    "mbarrier.wait(vf.index(pst), ((k - 1) // ST) & 1) before sa = warpgroup_mma": "waits for more than it needs",
    "1 → 1 - 1": "waits for more than it needs",
}
"""Mutants with the same protocol, or a stricter one, and why."""


def trials(launches: tuple[Launch, ...]) -> list[Trial]:
    return [Trial(x.call) for x in launches]


def verdict(name: str, source: str) -> str:
    """What rejects a mutant: "check", "numbers" or "emulator"; "same" if it is known to be; else "lives"."""
    if not check(source, trials(SMALL)).ok:
        return "check"
    for seed, order in itertools.product(range(2), ("late", "random")):
        launch = Launch(Form(2, 64, 2, True), 300, programs=1, heads=1)
        try:
            run(source, launch.kernel, launch.grid, launch.args(), seed=seed, order=order)
        except ProtocolError:
            return "emulator"
        if max(launch.errors()) > 2e-3:
            return "numbers"
    return "same" if any(f": {edit}" in name for edit in SAME) else "lives"


def forms(console: Console, states: int) -> list[dict[str, object]]:
    table = Table(
        "consumers", "keys", "stages", "own output", "programs", "actions", "check s", "states", "with them s"
    )
    rows: list[dict[str, object]] = []
    for form in FORMS:
        launches = tuple(Launch(form, n, causal, programs=1) for n in LENGTHS for causal in (False, True))
        quick = check(text(), trials(launches))
        every = check(text(), trials(launches), most_states=states)
        if not quick.ok or not every.ok:
            raise SystemExit(str(quick if not quick.ok else every))
        rows.append({**form._asdict(), "programs": quick.programs, "actions": quick.actions})
        rows[-1] |= {"seconds": quick.seconds, "states": every.states, "every_seconds": every.seconds}
        table.add_row(*(f"{x:.2f}" if isinstance(x, float) else str(x) for x in rows[-1].values()))
    console.print(table)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=20_000, help="the most states of a program that is explored")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=120)
    rows, begun = forms(console, args.states), time.perf_counter()
    verdicts = [(m.name, verdict(m.name, m.text)) for m in mutants(text())]
    counts = Counter((name.split(",")[0], v) for name, v in verdicts)
    table = Table("mutants", *(columns := ("check", "numbers", "emulator", "same", "lives")))
    for kind in dict.fromkeys(kind for kind, _ in counts):
        table.add_row(kind, *(str(counts[kind, c]) for c in columns))
    console.print(table)
    console.print(f"{len(verdicts)} mutants, {time.perf_counter() - begun:.1f} s")
    if args.json:
        args.json.write_text(json.dumps({"forms": rows, "mutants": verdicts}, indent=1) + "\n")
    return int(any(v == "lives" for _, v in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
