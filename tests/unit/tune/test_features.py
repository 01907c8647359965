"""What a correction learns from is what the cost model predicts."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.autotune.learn import features
from neptune.ops.linear import matmul
from neptune.tune.choose import lowered
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import DEVICES
from neptune.tune.model.prediction import SPENT

MACHINE = DEVICES["H200"]
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")


@pytest.fixture(scope="module")
def asked():
    model = Model(lowered("matmul", matmul()).tiles)
    columns = {"m": 4096, "n": 4096, "k": 4096, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8}
    columns = {n: np.full(3, v, float) for n, v in columns.items()}
    # The last needs more shared memory than there is.
    columns |= {"BLOCK_M": np.array([64.0, 128, 128]), "num_stages": np.array([2.0, 3, 40])}
    found = model.predict_all(columns, MACHINE)
    return found, features(found, columns, TILES)


def test_every_column_is_finite_and_what_does_not_fit_is_zero(asked):
    found, table = asked
    assert set(table) == {*SPENT, "us", "waves", "resident", "programs", "num_warps", "num_stages", *TILES}
    assert np.isinf(found.us[2])
    assert all(np.isfinite(c).all() and c.shape == (3,) and c[2] == 0 for c in table.values())


def test_columns_say_what_the_prediction_says(asked):
    found, table = asked
    (kernel,) = found.kernels
    assert table["us"][:2] == pytest.approx(np.log2(found.us[:2]))
    assert table["BLOCK_M"][:2].tolist() == [6, 7] and table["num_stages"][:2] == pytest.approx(np.log2([2, 3]))
    assert table["waves"][:2] == pytest.approx(np.log2(kernel.waves[:2]))
    for k in range(2):
        busiest = max(table[unit][k] for unit in SPENT[:-1]) * found.us[k] / kernel.us[k]
        assert busiest == pytest.approx(kernel.share[k])


def test_a_product_keeps_the_matrix_unit_busy_for_as_long_as_its_operations_take(asked):
    found, table = asked
    cycles = 2 * 4096**3 / MACHINE.matrix["float16"] / MACHINE.processors
    assert table["matrix"][:2] * found.us[:2] == pytest.approx(cycles / MACHINE.clock / 1e3)
