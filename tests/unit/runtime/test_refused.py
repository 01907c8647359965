"""A launch that is refused: fewer stages take its place, smaller tiles, fewer warps, then another variant; and what
other processes know of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import neptune
from bench import stub_driver
from neptune.errors import TargetError
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from neptune.runtime.launching import refused
from neptune.runtime.launching.launch import LAUNCHERS
from neptune.runtime.launching.refused import REFUSED

GIVEN = {"BLOCK_M": 1, "BLOCK_N": 64, "num_warps": 4}
SHARED = "Triton: out of resource: shared memory, Required: 270336, Hardware limit: 232448. Reducing …"
ROOT = Path(__file__).parents[3]


def again(monkeypatch):
    """As in another process: nothing is known of what was refused."""
    monkeypatch.setattr(refused, "_known", {})
    monkeypatch.setattr(refused, "_untold", {})


@pytest.fixture
def room(monkeypatch):
    """A target whose launches are refused where `fits` says no of their template's values; the values tried."""
    true, tried = LAUNCHERS["interpret"], []
    again(monkeypatch)

    def of(fits, said=SHARED):
        tried.clear()

        def stub(target, fused, modules):
            run = true(target, fused, modules)

            def launch(*args):
                tried.append(dict(modules.params))
                if not fits(modules.params):
                    raise TargetError("run", said, kind=REFUSED)
                return run(*args)

            return launch

        monkeypatch.setitem(LAUNCHERS, "interpret", stub)
        return tried

    return of


def right(kernel):
    x = torch.randn(8, 300)
    assert torch.allclose(kernel(x), torch.softmax(x, -1), atol=1e-6)


def stages(tried):
    return [params["num_stages"] for params in tried]


def online(**more):
    return neptune.compile(softmax(), "softmax_online", target="interpret", **more)


