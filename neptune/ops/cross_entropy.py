"""Cross-entropy and log-sum-exp, of logits and of a linear layer whose logits need not be stored.

The templates `flash_attention` and `flash_decoding` (which spreads the classes over the GPU) never store the logits of
a linear layer, whatever its depth. A plain compile takes what the model finds fastest, which for a long depth is to
store them: 2 GB for 4096 rows of 128256 classes. Ask for a template where that memory is not there.

Logits are [rows, cols], a column a class. Targets are class indices, [rows] of `targets` (int64 as torch's, or int32);
the result is the loss of each row in float32, as `reduction="none"` gives it: a mean is over the rows that count.
With a target that is neither a class nor `ignore_index`, which torch refuses, no logit is the chosen one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.builder import Tensor, build, compute, eq, log, placeholder, reduce_axis, select, sum, tanh, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.options import check_choice, check_counts, check_dtype, check_factors, check_flags
from neptune.ops.parts import COLS, ROWS, Cell, cells, exponentials, matrix, per_row, vector, wide


@public
def cross_entropy(
    dtype: str = "float32",
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = -100,
    targets: str = "int64",
) -> Program:
    """loss = log Σ exp(x) - x[t] along each row of the logits; x: [rows, cols] of `dtype`, t: [rows], loss: f32[rows].

    `label_smoothing` ε in [0, 1]: loss = log Σ exp(x) - (1 - ε) x[t] - ε mean(x). `ignore_index`: the loss of rows with
    this target is 0; None: of no row. Stages: m, e, l, chosen, with smoothing total, loss. Raises ExpressionError for
    another dtype of logits or targets, and for a smoothing outside [0, 1].
    """
    name = "cross_entropy"
    check_dtype(name, dtype, "logits")
    x, t = matrix("x", dtype=dtype), _targets(name, targets)
    loss = _loss(name, lambda i, j: wide(x[i, j]), t, label_smoothing, ignore_index)
    return build(loss, inputs=[x, t], name=name)


@public
def linear_cross_entropy(
    dtype: str = "float16",
    *,
    depth: int | None = None,
    bias: bool = False,
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = -100,
    targets: str = "int64",
) -> Program:
    """`cross_entropy` of the logits x wᵀ + bias, which are summed in float32 and not rounded: see above for which
    templates never store them.

    x: [rows, depth], w: [cols, depth] as nn.Linear has it, bias: [cols] (with `bias`), all of `dtype`; t: [rows], loss:
    f32[rows]. `depth` is a number, or None for a symbolic one. `softcap` c: logits c·tanh(logit/c), as Gemma's. The
    others as in `cross_entropy`. Stages: s (the product), with bias or softcap score, m, e, l, chosen, loss.
    """
    name = "linear_cross_entropy"
    check_flags(name, {"bias": bias})
    x, w, s = _logits(name, dtype, depth)
    t, b = _targets(name, targets), vector("bias", dtype) if bias else None
    check_factors(name, {"softcap": softcap})
    value: Cell = lambda i, j: s[i, j]  # noqa: E731
    if b is not None or softcap is not None:
        score = cells(lambda i, j: _capped(s[i, j] if b is None else s[i, j] + wide(b[j]), softcap), "score")
        value = lambda i, j: score[i, j]  # noqa: E731
    loss = _loss(name, value, t, label_smoothing, ignore_index)
    return build(loss, inputs=[x, w, *([] if b is None else [b]), t], name=name)


@public
def linear_logsumexp(dtype: str = "float16", *, depth: int | None = None) -> Program:
    """y = log Σ exp of each row of the logits x wᵀ; what is stored is said above.

    x: [rows, depth], w: [cols, depth], of `dtype`, y: f32[rows]; `depth` as in `linear_cross_entropy`. Stages: s, m, e,
    l, y. With a logit of inf y is NaN: to tell it apart would cost each logit an operation. Raises ExpressionError for
    another dtype, or a depth below 1.
    """
    x, w, s = _logits("linear_logsumexp", dtype, depth)
    m, _, l = exponentials(lambda i, j: s[i, j])  # noqa: E741 (the field's name)
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "y"), inputs=[x, w], name="linear_logsumexp")


def _logits(name: str, dtype: str, depth: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """x, w and their product s[i, j] = Σ x[i, d] w[j, d]."""
    check_dtype(name, dtype, "a product")
    check_counts(name, {} if depth is None else {"depth": depth})
    n: Any = var("depth") if depth is None else depth
    x, w = matrix("x", ROWS, n, dtype), matrix("w", COLS, n, dtype)
    d = reduce_axis((0, n), "d")
    return x, w, cells(lambda i, j: sum(wide(x[i, d]) * wide(w[j, d]), axis=d), "s")


def _capped(x: Expr, cap: float | None) -> Expr:
    return x if cap is None else tanh(x * (1 / cap)) * cap


def _targets(name: str, dtype: str) -> Tensor:
    check_choice(name, "targets", dtype, ("int64", "int32"))
    return placeholder((ROWS,), dtype, "t")


def _loss(name: str, x: Cell, t: Tensor, smoothing: float, ignored: int | None) -> Tensor:
    check_factors(name, {"label_smoothing": smoothing})
    if smoothing is None or not 0 <= smoothing <= 1:
        raise ExpressionError(name, f"label_smoothing is {smoothing}: it is a share", hint="a number from 0 to 1")
    if ignored is not None and (isinstance(ignored, bool) or not isinstance(ignored, int)):
        raise ExpressionError(name, f"ignore_index = {ignored!r:.60} is not a Python integer", hint="None: no row")
    m, _, l = exponentials(x)  # noqa: E741
    chosen = per_row(sum, lambda i, j: select(eq(j, t[i]), x(i, j), 0), "chosen")
    target: Callable[[Expr], Expr] = lambda i: chosen[i]  # noqa: E731
    if smoothing:
        total = per_row(sum, x, "total")
        share = smoothing / COLS.astype("float32")
        target = lambda i: chosen[i] * (1 - smoothing) + total[i] * share  # noqa: E731

    def loss(i: Expr) -> Expr:
        # The two that may both be large go first: their difference is what the loss is made of.
        value = m[i] - target(i) + log(l[i])
        return value if ignored is None else select(eq(t[i], ignored), 0, value)

    return compute((ROWS,), loss, "loss")
