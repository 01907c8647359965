"""What is asked of the options of an operator, so that a wrong one is named and not what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Tensor

DTYPES = ("float32", "float16", "bfloat16")
"""Of the tensors of an operator, unless it says otherwise."""


def check_dtype(request: str, dtype: object, of: str = "this operator", legal: tuple[str, ...] = DTYPES) -> None:
    """Raise ExpressionError for a dtype that the tensors of an operator do not have."""
    if dtype not in legal:
        raise ExpressionError(request, f"{dtype!r:.60} is no dtype of {of}", legal=legal, kind="dtypes")


def check_choice(request: str, option: str, value: object, legal: tuple[str, ...]) -> None:
    """Raise ExpressionError for a value of an option that is none of those it has."""
    if value not in legal:
        raise ExpressionError(request, f"{option} = {_shown(value)} is no value of it", legal=legal)


def check_eps(request: str, eps: object) -> None:
    """Raise ExpressionError for an ε that is no number of at least 0."""
    if eps is None or (isinstance(eps, Real) and not 0 <= float(eps) < math.inf):
        raise ExpressionError(request, f"eps is {eps}: it is added to a mean of squares", hint="eps of at least 0")
    check_factors(request, {"eps": eps})


def check_counts(request: str, counts: Mapping[str, object]) -> None:
    """Raise ExpressionError for a size that is no whole number of at least 1."""
    for option, n in counts.items():
        if not isinstance(n, int) or isinstance(n, bool):
            raise ExpressionError(request, f"{option} = {_shown(n)} is not a Python integer")
        if n < 1:
            wrong = f"a window of {n} keys shows nothing" if option == "window" else f"{option} is {n}"
            raise ExpressionError(request, wrong, hint=f"{option} of at least 1")


def check_factors(request: str, factors: Mapping[str, object]) -> None:
    """Raise ExpressionError for a factor that is no finite number; None stands for the default."""
    for option, factor in factors.items():
        if factor is not None and (isinstance(factor, bool) or not isinstance(factor, Real)):
            raise ExpressionError(request, f"{option} = {_shown(factor)} is not a number")
        if isinstance(factor, Real) and not math.isfinite(factor):
            raise ExpressionError(request, f"{option} = {factor} is not finite", hint="a finite number")


def check_flags(request: str, flags: Mapping[str, object]) -> None:
    """Raise ExpressionError for a flag that is neither True nor False."""
    for option, flag in flags.items():
        if not isinstance(flag, bool):
            raise ExpressionError(
                request, f"{option} = {_shown(flag)} is neither True nor False", legal=("True", "False")
            )


def check_tensors(request: str, tensors: Mapping[str, object]) -> None:
    """Raise ExpressionError for what is no tensor of an expression; None stands for one that was not given."""
    for option, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ExpressionError(
                request,
                f"{option} = {_shown(tensor)} is no tensor of an expression",
                hint='placeholder((…), "int32", "name")',
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"<{type(value).__name__}>"
