"""Chains of reductions in one pass (`qa.repair_programs`) on every target, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from bench.references import Reference
from qa.repair_programs import PROGRAMS, Chain, G
from tests.numerics.harness import Subject, check, run
from tests.tiers import sampled

TILES = {"BLOCK_M": 4, "BLOCK_N": 16}


def subject(chain: Chain) -> Subject:
    return Subject(chain.program(), chain.template, Reference(chain.reference, chain.reference), TILES)


def inputs(chain: Chain, n: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Families of inputs, for rows of length n."""
    torch.manual_seed(n)
    buffers = chain.program().inputs
    shapes = [(3, n) if len(b.shape) == 2 else (3, G, n) for b in buffers]
    for scale in chain.scales:
        yield f"×{scale:g}", [torch.randn(s) * scale for s in shapes]
    base = [torch.randn(s) for s in shapes]
    for at in {0, min(15, n - 1), min(16, n - 1), n - 1}:
        needle = [t.clone() for t in base]
        needle[0][..., at] += 20 * min(chain.scales[-1], 3)
        yield f"needle at {at}", needle
    yield "zero tile", [torch.cat([t[..., :16] * 0, t[..., 16:]], -1) for t in base]
    if chain.infinite and n > 16:
        first = [t.clone() for t in base]
        first[0][..., :16] = -math.inf
        yield "first tile -inf", first


@pytest.mark.parametrize("name", sampled([n for n in PROGRAMS if n != "softmax, top 3"], 4))
def test_chain(name: str) -> None:
    chain = PROGRAMS[name]
    made = subject(chain)
    for n in (37, 16, 1):
        check(made, dict(inputs(chain, n)))


def test_each_of_the_three_most_probable() -> None:
    """Alone, a small probability exp(x - m) / l has an error that grows with its exponent, which is rounded."""
    chain = PROGRAMS["softmax, top 3"]
    made = subject(chain)
    for n in (37, 16, 3):
        for name, (x,) in inputs(chain, n):
            want = chain.reference(x.double())
            like = [t.to(torch.float32 if k < 3 else torch.int32) for k, t in enumerate(want)]
            for target, kernel in made.kernels.items():
                found = run(kernel, [x], like, strided=False)
                assert all((a == b).all() for a, b in zip(found[3:], want[3:], strict=True)), (name, target)
                for got, p, at in zip(found[:3], want[:3], want[3:], strict=True):
                    exponent = x.amax(-1) - x.gather(-1, at[:, None])[:, 0]
                    error, limit = (got - p).abs(), p * 2.0**-23 * (4 + 2 * exponent) + 2.0**-126
                    assert (error <= limit).all(), (name, target, error / limit)


@pytest.mark.parametrize("name", sampled(PROGRAMS, 4))
def test_one_kernel_and_one_pass(name: str) -> None:
    kernel = subject(PROGRAMS[name]).kernel("llvm")
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.kernels[0].temporaries
    assert set(kernel.facts.traversals.values()) == {1}
