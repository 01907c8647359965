"""Typed functions: `neptune.compile` and `neptune.jit` of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import neptune
import neptune.frontend.builder as nb
from neptune.errors import ExpressionError
from neptune.frontend.typed import is_typed


def entropy(x: f32[rows, cols]):  # noqa: F821
    p = nb.softmax(x)
    return nb.compute(x.shape[:1], lambda i: -nb.sum(lambda j: p[i, j] * nb.log(p[i, j])))


def scaled(x: float16[n, 2 * n], scale: f32, other: i32[n, 4]):  # noqa: F821
    y = nb.compute(x.shape, lambda i, j: (x[i, j].astype("float32") * scale).astype("float16"))
    z = nb.compute(other.shape, lambda i, j: other[i, j] + 1)
    return y, z


def of(annotation):
    def f(x):
        return nb.compute(x.shape, lambda *i: x[i])

    f.__annotations__["x"] = annotation
    return f


def test_a_typed_function_is_an_expression():
    a = torch.randn(5, 9)
    kernel = neptune.compile(entropy, target="llvm")
    assert (kernel.name, kernel.inputs) == ("entropy", ("x",))
    torch.testing.assert_close(kernel(a), torch.distributions.Categorical(logits=a).entropy())


def test_scalars_expressions_and_several_results():
    x, other = torch.randn(3, 6).half(), torch.arange(12, dtype=torch.int32).view(3, 4)
    kernel = neptune.compile(scaled, target="llvm")
    function = neptune.jit(scaled, target="llvm")
    for y, z in (kernel(x, other, 0.5), function(x, 0.5, other), function(x, scale=0.5, other=other)):
        assert torch.equal(y, x * 0.5) and torch.equal(z, other + 1)


def test_what_jaxtyping_says():
    annotation = SimpleNamespace(dim_str="rows 4", dtypes=["float32"])
    kernel = neptune.compile(of(annotation), target="llvm")
    assert str(kernel) == "<neptune.Kernel f(x: float32[rows, 4]) -> compute: float32[rows, 4] for llvm>"


def test_jit_compiles_once_and_takes_options():
    calls = []

    @neptune.jit(target="llvm", name="doubled", strict=True)
    def double(x: f32[n]):  # noqa: F821
        calls.append(x)
        return nb.compute(x.shape, lambda i: x[i] * 2.0)

    assert double.__name__ == "double" and repr(double) == "<neptune.jit double>" and not calls
    for n in (1, 5):
        x = torch.randn(n)
        assert torch.equal(double(x), 2 * x) and torch.equal(double(x=x), 2 * x)
    assert len(calls) == 1 and double.kernel.name == "doubled"
    with pytest.raises(TypeError, match="unexpected keyword argument 'sharp'"):
        neptune.jit(sharp=True)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("f33[n]", "annotated with f33.n.: no dtype and shape"),
        (int, "annotated with <class 'int'>"),
        ("f32[n", "no dtype and shape"),
        ("f32[n + ]", "the dimension `n .` of `x` is no size"),
        ("f32[1.5]", "the dimension `1.5` of `x` is no size"),
        ("f32[-1]", "negative"),
    ],
)
def test_what_is_refused(annotation, said):
    with pytest.raises(ExpressionError, match=said):
        neptune.compile(of(annotation), target="llvm")


def test_functions_that_are_not_typed():
    assert not is_typed(lambda x: x) and not is_typed(3) and is_typed(entropy)
    with pytest.raises(ExpressionError, match="its parameters do not all say what they are"):
        neptune.jit(lambda x: x)
    with pytest.raises(ExpressionError, match="it is no function"):
        neptune.jit(3)
    nothing = of("f32[n]")
    nothing.__code__ = (lambda x: None).__code__
    with pytest.raises(ExpressionError, match="it returns nothing"):
        neptune.compile(nothing, target="llvm")


def test_scalars_that_are_not_read_are_taken_and_defaults_are_filled_in():
    @neptune.jit(target="llvm")
    def f(a: f32, x: f32[n], b: f32, *, c: f32 = 10.0):  # noqa: F821
        return nb.compute(x.shape, lambda i: x[i] * b + c)

    x = torch.ones(3)
    assert f(7.0, x, 2.0).tolist() == f(b=2.0, a=7.0, x=x).tolist() == [12.0] * 3
    assert f(7.0, x, 2.0, c=1.0).tolist() == [3.0] * 3
    with pytest.raises(TypeError, match="takes 4 arguments, and 5"):
        f(7.0, x, 2.0, 3.0, 4.0)
    with pytest.raises(TypeError, match="got `x` twice"):
        f(7.0, x, 2.0, x=x)


def test_several_functions_are_no_expression():
    with pytest.raises(ExpressionError, match="list of function"):
        neptune.compile([entropy, entropy], target="llvm")
