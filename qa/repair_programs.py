"""Chains of reductions in one pass: what the repairs are for beyond attention, each with a float64 reference.

`PROGRAMS` has one row a chain; the numerical tests run them on every target, and a replay records how each is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from neptune import FusionError, Program, Schedule
from neptune.frontend import builder as te
from neptune.frontend.builder import (
    Tensor,
    build,
    compute,
    exp,
    log,
    placeholder,
    pow,
    reduce_axis,
    sqrt,
    tanh,
    top_k,
    var,
)
from neptune.ir.expr import Expr

Outputs = Sequence[torch.Tensor]
ALPHA, BETA = 0.5, 0.25
R, N, G = var("r"), var("n"), 5


@dataclass(frozen=True)
class Chain:
    """`program` in float32; `reference` computes its outputs from float64 inputs; `scales`: what inputs are tried."""

    program: Callable[[], Program]
    reference: Callable[..., Outputs]
    scales: tuple[float, ...] = (1.0, 30.0, 1000.0)
    infinite: bool = True
    template: str = "softmax_online"


def _matrix(name: str) -> Tensor:
    return placeholder((R, N), "float32", name)


def _row(value: Callable[[Expr, Expr], Expr], name: str, fold: Callable[..., te.Reduction] = te.sum) -> Tensor:
    j = reduce_axis((0, N), "j")
    return compute((R,), lambda i: fold(value(i, j), axis=j), name)


def _softmax(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, e and l of a softmax over rows."""
    m = _row(lambda i, j: x[i, j], "m", te.max)
    e = compute((R, N), lambda i, j: exp(x[i, j] - m[i]), "e")
    return m, e, _row(lambda i, j: e[i, j], "l")


# --- choices and order ---------------------------------------------------------------------------


def route(k: int) -> Program:
    """The k most probable experts and their probabilities, from logits in one pass."""
    x = _matrix("x")
    _, e, l = _softmax(x)  # noqa: E741
    p = compute((R, N), lambda i, j: e[i, j] / l[i], "p")
    j = reduce_axis((0, N), "j")
    best = compute((R,), lambda i: top_k(p[i, j], k, axis=j), "best")
    return build(list(best), inputs=[x], name="route")


def _route(k: int, x: torch.Tensor) -> Outputs:
    # The order before rounding: far from the maximum probabilities underflow to equal ones.
    at = x.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return [*torch.softmax(x, -1).gather(-1, at).unbind(-1), *at.unbind(-1)]


def farthest() -> Program:
    """max of log(exp(c) + r) and of tanh(c - r), min of r / (exp(c) + r), in which c falls."""
    x = _matrix("x")
    m, _, l = _softmax(x)  # noqa: E741
    outputs = [
        _row(lambda i, j: log(exp(tanh(x[i, j])) + l[i]), "soft", te.max),
        _row(lambda i, j: tanh(x[i, j] - m[i]), "gate", te.max),
        _row(lambda i, j: l[i] / (exp(tanh(x[i, j])) + l[i]), "share", te.min),
    ]
    return build(outputs, inputs=[x], name="farthest")


def _farthest(x: torch.Tensor) -> Outputs:
    e = torch.exp(x - x.amax(-1, True))
    l = e.sum(-1, True)  # noqa: E741
    soft = torch.log(torch.exp(torch.tanh(x)) + l).amax(-1)
    share = (l / (torch.exp(torch.tanh(x)) + l)).amin(-1)
    return [soft, torch.tanh(x - x.amax(-1, True)).amax(-1), share]


def powers() -> Program:
    """Π c^r with r = 1/Σ|x|, a weighted geometric mean."""
    x = _matrix("x")
    l = _row(lambda i, j: te.abs(x[i, j]) + 1.0, "l")  # noqa: E741
    t = _row(lambda i, j: pow(te.abs(x[i, j]) + 0.5, 1.0 / l[i]), "t", te.prod)
    return build([t, l], inputs=[x], name="powers")


def _powers(x: torch.Tensor) -> Outputs:
    l = (x.abs() + 1).sum(-1)  # noqa: E741
    return [torch.exp(torch.log(x.abs() + 0.5).sum(-1) / l), l]


# --- several predecessors --------------------------------------------------------------------------


def performers() -> Program:
    """The paper's three patterns, with what it calls β·c2 >= 0 as in Performers, where it is half a square."""
    x, w, u = (_matrix(n) for n in "xwu")
    m, _, l = _softmax(x)  # noqa: E741
    outputs = [
        _row(lambda i, j: ALPHA * exp(x[i, j] - m[i] - BETA * w[i, j] * w[i, j]), "g1"),
        _row(lambda i, j: ALPHA * u[i, j] * exp(x[i, j] - m[i] - BETA * w[i, j] * w[i, j]), "g2"),
        _row(lambda i, j: ALPHA * exp(x[i, j] - m[i] - BETA * te.abs(w[i, j] * u[i, j])) / l[i], "g3"),
    ]
    return build(outputs, inputs=[x, w, u], name="performers")


