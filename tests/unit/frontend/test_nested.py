"""Reductions inside larger expressions, and those of functions of indices."""

from __future__ import annotations

import pytest
import torch

import neptune
import neptune.frontend.builder as nb
from neptune.errors import ExpressionError
from neptune.ir.program import Program, stages
from neptune.ir.text.parser import parse_program

M, N = nb.var("m"), nb.var("n")


def texts(program: Program) -> list[str]:
    """What each stage stores, in order."""
    return [line.strip() for line in str(program).splitlines() if line.strip().startswith(names(program))]


def names(program: Program) -> tuple[str, ...]:
    return tuple(f"{s.name}:" for s in stages(program.body))


def by_hand() -> Program:
    """Softmax with its stages one by one."""
    x = nb.placeholder((M, N), "float32", "x")
    j, k = nb.reduce_axis((0, N), "j"), nb.reduce_axis((0, N), "k")
    m = nb.compute((M,), lambda i: nb.max(x[i, j], axis=j), "y_max")
    l = nb.compute((M,), lambda i: nb.sum(nb.exp(x[i, k] - m[i]), axis=k), "y_sum")  # noqa: E741
    return nb.build(nb.compute((M, N), lambda i, c: nb.exp(x[i, c] - m[i]) / l[i], "y"))


def test_what_is_nested_is_what_is_written_by_hand():
    x = nb.placeholder((M, N))
    j, k = nb.reduce_axis(N), nb.reduce_axis(N)

    def element(i, c):
        top = nb.max(x[i, j], axis=j)
        return nb.exp(x[i, c] - top) / nb.sum(nb.exp(x[i, k] - top), axis=k)

    y = nb.compute((M, N), element)
    assert nb.build(y) == by_hand()


def test_equal_reductions_are_one_stage_also_of_other_axes():
    x = nb.placeholder((M, N))
    y = nb.compute(
        (M, N),
        lambda i, c: (
            nb.exp(x[i, c] - nb.max(lambda a: x[i, a])) / nb.sum(lambda k: nb.exp(x[i, k] - nb.max(lambda b: x[i, b])))
        ),
    )
    assert names(nb.build(y)) == ("y_max:", "y_sum:", "y:")
    z = nb.compute((M,), lambda i: nb.max(lambda j: x[i, j]) - nb.max(lambda j: -x[i, j]))
    assert names(nb.build(z)) == ("z_max:", "z_max_1:", "z:")


def test_an_axis_of_an_inner_reduction_is_bound_there():
    """Σₖ (x[k] - Σₖ x[k]) over one and the same axis: the inner sum does not depend on the outer index."""
    x = nb.placeholder((M, N))
    k = nb.reduce_axis(N)
    y = nb.compute((M,), lambda i: nb.sum(x[i, k] - nb.sum(x[i, k], axis=k), axis=k))
    program = nb.build(y)
    assert [b.shape for b in program.temporaries] == [(M,)]
    a = torch.randn(3, 5)
    torch.testing.assert_close(neptune.compile(program, target="llvm")(a), (a - a.sum(1, keepdim=True)).sum(1))


def test_an_inner_reduction_over_what_the_outer_one_goes_through():
    x = nb.placeholder((M, N, 6))
    y = nb.compute((M,), lambda i: nb.sum(lambda j: nb.max(lambda k: x[i, j, k])))
    program = nb.build(y)
    assert [b.shape for b in program.temporaries] == [(M, N)]
    a = torch.randn(3, 5, 6)
    torch.testing.assert_close(neptune.compile(program, target="llvm")(a), a.amax(2).sum(1))


def test_a_reduction_may_be_a_predicate_a_start_and_an_index():
    x, at = nb.placeholder((M, N)), nb.placeholder((M, N), "int32")
    y = nb.compute(
        (M,),
        lambda i: nb.sum(
            lambda j: x[i, j], where=lambda j: x[i, j] > nb.min(lambda k: x[i, k]), init=nb.max(lambda k: x[i, k])
        ),
    )
    a = torch.randn(4, 7)
    smallest = a == a.amin(1, keepdim=True)
    wanted = a.masked_fill(smallest, 0).sum(1) + a.amax(1)
    torch.testing.assert_close(neptune.compile(y, target="llvm")(a), wanted)
    z = nb.compute((M,), lambda i: x[i, nb.min(lambda k: at[i, k])])
    indices = torch.randint(0, 7, (4, 7), dtype=torch.int32)
    got = neptune.compile(z, target="llvm")(x=a, at=indices)
    torch.testing.assert_close(got, a.gather(1, indices.amin(1, keepdim=True).long())[:, 0])


def test_ranges_of_functions():
    x = nb.placeholder((M, N))
    whole, part, several = (
        nb.compute((M,), lambda i: nb.sum(lambda j: x[i, j])),
        nb.compute((M,), lambda i: nb.sum(lambda j: x[i, j], (1, N))),
        nb.compute((1,), lambda i: nb.sum(lambda a, b: x[a, b], (M, (0, N)))),
    )
    assert [a.hi for a in whole.body.value.axes] == [N]
    assert [(a.lo.value, a.hi) for a in part.body.value.axes] == [(1, N)]
    assert [(a.name, a.hi) for a in several.body.value.axes] == [("a", M), ("b", N)]
    best = nb.compute((M,), lambda i: nb.argmax(lambda j: x[i, j], where=lambda j: j > 0))
    assert [t.name for t in best] == ["best_value", "best_index"]
    text = str(nb.build(whole))
    assert str(parse_program(text)) == text


