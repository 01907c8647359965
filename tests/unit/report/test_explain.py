"""explain(): every section says what happened, as text and as plain values."""

from __future__ import annotations

import json

import pytest

import neptune
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.linear import matmul
from neptune.ops.norm import layer_norm
from neptune.ops.softmax import softmax
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


def test_it_leads_with_the_matrix_unit_and_the_number_of_programs(attention):
    _, lead, _ = attention.explain().split("\n", 2)
    at = "batch=8, heads=8, s_q=4096, s_kv=4096"
    assert lead == f"  prefill_causal_kernel: on the matrix unit (4 products in float16); 4096 programs at {at}"
    (kernel,) = attention.facts.kernels
    assert kernel.products == ("float16",) * 4 and kernel.on_matrix_unit and kernel.programs == 64 * 64
    # Other tiles, other programs.
    assert attention.with_params(BLOCK_M=128).facts.kernels[0].programs == 64 * 32


@pytest.mark.parametrize(
    ("dtype", "said"), [("float32", "off the matrix unit (2 products in float32)"), (None, "(no products of tiles)")]
)
def test_what_is_off_the_matrix_unit_says_so(dtype, said):
    expression = softmax() if dtype is None else matmul(dtype=dtype)
    kernel = neptune.compile(expression, "softmax_row" if dtype is None else "matmul", target="llvm")
    assert said in kernel.explain().splitlines()[1] and not kernel.facts.kernels[0].on_matrix_unit


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


# --- what is slow, and what is predicted -------------------------------------------------------------


@pytest.fixture(scope="module")
def slow():
    with pytest.warns(neptune.NeptunePerformanceWarning):
        return neptune.compile(softmax(), "stagewise", target="llvm")


def test_warnings_come_first(slow):
    (found,) = slow.warnings
    assert (found.code, found.stage) == ("repeated-passes", "x")
    first, remedy, name = slow.explain().splitlines()[:3]
    assert first == f"warning: {found.message} ({found.code})" and remedy == f"  try: {found.remedy}"
    assert name.startswith("kernel softmax for llvm")
    assert slow.explain(json=True)["warnings"] == [
        {"code": found.code, "stage": "x", "message": found.message, "remedy": found.remedy}
    ]


def test_each_warning_is_told_once_at_the_users_line(slow):
    with pytest.warns(neptune.NeptunePerformanceWarning) as told:
        neptune.compile(softmax(), "stagewise", target="llvm")
    (one,) = told
    assert str(one.message) == f"kernel `softmax`: {slow.warnings[0]}" and one.filename == __file__


def test_what_is_fast_is_quiet(recwarn, attention):
    kernel = neptune.compile(softmax(), "softmax_online", target="llvm")
    assert kernel.warnings == attention.warnings == () and not list(recwarn)
    assert kernel.explain().startswith("kernel softmax")


def test_strict_refuses_what_is_slow(slow):
    with pytest.raises(neptune.ScheduleError) as info:
        neptune.compile(softmax(), "stagewise", target="llvm", strict=True)
    assert str(slow.warnings[0]) in str(info.value)
    assert neptune.compile(softmax(), "softmax_online", target="llvm", strict=True).warnings == ()


def test_saved_kernels_keep_what_was_said(slow, tmp_path):
    slow.save(tmp_path / "k")
    loaded = neptune.load(tmp_path / "k", target="interpret")
    assert loaded.warnings == slow.warnings
    assert loaded.explain(json=True)["prediction"] == slow.explain(json=True)["prediction"]
    assert loaded.explain().splitlines()[:2] == slow.explain().splitlines()[:2]


def test_the_prediction_is_at_the_sizes_that_were_named():
    sizes = {"m": 512, "n": 1024, "k": 2048}
    said = neptune.compile(matmul(), "matmul", target="llvm", shapes=sizes).explain(json=True)["prediction"]
    assert said["sizes"] == sizes and said["given"] and said["machine"] == "H200"
    (kernel,) = said["kernels"]
    assert kernel["us"] + said["launches"] == pytest.approx(said["us"], abs=0.02)
    assert 0 < kernel["share"] <= 1.01 and kernel["programs"] >= 1 and kernel["resident"] >= 1
    assert len(said["others"]) == 3 and [o["us"] for o in said["others"]] == sorted(o["us"] for o in said["others"])
    # The values that were taken are the best, but for what counts as equal.
    assert said["us"] <= 1.03 * said["others"][0]["us"]


def test_usual_sizes_are_named(attention):
    said = attention.explain(json=True)["prediction"]
    assert not said["given"] and said["sizes"] == {"batch": 8, "heads": 8, "s_q": 4096, "s_kv": 4096}
    text = attention.explain()
    for words in (f"predicted {said['us']:.1f} µs on H200 at batch=8", "usual sizes", "waves", "bound by", "launches:"):
        assert words in text


def test_other_params_are_judged_anew(slow):
    said, other = slow.explain(json=True), slow.with_params(ROW_N=128).explain(json=True)
    assert other["prediction"]["us"] != said["prediction"]["us"] and other["warnings"] == said["warnings"]
    again = slow.with_params(ROW_N=128).with_params(ROW_N=slow.params["ROW_N"]).explain(json=True)
    assert again["prediction"] == said["prediction"]
    one = slow.with_params(ROW_M=1, ROW_N=1)
    assert "scalar-loop" in [w.code for w in one.warnings]


# --- what is assumed ---------------------------------------------------------------------------------


def test_assumptions_have_names_and_are_granted(tmp_path):
    plain = neptune.compile(layer_norm("float32"), "softmax_online", target="llvm")
    assert {a["name"]: a["granted"] for a in plain.explain(json=True)["assumptions"]} == {
        "parts(squares)": False,
        "finite(x)": False,
    }
    granted = neptune.compile(layer_norm("float32"), "softmax_online", target="llvm", assume=("finite(x)",))
    said = {a["name"]: a["granted"] for a in granted.explain(json=True)["assumptions"]}
    assert said == {"parts(squares)": False, "finite(x)": True}
    assert "  finite(x): granted\n    x: finite numbers" in granted.explain()
    assert "  parts(squares): not granted" in granted.explain()
    assert granted.source == plain.source
    granted.save(tmp_path / "k")
    assert "finite(x): granted" in neptune.load(tmp_path / "k", target="llvm").explain()


def test_ranges_are_assumptions_and_what_is_proved_is_none(attention):
    wide = neptune.compile(prefill_global(depth=16, dtype="float32"), "flash_attention", target="llvm")
    assert [a["name"] for a in wide.explain(json=True)["assumptions"]] == ["range(acc)"]
    assert attention.explain(json=True)["assumptions"] == [] and "assumptions" not in attention.explain()
