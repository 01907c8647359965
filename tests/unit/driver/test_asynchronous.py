"""compile(form=): the asynchronous form is made, explained, saved, and run where it is accepted."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neptune
import neptune.driver.pipeline  # before a stub stands for the GPU that it asks for
from bench import stub_driver
from neptune.driver.forms import form_for
from neptune.errors import NeptuneError, TargetError, Unsupported
from neptune.forms import Source
from neptune.hopper.derive import Derived, Draft, derived
from neptune.hopper.emulate import load
from neptune.hopper.validate import beside
from neptune.hopper.validate.kernel import sizes
from neptune.hopper.validate.worker import Session
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import gated_linear
from neptune.ops.softmax import softmax
from neptune.runtime.hopper.accepted import read, runs
from neptune.runtime.launching.launch import Target
from neptune.tile.ir import TileProgram

SHAPES = {"batch": 1, "s_q": 4096, "s_kv": 4096}


@pytest.fixture(scope="module")
def kernel() -> neptune.Kernel:
    return neptune.compile(
        prefill_causal(heads=2, depth=64), "flash_attention", target="cuda:90", shapes=SHAPES, form="asynchronous"
    )


def test_its_text_is_the_form_and_computes_attention(kernel: neptune.Kernel) -> None:
    assert "gl.warp_specialize" in kernel.source
    q, k, v = (torch.randn(1, 2, n, 64).half() for n in (130, 200, 200))
    o = torch.full_like(q, torch.nan)
    load(kernel.source, seed=5)[kernel.name](q, k, v, o)
    scores = q.double() @ k.double().mT / 8
    above = torch.arange(200)[None, :] > torch.arange(130)[:, None] + 70
    exact = torch.softmax(scores.masked_fill(above, -torch.inf), -1) @ v.double()
    assert (o.double() - exact).abs().max() < 2e-3


def test_it_says_what_it_is(kernel: neptune.Kernel) -> None:
    said = kernel.explain()
    assert "asynchronous form for cuda:90" in said and "in step for all interleavings" in said
    entry = kernel.explain(json=True)["asynchronous"]
    assert entry["aligned"] == ["q", "k", "v", "o"] and not entry["triton"]
    (of,) = entry["kernels"]
    assert of["late"] == ["acc"] and {t["name"]: t["own"] for t in of["tiles"]} == {"q": True, "k": False, "v": False}


HOPPER, OTHER = Target("cuda", "90"), Target("cuda", "80")


@pytest.mark.parametrize(
    ("said", "here", "target", "usual", "promised", "form"),
    [
        (None, HOPPER, Target("cuda", ""), None, False, "auto"),
        (None, HOPPER, HOPPER, None, False, "auto"),
        (None, HOPPER, OTHER, None, False, None),
        (None, HOPPER, Target("interpret", ""), None, False, None),
        (None, HOPPER, HOPPER, None, True, None),
        (None, HOPPER, HOPPER, "triton", False, None),
        ("triton", HOPPER, HOPPER, "auto", False, None),
        ("asynchronous", HOPPER, HOPPER, "triton", True, "asynchronous"),
        (None, OTHER, HOPPER, None, False, None),
        (None, None, HOPPER, None, False, None),
        (None, None, HOPPER, "auto", False, "auto"),
        (None, None, OTHER, "auto", False, None),
        ("auto", None, HOPPER, None, True, "auto"),
    ],
)
def test_the_form_that_nobody_asks_for(
    said: str | None, here: Target | None, target: Target, usual: str | None, promised: bool, form: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("neptune.driver.forms.gpu_target", lambda: here)
    assert form_for(said, target, usual, promised) == form


def test_settings_say_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_FORM", "auto")
    made = neptune.compile(gated_linear(), "matmul", target="cuda:90")
    assert made.executable.artifact.form is not None
    assert neptune.compile(gated_linear(), "matmul", target="cuda:90", form="triton").executable.artifact.form is None
    monkeypatch.setenv("NEPTUNE_FORM", "asynchronous")
    with pytest.raises(NeptuneError, match="NEPTUNE_FORM=asynchronous"):
        neptune.compile(softmax("float32"), target="cuda:90")


def test_a_product_says_what_stays_in_flight_and_in_which_order_tiles_come() -> None:
    said = neptune.compile(gated_linear(), "matmul", target="cuda:90", form="asynchronous").explain()
    for name in ("c_w", "c_u"):
        assert f"  {name}: its product is in flight until the next iteration's is issued\n" in said
    assert "groups of rows: each program takes every so many, in bands of 16\n" in said


def test_the_walk_is_checked_against_the_expression(kernel: neptune.Kernel) -> None:
    assert kernel.explain(json=True)["checks"]["asynchronous form"]["verdict"] == "accepted"


def test_a_saved_kernel_has_it(kernel: neptune.Kernel, tmp_path: Path) -> None:
    kernel.save(tmp_path / "k")
    loaded = neptune.load(tmp_path / "k", target="cuda:90")
    assert loaded.source == kernel.source and loaded.explain() == kernel.explain()


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "interpret"])
def test_another_target_shows_what_runs_there(kernel: neptune.Kernel, target: str, tmp_path: Path) -> None:
    other = kernel.for_target(target)
    assert "warp_specialize" not in other.source and "asynchronous form for" not in other.explain()
    assert "asynchronous" not in other.explain(json=True)
    assert other.for_target("cuda:90").source == kernel.source
    kernel.save(tmp_path / "k")
    assert neptune.load(tmp_path / "k", target=target).source == other.source


def test_resources_and_assembly_are_of_both_forms(kernel: neptune.Kernel) -> None:
    asynchronous, plain = kernel.resources()
    assert (asynchronous.form, plain.form, asynchronous.name) == ("asynchronous", "triton", plain.name)
    levers = kernel.executable.artifact.form.levers
    roles = asynchronous.roles
    assert plain.roles is None and roles.consumers == levers["consumers"] and roles.stages == levers["stages"]
    (said,) = kernel.explain(json=True)["asynchronous"]["kernels"]
    assert (roles.consumer, roles.producer) == (said["registers"]["consumer"], said["registers"]["producer"])
    # Full and empty, one of each for every stage of every tile.
    assert roles.barriers == 2 * sum(t["stages"] for t in said["tiles"])
    assert asynchronous.spill_bytes == 0 and abs(asynchronous.shared_bytes - said["shared_bytes"]) < 1024
    (ptx,) = kernel.asm().values()
    assert kernel.asm(form="asynchronous") == {plain.name: ptx} and "setmaxnreg" in ptx
    assert "setmaxnreg" not in kernel.asm(form="triton")[plain.name]
    assert [r.form for r in kernel.resources("cuda:80")] == ["triton"] and kernel.asm("cuda:80").keys() == {plain.name}


def test_other_parameters_have_none(kernel: neptune.Kernel) -> None:
    assert "warp_specialize" not in kernel.with_params(BLOCK_M=64).source


class InProcess:
    """The process that runs both forms, in this one; its answers may be planted."""

    def __init__(self, **planted: Any) -> None:
        self.planted: dict[str, Any] = {"ready": {"name": "H200"}, **planted}
        self.session, self.asked = Session(), []

    def start(self) -> None:
        """It is there."""

    def close(self) -> None:
        """It stays."""

    def request(self, header: dict[str, Any], body: bytes = b"", limit: float | None = None) -> tuple[Any, bytes]:
        self.asked.append((header["do"], header.get("at")))
        if header["do"] in self.planted:
            return self.planted[header["do"]], b""
        return self.session.handle(header, body)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_cache")
def test_a_slow_form_runs_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With figures of a GPU that is not here, of a few groups of rows, which the model would leave to tiles."""
    monkeypatch.setattr("neptune.hopper.choice.wanted.BEHIND", math.inf)
    slow = {"asynchronous": [40.9, 41.2, 41.6], "triton": [37.8, 38.0, 38.1]}
    fast = {"asynchronous": [36.9, 37.2, 37.6], "triton": [37.8, 38.0, 38.1]}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4))

    def made(form: str, times: Any, length: int = 4096) -> tuple[neptune.Kernel, list[Any], bool]:
        """The kernel, what it was asked for, and whether its asynchronous form is launched."""
        near = {"draws": 15, "error": 1e-4, "limit": 8e-3}
        monkeypatch.setattr(beside, "WORKER", there := InProcess(compare=near, time=times))
        shapes = {**SHAPES, "s_kv": length}
        with stub_driver.installed():
            kernel = neptune.compile(
                prefill_causal(heads=2, depth=64), "flash_attention", target="cuda:90", shapes=shapes, form=form
            )
            stub_driver.Launcher.calls = []
            kernel(*(torch.randn(1, 2, 512, 64).half() for _ in range(3)))
            (launched,) = stub_driver.Launcher.calls
            stub_driver.Launcher.calls = None
        assert launched[0] in (4, 2 * 512 // kernel.params["BLOCK_M"] > 4 and 2 * 512 // kernel.params["BLOCK_M"])
        return kernel, there.asked, launched[0] == 4

    kernel, asked, runs = made("asynchronous", slow)
    assert [do for do, _ in asked] == ["ready", "compare", "ready", "time"] and asked[-1][1] == SHAPES and runs
    assert "runs since it was asked for; slower than the Triton form: 41.2 µs, 38.0 µs" in kernel.explain()
    assert "41.2 µs (40.9 to 41.6), Triton form 38.0 µs (37.8 to 38.1)" in kernel.explain()
    entry = kernel.explain(json=True)["asynchronous"]["verdict"]
    assert entry["runs"] and entry["faults"] == ["slower than the Triton form: 41.2 µs, 38.0 µs"]

    kernel, asked, runs = made("auto", None)
    assert asked == [] and not runs, "both figures are known by now"
    assert "the Triton form runs; slower" in kernel.explain()
    assert not kernel.explain(json=True)["asynchronous"]["verdict"]["runs"]
    kernel, asked, runs = made("auto", fast, 8192)
    assert [do for do, _ in asked] == ["ready", "time"] and runs, "times are of sizes, results are not"
    assert "verdict: accepted" in kernel.explain()


@pytest.mark.usefixtures("own_cache")
def test_variants_that_differ_in_values_share_the_form_where_it_is_faster_at_their_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sequence of 16k took tiles, predicted to be a little faster there, and never saw the form."""
    near = {"draws": 15, "error": 1e-4, "limit": 8e-3}
    fast = {"asynchronous": [36.9, 37.2, 37.6], "triton": [37.8, 38.0, 38.1]}
    monkeypatch.setattr(beside, "WORKER", there := InProcess(compare=near, time=fast))
    with stub_driver.installed():
        made = partial(
            neptune.compile, prefill_causal(heads=16, depth=256), target="cuda:90", form="auto", records=False
        )
        kernel = made()
        variants = kernel.explain(json=True)["family"]["variants"]
        own = kernel.executable.artifact.form
        several = [k for k, v in enumerate(variants) if v.get("shared")]
        assert own is not None and several and all(variants[k]["template"] == "flash_attention" for k in several)
        other = kernel.variants[several[-1]].kernel.executable.artifact
        assert [do for do, _ in there.asked].count("compare") == 1
        assert there.asked[-1] == ("time", variants[several[-1]]["at"])
        assert other.form.text == own.text and runs(other.form) and other.params != kernel.params
        there.planted["time"] = {"asynchronous": [40.9, 41.2, 41.6], "triton": fast["triton"]}
        monkeypatch.setattr("neptune.hopper.validate.verdicts._times", lambda *_: None)
        again = made().variants[several[-1]].kernel.executable.artifact
        assert again.form.text == own.text and not runs(again.form)


@pytest.mark.usefixtures("own_cache")
def test_without_a_gpu_that_accepts_it_tiles_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub computes nothing, so that results differ: the form is refused, and Triton's kernel is launched."""
    monkeypatch.setattr(beside, "WORKER", InProcess())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4))
    with stub_driver.installed():
        stub_driver.Launcher.calls = []
        again = neptune.compile(
            prefill_causal(heads=2, depth=64), "flash_attention", target="cuda:90", shapes=SHAPES, form="asynchronous"
        )
        record = again.executable.artifact.form.record
        stub_driver.Launcher.calls.clear()
        again(*(torch.randn(1, 2, 128, 64).half() for _ in range(3)))
        launched = list(stub_driver.Launcher.calls)
        stub_driver.Launcher.calls = None
    assert record is not None
    assert [f.partition(" by ")[0] for f in read(record).faults] == ["its results differ"]
    assert [c[0] for c in launched] == [-(-128 // again.params["BLOCK_M"]) * 2]


def test_a_kernel_without_products_has_none() -> None:
    with pytest.raises(TargetError, match="no product of matrices"):
        neptune.compile(softmax(), target="cuda:90", form="asynchronous")
    auto = neptune.compile(softmax(), target="cuda:90", form="auto")
    assert auto.executable.artifact.form is None
    assert "no asynchronous form" in auto.explain()


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942", "interpret"])
def test_other_machines_never_see_it(target: str) -> None:
    with pytest.raises(TargetError, match="sm_90"):
        neptune.compile(softmax(), target=target, form="asynchronous")


@pytest.mark.parametrize("target", ["cuda:80", "interpret"])
def test_auto_is_nothing_on_other_machines(target: str) -> None:
    made = neptune.compile(prefill_causal(heads=2, depth=64), "flash_attention", target=target, form="auto")
    assert made.executable.artifact.form is None


def test_what_is_compared_has_odd_sizes() -> None:
    found = sizes(neptune.compile(prefill_causal(depth=64), target="interpret").executable.loops)
    assert all(n % 16 for x in found for n in x.values()) and len(found) == 5


def test_a_form_that_will_not_do_makes_room_for_the_next() -> None:
    tiles = neptune.compile(prefill_causal(heads=2, depth=64), "flash_attention", target="interpret").build.tiles
    seen: list[tuple[int | str, ...]] = []

    def broken(form: Derived) -> dict[str, str]:
        seen.append(_held(form))
        return {form.kernel.name: "it spills"} if len(seen) < 3 else {}

    found = derived(Source(tiles), broken=broken)
    assert _held(found) == seen[2] and len(set(seen)) == 3
    never = derived(Source(tiles), broken=lambda form: {form.kernel.name: "it spills"})
    assert never.levers == derived(Source(tiles)).levers


def test_the_first_form_is_seen_before_it_is_checked() -> None:
    tiles = neptune.compile(prefill_causal(heads=2, depth=64), "flash_attention", target="interpret").build.tiles
    seen: list[str] = []

    def differs(_: TileProgram) -> None:
        seen.append("checked")

    def begin(draft: Draft) -> None:
        seen.append(draft.plain().text)

    found = derived(Source(tiles, differs=differs), begin=begin)
    assert seen == [found.text.text, "checked"]
    refused = derived(Source(tiles, differs=lambda _: "it differs"), begin=begin)
    assert isinstance(refused, Unsupported) and "another function" in str(refused)


def _held(form: Derived) -> tuple[int | str, ...]:
    """What decides how many registers a form takes."""
    return form.levers["consumers"], form.levers["BLOCK_N"]


@pytest.mark.parametrize(
    ("persistent", "words"), [("once", "a program each"), ("reverse", "a program each, the last rows first")]
)
def test_levers_are_a_choice_of_the_caller(persistent: str, words: str) -> None:
    levers = {"consumers": 2, "stages": 3, "persistent": persistent}
    made = neptune.compile(
        prefill_causal(heads=2, depth=64),
        "flash_attention",
        target="cuda:90",
        params={"BLOCK_N": 64} | levers,
        form="asynchronous",
    )
    of = made.executable.artifact.form
    assert of is not None and levers.items() <= of.levers.items() and of.levers["BLOCK_N"] == 64
    assert f"groups of rows: {words}\n" in made.explain() and "µs in the Triton form" in made.explain()


def test_a_form_far_behind_is_not_made_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neptune.hopper.choice.wanted.BEHIND", 0.1)
    options = {"target": "cuda:90", "shapes": SHAPES, "form": "auto"}
    left = neptune.compile(prefill_causal(heads=2, depth=64), "flash_attention", **options, name="left")
    assert left.executable.artifact.form is None
    assert "it is predicted to take" in left.explain() and "and the Triton form" in left.explain()
