"""NEPTUNE_LOGS: topics and levels, one handler, and silence where it is not set."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import neptune
from neptune.base import logs
from neptune.errors import NeptuneError
from neptune.ops.softmax import softmax
from neptune.tune.choose import _applying
from tests.examples.kernel_examples import rows_fused, rows_program


@pytest.fixture(autouse=True)
def _restored():
    """Loggers are global: leave them as they were."""
    loggers = [logging.getLogger("neptune"), *(logging.getLogger(f"neptune.{t}") for t in logs.TOPICS)]
    before = [(x, x.level, list(x.handlers), x.propagate) for x in loggers]
    yield
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def compiled(monkeypatch, capsys, text, template="softmax_online"):
    monkeypatch.setenv("NEPTUNE_LOGS", text)
    _applying.cache_clear()  # what is known already is not said again
    kernel = neptune.compile(softmax(), template, target="llvm")
    return kernel, capsys.readouterr().err


def test_words_and_their_levels():
    assert set(logs.parse("").values()) == {logging.WARNING}
    levels = logs.parse(" +fusion, codegen,,-tile")
    assert (levels["fusion"], levels["codegen"], levels["tile"]) == (logging.DEBUG, logging.INFO, logging.WARNING)
    assert levels["schedule"] == logging.WARNING
    levels = logs.parse("+all,-tile")
    assert levels["tile"] == logging.WARNING and levels["cache"] == logging.DEBUG


@pytest.mark.parametrize("word", ["fuson", "+", "++fusion", "DEBUG", "neptune.fusion"])
def test_a_topic_that_does_not_exist_is_refused_with_the_legal_ones(word):
    with pytest.raises(NeptuneError) as info:
        logs.configure(f"tile,{word}")
    assert "legal here: compiler, schedule, fusion, tile, codegen, runtime, recompiles, cache, all" in str(info.value)
    assert logging.getLogger("neptune").handlers == []


def test_what_fusion_says(monkeypatch, capsys):
    _, said = compiled(monkeypatch, capsys, "fusion")
    assert '[neptune.fusion] sch.rolling_update("l", sch.loop("m", "j0"))' in said and "l: rolled" in said
    assert "proved" not in said and "[neptune.tile]" not in said and "sch.split" not in said
    _, said = compiled(monkeypatch, capsys, "+fusion")
    assert "proved commute" in said


def test_every_topic_says_something(monkeypatch, capsys):
    kernel, said = compiled(monkeypatch, capsys, "+all", template=None)
    kernel(__import__("torch").zeros(3, 5))
    said += capsys.readouterr().err
    kernel.resources("cuda:90")
    said += capsys.readouterr().err
    # The cache and functions on tensors are the business of other tests.
    for topic in set(logs.TOPICS) - {"cache", "recompiles"}:
        assert f"[neptune.{topic}] " in said, topic
    assert "template matmul: does not apply" in said and "template softmax_row: chosen: predicted" in said
    assert "pass generate: " in said and "pieces" in said and "registers" in said and "by LLVM" in said
    assert "_tunable" not in said


def test_the_steps_are_said_once(monkeypatch, capsys):
    _, said = compiled(monkeypatch, capsys, "schedule")
    assert said.count("sch.bind(") == 1


def test_one_handler_and_no_root(monkeypatch, capsys):
    root = list(logging.getLogger().handlers)
    for text in ("fusion", "tile", "fusion"):
        _, said = compiled(monkeypatch, capsys, text)
    assert said.count("sch.rolling_update(") == 1
    assert len(logging.getLogger("neptune").handlers) == 1
    assert logging.getLogger().handlers == root


def test_an_application_hears_us_without_the_variable(monkeypatch, caplog):
    monkeypatch.delenv("NEPTUNE_LOGS", raising=False)
    with caplog.at_level(logging.INFO, logger="neptune.compiler"):
        neptune.compile(rows_program(), rows_fused, target="llvm")
    assert any("pass generate" in r.message for r in caplog.records)


def test_silent_by_default():
    code = (
        "import logging, neptune; from tests.examples.kernel_examples import rows_fused, rows_program;"
        "neptune.compile(rows_program(), rows_fused, target='llvm');"
        "assert not logging.getLogger('neptune').handlers and not logging.getLogger().handlers"
    )
    root = Path(__file__).parents[3]
    env = {k: v for k, v in os.environ.items() if not k.startswith("NEPTUNE_")} | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=root, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
