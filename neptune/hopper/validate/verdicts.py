"""Look at what an asynchronous form compiles to, and keep the verdict (`neptune.runtime.hopper.accepted.Verdict`).

Made where a kernel is compiled, in `warm`, or at a first call outside of a graph capture; kept in the cache by the key
of the form. What could not be done then (numbers without a GPU) is done when it can be, and the record replaced.

A check is a function: `protocol` says "clean" or what is wrong, `compare` compares results with those of the Triton
form. Each is called at most once for a form and a compiler, as the record has what it said. Both forms are timed as
well (`timed`), for a choice of sizes and a Triton form: one that is slower does not run unless it is forced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from neptune import config
from neptune.base import private
from neptune.base.shelf import Shelf
from neptune.errors import TargetError
from neptune.hopper.validate.compile import Built, gluon_or_why
from neptune.runtime.hopper.accepted import (
    NOT_COMPARED,
    Compared,
    Figures,
    Timed,
    Verdict,
    key_of,
    read,
    timed_of,
    written,
)
from neptune.runtime.hopper.data import Asynchronous, Roles
from neptune.runtime.launching.launch import capturing

FOLDER = "accepted"
MAGIC = b"neptune-accepted 1 "
LOG = logging.getLogger("neptune.codegen")
_ahead: dict[tuple[str, tuple[int, int]], Future[Verdict | TargetError]] = {}
"""Verdicts on forms that are compiled before they are asked for."""
Found = TypeVar("Found", Verdict, Timed)


def shelf(root: Path) -> Shelf:
    """The records under a cache folder, some 1 KB each."""
    return Shelf(root, FOLDER, MAGIC, max_bytes=16 << 20, max_entries=8192)


def known(form: Asynchronous) -> Verdict | None:
    """The record of a form: its own, else that of the cache; None where there is none that can be believed."""
    key, root = key_of(form), config.read().cache_dir
    own = read(form.record)
    if own is not None and own.key == key:
        return own
    kept = None if root is None else _kept(shelf(root), key)
    return None if kept is None or kept.key != key else kept


def judged(
    form: Asynchronous,
    split: tuple[int, int],
    *,
    protocol: Callable[[], str] | None = None,
    compare: Callable[[], Compared | str | None] | None = None,
) -> Verdict | TargetError | None:
    """The verdict on a form, with all that the checks given can say; kept in the cache.

    `split` are the registers of a consumer and of the producer that the form asks for. A form that is broken already
    is not compared: that would run it. `compare` gives how it ended where it hung or died, which is kept like a result,
    and None where nothing came of it, as with too little memory. While a CUDA graph is captured nothing is compiled or
    run: then it is what is known. TargetError where the form does not compile.
    """
    verdict = known(form)
    if capturing():
        return verdict
    before = verdict
    if verdict is None or verdict.split != split:
        ahead = _ahead.pop((key_of(form), split), None)
        answer = examined(form, split) if ahead is None else ahead.result()
        if isinstance(answer, TargetError):
            return answer
        verdict = answer
    if verdict.protocol is None and protocol is not None:
        verdict = replace(verdict, protocol=protocol())
    if verdict.compared is None and compare is not None and verdict.faults == (NOT_COMPARED,):
        verdict = _with(verdict, compared=compare())
    root = config.read().cache_dir
    if verdict != before and root is not None:
        shelf(root).write(verdict.key, json.dumps(written(verdict)).encode())
    faults = verdict.faults
    LOG.info("%s %s", form.kernel.function, f"is not accepted: {', '.join(faults)}" if faults else "is accepted")
    return verdict


def timed(form: Asynchronous, verdict: Verdict, rival: str, measure: Callable[[], Timed | str | None]) -> Verdict:
    """A verdict with the times of both forms, where nothing else is wrong with the form.

    `rival` is a digest of what the times depend on beside the form; they are kept by both. `measure` is as `compare` of
    `judged`, and not called while a CUDA graph is captured.
    """
    if verdict.wrong:
        return verdict
    root = config.read().cache_dir
    key = hashlib.sha256(f"{key_of(form)} {rival}".encode()).hexdigest()
    kept = None if root is None else _times(shelf(root), key)
    if kept is not None or capturing():
        return replace(verdict, timed=kept)
    measured = _with(verdict, timed=measure())
    if root is not None and measured.timed is not None:
        shelf(root).write(key, json.dumps(asdict(measured.timed)).encode())
    elif root is not None and measured.ended:
        shelf(root).write(measured.key, json.dumps(written(measured)).encode())
    LOG.info("%s %s", form.kernel.function, ", ".join(measured.faults) or f"is timed: {measured.timed}")
    return measured


def _with(verdict: Verdict, **outcome: Compared | Timed | str | None) -> Verdict:
    """A verdict with what came of running the form: a result, or how its process ended."""
    ((name, what),) = outcome.items()
    return replace(verdict, ended=what) if isinstance(what, str) else replace(verdict, **{name: what})  # type: ignore[arg-type]


def begun(form: Asynchronous, split: tuple[int, int]) -> None:
    """Have a form compiled beside what this thread does, if nothing is known of it: `judged` waits for what comes."""
    if capturing() or known(form) is not None:
        return
    compiled: Future[Verdict | TargetError] = Future()

    def compile_it() -> None:
        try:
            compiled.set_result(examined(form, split))
        except BaseException as error:
            compiled.set_exception(error)

    # What nobody has asked for by now was of a form that was refused.
    _ahead.clear()
    _ahead[key_of(form), split] = compiled
    threading.Thread(target=compile_it, daemon=True).start()


def examined(form: Asynchronous, split: tuple[int, int]) -> Verdict | TargetError:
    """The verdict that compiling alone gives, with figures of each kernel; why not, where one does not compile."""
    every: list[Figures] = []
    for x in kernels_of(form, split):
        built = gluon_or_why(form.text, x.kernel, numbers(x.levers))
        if isinstance(built, TargetError):
            return built
        every.append(figures(built, x.registers))
    own, *others = every
    return Verdict(**asdict(own), key=key_of(form), others=tuple(others))


def kernels_of(form: Asynchronous, split: tuple[int, int]) -> tuple[Roles, ...]:
    """All asynchronous kernels of a form, whose first has this split of registers."""
    return (Roles(form.kernel, form.levers, split), *form.others)


def numbers(levers: Mapping[str, int | str]) -> dict[str, int]:
    """The constants of a kernel."""
    return {n: v for n, v in levers.items() if isinstance(v, int)}


def verdict(key: str, built: Built, split: tuple[int, int]) -> Verdict:
    """The verdict that compiling gives on a form of one kernel."""
    return Verdict(**asdict(figures(built, split)), key=key)


def figures(built: Built, split: tuple[int, int]) -> Figures:
    """The figures of the code of one kernel."""
    lint = built.lint
    return Figures(
        shared_bytes=built.shared_bytes,
        spill_bytes=built.spill_bytes,
        local=lint.local,
        local_inner=lint.local_inner,
        warnings=built.warnings,
        split=split,
        consumers=lint.consumers,
        producers=lint.producers,
        findings=tuple(map(str, lint.findings[:10])),
        products=lint.products,
        in_flight=lint.in_flight,
        exps=lint.exps,
        overlapped=lint.overlapped,
    )


def _kept(records: Shelf, key: str) -> Verdict | None:
    return _read(records, key, read)


def _times(records: Shelf, key: str) -> Timed | None:
    return _read(records, key, timed_of)


def _read(records: Shelf, key: str, understood: Callable[[Any], Found | None]) -> Found | None:
    body = records.read(key)
    try:
        record = None if body is None else understood(private.understood(body))
    except ValueError:
        record = None
    if body is not None and record is None:
        records.ignored(key)
    elif body is not None:
        records.used(key)
    return record
