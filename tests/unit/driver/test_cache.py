"""The cache of compiled kernels: what is the same request, and that nothing broken, foreign or stale is believed."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

import neptune
from neptune import config
from neptune.base import shelf
from neptune.driver import cache
from neptune.driver.cache import Store
from neptune.errors import NeptuneError, RecordError, ScheduleError
from neptune.ir.expr import Const, Var
from neptune.ir.program import Scalar
from neptune.ir.text.parser import parse_program
from neptune.runtime.artifact import Artifact, digest
from neptune.tile import pipeline as tile_pipeline
from tests.examples.kernel_examples import pair_apart, pair_program, rows_covered, rows_fused, rows_program
from tests.work import calls

ROOT = Path(__file__).resolve().parents[3]
KEY = "0" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    monkeypatch.setattr(shelf, "_said", set())
    # The working tree may be newer than this process.
    monkeypatch.setattr(cache, "IMPORTED", time.time_ns() + 10**12)
    return tmp_path / "cache" / cache.FOLDER


@functools.cache
def made(name: str = "rows") -> Artifact:
    """Kernels to store; compiled without a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_CACHE_DIR", "0")
        expr, template = {"rows": (rows_program, rows_fused), "pair": (pair_program, pair_apart)}[name]
        return neptune.compile(expr(), template, target="llvm").executable.artifact


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def compiled(**options):
    return neptune.compile(rows_program(), options.pop("template", rows_fused), **{"target": "llvm", **options})


@pytest.fixture
def no_compiler(monkeypatch):
    """From here on, what is not in the cache raises."""

    def use() -> None:
        def compiling(*_, **__):
            raise AssertionError("compiled")

        monkeypatch.setattr(tile_pipeline, "lower", compiling)

    return use


# --- what is found again -------------------------------------------------------------------------


def test_the_second_time_nothing_is_compiled(folder, no_compiler):
    first = compiled(bounds={"m": 64}, shapes={"n": 32})
    (entry,) = entries(folder)
    no_compiler()
    again = compiled(bounds={"m": 64}, shapes={"n": 32})
    assert again.executable.artifact == first.executable.artifact and entries(folder) == [entry]
    assert (again.source, again.explain(), again.facts) == (first.source, first.explain(), first.facts)
    x, w = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(again(x, w, 2.0, 1), first(x, w, 2.0, 1))
    with pytest.raises(neptune.ShapeError, match="size m"):
        again(torch.zeros(65, 2), torch.zeros(2), 1.0, 0)
    with pytest.raises(AssertionError, match="compiled"):
        compiled(bounds={"m": 65}, shapes={"n": 32})


def test_the_build_is_made_again_when_it_is_asked_for(folder):
    first, again = compiled(), compiled()
    assert again.build == first.build and again.build is again.build


def test_a_build_that_has_become_another_is_refused():
    block = [16]

    def template(sch):
        i, _ = sch.loops("t")
        i0, _ = sch.split(i, sch.param("BLOCK_M", list(block)))
        sch.bind(i0, "grid.x")
        sch.fuse_at("y", i0)

    compiled(template=template)
    kernel = compiled(template=template)
    block[0] = 32
    with pytest.raises(RecordError, match="another program now"):
        _ = kernel.build
    assert compiled(template=template).params["BLOCK_M"] == 32


def test_named_and_automatic_templates(folder, no_compiler):
    from neptune.ops.softmax import softmax

    named = neptune.compile(softmax(), "softmax_online", target="llvm")
    chosen = neptune.compile(softmax(), target="llvm")
    assert len(entries(folder)) == 2
    no_compiler()
    assert neptune.compile(softmax(), "softmax_online", target="llvm").explain() == named.explain()
    assert neptune.compile(softmax(), target="llvm").explain() == chosen.explain()


def test_no_name_is_not_the_automatic_choice():
    from neptune.ops.softmax import softmax

    neptune.compile(softmax(), target="llvm")
    with pytest.raises(ScheduleError, match="no template of that name"):
        neptune.compile(softmax(), "", target="llvm")


