"""Error norms and input families."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.verify.numerics import (
    allowance,
    boundaries,
    input_families,
    nan_padded,
    padding_intact,
    poison,
    rel_error,
)


def test_the_error_of_one_row_is_not_hidden_by_the_others() -> None:
    ref = np.ones((1000, 4))
    ref[7] = 1e-3
    out = ref.copy()
    out[7] = 2e-3
    errors = rel_error(out, ref)
    assert errors.row == pytest.approx(1.0)
    assert errors.total < 1e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_an_infinite_error(bad: float) -> None:
    out = np.ones((2, 3))
    out[1, 1] = bad
    assert rel_error(out, np.ones((2, 3))) == (np.inf, np.inf)


def test_equal_infinities_agree_and_undefined_elements_are_free() -> None:
    ref = np.array([[-np.inf, np.nan, 3.0]])
    assert rel_error([[-np.inf, 5.0, 3.0]], ref) == (0.0, 0.0)
    assert rel_error([[0.0, 5.0, 3.0]], ref).total == np.inf
    assert rel_error([[-np.inf, 5.0, 6.0]], ref).row == pytest.approx(1.0)


def test_zero_references_and_huge_values() -> None:
    assert rel_error(np.zeros((2, 2)), np.zeros((2, 2))) == (0.0, 0.0)
    assert rel_error([[1e-3, 0.0]], [[0.0, 0.0]]).total == pytest.approx(1e-3)
    assert rel_error([2e200], [1e200]).total == pytest.approx(1.0)
    with pytest.raises(ValueError, match="shapes differ"):
        rel_error([1.0], [[1.0]])


def test_allowances() -> None:
    assert allowance("float16", 1e-2) == pytest.approx(1.1e-2)
    assert allowance("float16", 0.0) == 2.0**-10
    assert allowance("bfloat16", 0.0) == 2.0**-7
    assert allowance("float32", 1e-6) == pytest.approx(1e-5)


def test_padding_notices_a_write() -> None:
    flat, view = nan_padded(np.arange(6.0).reshape(2, 3), pad=4)
    assert np.array_equal(view, np.arange(6.0).reshape(2, 3)) and view.base is not None
    view += 1
    assert padding_intact(flat, 4)
    flat[-4] = 0
    assert not padding_intact(flat, 4)
    assert np.isnan(poison((2,))).all()


def test_families_put_needles_at_every_tile_boundary() -> None:
    assert boundaries(9, 4) == [0, 3, 4, 7, 8]
    shapes = {"q": (1, 5, 2), "k": (1, 9, 2), "bias": (1, 9, 1)}
    families = dict(input_families(shapes, tile=4, additive=["bias"]))
    assert {"random", "x30", "x1000", "zeros"} <= families.keys()
    assert [n for n in families if n.startswith("needle")] == [f"needle {k}" for k in (0, 3, 4, 7, 8)]
    random = families["random"]
    needle = families["needle 7"]["k"]
    assert np.array_equal(needle[:, 7], 100 * random["k"][:, 7])
    assert np.array_equal(np.delete(needle, 7, 1), np.delete(random["k"], 7, 1))
    assert (families["zero tile 4"]["k"][:, 4:8] == 0).all() and (families["zero tile 4"]["k"][:, 8] != 0).all()
    assert np.isneginf(families["-inf tile 8"]["bias"][:, 8]).all()
    assert not np.isinf(families["-inf tile 8"]["k"]).any()
    assert np.array_equal(families["x30"]["k"], 30 * random["k"])
    assert np.array_equal(families["x30"]["bias"], random["bias"])
    again = dict(input_families(shapes, tile=4, additive=["bias"]))
    assert all(np.array_equal(random[n], again["random"][n]) for n in shapes)
