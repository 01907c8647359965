"""Triton modules of TilePrograms with the defaults that a compilation gives them."""

from __future__ import annotations

from typing import Any

from neptune.codegen.triton import module
from neptune.tile.ir import TileProgram
from neptune.tune.defaults import defaults


def generate(program: TileProgram, **form: Any) -> str:
    """The module of a TileProgram; `form` is as in `neptune.codegen.triton.module.generate`."""
    return module.generate(program, defaults(program), **form)
