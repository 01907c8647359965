"""Kernels: calls on every target that needs no GPU, and what a kernel tells about itself."""

from __future__ import annotations

import html
import subprocess
import sys
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import neptune
from neptune import versions
from neptune.ir.text.parser import parse_program
from neptune.ops.softmax import softmax
from neptune.runtime.launching import launch
from neptune.runtime.launching.launch import Target, default_target, parse_target
from tests.examples.kernel_examples import pair_apart, pair_program, rows_apart, rows_covered, rows_fused, rows_program

ON_CPU = ("llvm", "interpret")


def rows_reference(x, w, scale, shift):
    return (x * w).sum(-1) * scale + shift


@pytest.mark.parametrize("target", ON_CPU)
@pytest.mark.parametrize("template", [rows_fused, rows_covered, rows_apart])
def test_calls_on_every_cpu_target(target, template):
    kernel = neptune.compile(rows_program(), template, target=target)
    for m, n in ((1, 1), (33, 50), (16, 8)):
        x, w = torch.randn(m, n), torch.randn(n)
        got = kernel(x, w, 0.5, 3)
        assert got.shape == (m,) and got.dtype == torch.float32
        torch.testing.assert_close(got, rows_reference(x, w, 0.5, 3))


def test_targets_agree_on_what_they_run():
    a, b = (neptune.compile(rows_program(), rows_fused, target=t) for t in ON_CPU)
    assert a.ir("tile") == b.ir("tile") and a.source == b.source
    assert (a.target, b.target) == ON_CPU


@pytest.mark.parametrize("target", ON_CPU)
def test_strides_are_honoured_and_nothing_is_copied(target):
    kernel = neptune.compile(rows_program(), rows_fused, target=target)
    packed = torch.randn(40, 3, 24)
    x, w = packed[:, 1], torch.randn(1, 24).expand(5, 24)[2]
    big = torch.full((2, 40), 7.0)
    assert kernel(x, w, 2.0, 0, out=big[1]) is not None
    torch.testing.assert_close(big[1], rows_reference(x, w, 2.0, 0))
    assert torch.equal(big[0], torch.full((40,), 7.0))


def test_out_is_returned_as_it_was_given():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    x, w, y = torch.randn(5, 7), torch.randn(7), torch.empty(5)
    assert kernel(x, w, 1.0, 0, out=y) is y
    torch.testing.assert_close(y, rows_reference(x, w, 1.0, 0))


@pytest.mark.parametrize("target", ON_CPU)
def test_several_outputs_come_as_a_tuple_in_order(target):
    kernel = neptune.compile(pair_program(), pair_apart, target=target)
    x, bias = torch.randn(2, 6, 64).half(), torch.zeros(2, 6).half()
    total, twice = kernel(x, bias)
    torch.testing.assert_close(total, x.float().sum(-1))
    assert torch.equal(twice, x.repeat_interleave(2, dim=1))
    given = (torch.empty_like(total), torch.empty_like(twice))
    got = kernel(x, bias, out=given)
    assert got[0] is given[0] and got[1] is given[1]
    assert torch.equal(given[0], total) and torch.equal(given[1], twice)


def test_tiles_that_cover_a_size_follow_the_call():
    kernel = neptune.compile(rows_program(), rows_covered, target="llvm")
    assert "BLOCK_N" not in kernel.params and kernel.params["BLOCK_M"] == 4
    for n in (1, 3, 129):
        x, w = torch.randn(6, n), torch.randn(n)
        torch.testing.assert_close(kernel(x, w, 1.0, 0), rows_reference(x, w, 1.0, 0))


def test_it_names_its_arguments():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    assert (kernel.name, kernel.inputs, kernel.scalars, kernel.outputs) == (
        "rows",
        ("x", "w"),
        ("scale", "shift"),
        ("y",),
    )
    assert "rows(x: float32[m, n], w: float32[n], scale: float32, shift: int32) -> y: float32[m]" in repr(kernel)


def test_params_cannot_be_changed_through_the_kernel():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm", params={"BLOCK_M": 32})
    kernel.params["BLOCK_M"] = 1
    assert kernel.params == {"BLOCK_M": 32, "BLOCK_N": 8, "num_warps": 4, "num_stages": 2}


def test_ir_stages():
    kernel = neptune.compile(softmax(), "softmax_online", target="llvm")
    loops, scheduled, fused, tile = (kernel.ir(s) for s in ("loops", "scheduled", "fused", "tile"))
    assert parse_program(loops) == softmax()
    assert "BLOCK_M" not in loops and "BLOCK_M" in scheduled
    assert "_rescale" not in scheduled and "_rescale" in fused
    assert parse_program(fused) == kernel.program
    assert tile.startswith("tile program softmax")
    with pytest.raises(neptune.ScheduleError, match="legal here: loops, scheduled, fused, tile"):
        kernel.ir("ptx")


def test_offline_compilation_needs_no_gpu():
    kernel = neptune.compile(rows_program(), rows_covered, target="cuda:90", shapes={"n": 64})
    asm = kernel.asm()
    assert list(asm) == ["rows_kernel"] and ".target sm_90" in asm["rows_kernel"]
    (used,) = kernel.resources("cuda:80")
    assert used.name == "rows_kernel" and used.registers > 0 and used.spill_bytes == 0
    assert kernel.asm("cuda:90") == asm


