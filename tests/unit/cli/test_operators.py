"""Shipped operators on the command line, and what is refused before anything is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from neptune.cli.commands import app
from neptune.ops.shipped import OPERATORS


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def test_the_list() -> None:
    said = json.loads(invoke("ops", "--json").stdout)
    assert said.keys() == OPERATORS.keys()
    assert said["rms_norm"] == {
        "what it is": "y = x / √(mean(x²) + eps) · g: rows over the root of their mean square",
        "inputs": "x: f16[rows, cols], g: f16[cols]",
        "call": "neptune.ops.norm.rms_norm()",
    }
    text = invoke("ops").stdout
    assert all(any(line.startswith(f"{n} ") for line in text.splitlines()) for n in OPERATORS)


def test_words_leave_some_and_say_all_of_them() -> None:
    said = json.loads(invoke("ops", "attention", "sink", "--json").stdout)
    assert "attention_sinks" in said and "softmax" not in said
    assert said["attention_sinks"]["options"].startswith("dtype=") or "sinks=" in said["attention_sinks"]["options"]
    text = invoke("ops", "rms_norm_linear").stdout
    assert "example:" in text and "y = neptune.compile(neptune.ops.norm.rms_norm_linear())(x, g, w)" in text
    done = invoke("ops", "zzz")
    assert done.exit_code == 2 and "no operator has zzz" in done.output


@pytest.mark.parametrize("reference", ["logsumexp", "softmax:logsumexp"])
def test_by_name_and_by_family(reference: str) -> None:
    done = invoke("compile", reference, "-t", "softmax_row", "--target", "llvm", "--ir", "loops")
    assert done.exit_code == 0 and done.stdout.startswith("program logsumexp"), done.output


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("rms_nrm", "no operator 'rms_nrm'; like it are rms_norm"),
        ("norm:softmax", "no operator 'norm:softmax'; like it are softmax"),
        ("zzz", "no operator 'zzz'; `neptune ops` lists them"),
        ("absent.py:f", "there is no file 'absent.py'"),
    ],
)
def test_what_is_not_there(reference: str, said: str) -> None:
    done = invoke("explain", reference)
    assert done.exit_code == 2 and said in " ".join(done.output.split())


@pytest.mark.parametrize("command", ["compile", "explain", "autotune"])
@pytest.mark.parametrize(
    ("option", "value", "said"), [("-t", "flash", "no template"), ("--target", "gpu", "no such target")]
)
def test_options_are_refused_before_the_file_is_read(
    tmp_path: Path, command: str, option: str, value: str, said: str
) -> None:
    """What is refused costs no import of the user's."""
    file, mark = tmp_path / "slow.py", tmp_path / "imported"
    file.write_text(f"open({str(mark)!r}, 'w')\n\n\ndef f():\n    pass\n")
    done = invoke(command, f"{file}:f", option, value)
    assert done.exit_code == 1 and said in done.output and not mark.exists()
