"""`neptune autotune`: the model's choice without a GPU, mistakes in one line each, an interrupt that loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import neptune
from neptune.autotune import tuner
from neptune.cli.commands import app
from neptune.cli.tune import INTERRUPTED
from neptune.ops.shipped import OPERATORS

SHAPE = ("--shape", "rows=4096", "--shape", "cols=1024")


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def test_without_a_gpu_the_models_choice(tmp_path: Path) -> None:
    done = invoke("tune", "softmax", *SHAPE, "--target", "llvm", "--save", str(tmp_path / "kernel"), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    (at,) = said["shapes"]
    assert (said["name"], at["sizes"], at["measured"]) == ("softmax", {"rows": 4096, "cols": 1024}, 0)
    assert at["best"] == at["default"] and at["best"]["us"] is None and "nothing was measured" in at["stopped"]
    assert neptune.load(tmp_path / "kernel", target="llvm").params == at["best"]["params"]


def test_as_text() -> None:
    done = invoke("autotune", "softmax", *SHAPE, "--target", "llvm", "-t", "softmax_row", "-p", "num_warps=8")
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert line.startswith("rows=4096 cols=1024: softmax_row ") and "num_warps=8" in line and "no GPU" in line


def test_several_shapes(tmp_path: Path) -> None:
    at = ("--shape", "rows=4096", "--at", "cols=1024", "--at", "cols=65536")
    done = invoke("tune", "softmax", *at, "--target", "llvm", "--save", str(tmp_path / "kernel"), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["shapes"]
    assert [t["sizes"] for t in found] == [{"rows": 4096, "cols": c} for c in (1024, 65536)]
    kernel = neptune.load(tmp_path / "kernel", target="llvm")
    assert [kernel.chosen(**t["sizes"]).params for t in found] == [t["best"]["params"] for t in found]
    assert found[0]["best"]["params"] != found[1]["best"]["params"]
    done = invoke("tune", "softmax", *at, "--target", "llvm")
    assert [x.partition(": ")[0] for x in done.stdout.splitlines()] == ["rows=4096 cols=1024", "rows=4096 cols=65536"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("decode_gq", *SHAPE), 2, "there is no file and no operator 'decode_gq'"),
        (("missing.py:f", *SHAPE), 2, "there is no file 'missing.py'"),
        (("softmax", "--shape", "rows=4"), 1, "no value was given for cols"),
        (("softmax", "--shape", "batch=4"), 1, "it has no such size"),
        (("softmax", *SHAPE, "--budget", "60"), 1, "no number with a unit"),
        (("softmax", *SHAPE, "--budget", "0s"), 1, "in no time nothing is measured"),
        (("softmax", *SHAPE, "--trials", "0"), 1, "no number of candidates"),
        (("softmax", *SHAPE, "--workers", "0"), 1, "no number of processes"),
        (
            ("softmax", *SHAPE, "--shape", "cols=4"),
            2,
            "'cols' has two values in one shape; several",
        ),
        (("softmax", *SHAPE, "--at", "cols=4"), 2, "'cols' has two values in one shape"),
        (("softmax", "--at", "rows=4;cols=4"), 2, "'rows=4;cols=4' is not NAME=N"),
        (("softmax", "--shape", "rows=-1"), 2, "'rows=-1': -1 is no whole number"),
        (("softmax", "--at", "rows=4,,cols=4"), 2, "'' is not NAME=N"),
        (("softmax", "--at", "rows=4,cols=4", "--at", "rows=4"), 1, "no value was given for cols"),
        (("softmax", *SHAPE, "--executor", "slurm"), 1, "there is no such executor"),
    ],
)
def test_mistakes(args: tuple[str, ...], code: int, said: str) -> None:
    done = invoke("autotune", *args)
    assert done.exit_code == code and said in done.output


def test_an_interrupt_says_that_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "tuned", interrupted)
    done = invoke("autotune", "softmax", *SHAPE)
    assert done.exit_code == INTERRUPTED and "goes on from there" in done.output


def test_every_command_takes_operators_by_name() -> None:
    assert {"prefill_causal", "decode_softcap", "matmul", "rms_norm_linear"} <= OPERATORS.keys()
    assert invoke("explain", "softmax", "-t", "softmax_row", "--target", "llvm").exit_code == 0
