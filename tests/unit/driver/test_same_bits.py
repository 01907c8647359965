"""deterministic and batch_invariant: what may decide how a row is computed, and that its bits are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import neptune
from neptune.driver import cache
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.ops.attention import operator, prefill_causal
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.family import sizes_of
from neptune.tune.choose import candidates
from neptune.tune.family import Wishes
from neptune.tune.invariance import reduced_sizes, varying
from tests.examples.kernel_examples import rows_program

DECODE = operator("decode_gqa", depth=16, heads=4, kv_heads=2)


def test_sizes_of_reduced_axes():
    assert reduced_sizes(prefill_causal()) == {"s_kv"} and reduced_sizes(matmul()) == {"k"}
    assert reduced_sizes(softmax()) == {"cols"} and reduced_sizes(rows_program()) == {"n"}


@pytest.mark.parametrize("program", [DECODE, prefill_causal(depth=16), matmul(), softmax()], ids=lambda p: p.name)
def test_only_reduced_sizes_tell_variants_apart(program):
    deciding = reduced_sizes(program)
    family = next(candidates(program, None, Wishes(deciding=deciding))).family
    assert sizes_of(family.tree) <= deciding
    usual = next(candidates(program)).family
    assert not sizes_of(usual.tree) <= deciding


# --- bits ------------------------------------------------------------------------------------------


def decode_inputs(batch, s_kv):
    generator = torch.Generator().manual_seed(7)
    shapes = ((64, 4, 1, 16), (64, 2, s_kv, 16), (64, 2, s_kv, 16))
    return [torch.randn(s, generator=generator).half()[:batch].contiguous() for s in shapes]


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_a_decode_alone_and_among_others(target):
    kernel = neptune.compile(DECODE, target=target, batch_invariant=True, shapes={"batch": 4})
    s_kv = 700 if target == "llvm" else 130
    assert kernel.chosen(batch=1, s_kv=s_kv) == kernel.chosen(batch=64, s_kv=s_kv)
    many, one = kernel(*decode_inputs(64, s_kv)), kernel(*decode_inputs(1, s_kv))
    assert torch.equal(many[:1], one)
    q, k, v = (x.double() for x in decode_inputs(1, s_kv))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    want = torch.softmax(q @ k.mT / 4, -1) @ v
    assert (one.double() - want).norm() / want.norm() < 2e-3


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_the_rows_of_a_product_alone_and_among_others(target):
    kernel = neptune.compile(matmul(), target=target, batch_invariant=True)
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(s, generator=generator).half() for s in ((64, 900), (900, 40)))
    assert kernel.chosen(m=1, n=40, k=900) == kernel.chosen(m=64, n=40, k=900)
    assert torch.equal(kernel(a, b)[:1], kernel(a[:1].contiguous(), b))


def test_without_it_the_number_of_parts_follows_from_the_batch():
    usual = neptune.compile(DECODE, "flash_decoding", target="llvm").executable
    fixed = neptune.compile(DECODE, "flash_decoding", target="llvm", batch_invariant=True).executable

    def parts(of, batch):
        sizes = of._sizes({"batch": batch, "s_kv": 8192})
        return of._numbers.of_call(sizes, torch.device("cpu"))["NUM_SPLITS"]

    assert parts(usual, 1) > parts(usual, 64) == 1
    assert parts(fixed, 1) == parts(fixed, 64) > 1
    assert parts(fixed, 1) == fixed.artifact.parts[0].default({**fixed._sizes({"batch": 5, "s_kv": 8192})}, 1000)


def test_sizes_that_were_named_choose_the_number_of_parts():
    one, many = (
        neptune.compile(DECODE, "flash_decoding", target="llvm", batch_invariant=True, shapes={"batch": n}).executable
        for n in (1, 512)
    )
    sizes = {"batch": 3, "s_kv": 8192}
    numbers = [e._numbers.of_call(e._sizes(sizes), torch.device("cpu"))["NUM_SPLITS"] for e in (one, many)]
    assert numbers[0] > numbers[1] == 1


def test_tiles_that_cover_a_row_index_are_refused():
    def covered(sch):
        i, j = sch.loops("t")
        sch.cover(i, "ROWS")
        sch.split(j, sch.param("BLOCK_N", [16]))

    with pytest.raises(ScheduleError, match="tile ROWS covers a size of m"):
        neptune.compile(rows_program(), covered, target="llvm", batch_invariant=True)
    neptune.compile(softmax(), "softmax_row", target="llvm", batch_invariant=True)


# --- deterministic -----------------------------------------------------------------------------------


def test_no_kernel_is_made_of_atomics():
    root = Path(neptune.__file__).parent
    texts = [p.read_text() for p in (*root.rglob("codegen/*.py"), *(root / "tile").rglob("*.py"))]
    assert texts and not [t for t in texts if re.search(r"atomic_|tl\.atomic", t)]


def test_the_number_of_parts_of_a_deterministic_kernel_knows_no_device():
    usual = neptune.compile(DECODE, "flash_decoding", target="llvm").executable
    same = neptune.compile(DECODE, "flash_decoding", target="llvm", deterministic=True).executable
    (rule,), (fixed,) = usual.artifact.parts, same.artifact.parts
    at = usual._sizes({"batch": 2, "s_kv": 8192})
    assert rule.default(at, 8) != rule.default(at, 132) == fixed.default(at, 8) == fixed.default(at, 132)
    # It still follows from the batch.
    assert fixed.default({**at, "batch": 64}, 8) != fixed.default({**at, "batch": 1}, 8)


# --- what is kept ------------------------------------------------------------------------------------


def test_promises_are_kept_and_told(tmp_path):
    kernel = neptune.compile(DECODE, "flash_decoding", target="llvm", deterministic=True, batch_invariant=True)
    kernel.save(tmp_path / "k")
    loaded = neptune.load(tmp_path / "k", target="llvm")
    assert loaded.executable.artifact.parts == kernel.executable.artifact.parts
    for text in (kernel.explain(), loaded.explain()):
        assert "deterministic: the same sizes" in text and "number of parts follow from s_kv alone" in text
    assert "promises" not in neptune.compile(softmax(), "softmax_row", target="llvm").explain(json=True)


def test_keys_of_the_cache_tell_them_apart(monkeypatch):
    monkeypatch.setattr(cache, "source_stamp", lambda: "s")
    from neptune import config

    def key(**options):
        return cache.request_key(cache.Request(softmax(), None, "llvm", {}, {}, {}, config.read({}), **options))

    keys = [key(), key(deterministic=True), key(batch_invariant=True), key(at={"rows": 1}), key(machine="A100")]
    assert None not in keys and len(set(keys)) == len(keys)
    # Strictness refuses what is made, and makes nothing else.
    assert key(strict=True) == key()


def test_columns_are_reduced_too():
    x, i = placeholder((var("rows"), var("cols")), "float32", "x"), reduce_axis((0, var("rows")), "i")
    program = build(compute((var("cols"),), lambda j: sum(x[i, j], axis=i), "t"), name="columns")
    assert reduced_sizes(program) == {"rows"}
    best = next(candidates(program, None, Wishes(deciding=frozenset({"rows"}))))
    assert not list(varying(best.tiles, frozenset({"rows"})))
