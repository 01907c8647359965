"""Descriptors of products that hold no address: what the assembler got wrong.

ptxas 12.8 (Triton 3.6) loses a copy where the descriptors of two operands begin at one address and their 64-bit sums
have a negative constant, as with a swizzle of 32 or 64 bytes (16 or 32 columns of 16 bit):

    UMOV     UR6, UR20                         the tile's address, as it should be
    UIADD3   UR4, UP0, UR13, 0x20              UR13 counts the stages of the loop before, or nothing has written it
    UIADD3.X UR5, UR13, -0x3ffffff0, UP0       the products of all steps of the depth but the first read anything

It says nothing, and the results are wrong; ptxas 12.9, which Triton has for Blackwell, does not. A descriptor (PTX ISA,
"Matrix descriptor for wgmma") is 14 bits of an address in its low half and constants in its high half: over all paths,
what a product takes must have come from a register that was cut to these bits, by copies and sums of constants. What
came out of a register of threads is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import reduce
from typing import Any

from neptune.runtime.machine_code.listing import Function, Instruction, disassemble, functions

_RESULT = re.compile(r"(?:U?P\w+, )?UR(\d+)\b")
_SOURCE = re.compile(r"\bUR(\d+|Z)\b|(?<![\w.])-?0x[0-9a-f]+|(?<![\w.\[])-?\d+\b|\bc\[")
_TAKEN = re.compile(r"gdesc\[UR(\d+)\]")
_CUT = re.compile(r"USGXT\.U32 UR\d+, UR\d+, 0x[ef]\b|ULOP3\.LUT UR\d+, UR\d+, 0x[37]fff, URZ, 0xc0\b")
"""Sixteenths of an address: 14 bits, or the 15 that Triton 3.9 keeps (256 KiB of shared memory have 14)."""
_SUSPECT = re.compile(r"\badd\.s64\s+%\w+, %\w+, -\d{16,}")
"""A sum of a descriptor and a negative constant, in PTX."""
SUMS = ("UMOV", "UIADD3", "ULOP3")
"""What a descriptor is made with behind the cut: of an address and constants it makes an address again."""


class Kind(Enum):
    """What a uniform register holds; nothing is known of one that has no kind."""

    CONSTANT = "a constant"
    ADDRESS = "sixteenths of an address"
    TRUSTED = "what a register of threads held"


State = Mapping[int, Kind]
NEWER = {"ptx_options": "--opt-level 3"}
"""The assembler's default, said aloud: Triton keeps kernels by their options, and not by who assembled them."""
_SOUND: set[str] = set()
"""Hashes of what was looked at."""


def sound_options(warmed: Callable[..., Any]) -> Mapping[str, str]:
    """Options of a launch by which the code of a kernel is right, from Triton's compilation by other options: none, or
    those that stand for Triton's newer assembler. Raises Triton's error where that one's code is wrong too."""
    compiled = warmed()
    if _fault(compiled) is None:
        return {}
    with _newer_assembler():
        compiled = warmed(**NEWER)
    fault = _fault(compiled)
    if fault is not None:
        from triton.errors import TritonError

        raise TritonError(f"ptxas made wrong code of `{compiled.name}`: {fault}")
    return NEWER


@contextmanager
def _newer_assembler() -> Iterator[None]:
    """What Triton compiles for any GPU is assembled by what it has for Blackwell (12.9 or newer), where it has that."""
    from triton import knobs

    with knobs.nvidia.scope():
        if hasattr(knobs.nvidia, "ptxas_blackwell"):
            knobs.nvidia.ptxas = knobs.nvidia.ptxas_blackwell.path
        yield


def _fault(compiled: Any) -> str | None:
    """The first product of a kernel that takes a wrong descriptor; of None, as hooks give, nothing.

    Disassembling takes longer than loading what Triton has kept: done where the PTX has what the assembler gets wrong.
    """
    if compiled is None or compiled.hash in _SOUND:
        return None
    ptx = compiled.asm.get("ptx", "")
    if "wgmma.mma_async" in ptx and _SUSPECT.search(ptx):
        for op, register in (place for f in functions(disassemble(compiled.asm["cubin"])) for place in lost(f)):
            return f"`{op}`, where {register} holds no address"
    _SOUND.add(compiled.hash)
    return None


