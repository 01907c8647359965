"""Arguments of primitives are checked by kind before anything else looks at them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from neptune.base.boundary import public
from neptune.errors import NeptuneError, ScheduleError, refused_by
from neptune.schedule.state import Loop
from neptune.schedule.trace import OutOfFuel

Given = ParamSpec("Given")
Method = TypeVar("Method", bound=Callable[..., Any])


def _is_loops(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, Loop) for x in value)


# parameter name → (what it must be, in words, and how that is told)
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "stage": ("the name of a stage, a string", lambda x: isinstance(x, str)),
    "name": ("a name, a string", lambda x: isinstance(x, str)),
    "buffer": ("the name of a buffer, a string", lambda x: isinstance(x, str)),
    "scope": ("a scope, a string", lambda x: isinstance(x, str)),
    "loop": ("a loop, as sch.loops(stage) returns them", lambda x: isinstance(x, Loop)),
    "outer": ("a loop, as sch.loops(stage) returns them", lambda x: isinstance(x, Loop)),
    "inner": ("a loop, as sch.loops(stage) returns them", lambda x: isinstance(x, Loop)),
    "group": ("a loop, as sch.loops(stage) returns them", lambda x: isinstance(x, Loop)),
    "row": ("a loop, as sch.loops(stage) returns them, or None", lambda x: x is None or isinstance(x, Loop)),
    "loops": ("loops, as sch.loops(stage) returns them", _is_loops),
    "axis": ("a grid axis, or a list of them", lambda x: isinstance(x, str | list | tuple)),
    "factors": ("a list of numbers or params", lambda x: isinstance(x, list | tuple)),
    "least": ("a whole number, 1 or more", lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 1),
    "candidates": ("a list of numbers", lambda x: isinstance(x, list | tuple)),
    "where": ("a loop or a list of loops", lambda x: isinstance(x, Loop) or _is_loops(x)),
}


def checked(method: Method) -> Method:
    """Raise ScheduleError where an argument is not of the kind that its name in `KINDS` asks for.

    >>> @checked
    ... def split(self, loop, factor): ...
    >>> split(None, "i", 16)
    Traceback (most recent call last):
    ...
    neptune.errors.ScheduleError: split(loop='i')
      `loop` is str, and must be a loop, as sch.loops(stage) returns them
    """
    signature = inspect.signature(method)

    @public
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ScheduleError(f"{method.__name__}(…)", str(error), legal=[f"{method.__name__}{signature}"]) from None
        for parameter, value in arguments.items():
            words, fits = KINDS.get(parameter, ("", lambda _: True))
            if not fits(value):
                raise ScheduleError(
                    f"{method.__name__}({parameter}={value!r})",
                    f"`{parameter}` is {type(value).__name__}, and must be {words}",
                )
        return method(*args, **kwargs)

    return call  # type: ignore[return-value]


def primitive(method: Method) -> Method:
    """`checked`, for a method whose calls are recorded in the trace."""
    call = checked(method)
    call.primitive = True  # type: ignore[attr-defined]
    return call


def attempt(call: Callable[Given, object], *args: Given.args, **options: Given.kwargs) -> NeptuneError | None:
    """Call a primitive where it is legal: None once it is performed, or its refusal, behind which all is as it was.

    What there is no fuel for goes on to whoever gave the fuel.
    """
    refusal = refused_by(call, *args, **options)
    if isinstance(refusal, OutOfFuel):
        raise refusal
    return refusal


def is_primitive(method: object) -> bool:
    """Return True for a method that `primitive` marked."""
    return getattr(method, "primitive", False) is True
