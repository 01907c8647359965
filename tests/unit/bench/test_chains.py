"""Chains of reductions by the automatic choice: how they are fused, and that they compute what they say."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import neptune
from bench import chain_errors, chains
from bench.chain_attention import ATTENTION
from bench.chain_errors import FAMILIES
from bench.chain_programs import ROW_CHAINS, Chain
from bench.chain_tables import page
from neptune.errors import TargetError
from tests.goldens import check_golden
from tests.tiers import sampled

CHAINS = (*ROW_CHAINS, *ATTENTION)
"""Without the ten operators, which have tests of their own."""
BY_NAME = {c.name: c for c in CHAINS}
TWO_PASSES = {"softmax", "log_softmax", "layer_norm"}
"""What is written for each element cannot be known before the row has been read."""
APART = {"qk_norm_attention": ("k_unit",)}
"""The keys are normalised once, not once for each tile of queries."""

SPILLS = {("prefill_alibi", "cuda:80")}
"""With the tiles that are best on Hopper."""


@cache
def kernel(name: str) -> neptune.Kernel:
    return chains.compiled(BY_NAME[name].build(chains.DEPTH))


def test_names_are_those_of_the_programs() -> None:
    assert len(BY_NAME) == len(CHAINS)
    assert all(c.build(chains.DEPTH).name == c.name for c in CHAINS)


BY_COLUMNS = {"kernel_density": "x", "distance_attention": "q"}
"""Whose own rows a program goes along again and again, an element of each at a time."""


@pytest.mark.parametrize("chain", sampled(CHAINS, 7), ids=str)
def test_one_kernel_reads_every_input_once(chain: Chain) -> None:
    facts = kernel(chain.name).facts
    assert facts.temporaries == APART.get(chain.name, ())
    assert len(facts.kernels) == 1 + len(facts.temporaries)
    passes = {n: p for n, p in facts.traversals.items() if n != BY_COLUMNS.get(chain.name)}
    assert max(passes.values()) <= (2 if chain.name in TWO_PASSES else 1)
    # The rows of a program's own, column by column for each tile of the others.
    assert all(facts.traversals[n] == math.inf for n in facts.traversals.keys() - passes.keys())


@pytest.mark.parametrize("chain", sampled(CHAINS, 7), ids=str)
def test_errors_are_within_the_limits(chain: Chain) -> None:
    made = kernel(chain.name)
    assert set(chains.outcome(made).checks.values()) == {"accepted"}
    found = list(chain_errors.samples(chain, chain.build(chains.DEPTH), {"llvm": made.for_target("llvm")}))
    assert len(found) > 15
    assert {s.family: s.of_limit for s in found if s.of_limit > 1} == {}
    assert all(np.isfinite(s.unfused).all() for s in found)


@pytest.mark.parametrize(
    "name", sampled(["rms_norm_linear", "linear_cross_entropy", "sigmoid_attention", "softmax_top_k"], 4)
)
def test_the_generated_triton_computes_the_same(name: str) -> None:
    chain = BY_NAME[name]
    kernels = {"interpret": kernel(name)}
    wanted = {"random of columns", "x30 of columns"}
    found = list(chain_errors.samples(chain, chain.build(chains.DEPTH), kernels, 5, 37, wanted.__contains__))
    assert len(found) == 2 and all(s.of_limit <= 1 for s in found)


@pytest.mark.parametrize("name", sampled(["weighted_mean", "variance"], 2))
def test_sums_of_rows_compile_for_gpus(name: str) -> None:
    """Triton cannot compile a row's sum that a loop and an `if` behind it add up: there is none."""
    assert [r.spill_bytes for r in kernel(name).resources("cuda:80")] == [0]


def test_a_lost_tile_is_seen() -> None:
    """The limits are no formality: a kernel that forgets the last keys fails."""
    chain = BY_NAME["sigmoid_attention"]
    whole = kernel(chain.name).for_target("llvm")

    def forgetful(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
        whole(q, k[:-5], v[:-5], out=out)

    found = list(chain_errors.samples(chain, chain.build(chains.DEPTH), {"llvm": forgetful}))
    assert all(s.of_limit > 10 for s in found if s.family.startswith("random"))


@pytest.mark.slow
def test_what_was_done_with_each_chain() -> None:
    """The table of `python -m bench.chains`, as text: it changes where the solver or a template learns something."""
    lines = []
    for chain in CHAINS:
        refused = {} if chain.template else chains.choice(chain.build(chains.DEPTH))[1]
        o = chains.outcome(kernel(chain.name), refused)
        lines += [f"{chain.name}: {o.template}, {len(o.kernels)} kernels, {o.loops} loops", f"  passes {o.traversals}"]
        lines += [f"  {stage} {how}" for stage, how in o.repairs.items()]
        lines += [f"  not by {name}: {why}" for name, why in o.refused.items()]
    check_golden("chains.txt", "\n".join(lines) + "\n")


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made, page = tmp_path / "chains.json", tmp_path / "chains.md"
    args = ["--only", "logsumexp", "--json", str(made)]
    assert chains.main([*args, "--targets", "llvm"]) == 0
    out = capsys.readouterr().out
    assert "flash_attention" in out and "1 chains, 0 refused, 0 above the limit" in out
    errors = json.loads(made.read_text())["rows"][0]["errors"]
    assert set(errors["families"]) == set(FAMILIES) - {"far from zero"} and 0 < errors["of limit"] <= 1
    # What is not made anew stays.
    assert chains.main([*args, "--no-errors", "--resources", "cuda:90"]) == 0
    (row,) = json.loads(made.read_text())["rows"]
    assert row["errors"] == errors and row["resources"]["targets"]["cuda:90"][0]["registers"] > 0
    assert chains.main(["--json", str(made), "--page", str(page)]) == 0
    assert "| logsumexp | flash_attention | 1 | 1 | x:1 | - |" in page.read_text()


def test_the_page_is_that_of_the_results() -> None:
    content = json.loads(Path("bench/results/chains.json").read_text())
    assert Path("docs/chains.md").read_text() == page(content)
    assert [r["chain"] for r in content["rows"]] == [c.name for c in chains.CHAINS]
    for row in content["rows"]:
        assert set(row) == {"chain", "group", "outcome", "errors", "resources"}
        for target in chains.OFFLINE:
            found = row["resources"]["targets"][target]
            assert len(found) == len(row["outcome"]["kernels"])
            assert (row["chain"], target) in SPILLS or not any(r["spill_bytes"] for r in found)


@pytest.mark.parametrize("name", sampled(["layer_norm", "softmax_top_k", "quantise_matmul"], 3))
def test_without_tvm_the_evaluator_is_the_unfused_expression(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = BY_NAME[name]
    program = chain.build(chains.DEPTH)
    monkeypatch.setattr(chain_errors, "compile_llvm", Mock(side_effect=TargetError("llvm", "there is no TVM")))
    by, plainly = chain_errors.unfused(program, 5, 37)
    wanted = {"random of columns", "needle 16 of columns"}
    made = {"llvm": kernel(name).for_target("llvm")}
    found = list(chain_errors.samples(chain, program, made, 5, 37, wanted.__contains__, plainly))
    assert by == "evaluator" and len(found) == 2 and all(s.of_limit <= 1 and max(s.unfused) < 1e-2 for s in found)
