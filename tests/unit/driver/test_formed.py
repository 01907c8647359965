"""What was measured of the asynchronous form, as `compile` reads it: the levers that won, or tiles where they did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import neptune
from neptune.base.choice import Choice
from neptune.driver.device import machine_for
from neptune.driver.imports import imported
from neptune.driver.known import MeasuredForm, measured_forms, written
from neptune.ops.linear import matmul
from neptune.records.record import Failure, Record, structure_of
from neptune.records.store import Store
from neptune.runtime.launching.launch import parse_target
from neptune.versions import versions

SIZES = {"m": 4096, "n": 4096, "k": 4096}
PARAMS = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
ODD = {"consumers": 2, "stages": 4, "persistent": "once", "own_out": True, "ahead": False}
OTHER = {**ODD, "consumers": 3, "stages": 2}


def of(made: type, levers: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A record, or a failure, of a product."""
    at: dict[str, Any] = {"structure": structure_of(imported(matmul(), None, None)), "template": "matmul"}
    at |= {"device": machine_for(parse_target("cuda:90")).device, "sizes": SIZES, "params": PARAMS}
    at |= {
        "versions": versions(),
        "numbers": {} if levers is None else written(Choice("matmul", {}).formed("asynchronous", levers)).values,
    }
    return made(**{**at, **more})


def compiled(form: str = "auto", **more: Any) -> neptune.Kernel:
    return neptune.compile(matmul(), target="cuda:90", shapes=SIZES, form=form, **more)


def levers(kernel: neptune.Kernel) -> Mapping[str, Any] | None:
    found = kernel.executable.artifact.form
    return None if found is None else found.levers


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    return Store(tmp_path)


def test_the_fastest_of_these_versions_counts_at_its_sizes() -> None:
    slow, fast, tiles = of(Record, OTHER, us=[30.0]), of(Record, ODD, us=[20.0, 22.0]), of(Record, us=[25.0])
    elsewhere = of(Record, ODD, us=[1.0], sizes={**SIZES, "m": 64})
    older = of(Record, OTHER, us=[2.0], versions={**versions(), "triton": "1.0"})
    small, found = measured_forms([slow, fast, tiles, elsewhere, older])
    small, found = (found, small) if small.us > found.us else (small, found)
    assert (small.sizes["m"], small.us, small.on_tiles) == (64, 1.0, None)
    odd, other = (Choice("matmul", PARAMS).formed("asynchronous", levers) for levers in (ODD, OTHER))
    assert found == MeasuredForm(SIZES, odd, 21.0, 25.0) and found.faster
    (left,) = measured_forms([slow, fast, tiles], [of(Failure, ODD, how="failed")])
    assert left == MeasuredForm(SIZES, other, 30.0, 25.0) and not left.faster
    assert measured_forms([tiles]) == () and measured_forms([of(Record, us=[9.0], numbers={"NUM_SPLITS": 4})]) == ()


def test_a_default_takes_the_levers_that_won(own: Store) -> None:
    before = levers(compiled())
    own.append(of(Record, ODD, us=[20.0]))
    own.append(of(Record, us=[25.0]))
    kernel = compiled()
    wanted = {"consumers": 2, "stages": 4, "persistent": "once", "BLOCK_N": 128, "BLOCK_K": 64}
    found = levers(kernel)
    assert found is not None and found.items() >= wanted.items()
    assert before is None or not before.items() >= wanted.items()
    assert "records: 20.0 µs with BLOCK_K=64" in kernel.explain() and "on tiles 25.0 µs" in kernel.explain()
    assert levers(compiled(records=False)) == before
    # What a caller settles holds.
    asked = levers(compiled(params={"consumers": 3}))
    assert asked is not None and asked["consumers"] == 3


def test_where_tiles_won_auto_leaves_the_form_out(own: Store) -> None:
    own.append(of(Record, ODD, us=[20.0]))
    own.append(of(Record, us=[15.0]))
    kernel = compiled()
    assert levers(kernel) is None and "on tiles 15.0 µs" in kernel.explain()
    forced = levers(compiled("asynchronous"))
    assert forced is not None and forced["stages"] == 4


def test_levers_that_do_not_fit_are_nobodys(own: Store) -> None:
    """A record may be anybody's."""
    own.append(of(Record, {**ODD, "consumers": 3, "stages": 6}, us=[20.0], params={**PARAMS, "BLOCK_N": 256}))
    kernel = compiled("asynchronous")
    assert levers(kernel) is not None and "not as recorded" in kernel.explain()