def lost(f: Function) -> Iterator[tuple[Instruction, str]]:
    """The products that take a descriptor which holds no address on some path, and the first register of it."""
    after, alone = _with_indirect(f)
    every = dict.fromkeys(range(64), Kind.TRUSTED)
    before: list[State | None] = [every if block in alone else None for block in range(len(f.starts))]
    before[0] = {}
    work = [block for block, state in enumerate(before) if state is not None]
    while work:
        block = work.pop()
        out = reduce(lambda state, i: _after(state, f.code[i]), f.block(block), before[block] or {})
        for follow in after[block]:
            known = before[follow]
            joined = out if known is None else _join(known, out)
            if joined != known:
                before[follow] = joined
                work.append(follow)
    for block, state in enumerate(before):
        for i in f.block(block) if state is not None else ():
            yield from _lost_by(state or {}, f.code[i])
            state = _after(state or {}, f.code[i])


def _lost_by(state: State, op: Instruction) -> Iterator[tuple[Instruction, str]]:
    """The descriptors of one product that hold no address, or no constants above it."""
    for taken in _TAKEN.finditer(op.operands):
        first = int(taken[1])
        # The right operand's is behind the left one's, which nobody reads of one in registers.
        left_in_registers = op.operands.count(", ", 0, taken.start()) > 1
        for low in (first + 2,) if left_in_registers else (first, first + 2):
            wanted = ((low, Kind.ADDRESS), (low + 1, Kind.CONSTANT))
            yield from ((op, f"UR{slot}") for slot, kind in wanted if state.get(slot) not in (kind, Kind.TRUSTED))


def _join(one: State, other: State) -> State:
    both = {slot: _alike(one[slot], other[slot]) for slot in one.keys() & other.keys()}
    return {slot: kind for slot, kind in both.items() if kind is not None}


def _alike(one: Kind | None, other: Kind | None) -> Kind | None:
    """What a register holds that is one or the other."""
    if one is None or other is None or one is other:
        return one if one is other else None
    return Kind.TRUSTED if Kind.TRUSTED in (one, other) else None


def _after(state: State, op: Instruction) -> State:
    """What registers hold behind an instruction, one with a predicate as if it might not run."""
    result = _RESULT.match(op.operands)
    if result is None:
        return state
    now = dict(state)
    for half in range(_width(op)):
        slot = int(result[1]) + half
        kind = _kind(state, op, half)
        kind = _alike(state.get(slot), kind) if op.guarded else kind
        if kind is None:
            now.pop(slot, None)
        else:
            now[slot] = kind
    return now


def _width(op: Instruction) -> int:
    """How many uniform registers an instruction writes."""
    parts = op.opcode.split(".")
    return 4 if "128" in parts else 2 if not {"64", "WIDE"}.isdisjoint(parts) or parts[0] == "CS2UR" else 1


def _kind(state: State, op: Instruction, half: int) -> Kind | None:
    """What an instruction puts into its result, or into the second half of one of 64 bits."""
    name = op.opcode.split(".")[0]
    if name == "R2UR":
        return Kind.TRUSTED
    if _CUT.match(str(op)):
        return Kind.ADDRESS
    result = _RESULT.match(op.operands)
    sources = [
        Kind.CONSTANT if source[1] in (None, "Z") else state.get(int(source[1]) + half)
        for source in _SOURCE.finditer(op.operands[result.end() if result else 0 :])
    ]
    if name == "USEL":
        return reduce(_alike, sources)
    if not all(sources) or (name not in SUMS and set(sources) != {Kind.CONSTANT}):
        return None
    if sources.count(Kind.ADDRESS) > 1:
        return None
    return max((k for k in sources if k is not None), key=list(Kind).index, default=None)


def _with_indirect(f: Function) -> tuple[list[set[int]], set[int]]:
    """What may follow each block, an indirect branch by every block to which nothing else leads (roles of warps); and
    blocks to which something leads that the listing does not tell."""
    after = [set(follow) for follow in f.successors]
    indirect = [b for b in range(len(f.starts)) if f.code[f.block(b)[-1]].opcode.startswith("BRX")]
    called = any(op.opcode.startswith("CALL") for op in f.code)
    reached: set[int] = set()
    alone: set[int] = set()
    for block in range(len(f.starts)):
        if block in reached:
            continue
        if block and (called or not indirect):
            alone.add(block)
        for b in indirect if block else ():
            after[b].add(block)
        work = [block]
        while work:
            current = work.pop()
            if current not in reached:
                reached.add(current)
                work += f.successors[current]
    return after, alone
