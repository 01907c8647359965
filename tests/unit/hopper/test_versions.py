"""The releases of Triton that generated Gluon is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from neptune.errors import TargetError
from neptune.hopper.gluon import versions
from neptune.hopper.validate.compile import compile_gluon
from neptune.runtime.processes.worker import Worker
from tests.unit.hopper import compiling
from tests.unit.hopper.test_gluon import LEVERS, of_attention

FOLDER = os.environ.get("NEPTUNE_OTHER_TRITON")
"""Where another release is installed: `make newest` does that, and `make test-all` names it here."""
ROOT = Path(__file__).parents[3]
Form = compiling.written.Form

SIX = [(d, c, {}) for d in (64, 128, 256) for c in (False, True)]
SIXTEEN = [
    *SIX,
    *((d, c, {"dtype": "bf16", "lse": True}) for d in (64, 128) for c in (False, True)),
    (64, False, {"length": 1000}),
    (64, True, {"chosen": Form(3, 64, 4, True)}),
    (128, True, {"length": 1000, "lse": True}),
    (128, False, {"chosen": Form(2, 64, 3, True)}),
    (256, True, {"chosen": Form(2, 32, 2, False)}),
    (128, False, {"chosen": Form(2, 128, 2, False)}),
]
"""Depth, causal, and what else differs: stages, consumers, dtypes, tails, results with memory of their own or not."""


def test_the_triton_here_has_all_that_generated_text_uses() -> None:
    assert versions.missing() is None


@pytest.mark.parametrize("lost", ["async_load", "warpgroup_mma", "TensorDescriptor"])
def test_a_release_that_lacks_something_is_told(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    where = next(m for m, names in versions.NEEDED.items() if lost in names.split())
    module = importlib.import_module(where)
    for name in (lost, *(versions.RENAMED[lost][1:] if lost in versions.RENAMED else ())):
        monkeypatch.delattr(module, name, raising=False)
    versions.missing.cache_clear()
    try:
        wrong = versions.fault("compile a kernel")
        assert isinstance(wrong, TargetError)
        assert f"Triton {triton.__version__} lacks it: {where} has no {lost}" in str(wrong)
    finally:
        versions.missing.cache_clear()


def test_a_triton_without_gluon(tmp_path: Path) -> None:
    """An older release, as another process finds it."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('__version__ = "2.0.0"\n')
    code = "from neptune.hopper.gluon import versions\nprint(versions.missing())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "there is no triton.experimental.gluon"


def test_the_hand_written_kernel_has_the_head() -> None:
    text = compiling.text()
    assert "\n".join(versions.head()[1:]) in text
    # The old names occur nowhere else.
    for _, _, old in versions.RENAMED.values():
        assert text.count(old) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "causal", "more"), SIXTEEN[len(SIX) :])
def test_sixteen_kernels_compile(depth: int, causal: bool, more: dict[str, object]) -> None:
    """Six of them do in test_compiled.py, which asks for more."""
    made = compile_gluon(compiling.text(), *compiling.kernel(depth, causal, **more))  # type: ignore[arg-type]
    assert not made.lint.findings and made.lint.in_flight == 2
    assert not any("serialized" in w for w in made.warnings)


@pytest.fixture(scope="module")
def other() -> Worker:
    """The compiler's process with the other release."""
    if not FOLDER:
        pytest.skip("NEPTUNE_OTHER_TRITON names no other release: see `make newest`")
    return Worker("neptune.codegen.compile_worker", {"TRITON_INTERPRET": None, "PYTHONPATH": f"{FOLDER}:{ROOT}"})


@pytest.mark.parametrize(("depth", "causal", "more"), SIXTEEN)
def test_sixteen_kernels_compile_with_the_other_release(
    depth: int, causal: bool, more: dict[str, object], other: Worker
) -> None:
    taken = compiling.kernel(depth, causal, **more)  # type: ignore[arg-type]
    made = compile_gluon(compiling.text(), *taken, worker=other)
    assert FOLDER is not None and made.disassembler.startswith(FOLDER)
    # Its assembler may spill where the pinned one does not, and then no kernel of it is accepted; wrong it may not be.
    assert not made.lint.findings and made.lint.in_flight == 2


@pytest.mark.parametrize("depth", LEVERS)
def test_generated_attention_compiles_with_the_other_release(depth: int, other: Worker) -> None:
    made = of_attention(depth)
    found = compile_gluon(made.text, made.kernel, worker=other).lint
    assert not found.findings and found.in_flight == 2
