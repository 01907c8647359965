"""What `bench.grid` compares: others' forms of an operator are the operator; ablations take away what they say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.chain_attention import ATTENTION as CHAINS_OF_ATTENTION
from bench.chain_programs import ROW_CHAINS
from bench.comparison import attention, chains, dry, subjects, tuning
from bench.comparison.columns import COLUMNS, Unfit
from bench.comparison.gate import Gate
from neptune.autotune.place import Bench as Timed
from neptune.autotune.reference import errors
from neptune.autotune.space import trials
from neptune.autotune.tuner import task_of
from neptune.ops.attention import OPERATORS
from neptune.ops.softmax import softmax
from tests.unit.autotune.planted import OTHERS, SPEC


@pytest.mark.parametrize("name", list(OPERATORS))
def test_masks_and_scores_are_those_of_the_operators(name: str) -> None:
    found = dict(dry.mask_errors(name))
    assert len(found) == (2 if name.startswith("decode") else 6)
    assert max(found.values()) < dry.LIMIT
    assert any("FlexAttention" in what for what in found)


@pytest.mark.parametrize("name", list(chains.TORCH))
def test_chains_in_torch_are_the_chains(name: str) -> None:
    """Given float64, to the last digits of the chain's own reference; two of them round in between."""
    chain = next(c for c in (*ROW_CHAINS, *CHAINS_OF_ATTENTION) if c.name == name)
    subject = replace(
        subjects.of_chain(chain), program=partial(chain.build, 16), sizes={"rows": 19, "cols": 53}, below=53
    )
    args = subject.inputs("cpu")
    exact = [t.double() if t.is_floating_point() else t for t in args]
    wanted = chain.reference(*(t.numpy() for t in exact))
    found = subjects.as_tuple(subject.eager(*exact))
    limit = 1e-3 if name in ("linear_attention", "qk_norm_attention") else 1e-12
    assert len(found) == (2 if name == "softmax_top_k" else len(wanted))  # its indices are not compared
    for out, want in zip(found, wanted, strict=False):
        assert errors(out.double(), torch.from_numpy(want)).row < limit
    # And rows by themselves are rows of the whole.
    assert dry.chain_errors(replace(subject, sizes={"rows": 80, "cols": 53})) < 0.02


def test_a_large_softcap_and_window_matter() -> None:
    """The comparison would see it if they were left out."""
    for name, without in (("prefill_softcap", "softcap"), ("prefill_window", "window"), ("prefill_causal", "causal")):
        row = dry.small(OPERATORS[name])
        kv_heads = int(row.get("kv_heads", 4))
        q, k, v = (8 * torch.randn(1, h, 77, 16) for h in (4, kv_heads, kv_heads))
        less = {n: x for n, x in row.items() if n != without}
        outs = [attention.eager(r)(q, k, v) for r in (row, less)]
        off = [max(errors(out[at], exact[0]).row for at, exact, _ in attention.blocks(row, (q, k, v))) for out in outs]
        assert off[0] < 1e-4 < 1e-2 < off[1]


# --- one idea less, and the tuner ----------------------------------------------------------------


@pytest.mark.slow
def test_a_pass_that_is_off_makes_another_kernel() -> None:
    class Offline:
        device, target = "cpu", "cuda:90"

    subject = subjects.of_attention("prefill_causal", 1, 512)
    ((form, _),) = COLUMNS["no pass exp2"].forms(subject, [], Offline())  # type: ignore[arg-type]
    assert form.startswith("flash_attention ")
    with pytest.raises(Unfit, match="changes nothing"):
        list(COLUMNS["no pass short_operands"].forms(subject, [], Offline()))  # type: ignore[arg-type]
    ((form, _),) = COLUMNS["no fusion"].forms(subject, [], Offline())  # type: ignore[arg-type]
    assert form == "stagewise"


@pytest.mark.slow
def test_the_tuner_is_compared_with_a_search_that_stops_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        device, target = "cpu", "llvm"
        gate = Gate(tmp_path / "gate")

    given = {"num_stages": 2}
    monkeypatch.setattr(tuning, "task_of", lambda p, target: task_of(p, "softmax_row", target=target, params=given))
    rows, sizes = partial(torch.softmax, dim=-1), {"rows": 2048, "cols": 1024}
    subject = subjects.Subject("softmax 2048×1024", "rows", softmax, sizes, rows, "", 1.0)
    # The model puts the fastest so far behind that the search never measures it.
    task = tuning.task_of(softmax(), target="llvm")
    every = trials(task.forms, sizes, task.machine, given)
    plan = {" ".join((every[-1].template, *(f"{n}={v}" for n, v in every[-1].params.items()))): 20.0}
    timed = Timed(SPEC, {"plan": plan, "log": str(tmp_path / "log")}, 40.0, 0)
    row = tuning.compared(subject, Here(), 60.0, 120.0, timed)  # type: ignore[arg-type]
    assert row["us"] == OTHERS and row["best us"] == 20.0 and row["regret"] == pytest.approx(4.0)
    assert row["seconds to 3 %"] is None and row["measured"] < row["exhaustive"] == row["candidates"] == len(every)
    assert len(row["samples"]["records"]) >= row["exhaustive"]
