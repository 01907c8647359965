"""Random schedules for `qa.fuzz`: lists of requests, each of which is granted or refused in good order.

A step is one as `neptune.schedule.trace` writes it: ["split", {"stage": "r0", "loop": "j"}, 2]. Three ways to draw
them: along a chain of reductions as a template would (with deviations), shipped templates, and at random.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import neptune
from neptune.errors import NeptuneError
from neptune.fusion.schedule import PRIMITIVES, Schedule
from neptune.ir.expr import Var
from neptune.ir.program import Program, Update
from neptune.schedule.state import Loop
from neptune.schedule.trace import Step, trace_from_json, trace_to_json
from neptune.tune.choose import automatic, shipped_template, shipped_templates

SCREEN = 25
"""How many lines the message of a refusal may have."""
FACTORS = (2, 2, 3, 4, 1, 5)
TUNABLES = {"BM": (2, 4), "BN": (4, 2, 8)}


def encoded(step: Step) -> list[Any]:
    """A step as JSON."""
    made: list[list[Any]] = json.loads(trace_to_json([step]))["steps"]
    return made[0]


def decoded(step: Sequence[Any]) -> Step:
    document = {**json.loads(trace_to_json([])), "steps": [list(step)]}
    return trace_from_json(json.dumps(document))[0]


@dataclass
class Refusal:
    """A request that was refused, and why."""

    step: list[Any]
    error: NeptuneError


@dataclass
class Driver:
    """Makes requests of one schedule and watches how they are answered.

    `steps` are all requests; `defects` (kind, message) what no request may lead to.
    """

    program: Program
    steps: list[list[Any]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    defects: list[tuple[str, str]] = field(default_factory=list)
    sch: Schedule = field(init=False)

    def __post_init__(self) -> None:
        self.sch = Schedule(self.program)

    def call(self, primitive: str, *args: Any) -> Any:
        """Make a request; the primitive's result, or None where it was refused."""
        return self.ask(Step(primitive, args))

    def ask(self, step: Step) -> Any:
        self.steps.append(encoded(step))
        before, count = self.sch.program, len(self.sch.trace)
        try:
            return getattr(self.sch, step.primitive)(*step.args)
        except NeptuneError as error:
            self._refused(step, error, before, count)
        except Exception as error:
            self.defects.append(("crash", f"{step}: {_described(error)}"))
        return None

    def _refused(self, step: Step, error: NeptuneError, before: Program, count: int) -> None:
        self.refused.append(Refusal(encoded(step), error))
        if (self.sch.program is not before and str(self.sch.program) != str(before)) or len(self.sch.trace) != count:
            self.defects.append(("atomic", f"{step} was refused, and changed the schedule"))
        self._message(str(step), error)

    def _message(self, asked: str, error: NeptuneError) -> None:
        lines = str(error).splitlines()
        if len(lines) > SCREEN or not lines or not lines[0].strip():
            self.defects.append(("message", f"{asked}: {len(lines)} lines: {lines[:1]}"))

    def template(self, name: str) -> None:
        """Apply a shipped template (or the automatic choice) to a schedule without steps."""
        try:
            if name == "automatic":
                self.sch = automatic(self.program)[1]
            else:
                shipped_template(name)(self.sch)
        except NeptuneError as error:
            self.refused.append(Refusal(["template", name], error))
            self._message(f"template {name}", error)
        except Exception as error:
            self.defects.append(("crash", f"template {name}: {_described(error)}"))
        self.steps += [encoded(s) for s in self.sch.trace]


def _described(error: Exception) -> str:
    frame = inspect.trace()[-1] if inspect.trace() else None
    where = f" ({frame.filename.rpartition('/')[2]}:{frame.lineno})" if frame is not None else ""
    return f"{type(error).__name__}: {str(error)[:300]}{where}"


def run(program: Program, steps: Sequence[Sequence[Any]]) -> Driver:
    """Make recorded requests, those that are refused included."""
    driver = Driver(program)
    for step in steps:
        driver.ask(decoded(step))
    return driver


# --- drawing ---------------------------------------------------------------------------------------


def draw(program: Program, seed: int) -> Driver:
    """A random schedule, carried out."""
    rng = random.Random(seed)
    driver = Driver(program)
    kind = rng.choice(("chain", "chain", "chain", "chain", "template", "random"))
    if kind == "template":
        driver.template(rng.choice(("automatic", *shipped_templates())))
    elif kind == "chain":
        _chain(driver, rng)
    for _ in range(rng.randint(4, 12) if kind == "random" else rng.choice((0, 0, 0, 1, 3))):
        anything(driver, rng)
    return driver


def _folds(sch: Schedule) -> list[str]:
    return [s for s in sch.stages if isinstance(sch.definition(s).action, Update)]


def _factor(driver: Driver, rng: random.Random, name: str) -> int | Var:
    if rng.random() < 0.6:
        return rng.choice(FACTORS)
    if any(t.name == name for t in driver.sch.program.tunables):
        return Var(name)
    made = driver.call("param", name, TUNABLES[name])
    return made if isinstance(made, Var) else 2


