"""A launch that is refused: the same kernel with fewer stages takes its place, then another variant."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import TargetError
from neptune.ops.softmax import softmax
from neptune.runtime.launch import LAUNCHERS, REFUSED

GIVEN = {"BLOCK_M": 1, "BLOCK_N": 64, "num_warps": 4}


@pytest.fixture
def room(monkeypatch):
    """A target whose launches are refused where `fits` says no of their template's values; what was tried."""
    true, tried = LAUNCHERS["interpret"], []

    def of(fits):
        def stub(target, fused, modules):
            run = true(target, fused, modules)

            def launch(*args):
                tried.append(modules.params["num_stages"])
                if not fits(modules.params):
                    raise TargetError("run", "Triton: out of resource: shared memory", kind=REFUSED)
                return run(*args)

            return launch

        monkeypatch.setitem(LAUNCHERS, "interpret", stub)
        return tried

    return of


def right(kernel):
    x = torch.randn(8, 300)
    assert torch.allclose(kernel(x), torch.softmax(x, -1), atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"shapes": {"rows": 8, "cols": 300}}])
def test_fewer_stages_serve_a_family_and_a_kernel_alone(room, more):
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = neptune.compile(softmax(), target="interpret", **more)
    right(kernel)
    right(kernel)
    assert tried[-1] == tried[-2] == 1


def test_it_is_one_stage_at_a_time_and_for_good(room, caplog):
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = neptune.compile(softmax(), "softmax_online", target="interpret", params=GIVEN)
    most = kernel.explain(json=True)["params"]["num_stages"]
    right(kernel)
    right(kernel)
    assert tried == [*range(most, 0, -1), 1] and len(caplog.messages) == most - 1


@pytest.mark.parametrize("later", [False, True])
def test_stages_that_the_caller_gave_are_kept(room, later):
    tried = room(lambda params: params["num_stages"] < 3)
    stages = {"num_stages": 4}
    kernel = neptune.compile(softmax(), "softmax_online", target="interpret", params=GIVEN | ({} if later else stages))
    kernel = kernel.with_params(stages) if later else kernel
    with pytest.raises(TargetError, match="shared memory"):
        right(kernel)
    assert tried == [4]


def test_where_nothing_fits_it_is_one_error(room):
    tried = room(lambda params: False)
    kernel = neptune.compile(softmax(), target="interpret")
    with pytest.raises(TargetError, match="shared memory"):
        right(kernel)
    assert 1 in tried


def test_another_variant_follows_the_last_stage(room):
    kernel = neptune.compile(softmax(), target="interpret")
    bad = dict(kernel.chosen(rows=8, cols=300).params)
    tried = room(lambda params: {**params, "num_stages": bad["num_stages"]} != {**params, **bad})
    right(kernel)
    assert tried[0] == bad["num_stages"]
