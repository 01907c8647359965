"""Compiled kernels that are not compiled again: when a request is the same, and where its kernel is kept.

The key of a request is a digest of everything that a compilation depends on: the program with all its declarations,
the template (a shipped one by name, a function by its fingerprint), params, sizes, target and settings, measurements
that the choice reads, the versions of what compiles, and a stamp of Neptune's own sources. What cannot be told is not
cached. What it cannot see is Neptune changed in the running process (a patched function of its own):
NEPTUNE_CACHE_DIR=0 is for that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune import config
from neptune.base import private
from neptune.base.shelf import Shelf
from neptune.config import Config
from neptune.driver import loud
from neptune.driver.fingerprint import fingerprint, why_open
from neptune.driver.known import NOTHING_KNOWN, Known
from neptune.errors import NeptuneError, RecordError
from neptune.forms import forms_of
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime.artifact import Artifact, Packed, pack, unpack
from neptune.runtime.executable import Executable
from neptune.versions import IMPORTED, versions

if TYPE_CHECKING:
    from neptune.driver.build import Build

FOLDER = "compiled"
MAGIC = b"neptune-cache 1 "
COMPILERS = ("sympy", "numpy")
"""Whose versions count, besides torch's and Triton's."""
NOT_IN_KEY = ("target", "dump", "cache", "logs", "records", "form", "tiered")
"""Settings that do not change a kernel (the target and the form of the request do, and are there, as are the records it
reads)."""
CLOCK_STEP = 20_000_000
"""Nanoseconds by which the clock of a file system may lag behind."""
LOG = logging.getLogger("neptune.cache")
Variant: TypeAlias = Callable[[Mapping[str, Any]], Kernel]
"""The kernel of a choice of template and parameters."""


@dataclass(frozen=True)
class Request:
    """The arguments of `neptune.compile`; `loops` is the expression as imported, `machine` the GPU to choose for. Of a
    variant, `at` are sizes that it is for. `strict` refuses what was made and makes nothing else: it is not in the key.
    `known` is what was measured of the program, which an automatic choice reads; with `counting` templates are chosen
    for their other forms, too.
    """

    loops: Program
    template: Any
    target: str
    params: Mapping[str, Any]
    shapes: Mapping[str, Any]
    bounds: Mapping[str, Any]
    settings: Config
    machine: str = ""
    at: Mapping[str, Any] | None = None
    strict: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    assume: tuple[str, ...] = ()
    form: str | None = None
    levers: Mapping[str, Any] = field(default_factory=dict)
    known: Known = NOTHING_KNOWN
    counting: bool = True


def cached(request: Request, make: Callable[[], Build], variant: Variant) -> Kernel:
    """The Kernel of a request: from the cache where it is there, else made, and kept.

    Where a kernel came from the cache, `make` is called when its `build` is asked for. `variant` makes another
    kernel of its family.
    """

    def kernel(artifact: Artifact, build: Callable[[], Build]) -> Kernel:
        described = artifact.family
        others = None if described is None else lambda k: variant(described["variants"][k])
        return Kernel(Executable(artifact, request.loops), build, others, loud.refuse if request.strict else None)

    folder, key = request.settings.cache_dir, _key(request)
    if folder is None or key is None:
        built = make()
        return kernel(built.artifact(), lambda: built)
    store = Store(folder)
    stored = store.get(key)
    LOG.info("`%s` %s: %s", request.loops.name, "is not there" if stored is None else "found", store.path(key))
    if stored is None:
        with store.alone(key):
            # Who had the lock before may have made it.
            stored = store.get(key)
            if stored is None:
                built = make()
                artifact = built.artifact()
                _keep(request, store, key, artifact)
                return kernel(artifact, lambda: built)
    return kernel(stored, lambda: _made_again(stored, make()))


def _keep(request: Request, store: Store, key: str, artifact: Artifact) -> None:
    """Keep what was made, unless the key is no longer that of it: a template may change what it depends on, and files
    may be edited meanwhile."""
    if request_key(request) == key:
        store.put(key, artifact)
    else:
        _not_cached(request, "its template, or Neptune itself, changed while it was compiled")


def entry(request: Request) -> Artifact | None:
    """What is kept for a request; None where nothing is."""
    folder, key = request.settings.cache_dir, _key(request)
    return None if folder is None or key is None else Store(folder).get(key)


def _key(request: Request) -> str | None:
    """The key of a request that may be cached; None otherwise, and the log says why."""
    if request.settings.cache_dir is None:
        why = f"NEPTUNE_CACHE_DIR={config.NO_CACHE}, or there is no folder for it"
    elif request.settings.dump is not None:
        why = "with NEPTUNE_DUMP every pass has something to show"
    elif (key := request_key(request)) is not None:
        return key
    else:
        why = why_uncached(request)
    _not_cached(request, why)
    return None


def _not_cached(request: Request, why: str) -> None:
    LOG.info("`%s` is not cached: %s", request.loops.name, why)


def why_uncached(request: Request) -> str:
    """Return the reason why a request has no key."""
    if source_stamp() is None:
        return "Neptune's sources are newer than this process"
    if _template(request.template) is None:
        return f"what the template does cannot be told: {why_open(request.template)}"
    return "an argument is no plain value"


def _made_again(stored: Artifact, built: Build) -> Build:
    """The Build of a kernel that came from the cache; RecordError where it is no longer that kernel's."""
    again = built.artifact()
    if (again.programs, again.modules) != (stored.programs, stored.modules):
        raise RecordError(
            f"kernel.build of `{stored.name}`",
            "the template makes another program now than when the kernel was cached",
            hint="compile it again",
        )
    return built