@pytest.fixture(scope="module")
def own():
    """The values that `online` chooses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_CACHE_DIR", "0")
        return online().explain(json=True)["params"]


# --- the order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"shapes": {"rows": 8, "cols": 300}}])
def test_fewer_stages_serve_a_family_and_a_kernel_alone(room, more):
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = neptune.compile(softmax(), target="interpret", **more)
    right(kernel)
    right(kernel)
    assert stages(tried)[-2:] == [1, 1]


def test_it_is_one_stage_at_a_time_for_good_and_said_once(room, caplog):
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = online(params=GIVEN)
    most = kernel.explain(json=True)["params"]["num_stages"]
    right(kernel)
    right(kernel)
    assert stages(tried) == [*range(most, 0, -1), 1]
    (said,) = caplog.messages
    assert "'num_stages': 1" in said and "shared memory" in said


def test_smaller_tiles_follow_the_last_stage_then_fewer_warps(room, own):
    tried = room(lambda params: params["num_warps"] < own["num_warps"])
    kernel = online()
    right(kernel)
    first = range(own["num_stages"], 0, -1)
    assert stages(tried)[: len(first)] == [*first] and set(stages(tried)[len(first) :]) == {1}
    tiles = [(p["BLOCK_M"], p["BLOCK_N"]) for p in tried[len(first) - 1 : -1]]
    for (rows, columns), (fewer, less) in itertools.pairwise(tiles):
        # The longest tile, the last one of equals.
        assert (fewer, less) == ((rows, columns // 2) if columns >= rows else (rows // 2, columns))
    assert tiles[-1] == (1, 1) and tried[-1] == {**tried[-2], "num_warps": own["num_warps"] // 2}


def test_tiles_that_the_matrix_unit_sums_over_keep_what_it_takes(monkeypatch):
    kernel = neptune.compile(prefill_causal(depth=64), "flash_attention", target="cuda:90")
    found, of = [], kernel.executable.artifact
    while (of := refused.lower(of, "shared memory")) is not None:
        found.append(of.params)
    assert min(p["BLOCK_N"] for p in found) == of_least(kernel) == 16 and found[-1]["num_warps"] == 1
    for params in found:
        kernel.with_params(params)


def of_least(kernel):
    return kernel.explain(json=True)["least"]["BLOCK_N"]


def test_what_triton_refuses_where_it_loads_a_kernel(monkeypatch):
    again(monkeypatch)
    # Triton asks the driver once, and keeps the answer.
    monkeypatch.setattr("triton.compiler.compiler.max_shared_mem", lambda device: 12_000)
    q = torch.zeros(1, 1, 64, 64, dtype=torch.float16)
    with stub_driver.installed():
        kernel = neptune.compile(prefill_causal(depth=64), "flash_attention", target="cuda")
        for _ in range(2):
            kernel(q, q, q)
        taken = kernel.executable.fitting().modules.params
        assert (taken["num_stages"], taken["num_warps"]) == (1, kernel.explain(json=True)["params"]["num_warps"])
        assert taken["BLOCK_M"] < kernel.explain(json=True)["params"]["BLOCK_M"] and len(kernel.specialisations) == 1


def test_too_many_threads_want_fewer_warps_first(room, own):
    tried = room(lambda params: params["num_warps"] < 2, "Triton: out of resource: threads, Required: 1024, …")
    right(online())
    assert [p["num_warps"] for p in tried] == [own["num_warps"] >> k for k in range(own["num_warps"].bit_length())]
    assert all({**p, "num_warps": own["num_warps"]} == own for p in tried)


@pytest.mark.parametrize("later", [False, True])
def test_what_the_caller_gave_is_kept(room, later):
    tried = room(lambda params: params["num_stages"] < 3)
    values = {"num_stages": 4}
    kernel = online(params=GIVEN | ({} if later else values))
    kernel = kernel.with_params(values) if later else kernel
    for _ in range(2):
        with pytest.raises(TargetError, match="shared memory"):
            right(kernel)
    assert stages(tried) == [4, 4]


def test_a_warp_number_of_one_launch_is_a_choice_too():
    kernel = neptune.compile(prefill_causal(depth=64), "flash_decoding", target="cuda:90")
    name = kernel.executable.artifact.facts.kernels[-1].name.removesuffix("_kernel").removeprefix("prefill_causal_")
    of = kernel.executable.artifact.with_values({f"{name}.num_warps": 2, "num_warps": 4})
    assert refused.lower(of, "threads").params == {**of.params, f"{name}.num_warps": 1, "num_warps": 2}


def test_where_nothing_fits_it_is_one_error_with_what_was_tried(room):
    room(lambda params: False)
    kernel = online()
    messages = []
    for _ in range(2):
        with pytest.raises(TargetError, match="shared memory") as info:
            right(kernel)
        messages.append(str(info.value))
    assert messages[0] == messages[1] and ", num_stages=1, BLOCK_N=" in messages[0]
    assert messages[0].count("out of resource") == 1


def test_variants_that_come_to_the_same_are_tried_once(room):
    tried = room(lambda params: False)
    kernel = neptune.compile(softmax(), target="interpret")
    with pytest.raises(TargetError, match="shared memory") as info:
        right(kernel)
    seen = [tuple(sorted(p.items())) for p in tried]
    # Templates may have the same values.
    assert max(map(seen.count, seen)) <= len({v.template for v in kernel.variants})
    assert 2 <= str(info.value).count("tried:") <= 8


def test_another_variant_follows_what_cannot_be_made_smaller(room):
    kernel = neptune.compile(softmax(), target="interpret")
    bad = kernel.chosen(rows=8, cols=300)
    tried = room(lambda params: params.keys() != bad.params.keys())
    if all(v.params.keys() == bad.params.keys() for v in kernel.variants):
        pytest.skip("all variants have the same parameters")
    right(kernel)
    assert tried[0] == bad.params and tried[-1].keys() != bad.params.keys()


def test_memory_that_is_too_little_for_what_runs_is_left(room):
    """`kernel.workspace` has told what the first choice needs."""
    q, k = torch.randn(1, 1, 1, 16).half(), torch.randn(1, 1, 512, 16).half()
    kernel = neptune.compile(prefill_causal(depth=16), "flash_decoding", target="interpret")
    least = min(kernel.explain(json=True)["params"]["BLOCK_N"], 64)
    bytes_first = kernel.workspace(batch=1, heads=1, s_q=1, s_kv=512)
    right_one, memory = kernel(q, k, k), torch.empty(bytes_first, dtype=torch.uint8)
    room(lambda params: params["BLOCK_N"] < least)
    kernel = neptune.compile(prefill_causal(depth=16), "flash_decoding", target="interpret")
    found = kernel(q, k, k, workspace=memory)
    assert kernel.workspace(batch=1, heads=1, s_q=1, s_kv=512) > bytes_first
    assert all(torch.allclose(x, y, atol=1e-2) for x, y in zip(found, right_one, strict=True))


# --- bits ----------------------------------------------------------------------------------------


def test_bits_that_are_promised_do_not_follow_from_what_was_refused(room, monkeypatch, tmp_path, own):
    """Fewer stages round alike; smaller tiles do not, and nothing is kept that others would follow."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    tried = room(lambda params: params["BLOCK_N"] < own["BLOCK_N"])
    with pytest.raises(TargetError, match="tried: softmax_online") as error:
        right(online(deterministic=True))
    assert "num_stages=1" in error.value.wrong and {p["BLOCK_N"] for p in tried} == {own["BLOCK_N"]}
    assert not [*tmp_path.glob("refused/*")]


