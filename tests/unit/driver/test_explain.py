"""explain(): every section says what happened, as text and as plain values."""

from __future__ import annotations

import json

import pytest

import neptune
from neptune.ops.attention import prefill_causal
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program


@pytest.fixture(scope="module")
def attention():
    return neptune.compile(
        prefill_causal(depth=16), "flash_attention", target="llvm", params={"BLOCK_M": 64}, bounds={"s_q": 4096}
    )


def test_attention_tells_what_was_rolled_and_how_it_was_proved(attention):
    text = attention.explain()
    for words in (
        "kernel prefill_causal for llvm, by template flash_attention",
        "q: f16[batch, heads, s_q, 16]",
        "BLOCK_M=64",
        "s_q=4096",
        "acc: rolled (rolling_update)",
        "h = t*exp(r - r')",
        "r = m[b, h, i]",
        "proved  update: h(g(r, c), r, r') = g(r', c)",
        "mask, skipped where false",
        "1 kernel, no global temporaries",
        "passes over each input: q=1, k=1, v=1",
        "fused program: accepted",
        "tile program: accepted",
        " draws",
    ):
        assert words in text


def test_json_holds_the_same(attention):
    said = json.loads(json.dumps(attention.explain(json=True)))
    assert said["params"]["BLOCK_M"] == 64 and said["bounds"] == {"s_q": 4096}
    rolled = {d["subject"]: d for d in said["decisions"] if d["verdict"] == "rolled"}
    assert set(rolled) == {"l", "acc"}
    kinds = {p.split(":")[0] for p in rolled["acc"]["proved"]}
    assert kinds >= {"update", "commute", "defined", "range"}
    assert not any(x.startswith("proved") for x in rolled["acc"]["details"])
    assert said["traversals"] == {"q": 1, "k": 1, "v": 1}
    assert [x["axis"] for x in said["kernels"][0]["loops"]] == ["j0", "j0"]
    assert said["checks"]["tile program"]["verdict"] == "accepted"
    assert len(said["checks"]["tile program"]["seeds"]) == said["checks"]["tile program"]["draws"]


def test_the_schedule_is_told_call_by_call():
    text = neptune.compile(rows_program(), rows_fused, target="llvm").explain()
    assert 'sch.fuse_at("y", sch.loop("t", "i0"))' in text
    assert "scalars: scale, shift" in text


def test_an_unfused_program_says_so():
    text = neptune.compile(rows_program(), rows_apart, target="llvm").explain()
    assert "2 kernels, 1 global temporary" in text and "temporary t: written and read back" in text


def test_unchecked_says_so(monkeypatch):
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    assert "none (NEPTUNE_VERIFY=0)" in neptune.compile(rows_program(), rows_fused, target="llvm").explain()
