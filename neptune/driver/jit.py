"""`neptune.jit`: a typed function over tensors of the builder, which is called on torch tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neptune.base.boundary import public
from neptune.driver.options import CompileOptions, takes
from neptune.driver.pipeline import compile
from neptune.errors import ExpressionError
from neptune.frontend.typed import HINT, is_typed
from neptune.ir.names import usable
from neptune.kernel import Kernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from neptune.tune.choose import AnyTemplate


class Jitted:
    """A typed function and its kernel, which is compiled at the first call. `kernel` is that, `function` the one that
    was decorated."""

    def __init__(self, function: Callable[..., Any], template: AnyTemplate, options: CompileOptions) -> None:
        functools.update_wrapper(self, function)
        self.function, self._template, self._options = function, template, options
        declared = inspect.signature(function).parameters
        self._names = tuple(declared)
        self._defaults = {p.name: p.default for p in declared.values() if p.default is not p.empty}

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel of the function."""
        return compile(self.function, self._template, **self._options)

    @cached_property
    def _unread(self) -> frozenset[str]:
        """Scalars that the function takes and does not read, so that the kernel has none of their names."""
        return frozenset(n for n in self._names if usable(n) not in (*self.kernel.inputs, *self.kernel.scalars))

    @cached_property
    def _in_order(self) -> bool:
        """True where no scalar stands in front of a tensor: a kernel has them behind all tensors."""
        return self._names == (*self.kernel.inputs, *self.kernel.scalars)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the kernel (`Kernel.__call__`), with arguments in the order of the function's parameters, or by name. A
        scalar that is not given has the function's default."""
        names = self._names
        for name, value in self._defaults.items():
            if name not in names[: len(args)]:
                options.setdefault(name, value)
        if not self._unread and (self._in_order or len(args) > len(names)):
            return self.kernel(*args, **options)
        if len(args) > len(names):
            raise TypeError(f"{self.function.__name__}() takes {len(names)} arguments, and {len(args)} were given")
        if twice := [name for name in names[: len(args)] if name in options]:
            raise TypeError(f"{self.function.__name__}() got `{twice[0]}` twice")
        given = {**dict(zip(names, args, strict=False)), **options}
        return self.kernel(**{name: value for name, value in given.items() if name not in self._unread})

    def __repr__(self) -> str:
        return f"<neptune.jit {self.function.__name__}>"


@public
@takes(CompileOptions)
def jit(
    function: Callable[..., Any] | None = None, template: AnyTemplate = None, **options: Unpack[CompileOptions]
) -> Any:
    """A kernel from a function whose parameters say dtype and shape; with options it is a decorator of such functions.

    The function takes tensors of `neptune.frontend.builder` and returns one, or several in a tuple; it runs once, at
    the first call, which compiles. Lengths are symbols, so that no other call does. `template` and options are those of
    `neptune.compile`. Raises ExpressionError for a function whose parameters do not say what they are.

        @neptune.jit
        def entropy(x: "f32[rows, cols]"):
            p = nb.softmax(x)
            return nb.compute(x.shape[:1], lambda i: -nb.sum(lambda j: p[i, j] * nb.log(p[i, j])))

        entropy(torch.randn(5, 9))        # a tensor of 5 elements
    """
    if function is None:
        return lambda f: jit(f, template, **options)
    if not is_typed(function):
        name = getattr(function, "__name__", repr(function))
        wrong = "its parameters do not all say what they are" if callable(function) else "it is no function"
        raise ExpressionError(f"neptune.jit of {name:.60}", wrong, hint=f"annotate each: {HINT}")
    return Jitted(function, template, options)
