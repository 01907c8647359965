"""A kernel as a custom operator of torch, `torch.ops.<namespace>.<name>`.

torch.compile, torch.export and AOTAutograd trace an operator without running it: they need its schema, and of results
the shapes, dtypes and strides for sizes that may be symbols. All of that is in a kernel's Signature. The operator
stands in torch's registry for the life of the process, as every operator of torch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch

from neptune.errors import InternalError, ShapeError
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Expr, Select, Var
from neptune.ir.integers import Integers
from neptune.ir.ops import INTEGER
from neptune.ir.text.printer import print_expr
from neptune.runtime.calls.arguments import Signature
from neptune.runtime.transforms import derivative_of

Implementation = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]
DEVICES = ("CPU", "CUDA")
UNTYPED: Any = torch
"""For functions that torch has no types of."""


@dataclass(frozen=True)
class Operator:
    """What is registered under a name: `content` tells one kernel from another; the library keeps it registered."""

    content: str
    library: Any


_DEFINED: dict[str, Operator] = {}


def define(
    qualified: str, content: str, signature: Signature, implementations: Mapping[str, Implementation]
) -> torch._ops.OpOverloadPacket:
    """The operator `namespace::name` of a kernel; the same one where it is there already with this content.

    `implementations`: a function for each of `DEVICES`. Raises ShapeError for a name that is none or is taken.
    """
    namespace, name = _parts(qualified)
    there = _DEFINED.get(qualified)
    if there is None:
        if torch._C._jit_get_schemas_for_operator(qualified):
            _refuse(qualified, "torch has an operator of this name already, which is not Neptune's")
        _DEFINED[qualified] = Operator(content, _registered(namespace, name, signature, implementations))
    elif there.content != content:
        _refuse(qualified, "another kernel has this name, and operators stay as they are", "a name of its own")
    operator: torch._ops.OpOverloadPacket = getattr(getattr(torch.ops, namespace), name)
    return operator


def schema(signature: Signature, name: str = "") -> str:
    """The operator's schema: tensors, then scalars, as in a call of the kernel.

    softmax(x: f32[rows, cols]) -> y: f32[rows, cols]    →    softmax(Tensor x) -> Tensor
    """
    p = signature.program
    kinds = ["Tensor"] * len(p.inputs) + ["float" if is_float(s.dtype) else "SymInt" for s in signature.free]
    # Names of schemas are ASCII, and torch binds `self` itself.
    names = [n if n.isascii() and n != "self" else f"argument{k}" for k, n in enumerate(signature.names)]
    takes = ", ".join(f"{kind} {n}" for kind, n in zip(kinds, names, strict=True))
    gives = "Tensor" if len(p.outputs) == 1 else f"({', '.join(['Tensor'] * len(p.outputs))})"
    return f"{name or p.name}({takes}) -> {gives}"


def fake_results(signature: Signature, args: Sequence[Any]) -> list[torch.Tensor]:
    """Results without data, on tensors without data: dense, of shapes that follow from those of `args`.

    Sizes may be symbols: what must be equal becomes a guard. Raises ShapeError for ranks and dtypes that do not fit.
    """
    p = signature.program
    tensors = args[: len(p.inputs)]
    env: dict[str, Any] = {s.name: v for s, v in zip(signature.free, args[len(p.inputs) :], strict=True)}
    for b, t in zip(p.inputs, tensors, strict=True):
        if t.dim() != len(b.shape) or t.dtype != getattr(torch, b.dtype):
            kind = f"argument `{b.name}` is {t.dtype} of {t.dim()} dimensions"
            raise ShapeError(
                f"call of kernel `{p.name}`",
                kind,
                legal=[f"torch.{b.dtype}, {len(b.shape)} dimensions"],
                where=str(signature),
            )
        env |= {d.name: n for d, n in zip(b.shape, t.shape, strict=True) if isinstance(d, Var) and d.name not in env}
    sizes = _Symbolic(env)
    for b, t in zip(p.inputs, tensors, strict=True):
        for k, (d, n) in enumerate(zip(b.shape, t.shape, strict=True)):
            wrong = f"call of kernel `{p.name}`: dimension {k} of argument `{b.name}` is not {print_expr(d)}"
            UNTYPED._check(sizes.of(d) == n, lambda wrong=wrong: wrong)
    return [tensors[0].new_empty(tuple(sizes.of(d) for d in b.shape), dtype=getattr(torch, b.dtype)) for b in p.outputs]


class _Symbolic(Integers[Any]):
    """Sizes that may be torch's symbols: nothing is asked of their values."""

    operators: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **INTEGER,
        "min": torch.sym_min,
        "max": torch.sym_max,
        "not": torch.sym_not,
    }

    def __init__(self, env: Mapping[str, Any]) -> None:
        self.env = env

    def number(self, value: int | float) -> Any:
        return int(value)

    def var(self, e: Var) -> Any:
        return self.env[e.name]

    def cast(self, e: Cast[Expr]) -> Any:
        return self.of(e.arg)

    def select(self, e: Select[Expr]) -> Any:
        return UNTYPED.sym_ite(self.of(e.pred), self.of(e.then), self.of(e.other))

    def other(self, e: Expr) -> Any:
        raise InternalError(f"the size {print_expr(e)} cannot be computed before the launch")


def _parts(qualified: str) -> tuple[str, str]:
    words = qualified.split("::") if isinstance(qualified, str) else []
    if len(words) != 2 or not all(w.isidentifier() and w.isascii() for w in words):
        _refuse(qualified, "this is no name of an operator", 'a namespace and a name, such as "mylib::attention"')
    return words[0], words[1]


def _registered(namespace: str, name: str, signature: Signature, implementations: Mapping[str, Implementation]) -> Any:
    if not signature.program.inputs:
        _refuse(f"{namespace}::{name}", "the kernel takes no tensor, by which torch would find its device")
    library = UNTYPED.library.Library(namespace, "FRAGMENT")
    library.define(schema(signature, name), tags=(torch.Tag.pt2_compliant_tag,))
    for device in DEVICES:
        library.impl(name, implementations[device], device)
    several = len(signature.program.outputs) > 1

    def fake(*args: Any) -> Any:
        results = fake_results(signature, args)
        return tuple(results) if several else results[0]

    torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    operator = getattr(getattr(torch.ops, namespace), name).default

    def without_gradients(keys: Any, *args: Any) -> Any:
        check_gradients(signature, args)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *args)

    library.impl(name, without_gradients, "Autograd", with_keyset=True)
    return library


def check_gradients(signature: Signature, args: Sequence[Any]) -> None:
    """Raise ShapeError where torch would have to differentiate the call."""
    for b, t in zip(signature.program.inputs, args, strict=False):
        if (derivative := derivative_of(t)) is not None:
            raise ShapeError(
                f"call of kernel `{signature.program.name}`",
                f"argument `{b.name}` {derivative.wrong}",
                hint=derivative.instead.format(b.name),
                where=str(signature),
            )


def _refuse(qualified: object, wrong: str, hint: str | None = None) -> NoReturn:
    raise ShapeError(f"torch_op({qualified!r:.80})", wrong, hint=hint)
