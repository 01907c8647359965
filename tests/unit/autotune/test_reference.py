"""Results are compared as nearly as is allowed, at sizes that fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neptune.autotune.reference import differs, errors, grown, small, smaller, trusted
from neptune.errors import ShapeError
from neptune.frontend.builder import build, compute, placeholder, var
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.bench import drawn, poisoned
from neptune.verify.numerics import Errors, rel_error

NONE = Errors(0.0, 0.0)


def gathered() -> Program:
    """y[i] = x[rows[i]] + shift[i]: one integer input is an index, the other is not."""
    m, n = var("m"), var("n")
    x, rows = placeholder((n,), "float32", "x"), placeholder((m,), "int32", "rows")
    shift = placeholder((m,), "int32", "shift")
    return build(compute((m,), lambda i: x[rows[i]] + shift[i].astype("float32"), "y"), [x, rows, shift])


def test_what_is_drawn() -> None:
    program = operator("prefill_alibi", heads=2)
    q, k, v, slopes = drawn(program, {"batch": 1, "s_q": 3, "s_kv": 5}, "cpu")
    assert (q.shape, k.shape, v.dtype, slopes.shape) == ((1, 2, 3, 128), (1, 2, 5, 128), torch.float16, (2,))
    again = drawn(program, {"batch": 1, "s_q": 3, "s_kv": 5}, "cpu")
    assert torch.equal(q, again[0]) and not torch.equal(q[..., :3, :], k[..., :3, :])
    x, rows, shift = drawn(gathered(), {"m": 50, "n": 4}, "cpu")
    assert not rows.any() and shift.unique().numel() > 3 and x.std() > 0.1


def test_what_is_not_written_shows() -> None:
    (y,) = poisoned(softmax(), {"rows": 2, "cols": 3}, "cpu")
    assert y.shape == (2, 3) and y.isnan().all()


def test_small_and_smaller_sizes() -> None:
    program = operator("prefill_global", heads=None)
    sizes = {"batch": 4, "heads": 16, "s_q": 100, "s_kv": 8192}
    assert small(program, sizes) == {"batch": 2, "heads": 2, "s_q": 37, "s_kv": 37}
    steps = [sizes]
    while (less := smaller(program, steps[-1])) is not None:
        steps.append(less)
    assert steps[1] == sizes | {"batch": 1, "heads": 1} and steps[2] == steps[1] | {"s_kv": 4096}
    assert steps[-1] == dict.fromkeys(sizes, 1)


def test_errors_are_those_of_the_numerical_tests() -> None:
    rng = np.random.default_rng(0)
    for shape in ((5, 7), (2, 3, 4), (6,), ()):
        wanted = rng.standard_normal(shape)
        out = wanted + 1e-3 * rng.standard_normal(shape)
        found, of = errors(torch.tensor(out), torch.tensor(wanted)), rel_error(out, wanted)
        assert tuple(found) == pytest.approx(tuple(of))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, 1.0])
def test_one_wrong_element_of_many_is_seen(bad: float) -> None:
    """In a row of its own, however large the tensor is."""
    b = softmax().outputs[0]
    wanted = torch.softmax(torch.randn(4096, 64), -1)
    assert not differs(b, wanted.clone(), wanted, NONE)
    assert not differs(b, wanted * (1 + 1e-7), wanted, NONE)
    out = wanted.clone()
    out[4000, 3] = bad
    assert differs(b, out, wanted, NONE)


def test_a_key_that_is_left_out_is_seen() -> None:
    """Of 2048, in float16: what a wrong mask of a tail does."""
    program = operator("prefill_global", heads=1)
    q, k, v = (torch.randn(n, 128, dtype=torch.float64) for n in (8, 2048, 2048))
    scores = q @ k.T / 128**0.5
    wanted, out = (torch.softmax(s, -1) @ x for s, x in ((scores, v), (scores[:, :-1], v[:-1])))
    noise = wanted.half()
    assert not differs(program.outputs[0], noise, wanted.half(), Errors(3e-4, 4e-4))
    assert differs(program.outputs[0], out.half(), wanted.half(), Errors(3e-4, 4e-4))


def test_nan_and_infinity_agree_with_themselves_alone() -> None:
    b, inf, nan = softmax().outputs[0], float("inf"), float("nan")
    wanted = torch.tensor([[1.0, inf, nan, -inf]])
    assert not differs(b, wanted.clone(), wanted, NONE)
    for other in ([1.0, -inf, nan, -inf], [1.0, inf, 0.0, -inf], [nan, inf, nan, -inf], [1.0, inf, inf, -inf]):
        assert differs(b, torch.tensor([other]), wanted, NONE)


def test_integers_agree_exactly() -> None:
    m = var("m")
    x = placeholder((m,), "int32", "x")
    b = build(compute((m,), lambda i: x[i] + 1, "y"), [x]).outputs[0]
    wanted = torch.arange(9, dtype=torch.int32)
    out = wanted.clone()
    out[3] += 1
    assert not differs(b, wanted.clone(), wanted, NONE) and "1 of 9" in differs(b, out, wanted, NONE)


def test_roundings_grow_with_the_root_of_lengths() -> None:
    assert grown([Errors(1e-7, 2e-7)], {"m": 64, "k": 1600}, {"m": 2, "k": 16}) == [Errors(1e-6, 2e-6)]
    assert grown([Errors(1e-7, 2e-7)], {"m": 1}, {"m": 4}) == [Errors(1e-7, 2e-7)]


def test_the_reference_is_compared_with_the_expression() -> None:
    """A right one passes; one that leaves the last product of each sum out does not."""
    program, sizes = matmul("float32"), {"m": 100, "n": 100, "k": 100}

    def right(args: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        out[0].copy_(args[0] @ args[1])

    def short(args: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        out[0].copy_(args[0][:, :-1] @ args[1][:-1])

    def unwritten(args: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        out[0][:-1] = (args[0] @ args[1])[:-1]

    unfused, wrong = trusted(program, sizes, "cpu", right)  # type: ignore[arg-type]
    assert not wrong and 0 < unfused[0].total < 1e-6
    assert trusted(program, sizes, "cpu", short)[1] and trusted(program, sizes, "cpu", unwritten)[1]  # type: ignore[arg-type]


def test_a_call_on_what_is_drawn_reads_within_its_tensors() -> None:
    import neptune

    kernel: Kernel = neptune.compile(gathered(), target="llvm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_CHECK", "1")
        checked = neptune.compile(gathered(), target="llvm")
        checked(*drawn(gathered(), {"m": 50, "n": 4}, "cpu"))
        with pytest.raises(ShapeError):
            x, rows, shift = drawn(gathered(), {"m": 50, "n": 4}, "cpu")
            checked(x, rows + 4, shift)
    assert kernel.inputs == ("x", "rows", "shift")
