"""Explanations of kernels for people: decisions of the schedule, the kernel's facts and its exact checks as lines.

`as_text` lays out the plain values that `kernel.explain(json=True)` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neptune.forms import FORMS
from neptune.report import search
from neptune.runtime.artifact import AT, PREDICTION, WARNINGS
from neptune.runtime.family import FAMILY, names_of
from neptune.runtime.forms import FormData

HEADINGS = {
    "template": "template",
    "rolling_update": "reductions",
    "split_k": "reductions folded in parts",
    "write_directly": "reductions folded in parts",
    "privatize": "reductions",
    "hoist_factor": "factors applied behind their sums",
    "partition": "loops cut by their masks",
}
OTHER = "further decisions"
RECORDS = "records"
"""The entry of an explanation that says which measurements the choice read."""
SHOWN = 3
"""Measurements of a variant that are shown."""


def with_verdict(e: dict[str, Any], form: FormData | None) -> dict[str, Any]:
    """An explanation with what is known of the form by now; without its entry on a target that has none."""
    if form is None or form.name not in e:
        return {name: entry for name, entry in e.items() if name not in FORMS}
    return {**e, form.name: {**e[form.name], "verdict": form.verdict()}}


def as_text(e: dict[str, Any]) -> str:
    """The explanation for people: one section a topic, one line a fact."""
    return "\n".join(_lines(e)) + "\n"


def _lines(e: dict[str, Any]) -> Iterator[str]:
    yield from _warning_lines(e.get(WARNINGS, ()))
    yield f"kernel {e['name']} for {e['target']}, by template {e['template']}"
    yield from _lead(e)
    for word in ("inputs", "scalars", "outputs"):
        yield from (f"  {line}" for line in _row(word, ", ".join(e[word])))
    yield from (f"  {line}" for line in _row("params", _pairs(e["params"])))
    yield from (f"  {line}" for line in _row("bounds", _pairs(e["bounds"])))
    yield from (f"  {line}" for line in _row("shapes", _pairs(e["shapes"])))
    yield from (f"  {promise}" for promise in e.get("promises", ()))
    yield from _family_lines(e.get(FAMILY))
    yield from _record_lines(e.get(RECORDS))
    yield from _prediction_lines(e.get(PREDICTION))
    yield from search.lines(e.get(search.ENTRY))
    yield from _form_lines(e)
    yield from ("", "schedule", *(f"  {call}" for call in e["schedule"]))
    yield from _decision_lines(e["decisions"])
    yield from _assumption_lines(e.get("assumptions", ()))
    yield from _kernel_lines(e)
    yield from _check_lines(e["checks"])


def _lead(e: dict[str, Any]) -> Iterator[str]:
    """What matters most, a line a kernel: is it on the matrix unit, and how many programs are there?"""
    p = e.get(PREDICTION) or {"kernels": (), "sizes": {}}
    programs = {k["name"]: k["programs"] for k in p["kernels"]}
    for k in e["kernels"]:
        products = Counter(k.get("products", ()))
        unit = "on the matrix unit" if set(products) - {"float32"} else "off the matrix unit"
        factors = (
            ", ".join(f"{_count(n, 'product')} in {dtype}" for dtype, n in products.items()) or "no products of tiles"
        )
        count = f"; {_count(programs[k['name']], 'program')}{_at(p['sizes'])}" if k["name"] in programs else ""
        yield f"  {k['name']}: {unit} ({factors}){count}"


def _warning_lines(warnings: Iterable[dict[str, str]]) -> Iterator[str]:
    for w in warnings:
        yield f"warning: {w['message']} ({w['code']})"
        yield f"  try: {w['remedy']}"


def _prediction_lines(p: dict[str, Any] | None) -> Iterator[str]:
    if p is None:
        return
    sizes = _at(p["sizes"]) + ("" if p["given"] or not p["sizes"] else ", usual sizes: shapes= names others")
    yield from ("", f"predicted {p['us']:.1f} µs on {p['machine']}{sizes}, bound by {p['bound']}")
    for k in p["kernels"]:
        yield f"  {k['name']}: {k['us']:.1f} µs, bound by {k['bound']}; the busiest unit is {k['share']:.0%} busy"
        count = f"{_count(k['programs'], 'program')} in {k['waves']:.1f} waves"
        yield f"    {count}, {k['resident']} at a time on a processor"
    yield f"  launches: {p['launches']:.1f} µs"
    for o in p["others"]:
        yield f"  other choice: {' '.join(filter(None, (o['template'], _pairs(o['params']))))}: {o['us']:.1f} µs"


def _at(sizes: dict[str, int]) -> str:
    return f" at {_pairs(sizes)}" if sizes else ""


def _family_lines(f: dict[str, Any] | None) -> Iterator[str]:
    if f is None:
        return
    lost, names = f["lost"], names_of(f)
    yield from ("", f"{len(f['variants'])} variants by size; this is {names[f['own']]}, for {_pairs(f['at'])}")
    for name, v in zip(names, f["variants"], strict=True):
        # Variants that were saved before they named it have the first.
        form = f"; {v.get('form', next(iter(FORMS)))} form, {_pairs(v['levers'])}" if "levers" in v else ""
        yield f"  {name}: {_pairs(v['params'])}{form}"
        where, predicted = f"where {v['when']}", f"{v['us']:.1f} µs{_at(v[AT])}" if "us" in v else ""
        yield f"    {'; '.join(filter(None, (where if v['when'] else '', predicted)))}"
        for m in v.get("measured", ())[:SHOWN]:
            yield f"    measured: {m['us']:.1f} µs{_at(m[AT])}, weight {m['weight']:g}"
    yield "  each class of sizes takes what is predicted to be the fastest there (kernel.chosen): by predicted times"
    yield f"  at {lost['points']} choices of sizes {lost['mean']:.1%} above the best of all candidates, on average"
    if "saved" in f:
        saved = f"{f['saved']['mean']:.1%} on average, {f['saved']['most']:.0%} at most"
        yield f"  once saved, it goes by the comparisons behind 'where', without the model: {saved} above that"


def _record_lines(r: dict[str, Any] | None) -> Iterator[str]:
    if r is None:
        return
    each = ", ".join(f"{o['count']} of {'these' if o['weight'] == 1 else 'other'} versions" for o in r["of"])
    weights = ", ".join(f"{o['weight']:g}" for o in r["of"])
    yield from ("", f"chosen with records at {_count(r['sizes'], 'choice')} of sizes: {each} (weight {weights})")


def _form_lines(e: Mapping[str, Any]) -> Iterator[str]:
    """The section that speaks of another form than tiles."""
    for name, load in FORMS.items():
        if name in e:
            yield ""
            yield from load().explain(e[name])


def _row(word: str, text: str) -> Iterator[str]:
    if text:
        yield f"{word + ':':<9}{text}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in values.items())


def _decision_lines(decisions: list[dict[str, Any]]) -> Iterator[str]:
    sections: dict[str, list[dict[str, Any]]] = {}
    for d in decisions:
        sections.setdefault(HEADINGS.get(d["kind"], OTHER), []).append(d)
    for heading, members in sections.items():
        yield ""
        yield heading
        for d in members:
            yield f"  {d['subject']}: {d['verdict']} ({d['kind']})"
            yield from (f"    {line}" for line in [*d["reason"].splitlines(), *d["details"]])
            for k, proof in enumerate(d["proved"]):
                yield f"    {'proved' if k == 0 else '':<8}{proof}"


def _assumption_lines(assumptions: Iterable[dict[str, Any]]) -> Iterator[str]:
    for k, a in enumerate(assumptions):
        yield from ("", "assumptions: what nothing proves") if k == 0 else ()
        yield f"  {a['name']}: {'granted' if a['granted'] else 'not granted (assume=)'}"
        yield f"    {a['text']}"


def _kernel_lines(e: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{_count(len(e['kernels']), 'kernel')}, {_count(len(e['temporaries']), 'global temporary')}"
    for k in e["kernels"]:
        yield f"  {k['name']}  grid: {', '.join(f'{a} = {n}' for a, n in k['grid'].items()) or 'one program'}"
        yield from (f"    loop {x['axis']}: {x['trips']} iterations" for x in k["loops"])
        yield from (f"    temporary {t}: written and read back" for t in k["temporaries"])
    yield f"  passes over each input: {_pairs(e['traversals'])}"


def _check_lines(checks: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield ""
    yield "exact checks against the expression" + ("" if checks else ": none (NEPTUNE_VERIFY=0)")
    for name, c in checks.items():
        yield f"  {name}: {c['verdict']} by the {c['model']}, {c['draws']} draws, {c['elements']} elements"
        yield f"    {c['bound']}; seeds {', '.join(map(str, c['seeds']))}"
        yield from (f"    {note}" for note in c["notes"])


def _count(n: int, what: str) -> str:
    if n == 1:
        return f"1 {what}"
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{n or 'no'} {plural}"
