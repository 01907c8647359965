"""Saved kernels: a folder of plain Triton source and a JSON manifest with hashes. No pickle.

    attention/
      manifest.json                   what kernel.explain() says, the forms of the module, SHA-256 of every file
      kernel_pointer.py               the Triton modules, usable without Neptune: from kernel_pointer import attention
      kernel_descriptor.py …
      loops.txt scheduled.txt fused.txt tile.txt

It is code: load only what you trust (docs/trust.md). The hashes detect damage, not malice; files and folders that
others may write are said.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from neptune.base import private
from neptune.errors import RecordError
from neptune.runtime.artifact import FORMAT, Artifact, Packed, check_manifest, damaged, pack, texts, with_variants
from neptune.runtime.launching.launch import default_target, gpu_target, has_tvm, parse_target
from neptune.versions import versions

MANIFEST = "manifest.json"
CACHES = frozenset({"__pycache__"})
"""What importing from a saved kernel leaves in it."""
ATTEMPTS, SHOWN = 5, 3
AT_FDCWD, RENAME_EXCHANGE = -100, 2
LOG = logging.getLogger("neptune.runtime")


# --- saving --------------------------------------------------------------------------------------


def save(artifact: Artifact, path: str | os.PathLike[str], variants: Mapping[int, Artifact] | None = None) -> None:
    """Write a kernel, with the other variants of its family, as a folder: under another name first, so that no half of
    it is ever seen at `path`."""
    request = f"save kernel `{artifact.name}` to {shown(path)}"
    target = _as_path(path, request).absolute()
    # A link stays a link, and what it leads to is replaced.
    target = target.resolve() if target.is_symlink() else target
    if os.path.lexists(target) and not _is_saved(target):
        raise RecordError(
            request,
            "there is something else than a saved kernel",
            legal=("a path where nothing is", "a saved kernel, which is replaced"),
            kind="saving",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = _beside(target)
        # Nobody else's to write, whatever the umask says: what is loaded is executed.
        fresh.mkdir(0o755)
        try:
            _fill(fresh, packed(artifact.without_model(), variants or {}))
            _put(fresh, target)
            _sync(target.parent)
        finally:
            # The unfinished one, or the one that was replaced.
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, ValueError) as error:
        wrong = f"it cannot be written: {getattr(error, 'strerror', None) or error}"
        raise RecordError(request, wrong, hint="a folder of yours, with room", kind="saving") from None


def packed(artifact: Artifact, variants: Mapping[int, Artifact]) -> Packed:
    """A kernel with its other variants as JSON and texts."""
    own, others = pack(artifact, versions()), {k: pack(a, versions()) for k, a in variants.items()}
    return with_variants(own, others) if others else own


def _as_path(path: str | os.PathLike[str], request: str) -> Path:
    try:
        return Path(path)
    except TypeError:
        wrong = f"this is no path, but {type(path).__name__}"
        raise RecordError(request, wrong, legal=("a string", "a pathlib.Path"), kind="saving") from None


def shown(path: object) -> str:
    """A path as messages show it."""
    return f"`{path}`" if isinstance(path, str | Path) else repr(path)


def _fill(folder: Path, packed: Packed) -> None:
    """All files, on the disk."""
    manifest = json.dumps(packed.manifest, indent=1, ensure_ascii=False) + "\n"
    for name, text in {**packed.files, MANIFEST: manifest}.items():
        with open(folder / name, "wb", opener=lambda name_there, flags: os.open(name_there, flags, 0o644)) as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
    _sync(folder)


def _beside(target: Path) -> Path:
    """A hidden name of the same file system, which nothing has."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}")


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _put(fresh: Path, target: Path) -> None:
    """Move a folder to `target`; where there is one already, `fresh` holds that one afterwards, or is gone."""
    try:
        # Fails on a folder with something in it.
        fresh.rename(target)
    except OSError:
        if not _is_saved(target):
            raise
        if not _exchange(fresh, target):
            # A file system that cannot swap two names: for a moment there is none.
            old = _beside(target)
            target.rename(old)
            try:
                fresh.rename(target)
            except OSError:
                old.rename(target)
                raise
            shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step (Linux); False where that is not to be had."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0)