def test_failures_are_not_kept(folder):
    def broken(sch):
        return 1 // 0

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            compiled(template=broken)
        with pytest.raises(ScheduleError, match="no such parameter"):
            compiled(params={"BLOCK_K": 1})
    assert entries(folder) == []


@pytest.mark.parametrize("params", [{"num_warps": True}, {"num_warps": 1.0}, {"num_warps": "1"}, [("num_warps", 1)], 5])
def test_a_wrong_value_is_refused_whatever_is_cached(params):
    assert compiled(params={"num_warps": 1}).params["num_warps"] == 1
    with pytest.raises(NeptuneError):
        compiled(params=params)


def test_where_it_is_off(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    monkeypatch.chdir(tmp_path)
    compiled()
    assert entries(folder) == [] and list(tmp_path.iterdir()) == []


def test_dumps_show_every_pass(folder, monkeypatch, tmp_path):
    compiled()
    monkeypatch.setenv("NEPTUNE_DUMP", str(tmp_path / "dump"))
    compiled()
    names = [f.name for f in (tmp_path / "dump" / "rows-1").iterdir()]
    assert any(n.endswith("-generate.py") for n in names) and any("schedule-split" in n for n in names)
    assert len(entries(folder)) == 1


def test_the_users_folder_by_default():
    from platformdirs import user_cache_dir

    assert config.read({}).cache_dir == Path(user_cache_dir("neptune", appauthor=False))
    assert config.read({"NEPTUNE_CACHE_DIR": ""}).cache_dir == config.read({}).cache_dir
    assert config.read({"NEPTUNE_CACHE_DIR": "0"}).cache_dir is None
    assert config.read({"NEPTUNE_CACHE_DIR": "~/kernels"}).cache_dir == Path.home() / "kernels"
    assert config.read({"NEPTUNE_CACHE_DIR": "~nobody-of-this-name/kernels"}).cache_dir is not None


# --- keys ----------------------------------------------------------------------------------------


def request(**changes) -> cache.Request:
    base = cache.Request(rows_program(), rows_fused, "llvm", {"BLOCK_M": 16}, {"m": 8}, {"n": 9}, config.read({}))
    return replace(base, **changes)


def programs() -> Iterator[neptune.Program]:
    p = rows_program()
    yield replace(p, name="other")
    yield replace(p, inputs=p.inputs[::-1])
    yield replace(p, inputs=(replace(p.inputs[0], dtype="float16"), p.inputs[1]))
    yield replace(p, inputs=(replace(p.inputs[0], shape=(p.inputs[0].shape[0], Const(64, "int32"))), p.inputs[1]))
    for change in ({"lo": 2}, {"hi": 100}, {"divisor": 8}, {"dtype": "int64"}):
        yield replace(p, scalars=(replace(p.scalars[0], **change), *p.scalars[1:]))
    yield replace(p, scalars=(*p.scalars, Scalar("unused", "int32")))
    yield parse_program(str(p).replace("x[i, j] * w[j]", "w[j] * x[i, j]"))
    yield parse_program(str(p).replace("init 0.0", "init -0.0"))


CHANGES = {
    "program": [{"loops": p} for p in programs()],
    "template": [{"template": t} for t in (rows_covered, None, "rows_fused", "flash_attention", "")],
    "target": [{"target": t} for t in ("interpret", "cuda", "cuda:80", "cuda:90", "hip:gfx942")],
    "params": [{"params": p} for p in ({}, {"BLOCK_M": 32}, {"BLOCK_N": 16}, {"BLOCK_M": 16, "num_warps": 8})],
    "shapes": [{"shapes": p} for p in ({}, {"m": 9}, {"n": 8})],
    "bounds": [{"bounds": p} for p in ({}, {"n": 8}, {"m": 9})],
    "checks": [{"settings": replace(config.read({}), verify=v)} for v in (0, 2)],
}


def test_every_part_of_a_request_changes_its_key():
    keys = [cache.request_key(request())]
    for changes in CHANGES.values():
        keys += [cache.request_key(request(**c)) for c in changes]
    assert None not in keys and len(set(keys)) == len(keys) > 30


def test_the_same_request_has_the_same_key():
    assert cache.request_key(request()) == cache.request_key(request(loops=rows_program()))
    for other in ({"target": "cuda"}, {"dump": Path("x")}, {"cache": "y"}):
        settings = replace(config.read({}), **other)
        assert cache.request_key(request(settings=settings)) == cache.request_key(request())


def test_versions_and_sources_change_the_key(monkeypatch):
    keys = {cache.request_key(request())}
    real = cache.versions("sympy", "numpy")
    assert set(real) == {"python", "neptune", "torch", "triton", "sympy", "numpy"} and None not in real.values()
    for package in real:
        monkeypatch.setattr(cache, "versions", lambda *_, package=package: {**real, package: "0"})
        keys.add(cache.request_key(request()))
    monkeypatch.undo()
    monkeypatch.setattr(cache, "IMPORTED", time.time_ns() + 10**12)
    monkeypatch.setattr(cache, "source_stamp", lambda: "other")
    keys.add(cache.request_key(request()))
    assert len(keys) == 8 and None not in keys


def test_templates_that_cannot_be_told_have_no_key(folder, caplog):
    value = torch.tensor(16)

    def template(sch):
        rows_fused(sch)
        return value

    assert cache.request_key(request(template=template)) is None
    with caplog.at_level(logging.DEBUG, "neptune"):
        assert compiled(template=template).params["BLOCK_M"] == 16
    assert entries(folder) == [] and "Tensor" in caplog.text


def test_an_edited_template_is_another():
    sources = ["rows_fused(sch)", "rows_covered(sch)", "rows_fused(sch)"]
    kernels = []
    for text in sources:
        names = {"rows_fused": rows_fused, "rows_covered": rows_covered}
        exec(f"def template(sch): {text}", names)
        kernels.append(compiled(template=names["template"]))
    assert kernels[0].source == kernels[2].source != kernels[1].source


CALLS: list[int] = []


def counting(sch):
    """Does something else each time."""
    CALLS.append(1)
    rows_fused(sch) if len(CALLS) % 2 else rows_covered(sch)


def test_a_template_that_changes_what_it_reads_is_not_kept(folder):
    CALLS.clear()
    kernels = [compiled(template=counting) for _ in range(4)]
    assert entries(folder) == [] and len(CALLS) == 4
    assert kernels[0].source == kernels[2].source != kernels[1].source == kernels[3].source


# --- Neptune's own sources -----------------------------------------------------------------------

PROCESS = """
import sys, neptune
from neptune.tile import pipeline
from neptune.ir.text.parser import parse_program
lines = ["program double", "  in x: f32[n]", "  out y: f32[n]", "  scalar n: i32 lo 1", "body:"]
program = parse_program("\\n".join([*lines, "  for i in [0, n):", "    y: y[i] = x[i] + x[i]"]))
def template(sch):
    outer, _ = sch.split(sch.loops("y")[0], sch.param("BLOCK", [16]))
    sch.bind(outer, "grid.x")
count = 0
real = pipeline.lower
def lower(*args, **options):
    global count
    count += 1
    return real(*args, **options)
pipeline.lower = lower
exec(sys.argv[1])
neptune.compile(program, template, target="interpret")
print("compiled" if count else "cached", *(m for m in ("sympy", "tvm") if m in sys.modules))
"""


@pytest.mark.slow
def test_an_edit_of_neptune_is_seen(tmp_path, folder):
    shutil.copytree(ROOT / "neptune", tmp_path / "neptune", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "neptune" / "tile" / "pipeline.py"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def said(act: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, act], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    time.sleep(0.1)
    assert said() == "compiled"
    assert said() == "cached"
    # While it runs: what was imported is not what stands there now.
    edit = f"import pathlib; f = pathlib.Path({str(file)!r}); f.write_text(f.read_text() + chr(10))"
    assert said(edit) == "compiled" and len(entries(folder)) == 1
    time.sleep(0.1)
    assert said() == "compiled" and len(entries(folder)) == 2
    # The same size and time of writing, as an archive may give it.
    text, times = file.read_text(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_text(text[:-1] + "#")
    os.utime(file, ns=times)
    time.sleep(0.1)
    assert said() == "compiled" and len(entries(folder)) == 3
    assert said() == "cached"


def test_the_stamp_is_cheap():
    """It looks at every file once, and reads none."""
    files = list(cache._files(str(Path(cache.__file__).parents[1])))
    assert len(files) > 100 and calls(cache.source_stamp) < 5 * len(files)


@pytest.mark.slow
def test_entries_are_the_same_in_every_process(tmp_path):
    """Whatever the hash seed: else the text of a kernel would hang on it."""
    script = """
import neptune
from neptune.ops.attention import prefill_causal
neptune.compile(prefill_causal(depth=16, lse=True), "flash_attention", target="interpret")
"""
    found = []
    for seed in ("0", "4242"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "NEPTUNE_VERIFY": "1"}
        env["NEPTUNE_CACHE_DIR"] = str(tmp_path / seed)
        subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=300)
        found.append({p.name: p.read_bytes() for p in entries(tmp_path / seed / cache.FOLDER)})
    assert found[0] == found[1] and len(found[0]) == 1


# --- entries -------------------------------------------------------------------------------------


def test_an_entry_is_private(folder):
    Store(folder.parent).put(KEY, made())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entries(folder)[0].stat().st_mode & 0o777 == 0o600
    assert Store(folder.parent).get(KEY) == made()


def test_no_flipped_bit_is_believed(folder):
    Store(folder.parent).put(KEY, made())
    (entry,) = entries(folder)
    data, draw = entry.read_bytes(), random.Random(1)
    for at in [*range(0, 120), *range(120, len(data), 23)]:
        flipped = bytearray(data)
        flipped[at] ^= 1 << draw.randrange(8)
        entry.write_bytes(flipped)
        assert Store(folder.parent).get(KEY) is None, at
    entry.write_bytes(data)
    assert Store(folder.parent).get(KEY) == made()


def test_no_part_of_an_entry_is_believed(folder):
    Store(folder.parent).put(KEY, made())
    (entry,) = entries(folder)
    data = entry.read_bytes()
    for size in [*range(0, 120, 3), *range(120, len(data), 97), len(data) - 1]:
        entry.write_bytes(data[:size])
        assert Store(folder.parent).get(KEY) is None, size
    entry.write_bytes(data + b" ")
    assert Store(folder.parent).get(KEY) is None


def entry_of(body: object) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return cache.MAGIC + hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def strangers(folder: Path) -> Iterator[bytes]:
    """Entries whose digest fits."""
    Store(folder.parent).put(KEY, made())
    whole = json.loads(entries(folder)[0].read_bytes().partition(b"\n")[2])
    yield from (entry_of(x) for x in ([], 3, None, "text", {}, {"key": KEY}, b"", b"[" * 100_000, b"\xff"))
    yield entry_of({**whole, "key": "1" * 64})
    yield entry_of({**whole, "files": {}})
    yield entry_of({**whole, "files": [1]})
    yield entry_of({**whole, "files": {**whole["files"], "loops.txt": 3}})
    for changes in ({"version": 99}, {"format": "x"}, {"kernel": {}}, {"modules": {}}, {"files": {}}, {"programs": []}):
        manifest = {**whole["manifest"], **changes}
        yield entry_of({**whole, "manifest": {**manifest, "digest": digest(manifest)}})
        yield entry_of({**whole, "manifest": manifest})
    yield json.dumps(whole).encode()
    yield cache.MAGIC.replace(b"1", b"2") + entry_of(whole)[len(cache.MAGIC) :]


def test_entries_of_strangers(folder):
    for k, data in enumerate(strangers(folder)):
        entries(folder)[0].write_bytes(data)
        assert Store(folder.parent).get(KEY) is None, k
    Store(folder.parent).put(KEY, made())
    assert Store(folder.parent).get(KEY) == made()


def test_a_damaged_entry_is_written_again(folder, no_compiler):
    compiled()
    (entry,) = entries(folder)
    data = entry.read_bytes()
    entry.write_bytes(data[:-5])
    assert compiled().params["BLOCK_M"] == 16
    assert entry.read_bytes() == data
    no_compiler()
    compiled()


def test_entries_that_others_could_have_written(folder, monkeypatch):
    mine = Store(folder.parent)
    mine.put(KEY, made())
    (entry,) = entries(folder)
    for mode in (0o620, 0o602, 0o666):
        entry.chmod(mode)
        assert mine.get(KEY) is None
    entry.chmod(0o600)
    for mode in (0o770, 0o702, 0o777, 0o1777):
        folder.chmod(mode)
        assert mine.get(KEY) is None
        mine.put("1" * 64, made())
        assert entries(folder) == [entry]
    folder.chmod(0o700)
    assert mine.get(KEY) == made()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert mine.get(KEY) is None
    # A link could lead anywhere.
    entry.rename(folder.parent / "elsewhere")
    entry.symlink_to(folder.parent / "elsewhere")
    assert mine.get(KEY) is None
    entry.unlink()
    os.mkfifo(entry)
    assert mine.get(KEY) is None
    entry.unlink()
    entry.mkdir()
    assert mine.get(KEY) is None
    compiled()


def test_a_folder_that_is_a_link(folder):
    Store(folder.parent / "other").put(KEY, made())
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(folder.parent / "other" / cache.FOLDER)
    assert Store(folder.parent).get(KEY) is None


@pytest.mark.parametrize("case", ["a file", "below a file", "folder is a file", "/proc", "null"])
def test_folders_that_cannot_be(case, tmp_path, monkeypatch, caplog):
    file = tmp_path / "file"
    file.write_text("mine")
    where = {"a file": file, "below a file": file / "x", "/proc": Path("/proc/neptune")}.get(case, tmp_path / "c")
    if case == "folder is a file":
        where.mkdir()
        (where / cache.FOLDER).write_text("mine")
    if case == "null":
        where = tmp_path / ("n" * 300)
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(where))
    for _ in range(3):
        assert compiled().params["BLOCK_M"] == 16
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "cached" in caplog.text
    assert file.read_text() == "mine"


def test_a_full_disk(folder, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shelf.os, "replace", full)
    for _ in range(3):
        assert compiled().params["BLOCK_M"] == 16
    assert entries(folder) == [] and [r.levelname for r in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    monkeypatch.undo()


def test_old_entries_go(folder):
    small = Store(folder.parent, max_entries=10)
    for k in range(25):
        small.put(f"{k:064}", made())
        os.utime(folder / f"{k:064}.json", (1000 + k, 1000 + k))
        if k >= 3:
            # Used again and again: as if it were the latest.
            assert small.get(f"{3:064}") is not None
    left = [int(p.stem) for p in entries(folder)]
    assert 3 in left and 24 in left and len(left) <= 11 and sorted(left)[1] >= 24 - 10
    size = entries(folder)[0].stat().st_size
    Store(folder.parent, max_bytes=4 * size).put("f" * 64, made())
    assert sum(p.stat().st_size for p in entries(folder)) <= 4 * size and folder / f"{'f' * 64}.json" in entries(folder)


def test_what_dead_writers_left_goes(folder):
    mine = Store(folder.parent)
    mine.put(KEY, made())
    fresh, old, other = (folder / n for n in ("a.1.tmp", "a.2.tmp", "notes"))
    for p in (fresh, old, other):
        p.write_text("half")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    mine.put("1" * 64, made())
    assert fresh.exists() and not old.exists() and other.exists()


# --- several processes ---------------------------------------------------------------------------


def _write(root: str, name: str) -> None:
    artifact = made(name)
    while True:
        Store(Path(root)).put(KEY, artifact)


@pytest.fixture
def writers(folder):
    """Starts processes that write one entry again and again; they end with the test."""
    context, started = multiprocessing.get_context("fork"), []
    whole = [made("rows"), made("pair")]

    def start(*names: str):
        some = [context.Process(target=_write, args=(str(folder.parent), n), daemon=True) for n in names]
        for p in some:
            p.start()
        started.extend(some)
        return some

    yield start, whole
    for p in started:
        p.kill()
        p.join()


def test_writers_and_readers_meet(folder, writers):
    start, whole = writers
    start("rows", "pair")
    reader, seen = Store(folder.parent), set()
    until = time.monotonic() + 20
    found = 0
    while time.monotonic() < until and (len(seen) < 2 or found < 300):
        artifact = reader.get(KEY)
        if artifact is not None:
            assert artifact in whole
            seen.add(artifact.name)
            found += 1
        else:
            # Not there yet; once it is, it stays.
            assert not found
    assert seen == {"rows", "pair"}


def test_writers_that_are_killed(folder, writers):
    start, whole = writers
    draw, reader = random.Random(3), Store(folder.parent)
    for _ in range(12):
        for p in start("rows", "pair"):
            time.sleep(draw.uniform(0, 0.02))
            os.kill(p.pid, signal.SIGKILL)
            p.join()
        artifact = reader.get(KEY)
        assert artifact is None or artifact in whole
    # Nor does a half entry in the way matter.
    reader.put(KEY, whole[0])
    assert reader.get(KEY) == whole[0]


# --- what the log says ---------------------------------------------------------------------------


def said(caplog, **options) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "neptune.cache"):
        compiled(**options)
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "neptune.cache")


