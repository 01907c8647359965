"""A choice of values that a launch refuses: which one takes its place, and what is remembered of it.

Triton tells that a kernel wants more than a GPU has (shared memory, threads with so many registers) where it loads the
binary. The choice next to it is one of values alone, so that nothing is compiled for it but its binary:

    another form              tiles alone
    num_stages=3              2, then 1
    BLOCK_M=64, BLOCK_N=128   BLOCK_N=64, then BLOCK_N=32, BLOCK_M=32, …: the longest tile, the last of equals
    num_warps=8               4, 2, 1; before the others where there are too many threads

What the caller gave stays. A choice has a name, the digest of all that its binary follows from, by which this process
knows it, and others by a file of the cache that says why it was refused: what asks for no more than there is, as an
operand that Triton does not take, may be mended elsewhere, and is not kept there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from neptune.base import private
from neptune.config import Config
from neptune.errors import TargetError
from neptune.runtime.artifact import PINNED, STAGES_OF_LOADS, WARPS, Artifact
from neptune.versions import versions

if TYPE_CHECKING:
    from neptune.base.shelf import Shelf

REFUSED = "triton"
"""The kind of error of a first launch that Triton refuses."""
FOLDER, MAGIC = "refused", b"neptune-refused 1 "
OUT_OF = "out of resource: "
THREADS, OTHER = "threads", "other"
RESOURCES = ("shared memory", THREADS, "tensor memory")
"""What a GPU may have too little of, in Triton's words."""
LOG = logging.getLogger("neptune.runtime")
_known: dict[str, str] = {}
"""Why choices were refused, by their names; "" for one of which the cache knows nothing."""
_untold: dict[str, str] = {}
"""What Triton said of choices that this process has found to be refused, until something has their place."""
LINE, SHOWN = 360, 8
"""Of an error: characters of a line, and lines of what was tried."""


# --- the next choice -----------------------------------------------------------------------------


def lower(kernel: Artifact, lacking: str = "", same_bits: bool = False) -> Artifact | None:
    """The choice next to a refused one; None where there is none, or (`same_bits`) none that rounds as it does.

    num_stages=4, BLOCK_N=128  →  num_stages=3, BLOCK_N=128  → … →  num_stages=1, BLOCK_N=64
    """
    if kernel.form is not None:
        return None if same_bits else kernel.with_values({})
    pinned = kernel.explanation.get(PINNED, ())
    free = {n: v for n, v in kernel.params.items() if n not in pinned and n not in kernel.chosen}
    plain = {n: n.rpartition(".")[2] for n in free}
    stages = {n: v - 1 for n, v in free.items() if plain[n] == STAGES_OF_LOADS and v > 1}
    warps = {n: v // 2 for n, v in free.items() if plain[n] == WARPS and v > 1}
    # A kernel that was saved before there were least values says nothing of its tiles.
    least = {n: kernel.explanation["least"].get(n, 1) if "least" in kernel.explanation else v for n, v in free.items()}
    tiles = (n for n in free if plain[n] not in (STAGES_OF_LOADS, WARPS))
    shorter = {n: free[n] // 2 for n in tiles if free[n] % 2 == 0 and free[n] // 2 >= least[n]}
    longest = max(reversed([*shorter]), key=lambda n: shorter[n], default=None)
    tile = {} if longest is None else {longest: shorter[longest]}
    order = (stages,) if same_bits else (warps, stages, tile) if lacking == THREADS else (stages, tile, warps)
    numbers = next(filter(None, order), None)
    return None if numbers is None else kernel.with_values(numbers)


def changed(before: Artifact, after: Artifact) -> str:
    """What a choice has other than the one before it, for people: "BLOCK_N=64"."""
    return ", ".join(f"{n}={v}" for n, v in after.params.items() if before.params[n] != v) or "tiles alone"


def none_is_left(error: TargetError, chains: Sequence[Sequence[Artifact]]) -> TargetError:
    """The error of a launch in whose place nothing runs; `chains` are the choices that were tried, a variant each."""
    lines = [
        ", ".join([f"tried: {row[0].template} with {row[0].params}", *(changed(*x) for x in pairwise(row))])[:LINE]
        for row in chains[:SHOWN]
    ]
    lines = lines if sum(map(len, chains)) > 1 else []
    return TargetError(error.asked, "\n".join([error.wrong, *lines]), hint=error.hint, kind=REFUSED)


# --- what is remembered --------------------------------------------------------------------------


def name_of(artifact: Artifact, device: str) -> str:
    """The name of a choice on a device, such as "cuda:90": equal for equal modules with equal values."""
    texts = [text for module in artifact.modules.values() for text in module.texts]
    form = None if artifact.form is None else [artifact.form.name, artifact.form.text]
    return hashlib.sha256(json.dumps([device, versions(), texts, artifact.params, form]).encode()).hexdigest()


def lacking(name: str) -> str:
    """What there was too little of for a choice; "" for one that was not refused, as far as is known."""
    if name not in _known:
        root = _cache()
        # Nothing is read, or imported for it, where nothing was ever kept.
        kept = "" if root is None or not os.path.exists(root / FOLDER) else read(shelf(root), name)
        # Another thread may have found out meanwhile.
        _known.setdefault(name, kept)
    return _known[name]


def remember(name: str, error: TargetError, keep: bool) -> None:
    """Take no launch with this choice from now on; with `keep`, not in other processes of the same cache either."""
    resource = error.wrong.partition(OUT_OF)[2].partition(",")[0].strip()
    if not _known.get(name):
        _untold[name] = str(error)
    _known[name] = resource if resource in RESOURCES else OTHER
    root = _cache() if keep and resource in RESOURCES else None
    if root is not None:
        shelf(root).write(name, json.dumps({"choice": name, "lacking": resource, "said": str(error)}).encode())


def tell(names: Sequence[str], instead: Artifact) -> None:
    """Say once that another choice has the place of these; what a file told was said by who wrote it."""
    message = next(filter(None, [_untold.pop(name, "") for name in names]), None)
    if message is not None:
        LOG.warning("`%s` runs with %s: another choice is not used: %s", instead.name, instead.params, message)


def shelf(root: Path) -> Shelf:
    """The files under a cache folder, some 600 bytes each."""
    from neptune.base.shelf import Shelf

    return Shelf(root, FOLDER, MAGIC, max_bytes=4 << 20, max_entries=4096)


def read(shelf: Shelf, name: str) -> str:
    """What there was too little of for a choice, as a file says; "" where none says it that can be believed."""
    body = shelf.read(name)
    if body is None:
        return ""
    try:
        entry = private.understood(body)
        resource = entry["lacking"] if entry["choice"] == name else None
    except (ValueError, TypeError, KeyError):
        resource = None
    if resource not in RESOURCES:
        shelf.ignored(name)
        return ""
    shelf.used(name)
    LOG.info("a choice is not taken: %s has it that there is too little %s", shelf.path(name), resource)
    return str(resource)


def _cache() -> Path | None:
    """The cache folder; None without a cache."""
    try:
        # Not all settings: a call does not ask whether they mean something.
        return Config(cache=os.environ.get("NEPTUNE_CACHE_DIR") or None).cache_dir
    except ImportError:  # a saved kernel runs without platformdirs
        return None