def _is_saved(folder: Path) -> bool:
    """Return True if a folder holds a saved kernel, whole or not, of any version, and nothing else."""
    try:
        manifest = private.understood((folder / MANIFEST).read_bytes())
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            return False
        known = {MANIFEST, *manifest.get("files", ()), *CACHES}
        return not folder.is_symlink() and set(os.listdir(folder)) <= known
    except (OSError, ValueError, TypeError):
        return False


# --- loading -------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str], request: str) -> Packed:
    """Return all that `save` wrote at `path`. RecordError for anything else, and for a path that is none."""
    packed = _read(_as_path(path, request))
    _say_versions(path, packed)
    return packed


def _read(path: Path) -> Packed:
    """A consistent look at a folder that may be replaced meanwhile."""
    for attempt in range(ATTEMPTS):
        try:
            before = path.stat()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise RecordError("read a kernel", f"there is no saved kernel: {why}") from None
        try:
            return _read_once(path)
        except RecordError:
            now = path.stat() if path.exists() else None
            if now is None or _version(now) == _version(before) or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def _version(s: os.stat_result) -> tuple[int, ...]:
    """Changes when another folder takes the place of one."""
    return s.st_ino, s.st_mtime_ns, s.st_ctime_ns


def _read_once(path: Path) -> Packed:
    if not path.is_dir():
        raise RecordError("read a kernel", "this is not a folder", legal=("what kernel.save(path) wrote",))
    # All files of one folder, even if another takes its place.
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RecordError("read a kernel", f"it cannot be read: {error.strerror}") from None
    try:
        try:
            manifest = private.understood(_content(folder, MANIFEST))
        except ValueError as error:
            raise damaged(f"its manifest is no JSON of ours: {getattr(error, 'msg', error)}") from None
        check_manifest(manifest)
        named = [name for name in manifest["files"] if name == os.path.basename(name)]
        _say_owners(path, folder, named)
        return Packed(manifest, texts((name, _content(folder, name)) for name in named))
    finally:
        os.close(folder)


def _say_owners(path: Path, folder: int, named: Sequence[str]) -> None:
    """What is loaded is executed: say so where somebody else may have written it."""
    files = {".": os.fstat(folder), **{n: _status(n, folder) for n in (MANIFEST, *named)}}
    loose = [str(path / n) for n, status in files.items() if status is not None and private.others_may_write(status)]
    loose += [str(p) for p in path.absolute().parents if _anybody_may_move(p.stat())]
    if loose:
        LOG.warning(
            "the kernel in %s is code, and others may write there: %s%s; load only what you trust (docs/trust.md)",
            path,
            ", ".join(loose[:SHOWN]),
            f" and {len(loose) - SHOWN} more" if len(loose) > SHOWN else "",
        )


def _status(name: str, folder: int) -> os.stat_result | None:
    """None where it is not there, which is said when it is read."""
    try:
        return os.stat(name, dir_fd=folder)
    except (OSError, ValueError):
        return None


def _anybody_may_move(status: os.stat_result) -> bool:
    """True for a folder in which anybody may put another kernel in the place of one: not of those that are shared by
    rule, as /tmp is."""
    return bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX


def _content(folder: int, name: str) -> bytes:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        if name == MANIFEST:
            raise RecordError(
                "read a kernel", f"it has no {MANIFEST}: {why}", legal=("what kernel.save(path) wrote",)
            ) from None
        raise damaged(f"{name!r} is missing: {why}") from None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise damaged(f"{name!r} is no file")
        with open(opened, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(opened)


def target_here(saved: str) -> str:
    """The GPU where there is one, else the target that the kernel was saved for, if it can run, else "interpret"."""
    if gpu_target() is not None:
        present, wanted = default_target(), parse_target(saved)
        return saved if wanted.kind == present.kind and wanted.arch in ("", _arch()) else str(present)
    return saved if saved == "llvm" and has_tvm() else "interpret"


def _arch() -> str:
    present = gpu_target()
    return "" if present is None else present.arch


def _say_versions(path: str | os.PathLike[str], packed: Packed) -> None:
    """Another Triton or torch than at the time is no error, but good to know where something fails."""
    then, now = packed.manifest.get("made_with"), versions()
    if isinstance(then, dict):
        other = [f"{name} {then.get(name)} (here {now[name]})" for name in now if then.get(name) != now[name]]
        if other:
            LOG.info("the kernel %s was saved with %s", os.fspath(path), ", ".join(other))
