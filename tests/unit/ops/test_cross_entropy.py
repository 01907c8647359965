"""Cross-entropy of logits and of a linear layer against torch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.errors import ExpressionError
from neptune.ops.cross_entropy import cross_entropy, linear_cross_entropy, linear_logsumexp
from tests.unit.ops.checks import hard, kernel_agrees, same

T = np.array([3, -100, 0, 6, 2])
OPTIONS = [{}, {"label_smoothing": 0.1}, {"label_smoothing": 1.0}, {"ignore_index": 3}]


def torchs(logits, t, label_smoothing=0.0, ignore_index=-100):
    return F.cross_entropy(
        logits, t.long(), reduction="none", label_smoothing=label_smoothing, ignore_index=ignore_index
    )


def targets(options):
    return np.where(T == -100, options.get("ignore_index", -100), T)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["huge", "tails"])
def test_the_expression_is_torchs(options, kind):
    x, t = hard(kind, 5, 7), targets(options)
    same(cross_entropy(**options), [torchs(torch.from_numpy(x), torch.from_numpy(t), **options)], x, t)
    rows, w, b = hard(kind, 5, 4), hard("random", 7, 4), hard("random", 7)
    logits = torch.from_numpy(rows @ w.T)
    same(linear_cross_entropy(**options), [torchs(logits, torch.from_numpy(t), **options)], rows, w, t)
    capped = 30 * torch.tanh((logits + torch.from_numpy(b)) / 30)
    program = linear_cross_entropy(bias=True, softcap=30.0, depth=4, targets="int32", **options)
    same(program, [torchs(capped, torch.from_numpy(t), **options)], rows, w, b, t)


def test_classes_that_cannot_be():
    """Logits of -inf: a loss of inf where one of them is the target, and else none of their business."""
    x, t = hard("random", 5, 7), np.array([3, 3, 0, 6, 2])
    x[:, 3] = -np.inf
    same(cross_entropy(), [torchs(torch.from_numpy(x), torch.from_numpy(t))], x, t)


def test_one_class_costs_nothing():
    same(cross_entropy(), [np.zeros(5)], hard("huge", 5, 1), np.zeros(5, int))


def test_kernels_are_as_exact_as_the_expression():
    program = linear_cross_entropy("float16", depth=16, label_smoothing=0.1)
    kernel = neptune.compile(program, target="llvm")
    assert kernel.facts.temporaries == () and set(kernel.facts.traversals.values()) == {1}
    for kind in ("random", "tails", "needle", "zeros"):
        exact = lambda x, w, t: [torchs(x @ w.T, t, 0.1)]  # noqa: E731
        kernel_agrees(kernel, program, exact, hard(kind, 5, 16), hard("random", 37, 16), T)


def test_log_sum_exp_of_logits():
    x, w = hard("huge", 5, 4), hard("random", 7, 4)
    same(linear_logsumexp(), [torch.logsumexp(torch.from_numpy(x @ w.T), -1)], x, w)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
        ({"label_smoothing": None}, "label_smoothing is None"),
        ({"ignore_index": 1.0}, "ignore_index = 1.0 is not"),
        ({"targets": "float32"}, "targets = 'float32' is no value"),
    ],
)
def test_what_is_no_option_is_refused(options, said):
    with pytest.raises(ExpressionError, match=said):
        cross_entropy(**options)
