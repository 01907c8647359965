"""Saved kernels: the same kernel again, where little is installed; damage and strangers are refused."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import neptune
from neptune.errors import RecordError
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from neptune.runtime import artifact, saved
from neptune.runtime.modules import Form
from tests.examples.kernel_examples import pair_apart, pair_program, rows_apart, rows_covered, rows_fused, rows_program
from tests.tiers import sampled

ROOT = Path(__file__).resolve().parents[3]
KERNELS = {
    "rows": (rows_program, rows_fused),
    "covered": (rows_program, rows_covered),
    "apart": (rows_program, rows_apart),
    "pair": (pair_program, pair_apart),
    "softmax": (softmax, "softmax_row"),
    "attention": (lambda: prefill_causal(depth=16, lse=True), "flash_attention"),
}
FORMS = [Form(loads, wide) for loads in ("pointer", "descriptor") for wide in (False, True)]


@pytest.fixture(scope="module")
def compiled():
    """Kernels by name, each compiled once; what their exact checks say is tested elsewhere."""
    made = {}

    def get(name: str, **options):
        key = (name, *sorted((k, str(v)) for k, v in options.items()))
        if key not in made:
            expr, template = KERNELS[name]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NEPTUNE_VERIFY", "1" if name == "softmax" else "0")
                made[key] = neptune.compile(expr(), template, **{"target": "llvm", **options})
        return made[key]

    return get


@pytest.fixture
def rows(compiled, tmp_path):
    """A saved kernel."""
    compiled("rows").save(tmp_path / "rows")
    return tmp_path / "rows"


def run(script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
    return subprocess.run(
        [sys.executable, "-c", script, *args], env={**known, **env}, capture_output=True, text=True, timeout=300
    )


# --- the same kernel again -----------------------------------------------------------------------


@pytest.mark.parametrize("name", list(KERNELS))
def test_what_is_loaded_is_what_was_saved(name, compiled, tmp_path):
    kernel = compiled(name, bounds={"rows": 64} if name == "pair" else None)
    kernel.save(tmp_path / "k")
    again = neptune.load(tmp_path / "k", "llvm")
    assert again.executable.artifact == kernel.executable.artifact
    assert (again.name, again.inputs, again.scalars, again.outputs) == (
        kernel.name,
        kernel.inputs,
        kernel.scalars,
        kernel.outputs,
    )
    assert (again.params, again.target, repr(again)) == (kernel.params, "llvm", repr(kernel))
    assert again.explain() == kernel.explain() and again.explain(json=True) == kernel.explain(json=True)
    assert again.facts == kernel.facts
    assert again.program == kernel.build.fused
    assert [again.ir(s) for s in ("loops", "scheduled", "fused", "tile")] == [
        str(p) for p in (kernel.build.loops, kernel.build.scheduled, kernel.build.fused, kernel.build.tiles)
    ]


def test_facts_are_those_of_the_tiles(compiled):
    from neptune.tune.model.facts import read_facts

    for name in KERNELS:
        kernel = compiled(name)
        assert kernel.facts == read_facts(kernel.build.tiles)


def test_facts_with_endless_traversals_come_back(compiled):
    """JSON has no infinity."""
    made = compiled("rows").executable.artifact
    explanation = {**made.explanation, "traversals": {"x": "every iteration", "w": 2}}
    again = artifact.unpack(artifact.pack(replace(made, explanation=explanation), {}))
    assert again.facts.traversals == {"x": math.inf, "w": 2}


@pytest.mark.parametrize("name", list(KERNELS))
def test_every_form_of_the_module_is_the_generators(name, compiled, tmp_path):
    from neptune.codegen.modules import descriptor_alignment, tile_spans
    from tests.texts import generate

    kernel = compiled(name)
    kernel.save(tmp_path / "k")
    modules, build = neptune.load(tmp_path / "k").executable.modules, kernel.build
    for form in FORMS:
        text = generate(build.tiles, header=build.header, loads=form.loads, int64_offsets=form.int64_offsets)
        assert modules.source(form) == text
    assert list(modules.by_loads["descriptor"].aligned) == descriptor_alignment(build.tiles)
    for loads in ("pointer", "descriptor"):
        assert modules.by_loads[loads].spans == tile_spans(build.tiles, loads=loads)
    declared = modules.declared
    assert (declared.tunables, declared.temporaries) == (build.tiles.tunables, build.tiles.temporaries)


def test_a_loaded_kernel_chooses_forms_as_the_compiled_one(compiled, tmp_path):
    kernel = compiled("attention", params={"BLOCK_M": 128})
    kernel.save(tmp_path / "k")
    again = neptune.load(tmp_path / "k")
    aligned = [torch.empty(1, 1, 1, 16, dtype=torch.float16) for _ in range(4)] + [torch.empty(1, 1, 1)]
    odd = [torch.empty(17, dtype=torch.float16)[1:].view(1, 1, 1, 16), *aligned[1:]]
    far = [torch.empty(16, dtype=torch.float16).as_strided((1, 1, 1, 16), (16, 16, 1 << 25, 1)) for _ in range(4)]
    sizes = {"batch": 1, "heads": 1, "s_q": 1, "s_kv": 1}
    found = {}
    for what, tensors in (("aligned", aligned), ("odd", odd), ("far", [*far, aligned[4]])):
        found[what] = again.executable.modules.form(tensors, sizes, "descriptor")
        assert found[what] == kernel.executable.modules.form(tensors, sizes, "descriptor")
    assert found == {"aligned": Form("descriptor"), "odd": Form("pointer"), "far": found["far"]}
    assert found["far"].int64_offsets or found["far"].loads == "descriptor"


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_it_computes_the_same(target, compiled, tmp_path):
    cases = {
        "rows": (torch.randn(37, 21), torch.randn(21), 2.0, 3),
        "apart": (torch.randn(5, 3), torch.randn(3), -1.0, 0),
        "covered": (torch.randn(1, 129), torch.randn(129), 1.0, 9),
        "softmax": (torch.randn(7, 33),),
    }
    for name, args in cases.items():
        kernel = compiled(name, target=target)
        kernel.save(tmp_path / name)
        again = neptune.load(tmp_path / name, target)
        out = torch.full_like(kernel(*args), math.nan)
        again(*args, out=out)
        assert torch.equal(out, kernel(*args)), name


def test_offline_compilation_of_a_loaded_kernel(compiled, tmp_path):
    for name in ("covered", "attention"):
        kernel = compiled(name, shapes={"n": 64} if name == "covered" else None)
        kernel.save(tmp_path / name)
        again = neptune.load(tmp_path / name)
        for target in ("cuda:80", "cuda:90"):
            assert again.resources(target) == kernel.resources(target)
        assert again.asm("cuda:90") == kernel.asm("cuda:90")


def test_identical_texts_are_one_file(compiled, tmp_path):
    compiled("rows").save(tmp_path / "k")
    manifest = json.loads((tmp_path / "k" / "manifest.json").read_text())
    sources = [m["source"][w] for m in manifest["modules"].values() for w in ("int32", "int64")]
    texts = {(tmp_path / "k" / s).read_text() for s in sources}
    assert len(texts) == len(set(sources))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_copies_and_pickles(how, compiled):
    kernel = compiled("rows")
    again = how(kernel)
    x, w = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(again(x, w, 1.0, 0), kernel(x, w, 1.0, 0))
    assert again.explain() == kernel.explain() and again.source == kernel.source


def earlier(folder: Path) -> Path:
    """A kernel with parts that was saved before parts were data, values of one kernel were, and launchers."""
    folder.mkdir()
    for name, text in json.loads((ROOT / "tests" / "golden" / "saved_figure1.json").read_text()).items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_kernels_that_were_saved_before_run(target, tmp_path):
    kernel = neptune.load(earlier(tmp_path / "figure1"), target=target)
    x = torch.randn(5, 300)
    wanted = torch.exp(x.double() - x.double().amax(1, keepdim=True)).sum(1)
    for parts in ({}, {"NUM_SPLITS": 1}, {"NUM_SPLITS": 3}):
        assert (kernel(x, params=parts or None) - wanted).abs().max() < 1e-4
    assert "split_k" in kernel.explain() and kernel.facts.kernels
    assert (kernel.with_params(num_warps=1)(x) - wanted).abs().max() < 1e-4


def test_the_explanation_cannot_be_changed_through_the_kernel(compiled):
    kernel = compiled("rows")
    kernel.explain(json=True)["params"]["BLOCK_M"] = 1
    kernel.explain(json=True)["name"] = "other"
    assert kernel.params["BLOCK_M"] == 16 and kernel.name == "rows"


# --- targets -------------------------------------------------------------------------------------


def test_the_target_of_a_loaded_kernel(rows, monkeypatch):
    assert neptune.load(rows, "cuda:90").target == "cuda:90"
    monkeypatch.setenv("NEPTUNE_TARGET", "interpret")
    assert neptune.load(rows).target == "interpret"
    monkeypatch.delenv("NEPTUNE_TARGET")
    assert neptune.load(rows).target == ("cuda" if torch.cuda.is_available() else "llvm")
    with pytest.raises(neptune.TargetError, match="no such target"):
        neptune.load(rows, "tpu")
    with pytest.raises(neptune.TargetError, match="a target is a string"):
        neptune.load(rows, 3)


def test_one_kernel_on_every_target(compiled):
    kernel = compiled("rows")
    x, w = torch.randn(5, 9), torch.randn(9)
    other = kernel.for_target("interpret")
    assert (kernel.target, other.target, other.build.target.kind) == ("llvm", "interpret", "interpret")
    torch.testing.assert_close(other(x, w, 1.0, 2), kernel(x, w, 1.0, 2))
    assert other.source == kernel.source and other.build.tiles == kernel.build.tiles


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_kernel_is_interpreted_where_there_is_no_gpu(compiled, tmp_path):
    for target in ("cuda:90", "cuda", "hip:gfx942", "interpret"):
        compiled("rows", target=target).save(tmp_path / "k")
        assert neptune.load(tmp_path / "k").target == "interpret"


@pytest.mark.parametrize(("saved_for", "got"), [("llvm", "cuda"), ("cuda:90", "cuda:90"), ("cuda:80", "cuda")])
def test_the_gpu_is_taken_where_there_is_one(saved_for, got, compiled, tmp_path, monkeypatch):
    compiled("rows", target=saved_for).save(tmp_path / "k")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert neptune.load(tmp_path / "k").target == got


# --- little installed ----------------------------------------------------------------------------

BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Block())
import warnings
warnings.simplefilter("ignore")
"""
LITTLE = {"sympy", "einops", "click", "rich", "tvm", "tvm_ffi", "platformdirs", "mpmath", "ml_dtypes"}


