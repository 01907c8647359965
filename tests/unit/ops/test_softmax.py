"""Softmax, log-softmax and log-sum-exp against torch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.ops.softmax import log_softmax, logsumexp, softmax
from tests.unit.ops.checks import HARD, hard, kernel_agrees, same

TORCH = {softmax: torch.softmax, log_softmax: torch.log_softmax, logsumexp: torch.logsumexp}


@pytest.mark.parametrize("operator", TORCH)
@pytest.mark.parametrize("cols", [1, 13])
def test_the_expression_is_torchs(operator, cols):
    x = hard("huge", 4, cols)
    x[1, 0], x[2] = -np.inf, -np.inf
    same(operator("float16"), [TORCH[operator](torch.from_numpy(x), -1)], x)


@pytest.mark.parametrize(
    ("operator", "dtype"), [(softmax, "bfloat16"), (log_softmax, "float16"), (logsumexp, "float32")]
)
def test_kernels_are_as_exact_as_the_expression(operator, dtype):
    program = operator(dtype)
    kernel = neptune.compile(program, target="llvm")
    for kind in HARD:
        x = hard(kind, 5, 41)
        x[-1, 3:9] = -np.inf
        kernel_agrees(kernel, program, lambda x: [TORCH[operator](x, -1)], x)


@pytest.mark.parametrize("template", ["softmax_row", "softmax_online", "flash_decoding"])
def test_logsumexp_of_inf_is_inf_and_of_nan_is_nan(template):
    inf, nan = np.inf, np.nan
    x = hard("huge", 9, 41)
    x[0, 3] = x[1, 40] = x[2, [0, 40]] = inf
    x[3, 3], x[3, 40] = inf, nan
    x[4, 3], x[4, 40] = nan, inf
    x[5], x[6], x[7, 20] = inf, -inf, -inf
    x[7, 3], x[8, 40] = inf, 3e38
    kernel = neptune.compile(logsumexp(), target="llvm", template=template)
    small = {n: 16 for n in kernel.params if n.startswith("BLOCK")}
    given = torch.from_numpy(x).float()
    found = kernel.with_params(**small)(given)
    torch.testing.assert_close(found, torch.logsumexp(given, -1), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("operator", TORCH)
def test_other_dtypes_are_refused(operator):
    with pytest.raises(ExpressionError, match="'int32' is no dtype"):
        operator("int32")
