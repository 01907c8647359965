"""Names that a program may use: they become names in generated Python, Triton and einops patterns."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from neptune.errors import ExpressionError
from neptune.ir.program import For, Program, Stage, walk

# What generated modules use themselves.
_MODULES = ("tl", "triton", "torch", "TensorDescriptor")
_ARGUMENTS = ("grid", "num_warps", "num_stages", "launcher")
_BUILTINS = ("range", "float", "int", "max", "min", "abs", "inf", "nan")
RESERVED = frozenset((*_MODULES, *_ARGUMENTS, *_BUILTINS))
_GENERATED = re.compile(
    r"(stride_|offs_|idx_|pid_).*|.*(_ptr|_desc|_base|_offs|_kernel|_end)(_\d+)?|tl_.*|_.*|.*_|libdevice"
)


def fits(name: str) -> bool:
    """True for a plain ASCII identifier that generated code does not use itself.

    >>> fits("score"), fits("lambda"), fits("tl"), fits("q_ptr"), fits("m'")
    (True, False, False, False, False)
    """
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name in RESERVED:
        return False
    return _GENERATED.fullmatch(name) is None


def check_names(program: Program) -> None:
    """Raise ExpressionError for the first name that cannot be used as it is."""
    named = [("program", program.name)]
    named += [("buffer", b.name) for b in program.globals.values()]
    named += [("size or scalar", s.name) for s in program.scalars]
    named += [("stage", s.name) for s in walk(program.body) if isinstance(s, Stage)]
    named += [("loop", s.var) for s in walk(program.body) if isinstance(s, For)]
    for what, name in named:
        if not fits(name):
            raise ExpressionError(
                f"compile `{program.name}`",
                f"`{name}` cannot be the name of a {what}: it is no plain identifier, or generated code uses it itself",
                legal=(
                    "letters, digits and _ inside",
                    "no Python keyword",
                    "none of " + ", ".join(sorted(RESERVED)[:8]) + ", …",
                ),
                hint="rename it",
            )


def fresh_name(taken: Iterable[str], wish: str) -> str:
    """`wish`, or `wish_1`, `wish_2`, … if it is taken."""
    used = set(taken)
    if wish not in used:
        return wish
    k = 1
    while f"{wish}_{k}" in used:
        k += 1
    return f"{wish}_{k}"
