"""flash_decoding where every batch row has a length of its own: numbers, and what is not read."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

import neptune
from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, select, var
from neptune.ir.expr import Op
from neptune.ir.program import Program
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.verify.exact import check_exact
from neptune.verify.instances import compared_only
from tests.examples.mutants import change
from tests.tiers import sampled

pytestmark = pytest.mark.compared
DEPTH, BLOCK = 16, 16


def decode(group: int, depth: int = DEPTH) -> Program:
    """One query for each of `group` heads to a key head, with the keys of each batch row up to kv_len[b]."""
    kv_len = placeholder((var("batch"),), "int32", "kv_len")
    mask = masks.lengths(kv_len)
    return attention(heads=2 * group, kv_heads=2, queries=1, depth=depth, mask=mask, lse=True, name="decode")


@cache
def kernel(group: int) -> neptune.Kernel:
    return neptune.compile(decode(group), "flash_decoding", target="llvm", params={"BLOCK_M": 16, "BLOCK_N": BLOCK})


def draw(group: int, lengths: torch.Tensor, s_kv: int, depth: int = DEPTH, block: int = BLOCK) -> list[torch.Tensor]:
    """q, k and v; whole tiles of `block` keys behind a row's length are NaN."""
    n, device = len(lengths), lengths.device
    torch.manual_seed(s_kv)
    shapes = ((n, 2 * group, 1, depth), (n, 2, s_kv, depth), (n, 2, s_kv, depth))
    q, k, v = (torch.randn(*s).half().to(device) for s in shapes)
    for b, length in enumerate(lengths.tolist()):
        behind = max(0, math.ceil(length / block)) * block
        k[b, :, behind:] = v[b, :, behind:] = float("nan")
    return [q, k, v]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(o, lse) in float64, keys beyond the lengths not being there; 0 and -inf without any."""
    group, s_kv = q.shape[1] // k.shape[1], k.shape[2]
    k, v = (t.double().nan_to_num().repeat_interleave(group, 1) for t in (k, v))
    see = torch.arange(s_kv, device=q.device) < lengths[:, None, None, None]
    s = (q.double() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~see, -math.inf)
    return torch.softmax(s, -1).nan_to_num() @ v, torch.logsumexp(s, -1)


def check(found: object, given: list[torch.Tensor], lengths: torch.Tensor) -> None:
    assert isinstance(found, tuple)
    o, lse = found
    want, want_lse = reference(*given, lengths)
    assert (o.double() - want).norm().item() <= 6e-4 * want.norm().item()
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-4)
    assert (o[lengths <= 0] == 0).all()


S_KV = 50
LENGTHS = torch.tensor([0, 1, BLOCK - 1, BLOCK, S_KV, -3, 2**31 - 1], dtype=torch.int32)


@pytest.mark.parametrize(("target", "group"), sampled([("llvm", 3), ("interpret", 1), ("interpret", 3)], 2))
def test_numbers(target: str, group: int) -> None:
    """Nothing that lies in a tile behind the length of its row is read, whatever part it is in."""
    run = kernel(group).for_target(target)
    assert {r.verdict for r in run.build.checks.values()} <= {"accepted"}
    given = draw(group, LENGTHS, S_KV)
    for number in (1, 3, 7):
        nan = torch.full((len(LENGTHS), 2 * group, 1, DEPTH), float("nan"))
        out = nan.half(), nan[..., 0].clone()
        check(run(*given, LENGTHS, out=out, params={"NUM_SPLITS": number}), given, LENGTHS)


def test_chosen_for_few_queries() -> None:
    run = neptune.compile(decode(1), target="llvm", shapes={"batch": 2, "s_kv": 1 << 17})
    assert run.explain(json=True)["template"] == "flash_decoding"


def test_a_combination_that_ignores_the_maxima_is_rejected() -> None:
    """Lengths are drawn that reach into several parts: in others there is nothing to combine."""
    made = neptune.compile(decode(3), "flash_decoding", target="interpret", params={"BLOCK_M": 16, "BLOCK_N": BLOCK})
    wrong = change(made.build.fused, "acc", lambda e: e.args[0] if isinstance(e, Op) and e.name == "mul" else None)
    assert check_exact(decode(3), wrong, draws=8).verdict == "rejected"


def test_lengths_are_compared_and_places_are_not() -> None:
    assert compared_only(decode(1)) == {"kv_len"}
    x, at = placeholder((var("n"),), name="x"), placeholder((var("r"),), "int32", "at")
    ends = placeholder((var("r"),), "int32", "ends")
    gathered = compute((var("r"),), lambda i: select(i < ends[i], x[at[i]], 0.0), "y")
    assert compared_only(build(gathered)) == {"ends"}
    bounded = compute((var("r"),), lambda i: te.sum(x[j := reduce_axis((0, ends[i]), "j")], axis=j), "y")
    assert compared_only(build(bounded)) == frozenset()
