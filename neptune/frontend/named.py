"""Names: the one that the caller's statement gives to a value, and those of the tensors of a program.

`m = compute(…)` is `m`.

The instructions behind the call say it. Where they store nothing (a lambda, a comprehension, an argument of another
call), there is none, and the caller's fallback holds. A name given so is `soft`: it gets a suffix where it is taken.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from neptune.base import boundary

if TYPE_CHECKING:
    from neptune.frontend.assemble import Tensor

_HERE = (__file__, boundary.__file__, *(f"{boundary.PACKAGE}frontend/{name}.py" for name in ("builder", "composed")))


def assigned_name() -> str | None:
    """The variable or attribute that the statement of the nearest caller outside the builder stores the result in."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _HERE:
        frame = frame.f_back  # type: ignore[assignment]
    name = None if frame is None else _stored(frame.f_code, frame.f_lasti)
    return name if name is not None and name.isidentifier() and name.strip("_") else None


def _taken(name: str, effect: int) -> int:
    """How many values an instruction takes from the stack: nearly all give one."""
    if name in ("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "KW_NAMES", "NOP", "RESUME"):
        return 0
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return 1
    return (0 if name.startswith(("STORE_", "POP_", "DELETE_", "RETURN_")) else 1) - effect


@lru_cache(maxsize=1024)
def _stored(code: CodeType, offset: int) -> str | None:
    """The name that the result of the call at an offset is stored under, found by where it lies on the stack."""
    # While a call runs, a frame stands at the call or in the inline caches behind it.
    above, element = 0, None  # values above the result; its place in the tuple that lies there in its stead
    for x in (x for x in dis.get_instructions(code) if x.offset > offset):
        if x.opname.startswith("STORE_"):
            names = x.argval if isinstance(x.argval, tuple) else (x.argval,)
            # An attribute's object lies above the value. Python 3.13 stores two variables by one instruction.
            place = above - 1 if x.opname == "STORE_ATTR" else above
            if element is None and place in range(2 if x.opname == "STORE_FAST_STORE_FAST" else 1):
                return str(names[place])
        if x.opname in ("SWAP", "ROT_TWO", "ROT_THREE"):
            depth = {"ROT_TWO": 2, "ROT_THREE": 3}.get(x.opname, x.arg or 0)
            if x.opname == "ROT_THREE" and above < depth:
                above = (above - 1) % depth
            elif above in (0, depth - 1):
                above = depth - 1 - above
            continue
        if x.opname == "BUILD_TUPLE" and element is None and above < (x.arg or 0):
            above, element = 0, (x.arg or 0) - 1 - above
            continue
        if x.opname == "UNPACK_SEQUENCE" and element is not None and above == 0:
            above, element = element, None
            continue
        if x.opname.startswith("UNPACK_") and above == 0:
            return None
        if x.opname in ("COPY", "DUP_TOP") and above == 0:
            continue
        effect = dis.stack_effect(x.opcode, x.arg if x.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        if x.opcode in dis.hasjrel or x.opcode in dis.hasjabs or _taken(x.opname, effect) > above:
            return None
        above += effect
    return None


def unique(name: str, taken: Iterable[str]) -> str:
    """`name`, or `name_1`, `name_2`, … : the first that is not taken."""
    used = set(taken)
    candidates = (name if k == 0 else f"{name}_{k}" for k in range(len(used) + 1))
    return next(c for c in candidates if c not in used)


class Names(NamedTuple):
    """What a tensor and its stage are called in a program."""

    tensor: str
    stage: str


def names_of(tensors: Sequence[Tensor], sizes: Iterable[str]) -> dict[Tensor, Names]:
    """The names of tensors; those that nobody has given avoid all others."""
    taken = {*sizes} | {n for t in tensors if not t.soft for n in (t.name, t.written_by)}
    names: dict[Tensor, Names] = {}
    for t in tensors:
        name = unique(t.name, taken) if t.soft else t.name
        taken.add(name)
        stage = name if not t.stage else t.stage
        if t.soft and t.stage:
            stage = names[t.family[0]].stage if not t.leads else unique(t.stage, taken)
            taken.add(stage)
        names[t] = Names(name, stage)
    return names
