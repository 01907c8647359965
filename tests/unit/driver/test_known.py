"""The automatic choice reads what was measured: which records, when not, and what cache and explain() make of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune
from neptune import config
from neptune.driver.known import MOST, Known, digest, known_of, samples
from neptune.ops.linear import matmul
from neptune.ops.norm import rms_norm
from neptune.ops.softmax import softmax
from neptune.records.believe import OTHER_VERSIONS
from neptune.records.record import Failure, Record, kin_of, structure_of
from neptune.records.store import Store
from neptune.tune.model.machine import DEFAULT
from neptune.versions import versions

SIZES = {"rows": 300, "cols": 700}
ODD = {"BLOCK_M": 8, "num_warps": 16, "num_stages": 2}
"""What nobody would choose."""
ROOT = Path(__file__).parents[3]


def record(us: float = 1.0, params: dict[str, int] = ODD, **other: Any) -> Record:
    given: dict[str, Any] = {"structure": structure_of(softmax()), "device": "H200", "template": "softmax_row"}
    return Record(**{**given, "sizes": SIZES, "params": params, "us": [us], "versions": versions(), **other})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    return Store(tmp_path)


def taken(**options: Any) -> dict[str, int]:
    chosen = neptune.compile(softmax(), target="llvm", **options).chosen(**SIZES)
    return {n: chosen.params[n] for n in ODD}


def test_records_of_the_kin_and_of_the_structure_are_read(store: Store) -> None:
    other = {"BLOCK_M": 4, "num_warps": 16, "num_stages": 2}
    store.append(record())
    store.append(record(structure=kin_of(softmax()), params=other))
    (found,) = (s for s in known_of(softmax(), DEFAULT, config.read()).samples if s.sizes == SIZES)
    assert [sorted(c.params.items()) for c in found.us] == [sorted(p.items()) for p in (other, ODD)]
    # 0.5 is one of the numbers by which programs are told apart.
    store.append(record(structure=kin_of(rms_norm("float32", eps=1e-5))))
    for eps, known in ((1e-6, True), (0.5, False)):
        params = neptune.compile(rms_norm("float32", eps=eps), target="llvm").chosen(**SIZES).params
        assert (params.items() >= ODD.items()) == known


def test_what_was_measured_is_what_a_default_kernel_takes(store: Store, tmp_path: Path) -> None:
    assert taken() != ODD
    store.append(record())
    kernel = neptune.compile(softmax(), target="llvm")
    assert {n: kernel.chosen(**SIZES).params[n] for n in ODD} == ODD
    x = torch.randn(SIZES["rows"], SIZES["cols"])
    torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    # A saved one has its choices with it, wherever there are records.
    kernel.save(tmp_path / "saved")
    (store.path or Path()).unlink()
    assert taken() != ODD
    assert neptune.load(tmp_path / "saved", target="llvm").chosen(**SIZES).params.items() >= ODD.items()


@pytest.mark.parametrize(
    "options", [{"records": False}, {"deterministic": True}, {"batch_invariant": True}, {"params": {"num_warps": 4}}]
)
def test_no_record_is_read_where_none_may_be(store: Store, options: dict[str, Any]) -> None:
    before = taken(**options)
    store.append(record())
    assert taken(**options) == before != ODD


def test_the_environment_leaves_the_model_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(record())
    monkeypatch.setenv("NEPTUNE_RECORDS", "0")
    assert taken() != ODD and known_of(softmax(), DEFAULT, config.read()) == Known()
    monkeypatch.setenv("NEPTUNE_RECORDS", "1")
    assert taken() == ODD


def failure(params: dict[str, int], **other: Any) -> Failure:
    given: dict[str, Any] = {"structure": structure_of(softmax()), "device": "H200", "template": "softmax_row"}
    return Failure(**{**given, "sizes": SIZES, "params": params, "how": "wrong", "versions": versions(), **other})


@pytest.mark.parametrize("options", [{}, {"shapes": SIZES}])
def test_what_failed_is_not_taken_even_where_the_model_likes_it_best(store: Store, options: dict[str, Any]) -> None:
    # Softmax has shipped records; its best candidates fail one after the other, those that the model puts first, too.
    failed: list[dict[str, int]] = []
    for _ in range(4):
        failed.append(taken(**options))
        assert failed[-1] not in failed[:-1]
        store.append(failure(failed[-1]))
    kernel = neptune.compile(softmax(), target="llvm", **options)
    rows = [v for v in kernel.variants if v.template == "softmax_row"]
    assert rows and not any({n: v.params[n] for n in ODD} in failed for v in rows)
    # Who wants no records has the model's choice.
    assert taken(records=False, **options) in failed


def test_what_failed_with_other_versions_or_another_number_of_parts_is_taken(store: Store) -> None:
    best = taken()
    store.append(failure(best, versions={**versions(), "triton": "0"}))
    store.append(failure(best, numbers={"NUM_SPLITS": 64}))
    # Nor for want of memory at sizes that may have been huge.
    store.append(failure(best, how="memory"))
    assert taken() == best


@pytest.mark.parametrize("other", [{"device": "A100"}, {"structure": "0" * 32}, {"numbers": {"NUM_SPLITS": 4}}])
def test_records_of_something_else_say_nothing(store: Store, other: dict[str, Any]) -> None:
    store.append(record(**other))
    assert taken() != ODD


def test_explain_says_which_records_were_read(store: Store) -> None:
    without = neptune.compile(softmax(), target="llvm", records=False).explain(json=True)
    store.append(record(4.25))
    store.append(record(9.5, {**ODD, "BLOCK_M": 4}))
    kernel = neptune.compile(softmax(), target="llvm")
    said = kernel.explain(json=True)
    own = [of for of in said["records"]["of"] if of["weight"] == 1.0]
    assert own == [{"weight": 1.0, "count": 2}] and "records" not in without
    measured = [m for v in said["family"]["variants"] for m in v["measured"] if m["weight"] == 1.0]
    assert measured == [{"at": dict(sorted(SIZES.items())), "us": 4.25, "weight": 1.0}]
    text = str(kernel.explain())
    assert "2 of these versions" in text and "measured: 4.2 µs at cols=700, rows=300, weight 1" in text
    assert "records" in next(d["reason"] for d in said["decisions"] if d["verdict"] == "chosen")


def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled and not found, from now on."""
    from neptune.driver import compilation

    seen: list[str] = []
    run = compilation.run_all
    monkeypatch.setattr(compilation, "run_all", lambda w, trail: (seen.append(w.loops.name), run(w, trail))[1])
    return seen


