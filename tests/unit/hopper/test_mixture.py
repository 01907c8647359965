"""The E-step of a Gaussian mixture, written with products: two of them make one tile of scores."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from neptune.hopper.emulate import load
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import Finish, Issue, Levers, walk_async
from neptune.hopper.protocol.check import check
from neptune.hopper.protocol.trials import trials
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.templates.flash_attention import flash_attention
from neptune.tile.pipeline import lower
from qa.accepted import expanded_mixture
from tests.examples.lowering import scheduled
from tests.examples.walks import walked

DEPTH = 64


@pytest.mark.parametrize(("rows", "cols", "consumers", "order"), [(200, 130, 2, "late"), (70, 61, 3, "random")])
def test_by_products(monkeypatch: pytest.MonkeyPatch, rows: int, cols: int, consumers: int, order: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))
    torch.manual_seed(rows)
    tiles = lower(scheduled(expanded_mixture(DEPTH), flash_attention))
    levers = Levers(consumers, 2, "stride", tiles={"BLOCK_N": 64})
    kernel = roles(walked(tiles, levers), tiles, levers)
    verify_async(kernel, tiles)
    # Both products of an iteration are in flight before the first is waited for.
    kinds = [s for s in walk_async(kernel.consumer) if isinstance(s, Issue | Finish)]
    assert [isinstance(s, Issue) for s in kinds[:3]] == [True, True, False]
    text = generate(tiles, kernel).text
    report = check(text, trials(tiles, kernel))
    assert report.ok, report
    assert report.unreached == ()
    x, mu = torch.randn(rows, DEPTH).half(), torch.randn(cols, DEPTH)
    precision, offset = torch.rand(cols, DEPTH) + 0.5, torch.randn(cols) * 3
    given = {"x": x, "squares": x * x, "linear": (mu * precision).half(), "quadratic": (precision * -0.5).half()}
    out = torch.full((rows,), float("nan"))
    load(text, seed=rows, order=order)[tiles.name](**given, offset=offset, likely=out)
    wanted = (
        given["x"].double() @ given["linear"].double().T + given["squares"].double() @ given["quadratic"].double().T
    )
    wanted = torch.logsumexp(wanted + offset.double(), 1)
    assert float((out.double() - wanted).abs().max()) < 1e-4