def test_hits_misses_and_reasons_are_logged(folder, monkeypatch, caplog, tmp_path):
    assert said(caplog).startswith("`rows` is not there: ")
    assert said(caplog) == f"`rows` found: {entries(folder)[0]}"
    tensor = torch.zeros(1)
    assert "cannot be told: " in said(caplog, template=lambda sch: (rows_fused(sch), tensor))
    monkeypatch.setenv("NEPTUNE_DUMP", str(tmp_path / "dump"))
    assert "not cached: with NEPTUNE_DUMP" in said(caplog)
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    assert "not cached: NEPTUNE_CACHE_DIR=0" in said(caplog)


def test_sizes_and_params_of_any_spelling_are_one_request(folder, no_compiler):
    compiled(params={"BLOCK_M": 32}, shapes={"m": 64}, bounds={"n": 128})
    no_compiler()
    size = {s.name: Var(s.name) for s in rows_program().scalars}
    again = compiled(params={"BLOCK_M": numpy.int64(32)}, shapes={size["m"]: numpy.int32(64)}, bounds={size["n"]: 128})
    assert again.params["BLOCK_M"] == 32 and len(entries(folder)) == 1


def test_the_fuel_is_part_of_the_request(monkeypatch):
    keys = set()
    for fuel in ("", "0", "1"):
        monkeypatch.setenv("NEPTUNE_FUSION_FUEL", fuel)
        keys.add(cache.request_key(cache.Request(rows_program(), "stagewise", "llvm", {}, {}, {}, config.read())))
    assert len(keys) == 3


def test_usage_and_trouble(folder, tmp_path):
    assert Store(tmp_path / "cache").usage() == (0, 0)
    compiled()
    assert Store(tmp_path / "cache").usage() == (1, entries(folder)[0].stat().st_size)
    assert Store(tmp_path / "cache").trouble() is None and Store(tmp_path / "new" / "cache").trouble() is None
    folder.chmod(0o777)
    assert Store(tmp_path / "cache").trouble() == "others may write there"
    (tmp_path / "file").touch()
    assert "is no folder" in str(Store(tmp_path / "file" / "cache").trouble())
