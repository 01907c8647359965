"""Memory of strided tensors: what is told apart, and what is not."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from neptune.runtime.calls.workspace import overlap, overlaps_itself


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two small strided views of one storage."""
    storage = torch.arange(600, dtype=torch.int16)
    made = []
    for _ in range(2):
        shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        stride = draw(st.lists(st.integers(0, 24), min_size=len(shape), max_size=len(shape)))
        made.append(storage.as_strided(shape, stride, draw(st.integers(0, 60))))
    return made[0], made[1]


@settings(max_examples=400, deadline=None)
@given(views())
def test_shared_elements_are_never_missed(pair):
    a, b = pair
    shared = set(a.flatten().tolist()) & set(b.flatten().tolist())
    assert overlap(a, b) or not shared
    assert overlap(a, b) == overlap(b, a)
    assert overlaps_itself(a) or len(set(a.flatten().tolist())) == a.numel()


def test_slices_of_packed_tensors_are_told_apart():
    packed = torch.empty(5, 4, 3, 8)
    first, second = packed[:, :, 0], packed[:, :, 1]
    assert not overlap(first, second) and overlap(first, packed[:, :, :2])
    assert not overlap(packed[:2], packed[2:]) and overlap(packed[:3], packed[2:])
    # Heads apart, rows interleaved.
    assert not overlap(packed[:, 0], packed[:, 1])


def test_empty_tensors_share_nothing():
    t = torch.empty(4)
    assert not overlap(t[:0], t)


def test_permuted_and_dense_tensors_do_not_overlap_themselves():
    t = torch.empty(3, 4, 5)
    assert not overlaps_itself(t) and not overlaps_itself(t.permute(2, 0, 1)) and not overlaps_itself(t[:, ::2])
    assert overlaps_itself(t.expand(2, 3, 4, 5)) and overlaps_itself(torch.empty(9).unfold(0, 4, 1))
