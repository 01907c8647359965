"""What a replay compiles: operators, chains, repairs, and random programs of fixed seeds, as named items.

An item is a name ("chains/softmax by flash_attention") and what makes its record; nothing is made before it is asked
for, and nothing runs. `items()` lists all of one version of Neptune, in an order that stays.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import neptune
import neptune.templates
from bench import chain_attention, chain_programs
from neptune.ops.attention import OPERATORS, attention, operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import figure1, softmax
from qa import masks, repair_programs, variety
from qa.fuzzing import draw, judge, schedules, unsound
from qa.replay_extract import Record, compilation, decided, failure, text
from qa.variety_programs import draw as draw_variety
from qa.variety_words import said

KINDS = ("operators", "chains", "repairs", "checked", "fuzz", "variety")
FUZZ, FUZZ_SEED = 400, 9_000_000
VARIETY, VARIETY_SEED = 300, 90_000
UNSOUND_EVERY = 5
DEPTH = 64
Item: TypeAlias = Callable[[Record | None], Record]
"""Makes a record, given that of the same item in another file (None: there is none), whose requests it then repeats."""


def items(kinds: tuple[str, ...] = KINDS) -> dict[str, Item]:
    """All items of these kinds by name."""
    made = {kind: MAKERS[kind] for kind in KINDS if kind in kinds}
    return {f"{kind}/{name}": item for kind, maker in made.items() for name, item in maker()}


Items: TypeAlias = Iterator[tuple[str, Item]]


def _item(make: Callable[[], Any], template: Any = None, **options: Any) -> Item:
    return lambda _: compilation(make, template, **options)


# --- templates -------------------------------------------------------------------------------------


def combinations() -> dict[str, Any]:
    """Every shipped template with every combination of its choices, by name: "flash_attention packed=True"."""
    found: dict[str, Any] = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(neptune.templates.__path__)):
        made = getattr(importlib.import_module(f"neptune.templates.{name}"), name, None)
        if not callable(made):
            continue
        choices: Mapping[str, Any] = getattr(made, "choices", {})
        for k, values in enumerate(product(*choices.values())):
            taken = dict(zip(choices, values, strict=True))
            words = [f"{n}={v}" for n, v in taken.items()] if k else []
            found[" ".join([name, *words])] = made.with_choices(**taken) if k else made
    return found


def _everyway(name: str, make: Callable[[], Any], choices: bool = False) -> Items:
    """A program by the automatic choice, and by each template, with `choices` in all of its combinations."""
    yield f"{name} by automatic", _item(make)
    for label, template in combinations().items():
        if choices or " " not in label:
            yield f"{name} by {label}", _item(make, template)


# --- kinds -----------------------------------------------------------------------------------------


def _operators() -> Items:
    plain: dict[str, Callable[[], Any]] = {n: partial(operator, n) for n in OPERATORS}
    plain |= {"figure1": figure1, "softmax": softmax, "matmul": matmul}
    for name, make in plain.items():
        yield from _everyway(name, make, choices=True)
    for name in OPERATORS:
        sizes = {"batch": 1, "s_q": 1, "s_kv": 65536}
        typical = {n: v for n, v in sizes.items() if n != "s_q" or "queries" not in OPERATORS[name]}
        yield f"{name} for {sizes['s_kv']} keys", _item(plain[name], shapes=typical)
    options: list[dict[str, Any]] = [
        *({"dtype": d} for d in ("bfloat16", "float32")),
        *({"layout": "bshd", "lse": lse} for lse in (False, True)),
        {"sinks": True, "lse": True},
        {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 3},
    ]
    for row in options:
        for template in ("flash_attention", "flash_decoding", "attention_unfused"):
            words = " ".join(f"{k}={v}" for k, v in row.items())
            yield f"causal {words} by {template}", _item(partial(attention, depth=DEPTH, causal=True, **row), template)
    for name, case in masks.cases().items():
        make = partial(attention, heads=4, depth=DEPTH, mask=case.mask)
        for template in ("flash_attention", "flash_decoding"):
            yield f"mask {name} by {template}", _item(make, template)
    for dtype in ("float16", "bfloat16"):
        yield f"softmax {dtype}", _item(partial(softmax, dtype))
    products: list[dict[str, Any]] = [
        {"dtype": "float32", "trans_a": True},
        {"trans_b": True, "bias": True, "activation": "gelu"},
        {"batch": True, "residual": True, "activation": "silu"},
    ]
    for row in products:
        words = " ".join(f"{k}={v}" for k, v in row.items())
        yield f"matmul {words}", _item(partial(matmul, **row), "matmul")


def _chains() -> Items:
    for chain in (*chain_programs.ROW_CHAINS, *chain_attention.ATTENTION):
        yield from _everyway(chain.name, partial(chain.build, chain.depth))
    for chain in chain_attention.OPERATOR_CHAINS:
        yield chain.name, _item(partial(chain.build, chain.depth), chain.template)


def _repairs() -> Items:
    for name, program in repair_programs.PROGRAMS.items():
        yield from _everyway(name, program.program)
    for name in repair_programs.REFUSED:
        yield f"refused {name}", partial(_refused, name)
        yield f"refused {name} by automatic", _item(repair_programs.REFUSED[name][0])


def _refused(name: str, _: Record | None) -> Record:
    try:
        return {"status": "refused", "error": "FusionError", "message": repair_programs.refusal(name)}
    except Exception as error:
        return failure(error)


def _checked() -> Items:
    """The repairs again, with the checks that a user has."""
    yield from ((name, partial(_with_checks, chain.program)) for name, chain in repair_programs.PROGRAMS.items())


def _with_checks(make: Callable[[], Any], _: Record | None) -> Record:
    with setting("NEPTUNE_VERIFY", "1"):
        return compilation(make)


@contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    """A setting of the environment, for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})


