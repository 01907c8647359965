"""A kernel as a family: what launches take, what is compiled when, and what is kept of it."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch

import neptune
from neptune.driver import compilation
from neptune.errors import FusionError, ScheduleError, ShapeError
from neptune.kernel.variants import Variant
from neptune.ops.attention import prefill_global
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.facts import Remark
from neptune.tune.family import MOST

pytestmark = pytest.mark.compared
FEW, MANY = {"m": 1, "n": 256, "k": 256}, {"m": 2048, "n": 4096, "k": 64}


@pytest.fixture
def compiled(monkeypatch):
    """The templates that are compiled, in order."""
    seen = []
    built = compilation.built

    def counted(made, trail):
        seen.append(made.scheduled.template)
        return built(made, trail)

    monkeypatch.setattr(compilation, "built", counted)
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    return seen


@functools.cache
def product_family():
    return neptune.compile(matmul(), target="llvm")


def product(kernel, m, n, k):
    a, b = torch.randn(m, k, dtype=torch.float16), torch.randn(k, n, dtype=torch.float16)
    want = a.double() @ b.double()
    return (kernel(a, b).double() - want).norm() / want.norm()


def test_every_variant_computes_the_same_and_is_compiled_once(compiled):
    kernel = neptune.compile(matmul(), target="llvm")
    assert len(compiled) == 1 and 1 < len(kernel.variants) <= MOST
    assert {v.name for v in kernel.variants} == {str(v.name) for v in kernel.variants}
    assert len({v.name for v in kernel.variants}) == len(kernel.variants)
    for v in kernel.variants:
        assert product(v.kernel, 33, 50, 70) < 1e-3, v
        assert v.kernel.params == dict(v.params) and v.kernel.variants[0].when == "" and repr(v.name)[1:-1] in repr(v)
    # Those that differ in values alone share schedule, proofs and checks.
    assert sorted(compiled) == sorted({v.template for v in kernel.variants})
    kernel.warm()
    assert len(compiled) == len({v.template for v in kernel.variants})


def test_strict_refuses_a_variant_that_differs_in_values_alone(monkeypatch):
    """The first is fast; another one of its template is said to be slow, and its sizes take the first."""
    of_one = neptune.compile(softmax(), target="llvm", strict=True)
    own, names = of_one._family.own, [v.template for v in of_one.variants]
    other = next(k for k, name in enumerate(names) if k != own and name == names[own])
    said = (Remark("idle-processors", "x", "programs for few processors", "smaller tiles"),)
    slow = dict(of_one.variants[other].params)
    judged = neptune.Kernel.warnings.fget
    monkeypatch.setattr(neptune.Kernel, "warnings", property(lambda k: said if k.params == slow else judged(k)))
    for strict in (True, False):
        kernel = neptune.compile(softmax(), target="llvm", strict=strict)
        of = [kernel, kernel.for_target("interpret")]
        for k in of:
            if strict:
                with pytest.raises(ScheduleError, match="idle-processors"):
                    _ = k.variants[other].kernel
                assert k._family.members.member(other) is k._family.members.member(own)
            else:
                assert k.variants[other].kernel.params == slow


def test_a_launch_takes_the_variant_of_its_sizes(compiled):
    kernel = neptune.compile(prefill_global(depth=16), target="llvm")
    assert kernel.chosen(batch=1, heads=1, s_q=1, s_kv=60000).template == "flash_decoding"
    assert compiled == ["flash_attention"] == [kernel.chosen(batch=8, heads=8, s_q=4096, s_kv=4096).template]
    used = list(compiled)
    for s_q, s_kv in ((1, 60000), (300, 300), (1, 3), (1, 60000)):
        q, k, v = (torch.randn(1, 1, s, 16, dtype=torch.float16) for s in (s_q, s_kv, s_kv))
        want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
        assert (kernel(q, k, v)[0].double() - want).abs().max() < 2e-3
        template = kernel.chosen(batch=1, heads=1, s_q=s_q, s_kv=s_kv).template
        used += [template] * (template not in used)
        assert compiled == used


def test_a_number_that_a_call_asks_for_picks_the_variant_that_has_it():
    kernel = neptune.compile(prefill_global(depth=16), target="llvm")
    q, k = torch.randn(2, 1, 300, 16).half(), torch.randn(2, 1, 300, 16).half()
    want = kernel(q, k, k)[0]
    torch.testing.assert_close(kernel(q, k, k, params={"NUM_SPLITS": 3})[0], want, rtol=2e-3, atol=2e-3)
    with pytest.raises(ShapeError, match="no number that a call chooses"):
        kernel(q, k, k, params={"PARTS": 3})


def test_what_is_named_fixes_the_family():
    assert len(neptune.compile(matmul(), "matmul", target="llvm").variants) == 1
    assert len(neptune.compile(matmul(), target="llvm", shapes=FEW).variants) == 1
    given = {"num_warps": 4, "num_stages": 2}
    kernel = neptune.compile(matmul(), target="llvm", params=given)
    assert all(v.params.items() >= given.items() for v in kernel.variants)
    split = neptune.compile(matmul(), target="llvm", params={"NUM_SPLITS": 2})
    assert all("split" in v.template or v.template == "flash_decoding" for v in split.variants)
    split.warm()
    assert all(v.kernel.params["NUM_SPLITS"] == 2 for v in split.variants)
    with pytest.raises(ScheduleError, match="there is no such parameter"):
        neptune.compile(matmul(), target="llvm", params={"BLOCK_X": 2})
    narrow = neptune.compile(matmul(), target="llvm", shapes={"m": 1})
    assert all("m" not in v.when.replace("·", " ").split() for v in narrow.variants)


def test_bounds_end_the_sizes_that_are_considered():
    wide, narrow = (neptune.compile(softmax(), target="llvm", bounds=b) for b in ({}, {"cols": 64}))
    assert "cols" in " ".join(v.when for v in wide.variants) and len(narrow.variants) < len(wide.variants)


def test_the_own_variant_is_that_of_typical_sizes_or_of_those_given():
    kernel = product_family()
    told = kernel.explain(json=True)["family"]
    own = kernel.variants[told["own"]]
    assert told["at"] == {"m": 4096, "k": 4096, "n": 4096} and kernel.chosen(**told["at"]) == own
    assert kernel.params == dict(own.params) and kernel.build.template == own.template
    text = kernel.explain()
    assert f"variants by size; this is {own.name}, for m=4096" in text
    assert all(v.when in text for v in kernel.variants)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"x": 1}, "no size `x`"), ({"m": 1}, "no value was given for"), ({**FEW, "m": -1}, "is no size"),
     ({**FEW, "m": 2.5}, "is no size"), ({**FEW, "m": True}, "is no size")],
)  # fmt: skip
def test_sizes_that_are_none(sizes, words):
    with pytest.raises(ShapeError, match=words):
        product_family().chosen(**sizes)


@pytest.mark.parametrize("how", ["save", "pickle", "copy", "cache"])
def test_a_family_is_kept_whole(how, tmp_path, monkeypatch):
    kernel = product_family()
    if how == "cache":
        monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
        kernel = neptune.compile(matmul(), target="llvm")
    if how == "save":
        kernel.save(tmp_path / "k")
        kernel.save(tmp_path / "k")
        again = neptune.load(tmp_path / "k", target="llvm")
    elif how == "cache":
        again = neptune.compile(matmul(), target="llvm")
    else:
        again = pickle.loads(pickle.dumps(kernel)) if how == "pickle" else copy.deepcopy(kernel)
    for one, other in zip(again.variants, kernel.variants, strict=True):
        assert (one.name, one.template, one.params) == (other.name, other.template, other.params)
        assert how == "save" or one.when == other.when
    for sizes in (FEW, MANY):
        assert again.chosen(**sizes).source in {v.source for v in kernel.variants}
        # A saved kernel has no model to tell its variants apart by.
        assert how == "save" or again.chosen(**sizes) == kernel.chosen(**sizes)
        assert how == "save" or again.chosen(**sizes).source == kernel.chosen(**sizes).source
    assert product(again, 1, 40, 50) < 1e-3
    other = again.for_target("interpret")
    assert [v.name for v in other.variants] == [v.name for v in kernel.variants]
    assert other.chosen(**FEW).kernel.target == "interpret" and product(other, 3, 20, 40) < 1e-3


def test_other_values_are_of_one_variant():
    kernel = product_family().with_params(num_stages=2)
    (only,) = kernel.variants
    assert only.params["num_stages"] == 2 and product(kernel, 5, 6, 70) < 1e-3
    assert "variants by size" not in kernel.explain() and isinstance(only, Variant)


def test_a_variant_that_a_check_rejects_is_not_used(monkeypatch, caplog):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    kernel = neptune.compile(prefill_global(depth=16), target="llvm")

    def refused(prepared, trail):
        raise FusionError("compile", "it differs")

    monkeypatch.setattr(compilation, "run_all", refused)
    q, k = torch.randn(1, 1, 1, 16).half(), torch.randn(1, 1, 60000, 16).half()
    assert kernel.chosen(batch=1, heads=1, s_q=1, s_kv=60000).template == "flash_decoding"
    assert torch.isfinite(kernel(q, k, k)[0]).all() and "variant flash_decoding" in caplog.text


def test_memory_for_bounds_serves_all_variants():
    kernel = neptune.compile(prefill_global(depth=16), target="llvm", bounds={"s_q": 1, "s_kv": 5000})
    most = kernel.workspace(batch=1, heads=1)
    q = torch.randn(1, 1, 1, 16).half()
    for s_kv in (3, 700, 5000):
        k = torch.randn(1, 1, s_kv, 16).half()
        want = kernel(q, k, k)[0]
        got = kernel(q, k, k, workspace=torch.empty(most, dtype=torch.uint8))[0]
        torch.testing.assert_close(got, want)


def test_a_variant_speaks_of_sizes_that_take_it():
    # Records correct what a family compares, and not what a variant is predicted to take.
    kernel = neptune.compile(matmul(), target="llvm", records=False)
    described = kernel.explain(json=True)["family"]["variants"]
    for v, row in zip(kernel.variants, described, strict=True):
        said = v.explain(json=True)["prediction"]
        assert said["sizes"] == row["at"] and kernel.chosen(**row["at"]) == v
        assert said["us"] == pytest.approx(row["us"], rel=1e-3, abs=0.02)


def test_the_class_has_its_earlier_name_too():
    from neptune import variants

    assert variants.Variant is Variant