def test_torch_and_triton_are_enough(compiled, tmp_path):
    compiled("attention").save(tmp_path / "k")
    script = f"""
BLOCKED = {LITTLE | {"numpy"}!r}
{BLOCKER}
import contextlib, torch, neptune
kernel = neptune.load(sys.argv[1])
assert kernel.target == "interpret", kernel.target
assert "@triton.jit" in kernel.source and "rolling_update" in kernel.explain() and kernel.facts.traversals["k"] == 1
assert "prefill_causal" in kernel.ir("fused") and kernel.resources("cuda:90")[0].registers > 0
try:
    kernel(torch.zeros(3))
except neptune.ShapeError as error:
    assert "takes 3" in str(error)
else:
    raise AssertionError("a call with one argument passed")
# As if there were a GPU: everything up to Triton's driver.
torch.cuda.is_available = lambda: True
torch.cuda.is_current_stream_capturing = lambda: True
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.device = lambda _: contextlib.nullcontext()
import triton
class Reached(Exception): pass
def reached(*_): raise Reached
triton.runtime.jit.driver = type("Driver", (), {{"active": property(lambda self: reached())}})()
kernel = neptune.load(sys.argv[1])
assert kernel.target == "cuda", kernel.target
half = [torch.zeros(1, 1, 4, 16, dtype=torch.float16) for _ in range(4)]
try:
    kernel.executable.launch(half[:3], [half[3], torch.zeros(1, 1, 4)], dict(batch=1, heads=1, s_q=4, s_kv=4))
except Reached:
    print("reached the driver")
assert not [m for m in sys.modules if m.split(".")[0] in BLOCKED]
"""
    done = run(script, str(tmp_path / "k"), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "reached the driver\n"


@pytest.mark.parametrize("target", sampled(["cuda", "interpret"], 2))
def test_a_call_enters_the_runtime_and_the_ir_alone(compiled, tmp_path, target):
    compiled("attention").save(tmp_path / "k")
    script = """
import contextlib, sys, torch, neptune
from bench import stub_driver
kernel = neptune.load(sys.argv[1], target=sys.argv[2])
with stub_driver.installed() if sys.argv[2] == "cuda" else contextlib.nullcontext():
    kernel = neptune.load(sys.argv[1], target=sys.argv[2])
    for _ in range(2):
        out = kernel(*(torch.randn(1, 1, 20, 16).half() for _ in range(3)))
assert out[0].shape == (1, 1, 20, 16), out[0].shape
rooms = {".".join(m.split(".")[:2]) for m in sys.modules if m.split(".")[0] in ("neptune", "sympy", "tvm", "einops")}
print(*sorted(rooms - {"neptune"}))
"""
    done = run(script, str(tmp_path / "k"), target, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    plain = {f"neptune.{m}" for m in ("base", "config", "errors", "versions")}
    assert set(done.stdout.split()) == {"neptune.kernel", "neptune.runtime", "neptune.ir", *plain}


@pytest.mark.slow
def test_it_runs_where_neither_tvm_nor_sympy_is(compiled, tmp_path):
    compiled("attention").save(tmp_path / "k")
    script = f"""
BLOCKED = {LITTLE!r}
{BLOCKER}
import torch, neptune
q, k, v = (torch.randn(1, 2, 21, 16).half() for _ in range(3))
o, lse = neptune.load(sys.argv[1])(q, k, v)
wanted = torch.nn.functional.scaled_dot_product_attention(*(t.double() for t in (q, k, v)), is_causal=True)
print(float((o.double() - wanted).norm() / wanted.norm()))
"""
    done = run(script, str(tmp_path / "k"), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 1e-3


@pytest.mark.slow
def test_the_source_needs_no_neptune(rows):
    script = f"""
BLOCKED = {{"neptune"}}
{BLOCKER}
sys.path.insert(0, sys.argv[1])
import torch
from kernel_pointer import rows
x, w, y = torch.randn(37, 21), torch.randn(21), torch.full((37,), float("nan"))
rows(x, w, y, 2.0, 3)
torch.testing.assert_close(y, x @ w * 2.0 + 3)
assert "neptune" not in sys.modules
print("done")
"""
    done = run(script, str(rows), TRITON_INTERPRET="1")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
    # What Python leaves there does not make it a stranger.
    (rows / "__pycache__").mkdir(exist_ok=True)
    (rows / "__pycache__" / "kernel_pointer.cpython-311.pyc").write_bytes(b"")
    neptune.load(rows).save(rows)


# --- files ---------------------------------------------------------------------------------------


def test_a_saved_kernel_is_replaced(compiled, rows):
    compiled("softmax").save(rows)
    assert neptune.load(rows).name == "softmax"
    assert [p.name for p in rows.parent.iterdir()] == ["rows"]
    shutil.rmtree(rows / "nothing", ignore_errors=True)
    (rows / "loops.txt").write_text("damaged")
    compiled("rows").save(rows)
    assert neptune.load(rows).name == "rows"


def test_where_two_names_cannot_be_swapped(compiled, rows, monkeypatch):
    monkeypatch.setattr(saved, "_exchange", lambda a, b: False)
    compiled("softmax").save(rows)
    assert neptune.load(rows).name == "softmax" and [p.name for p in rows.parent.iterdir()] == ["rows"]


def test_a_replacement_that_fails_leaves_the_old_one(rows, compiled, monkeypatch):
    real, calls = Path.rename, []

    def rename(self, target):
        calls.append(target)
        if len(calls) == 3:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(saved, "_exchange", lambda a, b: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RecordError, match="Input/output error"):
        compiled("softmax").save(rows)
    assert len(calls) == 4 and neptune.load(rows).name == "rows"
    assert [p.name for p in rows.parent.iterdir()] == ["rows"]


def test_a_link_stays_a_link(compiled, rows):
    link = rows.parent / "link"
    link.symlink_to(rows)
    compiled("softmax").save(link)
    assert link.is_symlink() and neptune.load(rows).name == neptune.load(link).name == "softmax"


def test_anything_else_is_left_alone(compiled, rows):
    kernel = compiled("rows")
    (rows.parent / "file").write_text("mine")
    (rows.parent / "empty").mkdir()
    (rows.parent / "other").mkdir()
    (rows.parent / "other" / "manifest.json").write_text('{"format": "other"}')
    (rows / "notes.txt").write_text("mine")
    before = {p: p.read_bytes() if p.is_file() else None for p in rows.parent.rglob("*")}
    for name in ("file", "empty", "other", "rows"):
        with pytest.raises(RecordError, match="something else than a saved kernel"):
            kernel.save(rows.parent / name)
    assert {p: p.read_bytes() if p.is_file() else None for p in rows.parent.rglob("*")} == before


def test_paths(compiled, tmp_path):
    compiled("rows").save(str(tmp_path / "new" / "folder" / "k"))
    assert neptune.load(str(tmp_path / "new" / "folder" / "k")).name == "rows"
    for damaged in (None, "null\0"):
        with pytest.raises(RecordError):
            neptune.load(damaged)


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bit_is_believed(seed, rows):
    """Anywhere in any file; in the white space of the manifest it may go unseen, and then changes nothing."""
    draw = random.Random(seed)
    before = neptune.load(rows).executable.artifact
    file = draw.choice(sorted(rows.iterdir())) if seed % 4 else rows / "manifest.json"
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(bytes(data))
    try:
        again = neptune.load(rows)
    except RecordError as error:
        assert "load the kernel" in str(error)
    else:
        assert file.name == "manifest.json" and again.executable.artifact == before


def test_cut_and_missing_files(rows):
    files = {p.name: p.read_bytes() for p in rows.iterdir()}
    for name, data in files.items():
        for cut in (0, 1, len(data) // 2, len(data) - 2):
            (rows / name).write_bytes(data[:cut])
            with pytest.raises(RecordError):
                neptune.load(rows)
        (rows / name).unlink()
        with pytest.raises(RecordError, match=r"missing|no manifest"):
            neptune.load(rows)
        (rows / name).mkdir()
        with pytest.raises(RecordError):
            neptune.load(rows)
        (rows / name).rmdir()
        (rows / name).write_bytes(data)
    assert neptune.load(rows).name == "rows"


def rewritten(rows: Path, **changes) -> None:
    """A manifest with other content, whose digest fits."""
    manifest = {**json.loads((rows / "manifest.json").read_text()), **changes}
    manifest["digest"] = artifact.digest(manifest)
    (rows / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": {}},
        {"kernel": None},
        {"modules": {}},
        {"modules": []},
        {"programs": {"loops": "loops.txt"}},
        {"declarations": 3},
        {"files": ["loops.txt"]},
        {"files": {"../escape": "0" * 64}},
        {"files": {"/etc/passwd": "0" * 64}},
        {"files": {"..": "0" * 64}},
        {"files": {"": "0" * 64}},
        {"format": "torch"},
        {"version": "1"},
    ],
)
def test_manifests_of_strangers(changes, rows):
    rewritten(rows, **changes)
    with pytest.raises(RecordError):
        neptune.load(rows)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '"manifest"', "[" * 100_000, "{", "\x00", '{"format":1e999}'])
def test_manifests_that_are_none(text, rows):
    (rows / "manifest.json").write_text(text)
    with pytest.raises(RecordError):
        neptune.load(rows)


def test_readers_never_see_half_a_kernel(compiled, tmp_path):
    """One path, two kernels that replace each other, and a reader."""
    path, stop, seen, failed = tmp_path / "k", threading.Event(), set(), []
    pair = [compiled("rows"), compiled("softmax")]
    pair[0].save(path)

    def read() -> None:
        while not stop.is_set():
            try:
                kernel = neptune.load(path)
                seen.add(kernel.name)
                assert kernel.executable.artifact.programs["loops"] == {k.name: k for k in pair}[kernel.name].ir(
                    "loops"
                )
            except Exception as error:
                failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(40):
        pair[k % 2].save(path)
    stop.set()
    reader.join()
    assert not failed and seen == {"rows", "softmax"}


KILLED = """
import sys, neptune
a, b = neptune.load(sys.argv[1]), neptune.load(sys.argv[2])
print("ready", flush=True)
while True:
    a.save(sys.argv[3])
    b.save(sys.argv[3])
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_a_whole_kernel(compiled, tmp_path):
    compiled("rows").save(tmp_path / "a")
    compiled("softmax").save(tmp_path / "b")
    compiled("rows").save(tmp_path / "k")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, *(str(tmp_path / x) for x in "abk")]
    draw = random.Random(7)
    for _ in range(4):
        writer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(draw.uniform(0.0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert neptune.load(tmp_path / "k").name in ("rows", "softmax")
    compiled("rows").save(tmp_path / "k")
    assert neptune.load(tmp_path / "k").name == "rows"