@pytest.mark.parametrize("promised", [True, False])
def test_fewer_stages_keep_what_is_promised(room, own, promised):
    tried = room(lambda params: params["num_stages"] == 1)
    right(online(deterministic=promised))
    assert tried[-1] == {**own, "num_stages": 1}


# --- what is remembered --------------------------------------------------------------------------


def test_another_process_does_not_take_it(room, monkeypatch, tmp_path, own, caplog):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    tried = room(lambda params: params["BLOCK_N"] < own["BLOCK_N"])
    right(online())
    taken = tried[-1]
    # Of another kernel object in this process nothing is asked again, either.
    tried.clear()
    right(online())
    assert tried == [taken]
    script = """
import sys, torch, neptune
from neptune.ops.softmax import softmax
from neptune.runtime.launching.launch import LAUNCHERS
true = LAUNCHERS["interpret"]
def stub(target, fused, modules):
    print(sorted(modules.params.items()))
    return true(target, fused, modules)
LAUNCHERS["interpret"] = stub
x = torch.randn(8, 300)
y = neptune.compile(softmax(), "softmax_online", target="interpret")(x)
assert torch.allclose(y, torch.softmax(x, -1), atol=1e-6)
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"{sorted(taken.items())}\n" and "shared memory" not in done.stderr
    assert len(caplog.messages) == 1


def test_a_saved_kernel_knows_it_too(room, monkeypatch, tmp_path, own):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = online()
    kernel.save(tmp_path / "k")
    right(kernel)
    again(monkeypatch)
    tried.clear()
    right(neptune.load(tmp_path / "k", target="interpret"))
    assert stages(tried) == [1]


def test_without_a_cache_this_process_remembers(room, monkeypatch):
    tried = room(lambda params: params["num_stages"] < 2)
    right(online())
    tried.clear()
    right(online())
    assert stages(tried) == [1]
    again(monkeypatch)
    right(online())
    assert len(tried) > 2


def test_what_is_no_lack_of_room_is_not_kept(room, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    room(lambda params: params["num_stages"] < 2, "Triton: PTXAS error: Internal Triton PTX codegen error")
    right(online())
    assert not (tmp_path / refused.FOLDER).exists()


def test_what_is_kept_and_lacks_nothing_any_more_is_no_error(room, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    room(lambda params: False)
    with pytest.raises(TargetError):
        right(online())
    again(monkeypatch)
    tried = room(lambda params: True)
    right(online())
    assert len(tried) == 1


def damages(data):
    """What a file may hold instead."""
    head, _, body = data.partition(b"\n")
    said = json.loads(body)

    def signed(what):
        text = what if isinstance(what, bytes) else json.dumps(what).encode()
        return refused.MAGIC + hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    yield from (b"", data[:-1], head, data.replace(b"shared", b"shored"), b"\xff" * 100)
    yield from map(signed, (b"", b"[" * 10_000, b"\xff", None, [], 3, "x", {}, {**said, "choice": "other"}))
    yield from (signed({**said, "lacking": x}) for x in (None, [], {}, 3, "", "time"))


def test_damaged_files_are_not_there(room, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = online(params=GIVEN)
    right(kernel)
    paths = sorted((tmp_path / refused.FOLDER).iterdir())
    most = len(tried)
    assert len(paths) == most - 1 and all(p.stat().st_mode & 0o777 == 0o600 for p in paths)
    whole = [p.read_bytes() for p in paths]
    for forms in zip(*map(damages, whole), strict=True):
        for path, made in zip(paths, forms, strict=True):
            path.write_bytes(made)
        again(monkeypatch)
        tried.clear()
        right(kernel)
        assert len(tried) == most, forms[0]
        assert [p.read_bytes() for p in paths] == whole


def test_files_of_others_and_folders_that_are_none_are_not_there(room, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    tried = room(lambda params: params["num_stages"] < 2)
    kernel = online(params=GIVEN)
    right(kernel)
    folder = tmp_path / refused.FOLDER
    for damage in (lambda: folder.chmod(0o777), lambda: (folder.rename(tmp_path / "away"), folder.write_bytes(b""))):
        damage()
        again(monkeypatch)
        tried.clear()
        right(kernel)
        assert len(tried) > 1


def test_threads_leave_nothing_out(room, own):
    """A stage that one thread gives up is not given up again by another, which was refused at the same time."""
    both = threading.Barrier(2, timeout=60)

    def fits(params):
        if params["num_stages"] == own["num_stages"]:
            both.wait()
        return params["num_stages"] < own["num_stages"]

    tried = room(fits)
    kernel, failed = online(), []

    def call():
        try:
            right(kernel)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and sorted(stages(tried)) == 2 * [own["num_stages"] - 1] + 2 * [own["num_stages"]]
