"""Judge a program and its schedule: every form of what was accepted must say what the program says.

Oracles: numpy and torch in float64 (`qa.fuzzing.programs`), TVM's compilation of `te.create_prim_func`; our
evaluator in float64 and the exact checks; LLVM and Triton's interpreter in float32, which may err as much as the
unfused expression does.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from neptune.codegen.compile import compile_offline
from neptune.codegen.llvm import LLVMKernel, compile_llvm
from neptune.codegen.triton.module import generate
from neptune.driver.pipeline import as_program
from neptune.errors import FusionError, InternalError, NeptuneError, ScheduleError, TargetError
from neptune.fusion.schedule import Schedule, replay
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.runtime.modules import covers
from neptune.runtime.processes.interpret import run_interpreted
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import TileProgram
from neptune.tile.localize import localize
from neptune.tile.pipeline import lower
from neptune.tile.verify import verify_tiles
from neptune.tune.choose import check_settled
from neptune.tune.defaults import defaults
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.numerics import allowance, rel_error
from qa.fuzzing import schedules
from qa.fuzzing.programs import (
    MODES,
    SCALARS,
    Arrays,
    Doc,
    arrays_of,
    by_torch,
    chooses,
    resized,
    spec_of,
    truncates,
)
from qa.variety import by_tvm, plain_array, tensor_of
from qa.variety_words import Reference, said

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
EPS = 2.0**-24
SLACK = 8 * EPS
"""What float32 arithmetic may err by anyway, before it is compared with the unfused expression's error."""


@dataclass(frozen=True)
class Failure:
    """`kind` names the oracle that accuses, or crash, atomic, message, unsound."""

    kind: str
    message: str


@dataclass
class Verdict:
    """What became of a case. `exact`: verdicts of the exact checks by what was checked."""

    failures: list[Failure] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: list[tuple[str, NeptuneError]] = field(default_factory=list)
    exact: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [f.kind for f in self.failures]


@dataclass(frozen=True)
class Effort:
    """How much is tried on one case."""

    draws: int = 2
    llvm: bool = True
    tvm: bool = False
    interpret: bool = False
    offline: bool = False


Case = Doc
"""{"program": …, "steps": […], "data": seed, "refuse": request or null}: all that a failure needs to be seen again."""


def program_of(doc: Doc) -> Program:
    """The program as the builder makes it."""
    expr, inputs = said(spec_of(doc), "builder")
    return as_program(expr, inputs, "fuzzed")


def judge(case: Case, effort: Effort | None = None, driver: schedules.Driver | None = None) -> Verdict:
    """Carry out the schedule of a case (or take it as carried out) and compare what it made with every oracle."""
    effort = Effort() if effort is None else effort
    verdict = Verdict()
    try:
        driver = schedules.run(program_of(case["program"]), case["steps"]) if driver is None else driver
        _requests(verdict, driver, case)
        if not verdict.failures:
            _Judge(case, effort, verdict, driver).run()
    except NeptuneError as error:
        verdict.refused.append(("program", error))
    except Exception as error:
        verdict.failures.append(Failure("crash", described(error)))
    return verdict


