"""TVM's operator library through Neptune's front end, against TVM's own build of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import te

import neptune
from tests.examples.topi_programs import PROGRAMS
from tests.tiers import sampled

NOT_YET = ("reinterpret", "fast_exp", "fast_softmax")


def _inputs(args, seed=0):
    """Random inputs; indices small enough for every axis, divisors not 0."""
    rng = np.random.default_rng(seed)
    made = []
    for x in args:
        shape = [int(d) for d in x.shape]
        dtype = str(x.dtype)
        if dtype == "bool":
            made.append(rng.random(shape) < 0.5)
        elif dtype == "int32":
            made.append(rng.integers(1, 5, shape).astype("int32"))
        else:
            made.append((rng.random(shape) + 0.25).astype(dtype))
    return made


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(n, marks=[pytest.mark.xfail(strict=True), pytest.mark.slow]) for n in NOT_YET),
        *sampled([n for n in PROGRAMS if n not in NOT_YET], 16),
    ],
)
def test_an_operator_of_tvms_library_agrees_with_tvms_own_build(name):
    args, outputs = PROGRAMS[name]()
    kernel = neptune.compile(outputs, inputs=args, target="llvm")
    built = tvm.compile(te.create_prim_func([*args, *outputs]), target="llvm")
    values = _inputs(args)
    expected = [np.zeros([int(d) for d in t.shape], str(t.dtype)) for t in outputs]
    tensors = [tvm.runtime.tensor(v) for v in (*values, *expected)]
    built(*tensors)
    results = kernel(*(torch.from_numpy(v) for v in values))
    results = results if isinstance(results, tuple) else (results,)
    for ours, theirs in zip(results, tensors[len(values) :], strict=True):
        wanted = theirs.numpy()
        # TVM's build adds one float32 after another, ours in parts of float64: their difference is its error.
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=2e-5, atol=2e-6)
