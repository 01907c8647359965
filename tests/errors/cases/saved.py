"""Kernels and traces that cannot be kept, and what is no kernel or trace when it is read."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import neptune
from neptune.driver import cache as compiled_kernels
from neptune.errors import RecordError, ScheduleError, TargetError
from neptune.fusion.schedule import replay
from neptune.runtime import artifact
from neptune.schedule.state import Loop
from neptune.schedule.trace import Step, trace_from_json
from tests.errors.table import case
from tests.examples.kernel_examples import rows_fused, rows_program
from tests.examples.schedule_examples import matmul


@cache
def rows() -> neptune.Kernel:
    return neptune.compile(rows_program(), rows_fused, target="llvm")


@case(RecordError)
def a_pickle_of_before():
    pickle.loads(b"cneptune.runtime.kernel\n_unpickled\n(NtR.")


# --- saving --------------------------------------------------------------------------------------


@case(RecordError)
def save_over_something_else(tmp_path):
    (tmp_path / "notes").write_text("mine")
    rows().save(tmp_path / "notes")


@case(RecordError)
def save_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    rows().save(tmp_path / "file" / "kernel")


@case(RecordError)
def save_to_a_number():
    rows().save(3)


# --- loading -------------------------------------------------------------------------------------


@case(RecordError)
def load_what_is_not_there(tmp_path):
    neptune.load(tmp_path / "attention")


@case(RecordError)
def load_a_number():
    neptune.load(3)


@case(RecordError)
def load_a_file(tmp_path):
    (tmp_path / "notes").write_text("mine")
    neptune.load(tmp_path / "notes")


@case(RecordError)
def load_an_empty_folder(tmp_path):
    neptune.load(tmp_path)


@case(RecordError)
def load_what_may_not_be_read(tmp_path, monkeypatch):
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    rows().save(tmp_path / "rows")
    # Rights do not hold for root, who runs tests in containers.
    monkeypatch.setattr(os, "open", denied)
    neptune.load(tmp_path / "rows")


@case(TargetError)
def load_for_no_such_target(tmp_path):
    rows().save(tmp_path / "rows")
    neptune.load(tmp_path / "rows", target="metal")


def _damaged(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """Load a kernel that something has happened to since it was saved."""

    def act(tmp_path: Path) -> None:
        rows().save(tmp_path / "rows")
        damage(tmp_path / "rows")
        neptune.load(tmp_path / "rows")

    return act


def _manifest(**changes: Any) -> Callable[[Path], object]:
    """Another manifest, whose digest fits."""

    def damage(folder: Path) -> None:
        manifest = {**json.loads((folder / "manifest.json").read_text()), **changes}
        manifest["digest"] = artifact.digest(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return damage


def _text(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def _as_folder(folder: Path) -> None:
    (folder / "tile.txt").unlink()
    (folder / "tile.txt").mkdir()


case(RecordError, "load_without_a_file")(_damaged(lambda folder: (folder / "tile.txt").unlink()))
case(RecordError, "load_with_a_folder_for_a_file")(_damaged(_as_folder))
case(RecordError, "load_with_an_edited_file")(_damaged(_text("kernel_pointer.py", lambda t: t + "# mine\n")))
case(RecordError, "load_with_bytes_for_a_text")(_damaged(lambda folder: (folder / "tile.txt").write_bytes(b"\xff")))
case(RecordError, "load_half_a_manifest")(_damaged(_text("manifest.json", lambda t: t[: len(t) // 2])))
case(RecordError, "load_an_edited_manifest")(_damaged(_text("manifest.json", lambda t: t.replace("rows", "cols"))))
case(RecordError, "load_another_kind_of_folder")(_damaged(_manifest(format="torch")))
case(RecordError, "load_another_version")(_damaged(_manifest(version=9, made_with={"neptune": "9.9"})))
case(RecordError, "load_a_manifest_of_a_stranger")(_damaged(_manifest(kernel={})))
case(RecordError, "load_variants_without_numbers")(_damaged(_manifest(variants={"first": {}})))
case(RecordError, "load_a_path_out_of_the_folder")(_damaged(_manifest(files={"../notes": "0" * 64})))


# --- kernels that were loaded, or come from the cache ------------------------------------------------


@case(RecordError)
def the_build_of_a_loaded_kernel(tmp_path):
    rows().save(tmp_path / "rows")
    _ = neptune.load(tmp_path / "rows").build


@case(RecordError)
def the_build_of_a_cached_kernel_whose_template_has_changed(tmp_path, monkeypatch):
    size = [16]

    def template(sch: Any) -> None:
        i0, _ = sch.split(sch.loops("t")[0], sch.param("BLOCK_M", list(size)))
        sch.bind(i0, "grid.x")
        sch.fuse_at("y", i0)

    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    # The working tree may be newer than this process.
    monkeypatch.setattr(compiled_kernels, "IMPORTED", time.time_ns() + 10**12)
    neptune.compile(rows_program(), template, target="llvm")
    kernel = neptune.compile(rows_program(), template, target="llvm")
    size[0] = 32
    _ = kernel.build


@case(TargetError)
def for_a_target_that_is_a_number():
    rows().for_target(90)


@case(TargetError)
def for_no_such_target():
    rows().for_target("metal")


# --- traces ----------------------------------------------------------------------------------------


def _read(text: str | None = None, **document: Any) -> Callable[[], object]:
    whole = {"format": "neptune-trace", "version": 1, "steps": [], **document}
    return lambda: trace_from_json(json.dumps(whole) if text is None else text)


case(RecordError, "trace_empty")(_read(""))
case(RecordError, "trace_of_something_else")(_read("{}"))
case(RecordError, "trace_of_another_version")(_read(version=2))
case(RecordError, "trace_without_steps")(_read(steps=None))
case(RecordError, "trace_step_that_is_none")(_read(steps=[["split", 1], []]))
case(RecordError, "trace_argument")(_read(steps=[["split", {"stage": "c", "loop": "i"}, 2.5]]))


@case(RecordError)
def replay_of_what_is_no_primitive():
    replay(matmul(), [Step("unroll", (Loop("c", "i"),))])


@case(ScheduleError)
def replay_on_another_program():
    replay(matmul(), [Step("split", (Loop("scores", "i"), 4))])
