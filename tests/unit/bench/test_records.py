"""What ships is what `bench.records` makes of the results that are kept, for the programs as they are today."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median

from bench.records import judged, shipped, summary, tuned
from neptune.ops.attention import operator
from neptune.ops.softmax import softmax
from neptune.records.believe import best
from neptune.records.record import Record, kin_of, parse
from neptune.records.store import Store, key_of
from neptune.versions import versions

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "h200-choice-search.json"
TUNED = RESULTS.with_name("h200-tuned.jsonl")


def test_what_ships_is_made_of_the_results() -> None:
    kept = Store(None).all()
    searched = shipped(json.loads(RESULTS.read_text()), kept[0].when[:10], 12)
    assert kept == [*searched, *tuned(TUNED, 12)]


def test_the_fastest_and_the_first_of_a_tuning_ship() -> None:
    lines = [r for r in map(parse, TUNED.read_bytes().splitlines()) if isinstance(r, Record)]
    one = [r for r in lines if (r.name, dict(r.sizes)) == ("decode_gqa", {"batch": 1, "s_kv": 8192})]
    kin = kin_of(operator("decode_gqa"))
    one = [replace(r, structure=kin) for r in one]
    last = {key_of(r): r for r in one}
    found = [r for r in tuned(TUNED, 3) if r in one]
    assert found[:3] == sorted(last.values(), key=lambda r: median(r.us))[:3] and 3 <= len(found) <= 6
    assert set(map(key_of, [*last.values()][:3])) <= set(map(key_of, found))


def test_the_fastest_of_each_setup_ship() -> None:
    results = json.loads(RESULTS.read_text())
    row = next(r for r in results["us"] if r["setup"] == "softmax 65536×1024")
    found = best(Store(None).all(), kin_of(softmax()), row["sizes"], "H200", versions())
    assert [b.us for b in found][:12] == sorted(c["us"] for c in row["candidates"])[:12]
    # What the model had put first ships as well, however slow it was.
    first = sorted(row["candidates"], key=lambda c: c["predicted"])[:12]
    assert {c["us"] for c in first} <= {b.us for b in found} and len(found) <= 24
    # Nobody knows which Neptune measured them, so that they are a prior.
    assert {b.weight for b in found} == {0.5}
    us, variant = min((c["us"], c["variant"]) for c in row["candidates"])
    assert (found[0].us, found[0].choice.template) == (us, variant.split()[0])
    assert {f"{n}={v}" for n, v in found[0].choice.params.items()} == set(variant.split()[1:])


def test_setups_that_are_gone_are_left_out(capsys) -> None:
    results = json.loads(RESULTS.read_text())
    first, second = results["us"][:2]
    found = list(shipped({**results, "us": [{**first, "setup": "gone"}, second]}, "2026-11-22", 1))
    assert [dict(r.sizes) for r in found] == [second["sizes"]] * len(found) and 1 <= len(found) <= 2
    assert "left out" in capsys.readouterr().out


def test_records_that_ship_choose_as_the_search_did() -> None:
    """On paper, for one program: its own records lead to the best, and those of other sizes lose little by it."""
    results = json.loads(RESULTS.read_text())
    rows = [r for r in results["us"] if r["setup"].startswith("decode_gqa b1 ")]
    model, own, others = judged({**results, "us": rows}, 12).values()
    assert [t.setup for t in own] == [r["setup"] for r in rows] and len(own) == 4
    assert all(t.speed is not None and t.speed > 0.97 for t in own)
    assert geometric_mean(t.speed or 0 for t in others) >= geometric_mean(t.speed or 0 for t in model)
    assert "of the best measured, worst" in summary(own) and "4 setups" in summary(own)
