"""The checks of bench.gpu_check, one test for each kernel."""

from __future__ import annotations

import pytest

from bench import gpu_check
from bench.cases import Case
from neptune.runtime.launch import default_target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", gpu_check.FULL.cases, ids=str)
def test_every_size_and_view(case: Case) -> None:
    plan = gpu_check.FULL
    kernel = gpu_check.compiled(case, str(default_target()), plan.params_of(case))
    found = [gpu_check.check(case, kernel, sizes, view, plan.outer) for sizes in plan.sizes for view in gpu_check.VIEWS]
    failed = [gpu_check.line(r) for r in found if not r.passes]
    assert not failed, "\n".join(failed)
