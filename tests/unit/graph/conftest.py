"""What Neptune leaves runs op by op here: Inductor's C++ compiler takes seconds a graph, and is torch's to test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from neptune.graph import backend


@pytest.fixture(autouse=True, scope="package")
def _op_by_op() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "inductor_here", lambda device: "left out by the tests")
        yield


@pytest.fixture(autouse=True)
def _afresh(request: pytest.FixtureRequest) -> None:
    if "fused" not in request.fixturenames:
        torch._dynamo.reset()
