"""Calls as replays of graphs; the GPU is played."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from neptune.runtime.bench import WARM, captured, graph_of


class Held:
    """What a call reads and writes."""

    def __init__(self) -> None:
        self.calls = 0


class Graph:
    """Replays nothing, and counts."""

    replays = 0

    def replay(self) -> None:
        Graph.replays += 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def capture(_graph: Any) -> Any:
        yield

    monkeypatch.setattr(Graph, "replays", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)


@pytest.mark.usefixtures("played")
def test_a_replay_keeps_what_its_call_holds() -> None:
    """Else the memory of an output goes back to the GPU at the next capture, and the replay writes to it."""
    held = Held()
    alive = weakref.ref(held)

    def call(of: Held = held) -> None:
        of.calls += 1

    replay = captured(call)
    assert held.calls == WARM + 1
    del held, call
    gc.collect()
    assert alive() is not None
    replay()
    assert Graph.replays == 1
    del replay
    gc.collect()
    assert alive() is None


@pytest.mark.usefixtures("played")
def test_what_cannot_be_captured_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_graph: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    call = Held
    assert captured(call) is call
    with pytest.raises(RuntimeError, match="capturing"):
        graph_of(call)