# --- random programs -------------------------------------------------------------------------------


def _fuzz() -> Items:
    for seed in range(FUZZ_SEED, FUZZ_SEED + FUZZ):
        yield f"{seed} by requests", partial(_fuzzed, seed)
        yield f"{seed} by automatic", _item(partial(_drawn, seed))


def _drawn(seed: int) -> neptune.Program:
    return judge.program_of(_case(seed)["program"])


def _case(seed: int) -> dict[str, Any]:
    """The program of a seed; its requests, too, where it is one that must be refused."""
    return unsound.draw(seed) if seed % UNSOUND_EVERY == 0 else {"program": draw.draw(seed)}


def _fuzzed(seed: int, before: Record | None) -> Record:
    """A random program under random requests, or under those that another record has: each granted or refused."""
    try:
        if before is not None and "requests" in before:
            requests: Record = before["requests"]
        else:
            requests = {**_case(seed)}
            if "steps" not in requests:
                requests["steps"] = schedules.draw(judge.program_of(requests["program"]), seed).steps
            requests = {n: json.loads(json.dumps(requests[n])) for n in ("program", "steps")}
        return {"requests": requests, **_requested(judge.program_of(requests["program"]), requests["steps"])}
    except Exception as error:
        return failure(error)


def _requested(program: neptune.Program, steps: list[Any]) -> Record:
    """What became of requests; the kernel is that of the longest part of the schedule that owes no repair."""
    driver = schedules.run(program, steps)
    sch = driver.sch
    settled = judge._settled(driver).trace

    def granted(schedule: neptune.Schedule) -> None:
        for step in settled:
            getattr(schedule, step.primitive)(*step.args)

    answers = [f"{json.dumps(r.step)}: {type(r.error).__name__}: {text(r.error)}" for r in driver.refused]
    answers += [f"{kind}: {message}" for kind, message in driver.defects]
    made = compilation(lambda: program, granted)
    said = decided(sch.decisions, [str(program), str(sch.program)])
    return {**made, **said, "refusals": answers, "granted": [str(s) for s in sch.trace]}


def _variety() -> Items:
    for seed in range(VARIETY_SEED, VARIETY_SEED + VARIETY):
        yield f"{seed}", partial(_varied, seed)


def _varied(seed: int, _: Record | None) -> Record:
    spec = draw_variety(seed)
    try:
        expr, inputs = said(spec, spec.source)
    except Exception as error:
        # What TVM does not take is no program.
        return {**failure(error), **({"status": "skipped"} if spec.source != "builder" else {})}
    template = variety.TURNS[seed % len(variety.TURNS)]
    return compilation(lambda: expr, variety.TEMPLATES[template], inputs=inputs)


MAKERS: Mapping[str, Callable[[], Items]] = {
    "operators": _operators,
    "chains": _chains,
    "repairs": _repairs,
    "checked": _checked,
    "fuzz": _fuzz,
    "variety": _variety,
}
