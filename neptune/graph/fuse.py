"""neptune.fuse: a plain torch function whose chains of reductions become Neptune's kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

import torch

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.graph.backend import Backend
from neptune.graph.choose import TAKES, Take


class Fused:
    """A function that `fuse` was given: called as it, it computes the same.

    `reports` has one report for each graph that was traced: a new length traces none, another rank or dtype one more.
    """

    def __init__(self, fn: Callable[..., Any], backend: Backend) -> None:
        # What hangs on a function is its own; of another callable it is state, which is not to be copied.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isfunction(fn) else ())
        self._backend = backend
        self._compiled = torch.compile(fn, backend=backend, dynamic=True)

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Fused | BoundMethod:
        return self if instance is None else BoundMethod(self, instance)

    @property
    def reports(self) -> tuple[Any, ...]:
        """What became of each graph so far."""
        return tuple(self._backend.reports)

    @public
    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which kernel took every node, with its predicted time and the bound for Inductor's, and why others were left.

        With arguments the function is called with them first, else it speaks of the calls so far.
        """
        if args or kwargs:
            self(*args, **kwargs)
        if not self.reports:
            return "no graph yet: call it, or give explain() the arguments of a call"
        return "\n\n".join(map(str, self.reports))


class BoundMethod:
    """A fused method of one instance. Graphs are those of the class: torch guards what they read of an instance."""

    def __init__(self, function: Fused, instance: object) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__func__, self.__self__ = function, instance

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    @property
    def reports(self) -> tuple[Any, ...]:
        """What became of each graph so far, whatever the instance."""
        return self.__func__.reports

    @public
    def explain(self, *args: Any, **kwargs: Any) -> str:
        """`Fused.explain`, where a call is one on this instance."""
        return self.__func__.explain(self.__self__, *args, **kwargs) if args or kwargs else self.__func__.explain()


@overload
def fuse(fn: Callable[..., Any], *, target: str | None = None, take: Take = "predicted") -> Fused: ...


@overload
def fuse(
    fn: None = None, *, target: str | None = None, take: Take = "predicted"
) -> Callable[[Callable[..., Any]], Fused]: ...


@public
def fuse(fn: Callable[..., Any] | None = None, *, target: str | None = None, take: Take = "predicted") -> Any:
    """A plain torch function whose chains of reductions run as Neptune's kernels where these are predicted to be faster
    than Inductor's can be; what is left is Inductor's.

    It is traced at the first call. Lengths stay symbols: another length does not trace anew, another rank or dtype
    does.
    `target`: as in `neptune.compile`; by default where the tensors are. `take`: "predicted", "all" (every region that
    has a kernel) or "none". Calls that need gradients are Inductor's as a whole, with one line in the log.

        @neptune.fuse
        def attention(q, k, v):
            return ((q @ k.mT) * 0.125).softmax(-1) @ v

    A method is one of its instance, `forward` of a torch.nn.Module too: what it reads there is as it is at each call.

    Raises ExpressionError for what is no function, or no way to take regions.
    """
    if fn is None:
        return lambda f: fuse(f, target=target, take=take)
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(fuse(fn.__func__, target=target, take=take))
    if not callable(fn):
        raise ExpressionError("neptune.fuse", f"{fn!r:.60} is not a function")
    if take not in TAKES:
        raise ExpressionError("neptune.fuse", f"take = {take!r}", legal=TAKES)
    return Fused(fn, Backend(target, take))
