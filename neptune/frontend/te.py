"""Import TVM tensor expressions.

The bodies of the `te.compute`s are read directly and become the builder's tensors, so both front ends share
names, input order and everything else of `neptune.frontend.assemble`. (`te.create_prim_func` would drop
`where=` and `init=` of a reduction.) Names that TE leaves ambiguous get a suffix: two stages `compute` become
`compute` and `compute_1`; a size that shares a stage's name is renamed, the stage keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import te, tirx

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend import builder, reductions
from neptune.frontend.assemble import Reduction, Tensor, TupleReduction, build
from neptune.frontend.te_choices import Choice, finite, folded_choice
from neptune.frontend.tvm_expr import COMBINERS, Names, Scope, known_dtype
from neptune.ir.expr import TRUE, Expr, Var
from neptune.ir.program import Program


@public
def from_te(
    tensors: te.Tensor | Sequence[te.Tensor],
    inputs: Sequence[te.Tensor | tirx.Var] | None = None,
    name: str | None = None,
) -> Program:
    """The Program of one or several `te.Tensor`s.

    Takes static and symbolic shapes (sizes become int32), chains of `te.compute`, the reductions sum, max, min
    and prod over any axes with `where=` and `init=`, argmax and argmin (a `te.comm_reducer` that keeps the first
    of equal values, at its position), integer tensors in indices, and `te.var`s as trailing scalar arguments.
    `inputs` and `name` are those of `neptune.frontend.builder.build`.

    Before: `y = te.compute((m,), lambda i: te.sum(x[i, j], axis=j), name="y")`; after:
    `for i in [0, m): for j in [0, n): y: y[i] += x[i, j] init 0.0`.

    Raises ExpressionError, naming the stage and the node, for anything else.
    """
    outputs = tensors if isinstance(tensors, Sequence | tvm.ir.Array) else [tensors]
    for k, t in enumerate(outputs):
        if not isinstance(t, te.Tensor):
            raise ExpressionError("importing tensor expressions", f"output {k} is {type(t).__name__}, not a te.Tensor")
    importer = _Importer()
    importer.reserve(outputs)
    results = [importer.tensor(t) for t in outputs]
    args = None if inputs is None else [importer.argument(k, x) for k, x in enumerate(inputs)]
    importer.check_scalars()
    return build(results, args, name)


@dataclass
class _Importer(Names):
    """The tensors and names imported so far."""

    tensors: dict[tuple[Any, int], Tensor] = field(default_factory=dict)

    def reserve(self, outputs: Sequence[te.Tensor]) -> None:
        """Name every stage before any size, producers first."""
        for t in outputs:
            if t.op not in self.names:
                self.reserve(t.op.input_tensors)
                self.name(t.op, t.op.name)

    def argument(self, k: int, x: Any) -> Tensor | Var:
        """One entry of the user's `inputs`."""
        if isinstance(x, te.Tensor):
            return self.tensor(x)
        if isinstance(x, tirx.Var):
            return self.scalar(x, "inputs")
        raise ExpressionError(
            "importing tensor expressions", f"input {k} is {type(x).__name__}, not a tensor or te.var"
        )

    def tensor(self, t: Any) -> Tensor:
        """A placeholder or a stage, with everything that it reads."""
        if (t.op, t.value_index) not in self.tensors:
            results = self._tensors(t)
            self.tensors |= {(t.op, k): result for k, result in enumerate(results)}
        return self.tensors[t.op, t.value_index]

    def _tensors(self, t: Any) -> tuple[Tensor, ...]:
        """All results of the operation behind `t`."""
        name = self.name(t.op, t.op.name)
        request = f"importing stage `{name}`"
        scope = _Scope(self, name, self.tensor)
        if isinstance(t.op, te.PlaceholderOp):
            return (Tensor(name, scope.shape(t.shape), known_dtype(request, name, t.dtype)),)
        if not isinstance(t.op, te.ComputeOp):
            kind = type(t.op).__name__
            raise ExpressionError(request, f"`{kind}` is not supported", legal=("te.placeholder", "te.compute"))
        pairs = all(isinstance(e, te.Reduce) for e in t.op.body)
        if len(t.op.body) != 1 and not pairs:
            raise ExpressionError(
                request, f"a stage has one value, not {len(t.op.body)}", hint="one te.compute for each"
            )
        axes = scope.bind(t.op.axis)
        separate = [combining(e.combiner, c) for c, e in enumerate(t.op.body)] if pairs else []
        if len(separate) > 1 and all(separate):
            names = [self.name((t.op, c), f"{name}_v{c}") for c in range(len(separate))]
            parts = [scope.reduction(e, c) for c, e in enumerate(t.op.body)]
            return tuple(builder.define(n, scope.shape(t.shape), axes, v) for n, v in zip(names, parts, strict=True))
        if len(t.op.body) != 1:
            choice, folded = scope.choice(t.op.body[0])
            family = builder.define_family(name, scope.shape(t.shape), axes, folded)
            return family if choice.value == 0 else family[::-1]
        value = scope.body(t.op.body[0])
        shape = scope.shape(t.shape)
        return (builder.define(name, shape, axes, value),)


class _Scope(Scope):
    """The translation of one `te.compute`."""

    def body(self, e: Any) -> Expr | Reduction:
        """A stage's value: an expression, or one reduction."""
        return self.reduction(e) if isinstance(e, te.Reduce) else self.expr(e)

    def reduction(self, e: Any, component: int = 0) -> Reduction:
        """A component of a `te.Reduce`, with the `where=` and `init=` that TVM's own lowering drops."""
        reducer = combining(e.combiner, component)
        if reducer is None:
            folds = ", ".join(COMBINERS.values())
            raise self.refuse("a reduction with its own combiner", f"only {folds} are supported")
        axes = self.bind(e.axis)
        condition = self.expr(e.condition)
        start = (
            self.expr(e.init[component]) if len(e.init) else finite(self.expr(e.combiner.identity_element[component]))
        )
        return self.checked(
            e,
            lambda: reductions.reduction(
                reducer, self.expr(e.source[component]), axes, None if condition == TRUE else condition, start
            ),
        )

    def choice(self, e: Any) -> tuple[Choice, TupleReduction]:
        """A `te.Reduce` of pairs that is an argmax or argmin, and which component the value is."""
        starts = e.init if len(e.init) else e.combiner.identity_element
        return folded_choice(self, e.combiner, e.source, self.bind(e.axis), [self.expr(x) for x in starts], e.condition)


def combining(combiner: Any, component: int) -> str | None:
    """The reducer of one component of a combiner, where that folds just its own two arguments.

    (a0, a1), (b0, b1) → (a0 + b0, max(a1, b1)): "sum" of component 0, "max" of component 1.
    """
    result, pair = combiner.result[component], (combiner.lhs[component], combiner.rhs[component])
    reducer = COMBINERS.get(type(result))
    if reducer is None:
        return None
    direct = result.a.same_as(pair[0]) and result.b.same_as(pair[1])
    return reducer if direct or (result.a.same_as(pair[1]) and result.b.same_as(pair[0])) else None