def test_asm_wants_an_architecture():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    with pytest.raises(neptune.TargetError, match="name the architecture"):
        kernel.asm("llvm")
    if not torch.cuda.is_available():
        with pytest.raises(neptune.TargetError, match="legal here: cuda:80, cuda:90, hip:gfx942"):
            kernel.asm()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_kernel_compiles_and_explains_where_there_is_no_gpu():
    kernel = neptune.compile(rows_program(), rows_fused, target="cuda")
    assert "@triton.jit" in kernel.source and "rows" in kernel.explain()
    with pytest.raises(neptune.ShapeError, match="argument `x` is on cpu"):
        kernel(torch.randn(3, 4), torch.randn(4), 1.0, 0)
    # Arguments on a GPU cannot be made here, so that the launch itself is asked.
    with pytest.raises(neptune.TargetError, match="sees no GPU"):
        _ = kernel.executable.launch


@pytest.mark.parametrize("text", ["cuda:90", "cuda", "hip:gfx942", "interpret", "llvm"])
def test_targets_parse_and_print(text):
    assert str(parse_target(text)) == text


def test_the_default_target_is_one_that_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(default_target()) == "llvm"
    monkeypatch.setitem(sys.modules, "tvm", None)
    assert str(default_target()) == "interpret"


def test_gpu_targets_take_gpu_tensors():
    assert [Target(k).device for k in ("cuda", "hip", "interpret", "llvm")] == ["cuda", "cuda", "cpu", "cpu"]


def test_importing_neptune_is_light():
    heavy = "{'torch', 'triton', 'tvm', 'sympy', 'numpy'} & set(sys.modules)"
    code = f"import sys, neptune; neptune.ShapeError, neptune.Program; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names():
    for name in neptune.__all__:
        assert getattr(neptune, name) is not None
    assert set(neptune.__all__) <= set(dir(neptune))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = neptune.nothing


def _in_vmap(kernel, x, w):
    return torch.vmap(lambda a: kernel(a, w, 2.0, 1))(torch.stack([x, x]))


def _fake(kernel, x, w):
    with FakeTensorMode() as mode:
        a, b = mode.from_tensor(x), mode.from_tensor(w)
    return kernel(a, b, 2.0, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_in_vmap, "no elements in memory"),
        (_fake, "no elements in memory"),
        (lambda k, x, w: k(x.to("meta"), w, 2.0, 1), "on meta"),
        (lambda k, x, w: k(torch.nested.nested_tensor([x]), w, 2.0, 1), "layout nested"),
        (lambda k, x, w: k(x, w, 2.0, 1, out=3), "out= is int"),
        (lambda k, x, w: k(x, w, 2.0, 1, out=(t for t in [x])), "out= is generator"),
    ],
)
def test_tensors_without_memory_are_refused_after_good_ones_too(call, words):
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    x, w = torch.randn(3, 4), torch.randn(4)
    for _ in range(2):
        with pytest.raises(neptune.ShapeError, match=words):
            call(kernel, x, w)
        # The same layouts, now known to be good.
        kernel(x, w, 2.0, 1)


def test_arguments_by_name_come_behind_those_without():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    x, w = torch.randn(3, 5), torch.randn(5)
    expected = kernel(x, w, 2.0, 3)
    for args, named in (
        ((), {"shift": 3, "w": w, "scale": 2.0, "x": x}),
        ((x,), {"scale": 2.0, "w": w, "shift": 3}),
        ((x, w, 2.0), {"shift": 3}),
    ):
        assert torch.equal(kernel(*args, **named), expected)
    out = torch.empty(3)
    assert kernel(x, w=w, scale=2.0, shift=3, out=out) is out and torch.equal(out, expected)


def test_notebooks_show_the_report_and_programs(tmp_path):
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    shown = kernel._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "&lt;!doctype html&gt;" in shown and "<style>" not in shown
    kernel.save(tmp_path / "k")
    loaded = neptune.load(tmp_path / "k")._repr_html_()
    assert loaded.startswith("<pre>kernel rows for") or loaded.startswith("<pre>warning:")
    program = rows_program()
    assert html.unescape(program._repr_html_()) == f"<pre>{program}</pre>"


@pytest.mark.parametrize(("version", "told"), [("3.6.0", 0), ("3.6.1+cu128", 0), ("3.9.0", 1), ("2.1", 1), (None, 0)])
def test_another_triton_than_was_tested_is_told_once(monkeypatch, version, told):
    kernel = neptune.compile(rows_program(), rows_fused, target="interpret")
    fused, modules = kernel.program, kernel.executable.artifact.modules
    monkeypatch.setattr(versions, "versions", lambda: {"triton": version})
    launch._tell_versions.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            launch.make_launch(parse_target("interpret"), fused, modules)
    launch._tell_versions.cache_clear()
    assert [str(w.message) for w in found] == [
        f"this is Triton {version}, and Neptune was tested and measured with 3.6"
    ] * told
