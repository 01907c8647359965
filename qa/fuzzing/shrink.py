"""Make a failing case small: greedily and always in the same way, keeping the failure's signature.

Tried in turn until nothing helps: fewer requests, fewer outputs and stages, maps inlined, subexpressions replaced by
their own parts or by 1, masks and inits gone, plain dtypes, rows without leading axes, small sizes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from qa.fuzzing.draw import trimmed
from qa.fuzzing.judge import Case, Effort, Failure, Verdict, judge
from qa.fuzzing.programs import Doc, Expr, dtype_of, dtypes, parts, pruned, reads, results

Check = Callable[[Case], Verdict]
BUDGET = 400
"""How many cases are judged at most."""


def signature(failure: Failure) -> str:
    """What stays the same while a failure shrinks: its kind, and for a crash its place."""
    if failure.kind != "crash":
        return failure.kind
    text = re.sub(r"`[^`]*`|\d+|\w+_kernel|fuzzed\w*", "_", failure.message)
    place = re.search(r"\((\w+\.py):_\)", text)
    first, _, rest = text.partition(": ")
    return f"crash {first} {place.group(1) if place else ''} {rest[:30]}"


def effort_for(kind: str) -> Effort:
    """What it takes to see a failure of this kind."""
    anything = kind == "crash"
    return Effort(
        llvm=anything or kind == "llvm",
        tvm=kind == "tvm",
        interpret=anything or kind == "interpret",
        offline=kind == "offline",
    )


def shrink(case: Case, failure: Failure, budget: int = BUDGET, check: Check | None = None) -> Case:
    """The smallest case found that fails in the same way."""
    wanted = signature(failure)
    effort = effort_for(failure.kind)
    run = (lambda c: judge(c, effort)) if check is None else check
    left = budget

    def fails(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return any(signature(f) == wanted for f in run(candidate).failures)

    if not fails(case):
        return case
    progress = True
    while progress and left > 0:
        progress = False
        for simpler in MOVES if failure.kind != "unsound" else SCHEDULE_MOVES:
            smaller = _exhaust(case, simpler, fails, lambda: left > 0)
            progress |= smaller is not case
            case = smaller
    return case


def _exhaust(
    case: Case, moves: Callable[[Case], Iterator[Case]], fails: Callable[[Case], bool], more: Callable[[], bool]
) -> Case:
    """Apply moves of one sort as long as one of them keeps the failure."""
    at = 0
    while more():
        for k, candidate in enumerate(moves(case)):
            if k < at or not more():
                continue
            if candidate != case and fails(candidate):
                case, at = candidate, k
                break
        else:
            return case
    return case


def _with(case: Case, program: Doc) -> Case:
    return {**case, "program": trimmed(pruned(program))}


def _steps(case: Case) -> Iterator[Case]:
    """Fewer requests: the second half, the first half, then one by one, the last ones first."""
    steps = case["steps"]
    half = len(steps) // 2
    if half > 1:
        yield {**case, "steps": steps[:half]}
        yield {**case, "steps": steps[half:]}
    for k in reversed(range(len(steps))):
        if steps[k] == case.get("refuse"):
            continue
        yield {**case, "steps": [*steps[:k], *steps[k + 1 :]]}
        if steps[k][0] == "split":
            var = steps[k][1]["loop"]
            yield {**case, "steps": [*steps[:k], *_renamed(steps[k + 1 :], var)]}


def _renamed(steps: list[Any], var: str) -> list[Any]:
    """What follows a split of `var`, without the split."""

    def fix(x: Any) -> Any:
        if isinstance(x, dict) and x.get("loop") == f"{var}0":
            return {**x, "loop": var}
        return [fix(y) for y in x] if isinstance(x, list) else x

    def inner(x: Any) -> bool:
        return isinstance(x, dict) and x.get("loop") == f"{var}1"

    return [[fix(a) for a in s if not inner(a)] for s in steps]


def _outputs(case: Case) -> Iterator[Case]:
    doc = case["program"]
    for k in range(len(doc["outputs"])):
        kept = [*doc["outputs"][:k], *doc["outputs"][k + 1 :]]
        if kept and _whole_families(doc, kept):
            yield _with(case, {**doc, "outputs": kept})


def _whole_families(doc: Doc, outputs: list[str]) -> bool:
    """Of a stage with several results all are outputs or none is."""
    return all({n in outputs for n in results(s)} != {True, False} for s in doc["stages"])


def _stages(case: Case) -> Iterator[Case]:
    """Without a stage: what read it reads 1, or a map's value itself."""
    doc = case["program"]
    for s in reversed(doc["stages"]):
        others = [t for t in doc["stages"] if t is not s]
        outputs = [n for n in doc["outputs"] if n not in results(s)]
        if not others or len(results(s)) > 1:
            continue
        last = outputs or [results(others[-1])[0]]
        if not _whole_families({**doc, "stages": others}, last):
            continue
        if "fold" not in s:
            yield _with(case, {**doc, "stages": [_put(t, s, s["value"]) for t in others], "outputs": last})
        yield _with(case, {**doc, "stages": [_put(t, s, 1.0) for t in others], "outputs": last})