def _chain(driver: Driver, rng: random.Random) -> None:
    """Tile the first stage of a chain, now and then in parts, and fuse the others under its loops."""
    sch = driver.sch
    if not (folds := _folds(sch)):
        return
    if rng.random() < 0.2:
        over = sch.loops(folds[0])[-1]
        driver.call("split_k", over, rng.choice((2, 3, "NUM_SPLITS")), rng.choice((1, 2, 4)))
        folds = _folds(sch)
    host = folds[0] if rng.random() < 0.7 else rng.choice(folds)
    before = [s for s in sch.producers(host) if sch.loops(s)]
    if before and rng.random() < 0.4:
        host = rng.choice(before)
    d = sch.definition(host)
    loops = sch.loops(host)
    if not loops:
        return
    spatial = [f for f in loops if f.var not in d.reduced]
    along = next((f for f in loops if f.var in d.reduced), loops[-1])
    if spatial and (host not in folds or host.startswith("s")):
        along = spatial[-1]
    rows = [f for f in spatial if f != along]
    row, outer = _tile(driver, rng, rows[-1] if rows else None, along)
    if row is not None and rng.random() < 0.5:
        driver.call("bind", row, "grid.x")
    _under(driver, rng, host, row, outer)
    if rng.random() < 0.6:
        driver.call("partition", outer)


def _tile(driver: Driver, rng: random.Random, row: Loop | None, along: Loop) -> tuple[Loop | None, Loop]:
    """The loops over tiles of rows and of the fused axis."""
    inner: list[Loop] = []
    outer: list[Loop] = []
    for loop, name in ((row, "BM"), (along, "BN")):
        if loop is None:
            continue
        cut = driver.call("split", loop, _factor(driver, rng, name)) if rng.random() < 0.85 else None
        outer.append(cut[0] if cut else loop)
        inner += [cut[1]] if cut else []
    if inner and rng.random() < 0.9:
        driver.call("reorder", *outer, *inner)
    return (outer[0] if row is not None else None), outer[-1]


def _under(driver: Driver, rng: random.Random, host: str, row: Loop | None, outer: Loop) -> None:
    sch = driver.sch
    rest = [s for s in sch.stages if s != host]
    if rng.random() < 0.1:
        rng.shuffle(rest)
    folds = _folds(sch)
    for s in rest:
        if rng.random() < 0.06 or s not in sch.stages:
            continue
        leads = any(c in folds for c in sch.consumers(s))
        if s in folds:
            primitive = rng.choice(("rolling_update",) * 9 + ("fuse_at",))
            driver.call(primitive, s, outer if rng.random() < 0.93 or row is None else row)
        elif leads:
            way = rng.choice(("leave", "leave", "leave", "inline", "fuse_at", "fuse_at", "compute_at"))
            if way == "inline":
                driver.call("inline", s)
            elif way != "leave":
                driver.call(way, s, outer)
        else:
            driver.call("fuse_at", s, row if row is not None and rng.random() < 0.9 else outer)
        if rng.random() < 0.08:
            anything(driver, rng)


def anything(driver: Driver, rng: random.Random) -> None:
    """One request of any primitive with random arguments."""
    for _ in range(6):
        primitive = rng.choice(PRIMITIVES)
        args = arguments(driver.sch, primitive, rng)
        if args is not None:
            driver.call(primitive, *args)
            return


def arguments(sch: Schedule, primitive: str, rng: random.Random) -> list[Any] | None:
    """Random arguments by the names of a primitive's parameters; None where there are none to be had."""
    found: list[Any] = []
    stages = sch.stages
    loops = [f for s in stages for f in sch.loops(s)]
    if not loops:
        return None
    for p in list(inspect.signature(getattr(sch, primitive)).parameters.values()):
        if p.kind is p.VAR_POSITIONAL:
            nest = sch.loops(rng.choice(stages)) or loops
            found += rng.sample(nest, min(rng.randint(1, 3), len(nest)))
            continue
        match p.name:
            case "stage":
                found.append(rng.choice(stages))
            case "loop" | "where" | "group" | "row":
                found.append(rng.choice(loops))
            case "outer" | "inner":
                near = [f for f in loops if found and isinstance(found[-1], Loop) and f.stage == found[-1].stage]
                found.append(rng.choice(near or loops))
            case "factor":
                found.append(rng.choice((*FACTORS, *(Var(t.name) for t in sch.program.tunables))))
            case "parts":
                found.append(rng.choice((2, 3, "NUM_SPLITS")))
            case "name":
                found.append(f"P{len(sch.program.tunables)}")
            case "candidates":
                found.append((2, 4))
            case "buffer":
                found.append(rng.choice(sorted(sch.program.globals)))
            case "scope":
                found.append(rng.choice(("tile", "global")))
            case "axis":
                found.append(rng.choice(("grid.x", "grid.y", "grid.z")))
            case _ if p.default is not p.empty:
                break
            case _:
                return None
    return found


__all__ = ["Driver", "Refusal", "anything", "arguments", "decoded", "draw", "encoded", "neptune", "run"]