def request_key(request: Request) -> str | None:
    """A name for everything that the kernel depends on; None where it cannot be told, or should not be kept."""
    sources = source_stamp()
    template = _template(request.template)
    if sources is None or template is None:
        return None
    settings = {k: str(v) for k, v in asdict(request.settings).items() if k not in NOT_IN_KEY}
    forms = [f.name for f in forms_of(request.form, request.target)]
    promised = [request.deterministic, request.batch_invariant, request.form or "", forms, request.counting]
    choices = [*promised, *request.assume, *request.known.key]
    numbers = (request.params, request.shapes, request.bounds, request.at or {}, request.levers)
    try:
        sizes = [list(x.items()) for x in numbers]
        made_by = [versions(*COMPILERS), sys.version, sys.flags.optimize, sources]
        parts = [str(request.loops), template, request.target, request.machine, sizes, choices, settings, made_by]
        text = json.dumps(parts)
    except (AttributeError, TypeError, ValueError):
        # Values that no kernel takes: compiling says so.
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _template(template: Any) -> list[str | None] | None:
    if template is None or isinstance(template, str):
        return ["named", template]
    from neptune.schedule.template import Rewriting

    if isinstance(template, Rewriting):
        return ["rewriting", template.name, str(template.rewritten), template.text]
    digest = fingerprint(template)
    return None if digest is None else ["own", digest]


# --- on disk: a file of `neptune.base.shelf` each, the JSON of a packed Artifact and its key --------------


@dataclass(frozen=True)
class Store(Shelf):
    """The entries under `root`, which need not exist; `max_bytes` and `max_entries` bound what is kept."""

    name: str = FOLDER
    magic: bytes = MAGIC
    max_bytes: int = 512 << 20
    max_entries: int = 4096

    def get(self, key: str) -> Artifact | None:
        """The Artifact of a key; None where there is none that can be believed."""
        body = self.read(key)
        artifact = None if body is None else _decode(key, body)
        if artifact is not None:
            self.used(key)
        elif body is not None:
            self.ignored(key)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an Artifact; an entry that is there is replaced."""
        self.write(key, _encode(key, artifact))


def _encode(key: str, artifact: Artifact) -> bytes:
    packed = pack(artifact, versions())
    return json.dumps({"key": key, "manifest": packed.manifest, "files": dict(packed.files)}).encode()


def _decode(key: str, body: bytes) -> Artifact | None:
    try:
        entry = private.understood(body)
        if entry["key"] != key:
            return None
        return unpack(Packed(entry["manifest"], entry["files"]))
    except (NeptuneError, ValueError, TypeError, KeyError):
        return None


# --- Neptune's own sources -----------------------------------------------------------------------


def source_stamp() -> str | None:
    """A digest of names, sizes and times of all files of this package; None where a file is newer than its import.

    Then the code that runs may be another than the file's: an editor's work, which should not be kept.
    """
    root = Path(__file__).parents[1]
    try:
        files = sorted(_files(str(root)))
    except OSError:
        return None
    if not files or max(ctime for *_, ctime in files) > IMPORTED - CLOCK_STEP:
        return None
    return hashlib.sha256(repr(files).encode()).hexdigest()


def _files(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """(path, bytes, time of the last write, time of the last change of any kind) of every source file."""
    with os.scandir(folder) as entries:
        for e in entries:
            if e.name.endswith(".py"):
                s = e.stat()
                yield e.path, s.st_size, s.st_mtime_ns, s.st_ctime_ns
            elif e.name != "__pycache__" and e.is_dir():
                yield from _files(e.path)
