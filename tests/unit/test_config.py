"""Settings: what counts, what does not, and that they are read when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from neptune import config
from neptune.errors import NeptuneError


def test_defaults_and_empty_values():
    assert config.read({}) == config.Config(target=None, verify=1, dump=None, logs="", fuel=None)
    assert config.read({"NEPTUNE_TARGET": "", "NEPTUNE_VERIFY": "", "NEPTUNE_DUMP": ""}) == config.Config()


def test_values():
    found = config.read({"NEPTUNE_TARGET": "interpret", "NEPTUNE_VERIFY": "0", "NEPTUNE_DUMP": "out"})
    assert found == config.Config("interpret", 0, Path("out"))
    found = config.read({"NEPTUNE_LOGS": "+fusion", "NEPTUNE_FUSION_FUEL": "0"})
    assert found == config.Config(logs="+fusion", fuel=0)


def test_a_higher_level_draws_more():
    draws = [config.read({"NEPTUNE_VERIFY": str(k)}).draws for k in range(3)]
    assert draws[0] == 0 < draws[1] < draws[2]


@pytest.mark.parametrize("text", ["3", "-1", "yes", "1.0"])
def test_a_wrong_level_is_refused_with_the_legal_ones(text):
    with pytest.raises(NeptuneError, match="legal here: 0, 1, 2"):
        config.read({"NEPTUNE_VERIFY": text})


@pytest.mark.parametrize("name", ["NEPTUNE_STRICT", "NEPTUNE_RECORDS"])
@pytest.mark.parametrize("text", ["false", "off", "no", "7", "True"])
def test_what_is_neither_0_nor_1_is_refused(name, text):
    with pytest.raises(NeptuneError, match="legal here: 0, 1"):
        config.read({name: text})


def test_the_check_of_calls_takes_0_and_1(monkeypatch):
    for text, on in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("NEPTUNE_CHECK", text)
        assert config.checked_calls() is on
    monkeypatch.setenv("NEPTUNE_CHECK", "false")
    with pytest.raises(NeptuneError, match="NEPTUNE_CHECK=false"):
        config.checked_calls()


def test_the_environment_is_read_at_each_call(monkeypatch):
    monkeypatch.setenv("NEPTUNE_VERIFY", "2")
    assert config.read().verify == 2
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    assert config.read().verify == 0


def test_every_variable_is_explained():
    assert config.__doc__ is not None
    assert all(f"\n{name} " in config.__doc__ for name in config.VARIABLES)


def test_tracebacks_are_short_by_default(monkeypatch):
    for value, full in (("", False), ("0", False), ("1", True), ("no", False)):
        monkeypatch.setenv("NEPTUNE_TRACEBACK", value)
        assert config.full_tracebacks() is full
