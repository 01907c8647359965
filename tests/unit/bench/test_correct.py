"""What is left out when a correction is judged is left out; on measured points it chooses better."""

from __future__ import annotations

import numpy as np
import pytest

from bench import correct
from bench.cost import Figures, points


def test_a_fold_has_all_points_of_its_sizes():
    sizes = np.array([3, 3, 9, 9, 9, 1, 4, 5, 6, 3])
    for partition in range(5):
        fold = correct.folds(sizes, partition)
        assert all(len(set(fold[sizes == n])) == 1 for n in sizes) and len(set(fold)) == correct.FOLDS
    assert any((correct.folds(sizes, 0) != correct.folds(sizes, p)).any() for p in range(1, 5))


def test_the_mean_of_figures():
    a, b = Figures(2, 8, 0.9, 0.1, 0.3, 0.0, 0.0, 0.1, 0.5), Figures(2, 8, 0.7, 0.3, 0.5, 0.0, 0.2, 0.1, 0.7)
    assert correct.mean_of([a, b]) == Figures(
        2, 8, *np.mean([[*vars(a).values()][2:], [*vars(b).values()][2:]], axis=0)
    )


@pytest.mark.slow
def test_at_sizes_left_out_it_chooses_better_and_of_operators_left_out_it_says_nothing():
    pytest.importorskip("sklearn")
    m = correct.measured([p for p in points() if p.family in ("decode", "prefill")])
    alone = correct.judged(m, [m.predicted])["all"]
    made = correct.judged(m, [correct.sizes_left_out(m, partition) for partition in (100, 101)])["all"]
    assert made.pairs > alone.pairs + 0.005 and made.regret < alone.regret and made.error < alone.error
    assert np.array_equal(correct.operator_left_out(m), m.predicted)
