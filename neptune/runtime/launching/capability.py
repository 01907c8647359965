"""Has a GPU the dtypes of a program?  `DType.capability` says the least compute capability that does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neptune.errors import TargetError
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import walk
from neptune.ir.program import Program, map_exprs

if TYPE_CHECKING:
    from neptune.ir.expr import Expr
    from neptune.runtime.launching.launch import Target


def check_dtypes(program: Program, target: Target) -> None:
    """Raise TargetError where a program has a dtype that Triton does not compile for a target."""
    if target.kind != "cuda" or not target.arch:
        return
    for dtype in sorted(set(_dtypes(program))):
        least = DTYPES[dtype].capability
        if int(target.arch) < least:
            others = [d.name for d in DTYPES.values() if d.bits == DTYPES[dtype].bits and d.kind == DTYPES[dtype].kind]
            legal = [d for d in others if DTYPES[d].capability <= int(target.arch)]
            raise TargetError(
                f"compile `{program.name}` for {target}",
                f"it has {dtype}, which compute capability {target.arch} does not have",
                legal=[f"cuda:{least} and later", "hip", "interpret", "llvm", *(f"{d} on {target}" for d in legal)],
                hint=f"float16 has all numbers of {dtype}",
            )


def _dtypes(program: Program) -> Iterator[str]:
    yield from (b.dtype for b in program.globals.values())
    dtypes: set[str] = set()

    def seen(e: Expr) -> Expr:
        dtypes.update(x.dtype for x in walk(e))
        return e

    map_exprs(program.body, seen)
    yield from dtypes
