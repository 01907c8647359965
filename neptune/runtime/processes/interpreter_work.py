"""Spare Triton's interpreter work that has no effect: three fifths of what an attention takes there.

- Every call of a device function, such as `tl.sum`, replaces the functions of `triton.language` by those of the
  interpreter, which the launch has done already; nothing undoes it before the launch ends.
- Every sum, difference and product of integers is computed in 64 bits as well, for an assertion that it has not
  overflowed, which is made with `debug` alone.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any


def install() -> None:
    """Patch the interpreter of the installed triton, once; another version's, which has other parts, stays as it is."""
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    if patch is not None and hasattr(interpreter, "_LangPatchScope") and not hasattr(patch, "neptune"):
        interpreter._patch_lang = once(patch, interpreter._LangPatchScope, (tl, tl.core))
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "debug", True) is False and hasattr(options, "sanitize_overflow"):
        builder.options = dataclasses.replace(options, sanitize_overflow=False)


def once(patch: Callable[[Any], Any], scope: Callable[[], Any], modules: tuple[Any, ...]) -> Callable[[Any], Any]:
    """`patch`, which replaces the functions of those of the `modules` that a function sees until what it returns is
    restored: nothing is done within a launch for modules that it has come to already."""
    done: set[int] = set()

    def patched(fn: Any) -> Any:
        seen = {id(x) for x in fn.__globals__.values() if inspect.ismodule(x) and x in modules}
        if done and seen <= done:
            return scope()
        outermost = not done
        scope_of_call = patch(fn)
        done.update(seen)
        if outermost:
            restore = scope_of_call.restore

            def restored() -> None:
                done.clear()
                restore()

            scope_of_call.restore = restored
        return scope_of_call

    patched.neptune = True  # type: ignore[attr-defined]
    return patched
