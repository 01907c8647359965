"""Kernels that an earlier version saved: they load, run the text that was saved, and give what they gave.

`tests/golden/saved.tar.xz` is made by the version that is kept, without a GPU:

    python -m qa.saved write FOLDER --target cuda:90 --run interpret --only softmax …
    tar --sort=name -cJf tests/golden/saved.tar.xz -C FOLDER .

What numpy computes differs by a few units between processors, whose BLAS sum in other orders; `python -m qa.saved check
FOLDER` compares bits.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

import neptune
from neptune.runtime.launching.refused import lower

ARCHIVE = Path(__file__).parents[2] / "golden" / "saved.tar.xz"
with tarfile.open(ARCHIVE) as archive:
    NAMES = sorted(Path(m.name).parts[0] for m in archive.getmembers() if m.name.endswith("/calls.pt"))
KINDS = {"asynchronous", "triton"}
UNITS = 16
"""Of the last place, that products of another processor may differ by: 5.5 were seen. A lost column moves results by
thousands."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_every_kind_is_there():
    assert len(NAMES) >= 10 and {n.rpartition("-")[2] for n in NAMES} == KINDS


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_an_earlier_version(name, corpus):
    call = torch.load(corpus / name / "calls.pt")
    kernel = neptune.load(corpus / name / "kernel", target=call["target"])
    made = kernel(*call["given"])
    for found, wanted in zip(made if isinstance(made, tuple) else (made,), call["made"], strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if found.is_floating_point():
            unit = torch.finfo(found.dtype).eps
            torch.testing.assert_close(found, wanted, rtol=UNITS * unit, atol=UNITS * unit, equal_nan=True)
        else:
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_its_text_is_what_was_saved(name, corpus):
    texts = {p.name: p.read_text() for p in (corpus / name / "kernel").glob("kernel_*.py")}
    kernel = neptune.load(corpus / name / "kernel", target="cuda:90")
    form = name.rpartition("-")[2]
    assert (kernel.source == texts.get("kernel_asynchronous.py")) == (form == "asynchronous")
    assert kernel.source in texts.values()
    if form == "asynchronous":
        # What is tried where its launch is refused.
        artifact = kernel.executable.artifact
        tiles = lower(artifact)
        assert tiles.form is None and tiles.params == artifact.params
    assert kernel.explain() and kernel.ir("tile") == (corpus / name / "kernel" / "tile.txt").read_text()
