"""A function on tensors as an operator of torch, `torch.ops.neptune.<name>`.

    @operator
    def softmax(input: Tensor, dim: int = -1) -> Tensor: ...

A call on plain tensors runs the function. Where torch traces or records (torch.compile, make_fx, fake tensors) it calls
the operator, whose schema is the function's signature and whose fake results are the function itself on tensors without
data: `kernels.run` gives shapes there, in place of launching.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar, get_args

import torch

from neptune.base.boundary import public
from neptune.errors import ShapeError
from neptune.runtime.custom_op import DEVICES, UNTYPED
from neptune.runtime.transforms import derivative_of, is_recorded, one_by_one

NAMESPACE = "neptune"
LIBRARY = UNTYPED.library.Library(NAMESPACE, "FRAGMENT")
PLAIN = (torch.Tensor, torch.nn.Parameter)
MIXED = "Multiple dispatch failed"
"""What torch says of tensors of classes that do not know each other."""
SERVED = ("cuda", "cpu", "meta")
Function = TypeVar("Function", bound=Callable[..., Any])
Kind = tuple[str, Callable[[Any], bool]]
Taken = Mapping[str, tuple[Kind, ...]]
"""The kinds of each argument of a function."""


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | torch.Tensor)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | torch.SymInt | torch.SymFloat) and not isinstance(value, bool)


def _are_integers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_integer, value))


KINDS: Mapping[Any, Kind] = {
    torch.Tensor: ("a torch.Tensor", lambda v: isinstance(v, torch.Tensor)),
    int: ("an integer", _is_integer),
    float: ("a number", _is_number),
    bool: ("True or False", lambda v: isinstance(v, bool | torch.SymBool)),
    str: ("a string", lambda v: isinstance(v, str)),
    Sequence[int]: ("a list of integers", _are_integers),
    type(None): ("None", lambda v: v is None),
}
"""What an annotation asks of an argument."""


def register(name: str, schema: str, function: Callable[..., Any], shown: str | None = None) -> Any:
    """Make a function the operator `torch.ops.neptune.<name>`, on all devices and on tensors without data; its one
    overload. `shown`: the name that errors give it."""
    LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for device in DEVICES:
        LIBRARY.impl(name, function, device)
    UNTYPED.library.register_fake(f"{NAMESPACE}::{name}", _on_numbers(function), lib=LIBRARY)
    overload = getattr(torch.ops.neptune, name).default

    def without_gradients(keys: Any, *args: Any, **named: Any) -> Any:
        refuse_gradients(shown or name, [*args, *named.values()])
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & torch._C._after_autograd_keyset, *args, **named)

    LIBRARY.impl(name, without_gradients, "Autograd", with_keyset=True)
    UNTYPED.library.register_vmap(overload, functools.partial(one_by_one, overload, shown or name), lib=LIBRARY)
    return overload


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given numbers where torch has made symbols of options: a kernel is compiled for their values, and
    torch guards them."""

    def call(*args: Any, **named: Any) -> Any:
        return function(*map(number, args), **{n: number(v) for n, v in named.items()})

    return call


def untraced(signature: inspect.Signature, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with numbers where torch.jit.trace, to which sizes are tensors, has made tensors of options."""
    options = {n for n, p in signature.parameters.items() if p.annotation in (int, float, int | None, float | None)}
    return {n: t.item() if n in options and isinstance(t, torch.Tensor) else t for n, t in given.items()}


def number(value: Any) -> Any:
    """The number that a symbol of torch stands for; anything else as it is."""
    if isinstance(value, torch.SymInt | torch.SymBool):
        return int(value) if isinstance(value, torch.SymInt) else bool(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


def operator(function: Function) -> Function:
    """Register a function on tensors under its name; what is returned chooses between the two at each call."""
    name, signature = function.__name__, inspect.signature(function, eval_str=True)
    taken = _kinds(signature)
    overload = register(name, UNTYPED.library.infer_schema(function, mutates_args=()), function)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return overload(*args, **named)
        given = check_arguments(name, signature, taken, args, named)
        if not is_plain(given.values()):
            return _dispatched(name, overload, given)
        check_tensors(name, given)
        return function(*args, **named)

    return public(call)  # type: ignore[return-value]


def _dispatched(name: str, overload: Any, given: dict[str, Any]) -> Any:
    """The operator. Raises ShapeError for a tensor of a class that takes no operators but its own."""
    try:
        return overload(**given)
    except TypeError as error:
        special = [n for n, t in given.items() if isinstance(t, torch.Tensor) and type(t) not in PLAIN]
        if not special or MIXED not in str(error):
            raise
        wrong = f"`{special[0]}` is a {type(given[special[0]]).__name__}"
        raise ShapeError(f"neptune.functional.{name}", wrong, legal=["a torch.Tensor"]) from None


def check_arguments(
    name: str, signature: inspect.Signature, taken: Taken, args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The arguments by name. Raises ShapeError for those that are missing, and for what is not of their kinds."""
    try:
        given = signature.bind(*args, **named).arguments
    except TypeError as error:
        refused = f"neptune.functional.{name}"
        raise ShapeError(refused, str(error), legal=[", ".join(signature.parameters)]) from None
    if torch._C._get_tracing_state() is not None:
        given = untraced(signature, given)
    for argument, value in given.items():
        kinds = taken[argument]
        if not any(fits(value) for _, fits in kinds):
            wrong = f"`{argument}` is {type(value).__name__} {value!r:.40}"
            raise ShapeError(f"neptune.functional.{name}", wrong, legal=[what for what, _ in kinds])
    refuse_nested(name, given)
    return given


def _kinds(signature: inspect.Signature) -> Taken:
    """What each argument may be: kinds, of which one has to fit."""
    annotations = {n: p.annotation for n, p in signature.parameters.items()}
    return {n: tuple(KINDS[k] for k in ((a,) if a in KINDS else get_args(a))) for n, a in annotations.items()}


def refuse_nested(name: str, given: dict[str, Any]) -> None:
    """Raise ShapeError for a nested tensor, whose rows have lengths of their own, and for a sparse one."""
    for argument, t in given.items():
        if isinstance(t, torch.Tensor) and not t.is_nested and t.layout is not torch.strided:
            wrong = f"`{argument}` has layout {t.layout}"
            raise ShapeError(
                f"neptune.functional.{name}", wrong, legal=["torch.strided"], hint=f"{argument}.to_dense()"
            )
        if isinstance(t, torch.Tensor) and t.is_nested:
            raise ShapeError(
                f"neptune.functional.{name}",
                f"`{argument}` is a nested tensor",
                legal=["a dense tensor"],
                hint="torch.nested.to_padded_tensor(t, 0.0), with a mask of the lengths; or t.unbind() one by one",
            )


def is_plain(given: Iterable[Any]) -> bool:
    """True where no tensor is one of a tracer's or a transformation's, and nobody records what is called."""
    plain = all(type(t) in PLAIN for t in _tensors(given))
    return plain and not torch._C._functorch.maybe_current_level() and not is_recorded()


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
    """Raise ShapeError where torch would have to differentiate the call."""
    for t in _tensors(given):
        if (derivative := derivative_of(t)) is not None:
            raise ShapeError(
                f"neptune.functional.{name}", f"a tensor {derivative.wrong}", hint=derivative.instead.format("x")
            )


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for x in given:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from (t for t in x if isinstance(t, torch.Tensor))
