"""A function on tensors as an operator of torch, `torch.ops.neptune.<name>`.

    @operator
    def softmax(input: Tensor, dim: int = -1) -> Tensor: ...

A call on plain tensors runs the function. Where torch traces (torch.compile, torch.export, fake tensors) it calls the
operator, whose schema is the function's signature and whose fake results are the function itself on tensors without
data: `kernels.run` gives shapes there, in place of launching.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from neptune.boundary import public
from neptune.errors import ShapeError
from neptune.runtime.custom_op import DEVICES, UNTYPED

NAMESPACE = "neptune"
LIBRARY = UNTYPED.library.Library(NAMESPACE, "FRAGMENT")
PLAIN = (torch.Tensor, torch.nn.Parameter)
SERVED = ("cuda", "cpu", "meta")
Function = TypeVar("Function", bound=Callable[..., Any])


def register(name: str, schema: str, function: Callable[..., Any], shown: str | None = None) -> Any:
    """Make a function the operator `torch.ops.neptune.<name>`, on all devices and on tensors without data; its one
    overload. `shown`: the name that errors give it."""
    LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for device in DEVICES:
        LIBRARY.impl(name, function, device)
    UNTYPED.library.register_fake(f"{NAMESPACE}::{name}", function, lib=LIBRARY)
    overload = getattr(torch.ops.neptune, name).default

    def without_gradients(keys: Any, *args: Any, **named: Any) -> Any:
        refuse_gradients(shown or name, [*args, *named.values()])
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & torch._C._after_autograd_keyset, *args, **named)

    LIBRARY.impl(name, without_gradients, "Autograd", with_keyset=True)
    return overload


def operator(function: Function) -> Function:
    """Register a function on tensors under its name; what is returned chooses between the two at each call."""
    name, signature = function.__name__, inspect.signature(function, eval_str=True)
    overload = register(name, UNTYPED.library.infer_schema(function, mutates_args=()), function)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return overload(*args, **named)
        given = check_arguments(name, signature, args, named)
        if not is_plain(given.values()):
            return overload(*args, **named)
        check_tensors(name, given)
        return function(*args, **named)

    return public(call)  # type: ignore[return-value]


def check_arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name. Raises ShapeError for those that are missing, and for what is no tensor."""
    try:
        given = signature.bind(*args, **named).arguments
    except TypeError as error:
        refused = f"neptune.functional.{name}"
        raise ShapeError(refused, str(error), legal=[", ".join(signature.parameters)]) from None
    for argument, value in given.items():
        if signature.parameters[argument].annotation is torch.Tensor and not isinstance(value, torch.Tensor):
            wrong = f"`{argument}` is {type(value).__name__} {value!r:.40}"
            raise ShapeError(f"neptune.functional.{name}", wrong, legal=["a torch.Tensor"])
    refuse_nested(name, given)
    return given


def refuse_nested(name: str, given: dict[str, Any]) -> None:
    """Raise ShapeError for a nested tensor, whose rows have lengths of their own."""
    for argument, t in given.items():
        if isinstance(t, torch.Tensor) and t.is_nested:
            raise ShapeError(
                f"neptune.functional.{name}",
                f"`{argument}` is a nested tensor",
                legal=["a dense tensor"],
                hint="torch.nested.to_padded_tensor(t, 0.0), with a mask of the lengths; or t.unbind() one by one",
            )


def is_plain(given: Iterable[Any]) -> bool:
    """True where no tensor is one of a tracer's or a transformation's."""
    return all(type(t) in PLAIN for t in _tensors(given)) and not torch._C._functorch.maybe_current_level()


def check_tensors(name: str, given: dict[str, Any]) -> None:
    """Raise ShapeError for tensors on several devices, or that require gradients."""
    first: tuple[str, torch.device] | None = None
    for argument, value in given.items():
        for t in _tensors([value]):
            first = first or (argument, t.device)
            if t.device.type not in SERVED:
                wrong = f"`{argument}` is on {t.device}"
                raise ShapeError(f"neptune.functional.{name}", wrong, legal=["cuda", "cpu"])
            if t.device != first[1]:
                raise ShapeError(
                    f"neptune.functional.{name}",
                    f"`{first[0]}` is on {first[1]}, `{argument}` on {t.device}",
                    hint=f'{argument}.to("{first[1]}")',
                )
    refuse_gradients(name, given.values())


def refuse_gradients(name: str, given: Iterable[Any]) -> None:
    """Raise ShapeError where torch would have to record the call for a backward pass: there is none yet."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(given)):
        raise ShapeError(
            f"neptune.functional.{name}",
            "a tensor requires a gradient, and there is no backward pass yet",
            hint="call it under torch.no_grad() or torch.inference_mode(), or on x.detach()",
        )


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for x in given:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from (t for t in x if isinstance(t, torch.Tensor))