def _put(stage: Doc, gone: Doc, value: Expr) -> Doc:
    """A stage with reads of another one replaced; a map's value is read at the same axes."""

    def visit(e: Expr) -> Expr:
        if isinstance(e, list) and e[0] == "read" and e[1] == gone["name"]:
            return _moved(value, dict(zip(gone["at"], e[2:], strict=True)))
        return [visit(x) if k in parts(e) else x for k, x in enumerate(e)] if isinstance(e, list) else e

    return {**stage, **{k: visit(stage[k]) for k in ("value", "where") if k in stage}}


def _moved(e: Expr, axes: dict[str, Expr]) -> Expr:
    if isinstance(e, str):
        return axes.get(e, e)
    if not isinstance(e, list):
        return e
    inside = set(parts(e))
    return [_moved(x, axes) if k in inside else x for k, x in enumerate(e)]


def _expressions(case: Case) -> Iterator[Case]:
    """A subexpression becomes one of its parts, or 1."""
    doc = case["program"]
    kinds = dtypes(doc)
    for n, s in enumerate(doc["stages"]):
        for key in ("value", "where"):
            if key not in s:
                continue
            for path in _paths(s[key]):
                old = _at(s[key], path)
                if not isinstance(old, list) or old[0] in ("int", "size"):
                    continue
                dtype = dtype_of(old, kinds)
                new = [old[k] for k in parts(old) if old[0] != "read" and dtype_of(old[k], kinds) == dtype]
                new += [1.0] if dtype == "float32" and old[0] != "read" else []
                for e in new:
                    changed = {**s, key: _replaced(s[key], path, e)}
                    yield _with(case, {**doc, "stages": [*doc["stages"][:n], changed, *doc["stages"][n + 1 :]]})


def _paths(e: Expr, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield prefix
    for k in parts(e):
        yield from _paths(e[k], (*prefix, k))


def _at(e: Expr, path: tuple[int, ...]) -> Expr:
    for k in path:
        e = e[k]
    return e


def _replaced(e: Expr, path: tuple[int, ...], new: Expr) -> Expr:
    if not path:
        return new
    return [_replaced(x, path[1:], new) if k == path[0] else x for k, x in enumerate(e)]


def _plain(case: Case) -> Iterator[Case]:
    """Without masks of folds, inits, 16-bit inputs, and axes that repeat the program."""
    doc = case["program"]
    for n, s in enumerate(doc["stages"]):
        for key in ("where", "init"):
            if key in s:
                bare = {k: v for k, v in s.items() if k != key}
                yield _with(case, {**doc, "stages": [*doc["stages"][:n], bare, *doc["stages"][n + 1 :]]})
    for t in doc["inputs"]:
        if t["dtype"] == "float16":
            wide = [{**x, "dtype": "float32"} if x is t else x for x in doc["inputs"]]
            yield _with(case, {**doc, "inputs": wide})
    for axis in "be":
        if any(axis in t["at"] for t in (*doc["inputs"], *doc["stages"])):
            yield _with(case, _without_axis(doc, axis))


def _without_axis(doc: Doc, axis: str) -> Doc:
    def visit(e: Expr) -> Expr:
        if not isinstance(e, list):
            return e
        return [
            visit(x) if k in parts(e) else x for k, x in enumerate(e) if not (e[0] == "read" and k > 1 and x == axis)
        ]

    doc = copy.deepcopy(doc)
    for t in (*doc["inputs"], *doc["stages"]):
        t["at"] = t["at"].replace(axis, "")
    for s in doc["stages"]:
        s |= {k: visit(s[k]) for k in ("value", "where") if k in s}
    return doc


def _sizes(case: Case) -> Iterator[Case]:
    doc = case["program"]
    for name, (value, symbolic) in doc["sizes"].items():
        for less in range(1, value):
            yield {**case, "program": {**doc, "sizes": {**doc["sizes"], name: [less, symbolic]}}}


def _numbers(case: Case) -> Iterator[Case]:
    """Small factors of splits, and other data."""
    for k, step in enumerate(case["steps"]):
        if step[0] == "split" and isinstance(step[2], int) and step[2] > 2:
            yield {**case, "steps": [*case["steps"][:k], [*step[:2], 2], *case["steps"][k + 1 :]]}
    if case["data"] > 9:
        for seed in range(3):
            yield {**case, "data": seed}


SCHEDULE_MOVES = (_steps, _sizes, _numbers)
"""What leaves a program that no repair exists for as it is."""
MOVES = (_steps, _outputs, _stages, _steps, _expressions, _plain, _sizes, _numbers)

__all__ = ["BUDGET", "MOVES", "reads", "shrink", "signature"]