def described(error: Exception) -> str:
    """The last lines of a traceback, as one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:400]} ({last.filename.rpartition('/')[2]}:{last.lineno})"


def _requests(verdict: Verdict, driver: schedules.Driver, case: Case) -> None:
    verdict.failures += [Failure(kind, message) for kind, message in driver.defects]
    verdict.refused += [(r.step[0], r.error) for r in driver.refused]
    verdict.accepted += [s.primitive for s in driver.sch.trace]
    forbidden = case.get("refuse")
    if forbidden is not None and any(schedules.encoded(s) == forbidden for s in driver.sch.trace):
        target = forbidden[1]
        if forbidden[0] != "fuse_at" or not any(o.stage == target for o in driver.sch.program.owes):
            verdict.failures.append(Failure("unsound", f"{forbidden} was granted"))


def _settled(driver: schedules.Driver) -> Schedule:
    """The longest part of the schedule that owes nothing; what owes must be refused by the compiler."""
    sch = driver.sch
    if not sch.program.owes:
        return sch
    try:
        check_settled(sch.program)
    except FusionError:
        pass
    else:
        raise InternalError("a program that owes repairs was let pass")
    steps = [k for k, s in enumerate(sch.trace, 1) if s.program is not None and not s.program.owes]
    return replay(driver.program, sch.trace[: steps[-1] if steps else 0])


class _Judge:
    """The comparisons for one case."""

    def __init__(self, case: Case, effort: Effort, verdict: Verdict, driver: schedules.Driver) -> None:
        self.doc, self.effort, self.verdict = case["program"], effort, verdict
        self.rng = random.Random(case["data"])
        self.program, self.sch = driver.program, _settled(driver)
        # What a repair takes for granted, as explain() says, and the compiler checks under.
        self.finite = frozenset(name for d in self.sch.decisions for name in d.finite)
        self.ranges = [r for d in self.sch.decisions for r in d.ranges]

    def fail(self, kind: str, message: str) -> None:
        self.verdict.failures.append(Failure(kind, message))

    def run(self) -> None:
        verify(self.sch.program)
        fused = localize(arrange(started(self.sch.program)), strict=False)
        verify(fused, lowered=True)
        forms: dict[str, Program | TileProgram] = {"fused": fused}
        try:
            forms["tiles"] = self.lowered()
        except (ScheduleError, TargetError) as error:
            self.verdict.refused.append(("lowering", error))
        for name, form in forms.items():
            self.exact(name, form)
        second = {n: self.rng.choice(LENGTHS) for n in self.doc["sizes"]}
        second |= {n: min(second[n], 4) for n in ("b", "d", "e") if n in second}
        # What is chosen by rounded values, or from nothing at all, is anybody's guess.
        modes = ("mild", "zeros") if chooses(self.doc) or truncates(self.doc) else MODES
        runs = [(self.doc, "mild"), (resized(self.doc, second), self.rng.choice(modes))]
        native = compile_llvm(fused) if self.effort.llvm else None
        for doc, mode in runs:
            arrays = arrays_of(doc, self.rng.randrange(1 << 30), mode, self.finite)
            run = Run(doc, arrays, self.program, mode)
            params = self.params(fused, run.sizes)
            run.check_oracles(self)
            for name, form in forms.items():
                self.float64(name, form, run, params)
            if native is not None:
                self.float32("llvm", run, partial(_native, native, run.sizes, params))
            if self.effort.tvm and doc is self.doc:
                run.check_tvm(self)
            if self.effort.interpret and "tiles" in forms:
                tiles = forms["tiles"]
                assert isinstance(tiles, TileProgram)
                self.interpreted(tiles, run)
        if self.effort.offline and "tiles" in forms:
            tiles = forms["tiles"]
            assert isinstance(tiles, TileProgram)
            self.compiled(tiles)

    def lowered(self) -> TileProgram:
        try:
            tiles = lower(self.sch.program)
        except (ScheduleError, TargetError):
            tiles = lower(self.sch.program, relaxed=True)
        verify_tiles(tiles)
        return tiles

    def params(self, form: Program | TileProgram, sizes: Mapping[str, Any]) -> dict[str, int]:
        """Tile sizes by chance, as whatever a schedule adds; what covers a size follows from it."""
        env: dict[str, int] = {s.name: self.rng.choice((1, 2, 3)) for s in form.scalars if s.name not in sizes}
        for t in form.tunables:
            if t.covers is None:
                env[t.name] = self.rng.choice((1, 2, 2, 4, 4, 8))
        return {**env, **covers(form, {**sizes, **env})}

    # --- oracles -----------------------------------------------------------------------------------

    def exact(self, name: str, form: Program | TileProgram) -> None:
        try:
            report = check_exact(
                self.program, form, draws=self.effort.draws, finite=self.finite, ranges=self.ranges, magnitudes=True
            )
        except EvaluationError as error:
            self.verdict.exact[name] = f"undecided: {error}"[:60]
            return
        self.verdict.exact[name] = report.verdict
        if report.verdict == "rejected":
            self.fail(f"exact-{name}", str(report.counterexample))

    def float64(self, name: str, form: Program | TileProgram, run: Run, params: Mapping[str, int]) -> None:
        """In float64 only the order of operations may show."""
        params = self.params(form, run.sizes) if isinstance(form, TileProgram) else params
        try:
            got = evaluate(form, run.arrays, {**run.sizes, **params})
        except EvaluationError as error:
            self.fail(f"float64-{name}", f"{error} at {run.sizes} {dict(params)}")
            return
        for b, mine in zip(self.program.outputs, form.outputs, strict=True):
            if why := run.differs(got[mine.name], b.name):
                self.fail(f"float64-{name}", f"{b.name}: {why} at {run.sizes} {dict(params)} ({run.mode})")
                return

    def float32(self, name: str, run: Run, execute: Any) -> None:
        """Errors of a compiled form against those of the unfused expression with the same casts."""
        kinds = {b.name: b.dtype for b in self.program.outputs}
        tensors = [tensor_of(run.arrays[b.name], b.dtype) for b in self.program.inputs]
        outs = [poisoned(run.wanted[n].shape, d) for n, d in kinds.items()]
        execute(tensors, outs)
        if name not in self.verdict.targets:
            self.verdict.targets.append(name)
        for b, out in zip(kinds, outs, strict=True):
            if why := run.worse(plain_array(out), b):
                self.fail(name, f"{b}: {why} at {run.sizes} ({run.mode})")
                return

    def interpreted(self, tiles: TileProgram, run: Run) -> None:
        params = self.params(tiles, run.sizes)
        free = {t.name: params[t.name] for t in tiles.tunables if t.covers is None}
        given = {**run.sizes, **params}
        extra = [given[s.name] for s in tiles.scalars if s.name not in self.program.shape_scalars]
        source = generate(tiles, defaults(tiles))
        self.float32("interpret", run, lambda t, o: run_interpreted(source, tiles.name, [*t, *o], extra, free))

    def compiled(self, tiles: TileProgram) -> None:
        """Compiled offline, as on a GPU, with tiles that it takes."""
        try:
            compile_offline(generate(tiles, defaults(tiles)), tiles, "cuda:90", {t.name: 16 for t in tiles.tunables})
        except TargetError as error:
            self.fail("offline", str(error))
        self.verdict.targets.append("offline")


def _native(kernel: LLVMKernel, sizes: Any, params: Any, inputs: Any, outputs: Any) -> None:
    tunables = {t.name: params[t.name] for t in kernel.program.tunables}
    kernel(inputs, outputs, {**sizes, **{n: v for n, v in params.items() if n not in tunables}}, tunables)


def poisoned(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """Memory that no result looks like."""
    kind = getattr(torch, dtype)
    return torch.full(tuple(shape), float("nan") if kind.is_floating_point else -99, dtype=kind)


class Run:
    """A program on one set of data: what it should give, and how sure that is."""

    def __init__(self, doc: Doc, arrays: Arrays, program: Program, mode: str) -> None:
        self.doc, self.arrays, self.mode = doc, arrays, mode
        self.program, self.spec = program, spec_of(doc)
        self.sizes: dict[str, Any] = {n: v for n, (v, _) in doc["sizes"].items()} | SCALARS
        self.sizes = {s.name: self.sizes[s.name] for s in program.scalars}
        self.names = [b.name for b in program.outputs]
        self.wanted = dict(zip(self.names, self.reference(arrays, False), strict=True))
        self.rounded = dict(zip(self.names, self.reference(arrays, True), strict=True))
        self.spread = self._spread(1e-12)
        self.coarse = self._spread(EPS)
        self.torch32 = by_torch(doc, arrays, torch.float32)

    def reference(self, arrays: Arrays, rounding: bool) -> list[Any]:
        found = Reference(self.spec, arrays, SCALARS, rounding).arrays
        return [np.asarray(found[t.name]) for t in self.spec.outputs]

    def _spread(self, by: float) -> dict[str, Any]:
        """How much results move where every float input does, relatively, by `by`."""
        rng = np.random.default_rng(5)
        kinds = {t["name"]: t["dtype"] for t in self.doc["inputs"]}
        total = {n: np.zeros(np.shape(w)) for n, w in self.wanted.items()}
        with np.errstate(all="ignore"):
            for _ in range(2):
                moved = {
                    n: a * (1 + by * rng.choice((-1.0, 1.0), np.shape(a))) if kinds[n] != "int32" else a
                    for n, a in self.arrays.items()
                }
                for n, w in zip(self.names, self.reference(moved, False), strict=True):
                    total[n] = np.maximum(total[n], np.abs(np.asarray(w, np.float64) - self.wanted[n]))
        return total

    def check_oracles(self, judge: _Judge) -> None:
        """Our evaluator on the program itself, and torch, against numpy."""
        got = evaluate(self.program, self.arrays, self.sizes)
        others = {"evaluator": [got[n] for n in self.names], "torch": by_torch(self.doc, self.arrays, torch.float64)}
        for kind, found in others.items():
            for n, a in zip(self.names, found or (), strict=False):
                if why := self.differs(a, n):
                    judge.fail(kind, f"{n}: {why} at {self.sizes} ({self.mode})")
                    return

    def check_tvm(self, judge: _Judge) -> None:
        if any(s.get("fold") == "top2" for s in self.doc["stages"]):
            return  # TE has no such reducer
        found = by_tvm(self.spec, self.arrays, SCALARS)
        if found is None:
            return
        judge.verdict.targets.append("tvm")
        for n, a in zip(self.names, found, strict=True):
            if why := self.worse(a, n):
                judge.fail("tvm", f"{n}: {why} at {self.sizes}")
                return

    def differs(self, got: Any, name: str) -> str | None:
        """How a float64 result differs from what is wanted, or None."""
        want = self.wanted[name]
        got = np.asarray(got)
        if got.shape != want.shape:
            return f"its shape is {got.shape}, not {want.shape}"
        if want.dtype.kind != "f":
            return None if (got == want).all() else _first(got != want, got, want)
        finite = np.isfinite(want) & np.isfinite(self.spread[name])
        scale = np.abs(np.where(finite, want, 0)).max(initial=0.0)
        with np.errstate(all="ignore"):
            bound = 1e-13 + 1e-9 * np.abs(want) + 1e-12 * scale + 1e3 * self.spread[name]
            wrong = finite & ~(np.abs(got - want) <= bound)
        return _first(wrong, got, want) if wrong.any() else None

    def worse(self, got: Any, name: str) -> str | None:
        """How a float32 result is worse than the unfused expression's, or None.

        Elements that numpy in float64, or torch or numpy in float32, find undefined or out of range are not compared.
        """
        want = self.wanted[name]
        if want.dtype.kind != "f":
            return None if (np.asarray(got) == want).all() else _first(got != want, got, want)
        unfused = [self.rounded[name]]
        if self.torch32 is not None:
            unfused.append(self.torch32[self.names.index(name)])
        finite = np.isfinite(want) & np.isfinite(self.coarse[name])
        for u in unfused:
            finite &= np.isfinite(u)
        want, got = np.where(finite, want, 0.0), np.where(finite, got, 0.0)
        base = [rel_error(np.where(finite, u, 0.0), want).row for u in unfused]
        base.append(rel_error(want + np.where(finite, self.coarse[name], 0.0), want).row)
        half = any(d in ("float16", "bfloat16") for s in self.spec.stages if s.value for d in self.spec.dtypes)
        floor = 2.0**-12 if half else SLACK
        error, allowed = rel_error(got, want).row, allowance("float32", max(*base, floor))
        if error <= allowed:
            return None
        return f"error {error:.2e} > {allowed:.2e}: {_first(np.abs(got - want) >= np.abs(got - want).max(), got, want)}"


def _first(where: Any, got: Any, want: Any) -> str:
    index = tuple(int(k) for k in np.argwhere(where)[0])
    return f"[{', '.join(map(str, index))}] is {np.asarray(got)[index]!r}, not {np.asarray(want)[index]!r}"