@pytest.mark.parametrize(
    ("value", "axis", "said"),
    [
        (lambda x, _: lambda i: nb.sum(lambda j: 1.0), None, "nothing says how long `j` is"),
        (lambda x, y: lambda i: nb.sum(lambda j: x[i, j] * y[j]), None, "`j` indexes dimensions of n and m elements"),
        (lambda x, _: lambda i: nb.sum(lambda: x[i, 0]), None, "it takes no index"),
        (lambda x, _: lambda i: nb.sum(lambda j, k: x[j, k], N), None, "it takes 2 indices, and `axis` has one range"),
        (lambda x, _: lambda i: nb.sum(lambda j: x[i, j], 1.5), None, "not a length or"),
        (lambda x, _: lambda i: 1.0 + nb.sum(lambda j: nb.max(lambda k: x[j, k]), (1, M)), None, "no dimension of a"),
    ],
)
def test_what_is_refused(value, axis, said):
    x, y = nb.placeholder((M, N)), nb.placeholder((M,))
    with pytest.raises(ExpressionError, match=said.replace("(", r"\(")):
        nb.compute((M,), value(x, y))


def test_a_reduction_is_no_extent():
    x = nb.placeholder((M,), "int32")
    with pytest.raises(ExpressionError, match="has sum"):
        nb.placeholder((nb.sum(lambda j: x[j]),))


def test_entropy_of_rows_is_two_definitions():
    x = nb.placeholder((M, N))
    p = nb.softmax(x)
    entropy = nb.compute((M,), lambda i: -nb.sum(lambda j: p[i, j] * nb.log(p[i, j])))
    a = torch.randn(6, 40)
    kernel = neptune.compile(entropy, target="llvm")
    torch.testing.assert_close(kernel(a), torch.distributions.Categorical(logits=a).entropy())
    assert kernel.name == "entropy"


def test_equal_reductions_over_axes_of_other_lengths_are_two_stages():
    p = nb.var("p")
    x = nb.placeholder((N,))

    def weighted(at):
        return nb.sum(lambda k: x[k] * (at + 1))

    y = nb.compute((M,), lambda i: weighted(i) + nb.sum(lambda q: weighted(q), p))
    assert [str(b.shape[0]) for b in nb.build(y).temporaries if b.shape] == [str(M), str(p)]
    kernel = neptune.compile(y, target="llvm")
    for m, n in ((2, 5), (5, 2)):
        want = 4.0 * torch.arange(1, m + 1) + 4.0 * n * (n + 1) / 2
        assert torch.equal(kernel(torch.ones(4), m=m, p=n), want)


def test_what_exists_where_a_branch_is_taken_is_folded_there():
    p = nb.var("p")
    x, z, c = nb.placeholder((M, N)), nb.placeholder((p, N)), nb.placeholder((M, N), "int32")
    a, b, d = torch.rand(5, 3), torch.rand(2, 3), torch.full((5, 3), 60, dtype=torch.int32)
    shifted = nb.compute((M,), lambda i: nb.select(i > 0, nb.sum(lambda k: x[i - 1, k]), nb.sum(lambda k: x[M - 1, k])))
    assert torch.allclose(neptune.compile(shifted, target="llvm")(a), a.sum(1).roll(1))
    short = nb.compute((M,), lambda i: nb.select(i < p, nb.sum(lambda k: z[i, k]), nb.sum(lambda k: x[i, k])))
    want = torch.cat([b, a[2:]]).sum(1)
    assert torch.allclose(neptune.compile(short, target="llvm", inputs=[x, z])(a, b), want)
    # LLVM's division by 0 ends the process.
    shares = nb.compute((M,), lambda i: nb.select(i > 0, nb.sum(lambda k: c[i, k] // i), 0))
    assert neptune.compile(shares, target="llvm")(d).tolist() == [0, 180, 90, 60, 45]
    nested = nb.compute((), lambda: nb.sum(lambda i: nb.select(i > 0, nb.max(lambda k: x[i - 1, k]), 0.0), M))
    assert torch.allclose(neptune.compile(nested, target="llvm")(a), a[:-1].amax(1).sum())


def test_a_stage_over_a_range_that_may_be_empty_has_no_negative_length():
    x = nb.placeholder((N,))
    y = nb.compute((M,), lambda i: nb.sum(lambda q: nb.sum(lambda k: x[k] * q), N - 5))
    kernel = neptune.compile(y, target="llvm")
    for n in (9, 6, 5, 3, 1):
        assert torch.equal(kernel(torch.ones(n), m=2), torch.full((2,), float(n * sum(range(n - 5)))))


def test_functions_of_indices_are_asked_twice_at_most():
    calls = []
    x = nb.placeholder((M, N))
    nb.compute((M,), lambda i: nb.sum(lambda j: calls.append(j) or x[i, j]))
    assert len(calls) == 2