def _performers(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> Outputs:
    m = x.amax(-1, True)
    l = torch.exp(x - m).sum(-1, True)  # noqa: E741
    score = torch.exp(x - m - BETA * w * w)
    third = torch.exp(x - m - BETA * (w * u).abs()) / l
    return [(ALPHA * score).sum(-1), (ALPHA * u * score).sum(-1), (ALPHA * third).sum(-1)]


def chain_of_five() -> Program:
    """m → l → the mean under the softmax → what depends on it, twice; five results read by others or returned."""
    x, w = _matrix("x"), _matrix("w")
    m, e, l = _softmax(x)  # noqa: E741
    mean = _row(lambda i, j: e[i, j] / l[i] * w[i, j], "mean")
    outputs = [
        _row(lambda i, j: e[i, j] / l[i] * tanh(w[i, j]) * mean[i], "twice"),
        _row(lambda i, j: tanh(w[i, j] - mean[i]), "far", te.max),
        mean,
        compute((R,), lambda i: m[i] + log(l[i]), "lse"),
        m,
    ]
    return build(outputs, inputs=[x, w], name="chain_of_five")


def _chain_of_five(x: torch.Tensor, w: torch.Tensor) -> Outputs:
    p = torch.softmax(x, -1)
    mean = (p * w).sum(-1)
    return [
        mean * (p * torch.tanh(w)).sum(-1),
        torch.tanh(w - mean[:, None]).amax(-1),
        mean,
        torch.logsumexp(x, -1),
        x.amax(-1),
    ]


def from_infinity() -> Program:
    """A softmax whose maximum starts from -inf, as it is often written by hand, and a minimum from inf."""
    x, w = _matrix("x"), _matrix("w")
    m = _row(lambda i, j: x[i, j], "m", partial(te.max, init=float("-inf")))
    e = compute((R, N), lambda i, j: exp(x[i, j] - m[i]), "e")
    l = _row(lambda i, j: e[i, j], "l")  # noqa: E741
    low = _row(lambda i, j: w[i, j], "low", partial(te.min, init=float("inf")))
    outputs = [_row(lambda i, j: e[i, j] / l[i] * w[i, j], "o"), l, m, _row(lambda i, j: exp(low[i] - w[i, j]), "u")]
    return build(outputs, inputs=[x, w], name="from_infinity")


def _from_infinity(x: torch.Tensor, w: torch.Tensor) -> Outputs:
    m, low = x.amax(-1), w.amin(-1)
    e = torch.exp(x - m[:, None])
    return [(torch.softmax(x, -1) * w).sum(-1), e.sum(-1), m, torch.exp(low[:, None] - w).sum(-1)]


def pairs() -> Program:
    """Maximum and sum of exponentials as one reduction of pairs, and a mean under the softmax that follows it."""
    x, w, j = _matrix("x"), _matrix("w"), reduce_axis((0, N), "j")
    m, l = compute((R,), lambda i: te.max_sumexp(x[i, j], axis=j), "s")  # noqa: E741
    lse = compute((R,), lambda i: m[i] + log(l[i]), "lse")
    mean = _row(lambda i, j: exp(x[i, j] - (m[i] + log(l[i]))) * w[i, j], "mean")
    return build([mean, lse], inputs=[x, w], name="pairs")


def _pairs(x: torch.Tensor, w: torch.Tensor) -> Outputs:
    return [(torch.softmax(x, -1) * w).sum(-1), torch.logsumexp(x, -1)]


def greedy() -> Program:
    """The most probable token and its probability: what an argmax found is the maximum of a softmax."""
    x, j = _matrix("x"), reduce_axis((0, N), "j")
    m, at = compute((R,), lambda i: te.argmax(x[i, j], axis=j), "best")
    l = _row(lambda i, j: exp(x[i, j] - m[i]), "l")  # noqa: E741
    return build([compute((R,), lambda i: 1.0 / l[i], "p"), at], inputs=[x], name="greedy")


def _greedy(x: torch.Tensor) -> Outputs:
    return [torch.softmax(x, -1).amax(-1), x.argmax(-1)]


def scores() -> Program:
    """The best of the logarithms of shares with a bonus each: log(w / l) + u, which structure does not gather."""
    x, u = _matrix("x"), _matrix("u")
    l = _row(lambda i, j: te.abs(x[i, j]) + 0.5, "l")  # noqa: E741
    best = _row(lambda i, j: log((te.abs(x[i, j]) + 0.5) / l[i]) + u[i, j], "best", te.max)
    return build([best, l], inputs=[x, u], name="scores")


def _scores(x: torch.Tensor, u: torch.Tensor) -> Outputs:
    weight = x.abs() + 0.5
    total = weight.sum(-1)
    return [(torch.log(weight / total[:, None]) + u).amax(-1), total]


# --- several axes ----------------------------------------------------------------------------------


def two_axes() -> Program:
    """A softmax over two axes at once, a mean under it, and a Frobenius norm with what is divided by it."""
    x, w = (placeholder((R, G, N), "float32", n) for n in "xw")

    def over(
        value: Callable[[Expr, Expr, Expr], Expr], name: str, fold: Callable[..., te.Reduction] = te.sum
    ) -> Tensor:
        k, j = reduce_axis((0, G), "k"), reduce_axis((0, N), "j")
        return compute((R,), lambda i: fold(value(i, k, j), axis=[k, j]), name)

    m = over(lambda i, k, j: x[i, k, j], "m", te.max)
    l = over(lambda i, k, j: exp(x[i, k, j] - m[i]), "l")  # noqa: E741
    mean = over(lambda i, k, j: exp(x[i, k, j] - m[i]) / l[i] * w[i, k, j], "mean")
    square = over(lambda i, k, j: x[i, k, j] * x[i, k, j], "square")
    cosine = over(lambda i, k, j: x[i, k, j] / sqrt(square[i] + 1e-6) * w[i, k, j], "cosine")
    return build([mean, cosine], inputs=[x, w], name="two_axes")


def _two_axes(x: torch.Tensor, w: torch.Tensor) -> Outputs:
    p = torch.softmax(x.flatten(1), -1)
    norm = torch.sqrt((x * x).sum((1, 2)) + 1e-6)
    return [(p * w.flatten(1)).sum(-1), (x * w).sum((1, 2)) / norm]


PROGRAMS: dict[str, Chain] = {
    "softmax, top 3": Chain(partial(route, 3), partial(_route, 3)),
    "softmax, top 1": Chain(partial(route, 1), partial(_route, 1)),
    "order": Chain(farthest, _farthest),
    "from -inf": Chain(from_infinity, _from_infinity),
    "pairs": Chain(pairs, _pairs),
    "greedy": Chain(greedy, _greedy),
    "scores": Chain(scores, _scores, infinite=False),
    "powers": Chain(powers, _powers, infinite=False),
    "Performers": Chain(performers, _performers, scales=(1.0, 3.0), infinite=False),
    "chain of five": Chain(chain_of_five, _chain_of_five, infinite=False),
    "two axes": Chain(two_axes, _two_axes, scales=(1.0, 30.0), infinite=False),
}


# --- what is refused ---------------------------------------------------------------------------------


def _over(g: Callable[[Expr, Expr], Expr], of: str = "max", fold: Callable[..., te.Reduction] = te.sum) -> Program:
    """t = fold over j of g(x, m), m being the maximum, the sum or the largest absolute value of x."""
    x = _matrix("x")
    folds: dict[str, Callable[..., te.Reduction]] = {
        "max": te.max,
        "sum": te.sum,
        "abs": lambda e, axis: te.max(te.abs(e), axis=axis),
    }
    m = _row(lambda i, j: x[i, j], "m", folds[of])
    return build(_row(lambda i, j: g(x[i, j], m[i]), "t", fold), inputs=[x], name="p")


REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "Σ|c - mean|": (lambda: _over(lambda c, r: te.abs(c - r / N.astype("float32")), "sum"), "abs of a sum"),
    "Σ sin(r c)": (lambda: _over(lambda c, r: te.sin(c * r)), "sin mixes r and c"),
    "Σ tanh(c - r)": (lambda: _over(lambda c, r: tanh(c - r)), "tanh mixes r and c"),
    "max r c, sign unknown": (lambda: _over(lambda c, r: c * r, fold=te.max), "the sign of r is unknown"),
    "max log(e^c + r), sign unknown": (
        lambda: _over(lambda c, r: log(exp(c) + r), fold=te.max),
        "log rises or falls where its argument is positive",
    ),
    "Π c^r, sign unknown": (lambda: _over(lambda c, r: pow(c, r), fold=te.prod), "not known to be positive"),
    "quantise to int8 under a running scale": (
        lambda: _over(lambda c, r: te.round(c / r * 127.0).astype("int8").astype("float32"), "abs"),
        "rounds in absolute steps",
    ),
    "Σ int(exp(c - r))": (
        lambda: _over(lambda c, r: (exp(c - r) * 127.0).astype("int32").astype("float32")),
        "rounds in absolute steps",
    ),
    "max exp(c - r) sin c": (
        lambda: _over(lambda c, r: exp(c - r) * te.sin(c), fold=te.max),
        "turns the identity of max into 0",
    ),
    "Σ exp(c - r), r a sum": (lambda: _over(lambda c, r: exp(c - r), "sum"), "may overflow at an intermediate value"),
}
"""Name → a program whose `t` has no repair in the loop of `m`, and what the reason says."""


def refusal(name: str) -> str:
    """The message of a refusal; the schedule must be, as a text, what it was before."""
    sch = Schedule(REFUSED[name][0]())
    before = str(sch.program), str(sch.trace), sch.decisions
    try:
        sch.rolling_update("t", sch.loops("m")[1])
    except FusionError as error:
        if before != (str(sch.program), str(sch.trace), sch.decisions):
            raise AssertionError(f"{name}: a refused request changed the schedule") from error
        return str(error)
    raise AssertionError(f"{name}: not refused")
