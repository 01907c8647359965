"""L12: damaged files of any content never raise, and what is executed is asked whose it is."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import neptune
from neptune import config
from neptune.errors import NeptuneError, RecordError
from neptune.runtime.artifact import digest
from neptune.runtime.saved import MANIFEST
from neptune.tune.model import calibrated
from qa.fuzz_faults import KINDS, trial
from tests.examples.kernel_examples import rows_program

CONSTANTS = {
    "clock": 1.7, "memory": 4000.0, "port": 1.0, "special": 1.0, "processors": 132, "l2": 50,
    "matrix": {"float16": 900.0},
}  # fmt: skip


def machines(folder: Path, constants: Any) -> Any:
    folder.chmod(0o700)
    calibrated.keep(folder, "gpu", "sm_90", CONSTANTS)
    (folder / calibrated.FILE).write_text(json.dumps({"gpu (sm_90)": constants}))
    return calibrated.kept(folder, "gpu", "sm_90")


@pytest.mark.parametrize("at", ["clock", "processors", "l2", "matrix"])
@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999", "NaN", "1" + "0" * 5000, '"1"', "[]", "-1", "true"])
def test_l12_a_calibration_with_any_number_is_none(tmp_path: Path, at: str, number: str) -> None:
    text = json.dumps({"gpu (sm_90)": CONSTANTS | {at: "HERE" if at != "matrix" else {"float16": "HERE"}}})
    tmp_path.chmod(0o700)
    calibrated.keep(tmp_path, "gpu", "sm_90", CONSTANTS)
    (tmp_path / calibrated.FILE).write_text(text.replace('"HERE"', number))
    assert calibrated.kept(tmp_path, "gpu", "sm_90") is None


def test_l12_a_calibration_is_read_as_it_was_kept(tmp_path: Path) -> None:
    assert machines(tmp_path, CONSTANTS) == CONSTANTS


@pytest.mark.parametrize("whose", ["file", "folder", "link"])
def test_l12_a_calibration_that_others_may_write_is_not_used(tmp_path: Path, whose: str) -> None:
    assert machines(tmp_path, CONSTANTS) is not None
    file = tmp_path / calibrated.FILE
    if whose == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        (file if whose == "file" else tmp_path).chmod(0o777)
    assert calibrated.kept(tmp_path, "gpu", "sm_90") is None


@pytest.fixture(scope="module")
def kernel() -> neptune.Kernel:
    return neptune.compile(rows_program(), target="interpret")


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 5000, 100000])
@pytest.mark.parametrize("signed", [True, False])
def test_l12_a_manifest_of_any_depth_is_refused(
    kernel: neptune.Kernel, tmp_path: Path, depth: int, signed: bool
) -> None:
    kernel.save(tmp_path / "k")
    file = tmp_path / "k" / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["more"] = 0
    if signed and depth < 900:
        nest: Any = 0
        for _ in range(depth):
            nest = [nest]
        manifest["digest"] = digest({**manifest, "more": nest})
    file.write_text(json.dumps(manifest).replace('"more": 0', '"more": ' + "[" * depth + "0" + "]" * depth))
    with pytest.raises(RecordError):
        neptune.load(tmp_path / "k")
    with pytest.raises(RecordError):
        kernel.save(tmp_path / "k" / MANIFEST)


@pytest.mark.parametrize("name", ["NEPTUNE_FUSION_FUEL", "NEPTUNE_VERIFY", "NEPTUNE_FORM", "NEPTUNE_TARGET"])
@pytest.mark.parametrize("value", ["9" * 5000, "1" * 4301, "-1", "1e3", "٣", "\ud800"])
def test_l12_a_setting_of_any_text_is_taken_or_refused(name: str, value: str) -> None:
    try:
        config.read({name: value})
    except NeptuneError as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize("whose", ["folder", "file", "manifest"])
def test_l12_a_saved_kernel_that_others_may_write_is_said(
    kernel: neptune.Kernel, tmp_path: Path, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    at = tmp_path / "k"
    kernel.save(at)
    with caplog.at_level(logging.WARNING, "neptune.runtime"):
        neptune.load(at)
        assert "others may write" not in caplog.text
        names = {"folder": at, "manifest": at / MANIFEST, "file": at / "kernel_pointer.py"}
        names[whose].chmod(0o777)
        neptune.load(at)
    assert "others may write" in caplog.text and str(at) in caplog.text


def test_l12_what_is_saved_is_this_users_whatever_the_umask(kernel: neptune.Kernel, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kernel.save(tmp_path / "k")
    finally:
        os.umask(before)
    assert all(not p.stat().st_mode & 0o022 for p in (tmp_path / "k", *(tmp_path / "k").iterdir()))


@pytest.mark.parametrize("seeds", [range(96), pytest.param(range(96, 296), marks=pytest.mark.slow)], ids=str)
def test_l12_files_damaged_at_random_never_raise(seeds: range) -> None:
    """Kernels and cache entries, which have to be compiled and are long, in the slow slice alone."""
    for seed in seeds:
        if len(seeds) > 100 or KINDS[seed % len(KINDS)].__name__ not in ("manifest", "entry"):
            assert trial(seed).kind in ("right", "refused"), seed