def test_a_record_invalidates_the_kernels_that_read_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = compiled_anew(monkeypatch)

    def both() -> list[str]:
        seen.clear()
        neptune.compile(softmax(), target="llvm")
        neptune.compile(matmul(), target="llvm")
        return list(seen)

    assert both() == ["softmax", "matmul"] and both() == []
    store.append(record())
    assert both() == ["softmax"] and both() == []
    # A choice that reads none has nothing new.
    neptune.compile(softmax(), "softmax_row", target="llvm")
    store.append(record(2.0))
    seen.clear()
    neptune.compile(softmax(), "softmax_row", target="llvm")
    assert seen == []


def test_records_by_sizes_and_versions() -> None:
    old = {**versions(), "triton": "0"}
    found = samples(
        [record(3.0), record(5.0), record(4.0), record(7.0, versions=old), record(1.0, sizes={"rows": 1, "cols": 2})]
    )
    assert sorted((s.weight, dict(s.sizes)["rows"], *s.us.values()) for s in found) == [
        (OTHER_VERSIONS, 300, 7.0), (1.0, 1, 1.0), (1.0, 300, 4.0),
    ]  # fmt: skip
    many = samples(record(sizes={"rows": n, "cols": 5}, versions=versions() if n == 1 else old) for n in range(1, 200))
    assert len(many) == MOST and any(s.weight == 1 and s.sizes["rows"] == 1 for s in many)


def test_a_digest_is_of_what_is_said_alone() -> None:
    first, second = samples([record(3.0)]), samples([record(3.0, sizes={"rows": 8, "cols": 8})])
    assert digest([*first, *second]) == digest([*second, *first]) != digest(first) != digest(())
    assert digest(first) != digest(samples([record(3.1)])) != ""
    assert digest(()) == ""


@pytest.mark.slow
def test_other_processes_choose_the_same(store: Store) -> None:
    """Whatever strings hash to there."""
    for b in (1, 2, 4, 8):
        store.append(record(3.0 + b, {**ODD, "BLOCK_M": b}))
    script = (
        "import neptune; from neptune.ops.softmax import softmax; "
        "k = neptune.compile(softmax(), target='llvm'); print(k.explain(json=True)['family'])"
    )
    said = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "NEPTUNE_CACHE_DIR": str(store.root)}
        made = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr
        said.add(made.stdout)
    assert len(said) == 1
