"""Same inputs and params give the same bits; strides and neighbours of the data do not matter."""

from __future__ import annotations

import pytest
import torch

from tests.numerics.cases import (
    DTYPES,
    attention_sizes,
    attention_subject,
    figure1_subject,
    random_inputs,
    softmax_subject,
)
from tests.numerics.harness import TARGETS, Subject, check, run, same
from tests.tiers import sampled

SIZES = attention_sizes(37, 53, heads=2)


def outputs_of(
    subject: Subject, target: str, inputs: list[torch.Tensor], *, strided: bool = False
) -> list[torch.Tensor]:
    exact = subject.reference.float64(*inputs)
    kinds = [getattr(torch, b.dtype) for b in subject.program.outputs]
    like = [torch.empty(r.shape, dtype=kind) for r, kind in zip(exact, kinds, strict=True)]
    return list(run(subject.kernels[target], inputs, like, strided))


SUBJECTS = {
    "flash, float16": lambda: attention_subject("prefill_causal"),
    "flash, float32": lambda: attention_subject("prefill_global", dtype="float32", layout="bshd"),
    "unfused, bfloat16": lambda: attention_subject("prefill_causal", "attention_unfused", dtype="bfloat16"),
    "softmax_online": lambda: softmax_subject("softmax_online"),
    "figure1": lambda: figure1_subject("softmax_row"),
}


@pytest.mark.parametrize("name", sampled(SUBJECTS, 3))
def test_twice_the_same_bits(name: str) -> None:
    subject = SUBJECTS[name]()
    sizes = SIZES | {"rows": 5, "cols": 53, "m": 5, "n": 53}
    inputs = random_inputs(subject.program, sizes, seed=3)
    for target in TARGETS:
        first, again = (outputs_of(subject, target, inputs) for _ in range(2))
        views = outputs_of(subject, target, inputs, strided=True)
        assert all(same(a, b) and same(a, c) for a, b, c in zip(first, again, views, strict=True))


@pytest.mark.uncached
def test_compiled_again_the_same_bits() -> None:
    subject = attention_subject("prefill_causal")
    q, k, v = random_inputs(subject.program, SIZES)
    for target in TARGETS:
        old, new = subject.kernels[target], subject.kernel(target)
        assert new.source == old.source
        assert all(same(a, b) for a, b in zip(old(q, k, v), new(q, k, v), strict=True))


@pytest.mark.parametrize("dtype", sampled(DTYPES, 3))
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_views_of_larger_tensors(layout: str, dtype: str) -> None:
    """Poison between the rows of every input and output."""
    subject = attention_subject("prefill_causal", layout=layout, dtype=dtype)
    check(subject, {"strided": random_inputs(subject.program, SIZES)}, strided=True)


@pytest.mark.parametrize("target", TARGETS)
def test_packed_and_expanded_inputs(target: str) -> None:
    """q, k and v as slices of one tensor, and keys that several heads share through a stride of 0."""
    subject = attention_subject("prefill_causal", layout="bshd", lse=False)
    kernel = subject.kernels[target]
    packed = torch.randn(2, 21, 3, 2, 16, generator=torch.Generator().manual_seed(0)).half()
    q, k, v = packed.unbind(2)
    apart = kernel(*(t.contiguous() for t in (q, k, v)))
    assert same(kernel(q, k, v), apart)
    shared = [t[:, :, :1].expand(2, 21, 2, 16) for t in (k, v)]
    assert same(kernel(q, *shared), kernel(q, *(t.contiguous() for t in shared)))
