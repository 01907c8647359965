"""Other values of a kernel's parameters: the same kernel, without another lowering or proof."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

import neptune
from bench import stub_driver
from neptune.driver import passes
from neptune.errors import ScheduleError
from neptune.kernel import Kernel
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.runtime.executable import Executable


@pytest.fixture(scope="module")
def attention() -> Kernel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_VERIFY", "0")
        return neptune.compile(prefill_causal(depth=16), "flash_attention", target="llvm")


@pytest.fixture(scope="module")
def decoding() -> Kernel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_VERIFY", "0")
        return neptune.compile(prefill_global(depth=16), "flash_decoding", target="llvm")


def inputs(length: int = 40) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, 16).half() for _ in range(3)]


def test_it_is_the_kernel_that_would_have_been_compiled(attention, monkeypatch):
    asked = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 2, "num_stages": 3}
    with monkeypatch.context() as patch:
        patch.setenv("NEPTUNE_VERIFY", "0")
        wanted = neptune.compile(prefill_causal(depth=16), "flash_attention", target="llvm", params=asked)
    monkeypatch.setattr(passes, "PIPELINE", ())
    monkeypatch.setattr(passes, "lowering", None)
    made = attention.with_params({"BLOCK_M": 32, "num_warps": 2}, BLOCK_N=16, num_stages=3)
    assert made.params == asked and made.executable.artifact == wanted.executable.artifact.unjudged()
    # Judged when it is asked for, to the same end.
    assert made.explain(json=True) == wanted.explain(json=True) and made.warnings == wanted.warnings
    assert made.build.params == asked and attention.params != asked
    q, k, v = inputs()
    assert torch.equal(made(q, k, v), wanted(q, k, v))
    # The same values in another order of summation: near, not equal.
    torch.testing.assert_close(made(q, k, v).float(), attention(q, k, v).float(), rtol=2e-3, atol=2e-3)
    # On tiles as well, in the interpreter.
    torch.testing.assert_close(
        made.for_target("interpret")(q, k, v).float(), made(q, k, v).float(), rtol=2e-3, atol=2e-3
    )
    assert made.with_params().params == asked


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"BLOCK_K": 16}, "no such parameter"),
        ({"BLOCK_M": 0}, "positive integer"),
        ({"BLOCK_M": True}, "positive integer"),
        ({"BLOCK_M": 24}, "power of two"),
        ({"BLOCK_N": 8}, "no fewer than 16"),
        ({"num_warps": 64}, "at most 32"),
        ({"o_combine.num_warps": 1}, "no such parameter"),
        ({"prefill_causal.BLOCK_M": 32}, "no such parameter"),
        ({"prefill_causal.num_warps": 3}, "power of two"),
        ({3: 3}, "no such parameter"),
    ],
)
def test_what_is_not_legal_is_refused_at_once(attention, values, words):
    with pytest.raises(ScheduleError, match=words):
        attention.with_params(values)


def test_kernels_that_were_saved_have_it_too(attention, tmp_path):
    attention.save(tmp_path / "k")
    for kernel in (neptune.load(tmp_path / "k", "llvm"), pickle.loads(pickle.dumps(attention))):
        made = kernel.with_params(BLOCK_M=16)
        assert (
            made.params["BLOCK_M"] == 16
            and made.executable.artifact == attention.with_params(BLOCK_M=16).executable.artifact
        )
    made.save(tmp_path / "m")
    assert neptune.load(tmp_path / "m").params == made.params


def test_of_a_kernel_that_does_not_say_what_is_legal_the_candidates_are(attention):
    artifact = attention.executable.artifact
    known = {n: v for n, v in artifact.explanation.items() if n != "least"}
    older = Kernel(Executable(replace(artifact, explanation=known)))
    assert older.with_params(BLOCK_N=32).params["BLOCK_N"] == 32
    with pytest.raises(ScheduleError, match="no fewer than"):
        older.with_params(BLOCK_N=8)


def test_numbers_of_parts_are_values_of_a_launch(decoding):
    q, k, v = inputs(200)
    name = decoding.executable.artifact.chosen[0]
    whole, parts = decoding.with_params({name: 1}), decoding.with_params({name: 3})
    sizes = {"batch": 1, "heads": 2, "s_q": 200, "s_kv": 200}
    assert whole.workspace(**sizes) < parts.workspace(**sizes)
    torch.testing.assert_close(whole(q, k, v).float(), parts(q, k, v).float(), rtol=2e-3, atol=2e-3)
    with pytest.raises(ScheduleError, match="no number of parts"):
        decoding.with_params({name: 0})


def test_one_kernel_of_several_may_have_its_own_warps(decoding):
    combine = decoding.executable.artifact.modules["pointer"].kernels[-1].function
    name = combine.removeprefix(f"{decoding.name}_").removesuffix("_kernel")
    made = decoding.with_params({f"{name}.num_warps": 1, "num_warps": 4}).for_target("cuda")
    with stub_driver.installed():
        # The device type that the stub takes is decided when a kernel is made.
        kernel = made.with_params()
        kernel(*inputs())
        (plan,) = kernel.executable.plans._plans.values()
        warps = {s.compiled.name: s.compiled.metadata.num_warps for s in plan.steps}
        assert warps.pop(combine) == 1 and set(warps.values()) == {4}
