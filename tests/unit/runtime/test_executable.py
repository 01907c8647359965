"""Binaries that are there before the first call: those that the call asks for."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

import neptune
from neptune.errors import ShapeError, TargetError
from neptune.ir.expr import Var
from neptune.ops.attention import attention
from neptune.ops.softmax import softmax
from neptune.runtime.executable import _Compiled, warm_up
from neptune.runtime.launching.launch import Target

TILES = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 2}


class Driver:
    """An H200 that compiles, and runs nothing."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0


@pytest.fixture
def binaries(monkeypatch, tmp_path):
    """A function that makes it as if a GPU were here, and gives the kernels that are compiled from then on."""
    made, compiling = [], JITFunction._do_compile

    def compiled(self, *args):
        made.append(self.__name__)
        return compiling(self, *args)

    def here():
        for module in ("launching.launch", "executable"):
            monkeypatch.setattr(f"neptune.runtime.{module}.gpu_target", lambda: Target("cuda", "90"))
        monkeypatch.setattr("neptune.runtime.parts.processors", lambda _: 132)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(JITFunction, "_do_compile", compiled)
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
        return made

    return here


def called(kernel, *inputs):
    """Compile what a call would: the kernel on tensors with memory, which nothing here can run."""
    of = kernel.executable
    pairs = zip(of.loops.inputs, inputs, strict=True)
    sizes = {d.name: n for b, t in pairs for d, n in zip(b.shape, t.shape, strict=True) if isinstance(d, Var)}
    outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in of.signature.shapes(sizes)]
    numbers = of._numbers.of_call(of._sizes(sizes), torch.device("cuda"))
    of.launch(inputs, outputs, {**sizes, **numbers}, {}, _Compiled)


def test_the_first_call_finds_its_binaries(binaries):
    program = attention(depth=16)
    kernel = neptune.compile(program, "flash_decoding", target="cuda:90", params=TILES)
    made = binaries()
    kernel.warm(batch=2, heads=4, s_q=1, s_kv=4096)
    assert sorted(made) == ["attention_acc_split_kernel", "attention_o_kernel"]
    q, k = torch.zeros(2, 4, 1, 16).half(), torch.zeros(2, 4, 4096, 16).half()
    called(kernel, q, k, k)
    called(kernel, q, k[:, :, :4000], k[:, :, :4000])
    assert len(made) == 2
    odd = torch.zeros(2 * 4 * 4096 * 16 + 1).half()[1:].view(2, 4, 4096, 16)
    called(kernel, q, odd, odd)
    assert len(made) > 2  # at another address it is another binary: the test can tell


def test_a_tile_that_covers_a_size_is_that_of_the_size(binaries):
    kernel = neptune.compile(softmax(), "softmax_row", target="cuda:90", params={"BLOCK_M": 1, "num_warps": 2})
    made = binaries()
    kernel.warm(rows=64, cols=1000)
    called(kernel, torch.zeros(64, 1000))
    assert len(made) == 1
    called(kernel, torch.zeros(64, 3000))
    assert len(made) == 2


def test_values_of_one_kernel(binaries):
    params = {**TILES, "o.num_warps": 1}
    kernel = neptune.compile(attention(depth=32), "flash_decoding", target="cuda:90", params=params)
    made = binaries()
    kernel.warm(batch=2, heads=4, s_q=1, s_kv=4096)
    k = torch.zeros(2, 4, 4096, 32).half()
    called(kernel, k[:, :, :1].contiguous(), k, k)
    assert len(made) == 2


def test_sizes_that_are_not_given(binaries):
    free = neptune.compile(softmax(), "softmax_online", target="cuda:90")
    shaped = neptune.compile(softmax(), "softmax_online", target="cuda:90", shapes={"cols": 512}, bounds={"rows": 64})
    made = binaries()
    free.warm()
    free.warm(rows=64)
    assert not made and not warm_up(free.executable, {"rows": 64})
    shaped.warm()
    assert len(made) == 1
    with pytest.raises(ShapeError, match="no size `columns`"):
        shaped.warm(columns=3)


def test_what_triton_refuses(binaries, monkeypatch):
    kernel = neptune.compile(softmax(), "softmax_online", target="cuda:90")
    binaries()

    def refused(*_):
        raise OutOfResources(300000, 232448, "shared memory")

    monkeypatch.setattr(JITFunction, "_do_compile", refused)
    with pytest.raises(TargetError, match="shared memory") as info:
        kernel.warm(rows=64, cols=1000)
    assert "other tile sizes" in str(info.value)


def test_every_variant_is_warmed(monkeypatch):
    asked = []
    monkeypatch.setattr("neptune.kernel.warm_up", lambda of, sizes: asked.append((of.artifact.params, sizes)))
    kernel = neptune.compile(softmax(), target="llvm")
    kernel.warm()
    assert asked == [(dict(v.params), {}) for v in kernel.variants] and len(asked) > 1
    asked.clear()
    kernel.warm(rows=4096, cols=1024)
    assert asked == [(dict(kernel.chosen(rows=4096, cols=1024).params), {"rows": 4096, "cols": 1024})]


def test_without_a_gpu_it_is_lowered_only():
    for target in ("cuda:90", "llvm", "interpret"):
        kernel = neptune.compile(softmax(), "softmax_online", target=target)
        kernel.warm(rows=64, cols=1000)
        assert torch.cuda.is_available() or not warm_up(kernel.executable, {"rows": 64, "cols": 1000})
