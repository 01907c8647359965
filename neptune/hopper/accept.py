"""Look at what an asynchronous form compiles to, and keep the verdict (`neptune.runtime.accepted.Verdict`).

Made where a kernel is compiled, in `warm`, or at a first call outside of a graph capture; kept in the cache by the key
of the form. What could not be done then (numbers without a GPU) is done when it can be, and the record replaced.

A check is a function: `protocol` says "clean" or what is wrong, `compare` compares results with those of the Triton
form. Each is called at most once for a form and a compiler, as the record has what it said.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from neptune import config
from neptune.hopper.compile import Built, compile_gluon
from neptune.runtime.accepted import NOT_COMPARED, Compared, Verdict, key_of, read, written
from neptune.runtime.addressing import Asynchronous
from neptune.shelf import Shelf

FOLDER = "accepted"
MAGIC = b"neptune-accepted 1 "
LOG = logging.getLogger("neptune.codegen")


def shelf(root: Path) -> Shelf:
    """The records under a cache folder, some 1 KB each."""
    return Shelf(root, FOLDER, MAGIC, max_bytes=16 << 20, max_entries=8192)


def known(of: Asynchronous) -> Verdict | None:
    """The record of a form: its own, else that of the cache; None where there is none that can be believed."""
    key, root = key_of(of), config.read().cache_dir
    own = read(of.record)
    if own is not None and own.key == key:
        return own
    kept = None if root is None else _kept(shelf(root), key)
    return None if kept is None or kept.key != key else kept


def judged(
    of: Asynchronous,
    split: tuple[int, int],
    *,
    protocol: Callable[[], str] | None = None,
    compare: Callable[[], Compared] | None = None,
) -> Verdict | None:
    """The verdict on a form, with all that the checks given can say; kept in the cache.

    `split` are the registers of a consumer and of the producer that the form asks for. A form that is broken already
    is not compared: that would run it. While a CUDA graph is captured nothing is compiled or run: then it is what is
    known. Raises TargetError where the form does not compile.
    """
    found = known(of)
    if capturing():
        return found
    before = found
    if found is None or found.split != split:
        found = examined(of, split)
    if found.protocol is None and protocol is not None:
        found = replace(found, protocol=protocol())
    if found.compared is None and compare is not None and found.faults == (NOT_COMPARED,):
        found = replace(found, compared=compare())
    root = config.read().cache_dir
    if found != before and root is not None:
        shelf(root).write(found.key, json.dumps(written(found)).encode())
    faults = found.faults
    LOG.info("%s %s", of.kernel.function, f"is not accepted: {', '.join(faults)}" if faults else "is accepted")
    return found


def examined(of: Asynchronous, split: tuple[int, int]) -> Verdict:
    """What compiling alone tells. Raises TargetError where the form does not compile."""
    values = {n: v for n, v in of.levers.items() if isinstance(v, int)}
    return verdict(key_of(of), compile_gluon(of.text, of.kernel, values), split)


def verdict(key: str, built: Built, split: tuple[int, int]) -> Verdict:
    """The figures of a compiled form."""
    found = built.lint
    return Verdict(
        key=key,
        shared_bytes=built.shared_bytes,
        spill_bytes=built.spill_bytes,
        local=found.local,
        local_inner=found.local_inner,
        warnings=built.warnings,
        split=split,
        consumers=found.consumers,
        producers=found.producers,
        findings=tuple(map(str, found.findings[:10])),
        products=found.products,
        in_flight=found.in_flight,
        exps=found.exps,
        overlapped=found.overlapped,
    )


def capturing() -> bool:
    """True while a CUDA graph is captured on the current stream."""
    import torch

    return bool(torch.cuda.is_available()) and torch.cuda.is_current_stream_capturing()


def _kept(records: Shelf, key: str) -> Verdict | None:
    body = records.read(key)
    try:
        found = None if body is None else read(json.loads(body))
    except (ValueError, RecursionError):
        found = None
    if body is not None and found is None:
        records.ignored(key)
    elif body is not None:
        records.used(key)
    return found
