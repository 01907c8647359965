"""Uniform registers that machine code reads and nothing has written: what the assembler got wrong.

ptxas 12.8 (Triton 3.6) loses a copy where the descriptors of two operands begin at one address and their 64-bit sums
have a negative constant, as with a swizzle of 32 or 64 bytes (16 or 32 columns of 16 bits):

    UIADD3   UR18, UP0, UR18, 0x20             UR18 is written nowhere before: it should be UR14
    UIADD3.X UR19, UR19, -0x3ffffff0, UP0      the products of all steps of the depth but the first read anything

It says nothing, and the results are wrong. Over all paths, a uniform register that is read may have been written: no
instruction changes a part of one, so that code without this fault never reads another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from neptune.runtime.listing import Function, Instruction, disassemble, functions

_RESULT = re.compile(r"(?:U?P\w+, )?UR(\d+)\b")
_UNIFORM = re.compile(r"(gdesc\[)?\bUR(\d+)")
_SUSPECT = re.compile(r"\badd\.s64\s+%\w+, %\w+, -\d{16,}")
"""A sum of a descriptor and a negative constant, in PTX."""


EVERY = (1 << 64) - 1
_SOUND: set[str] = set()
"""Hashes of what was looked at."""


def check(compiled: Any) -> None:
    """Raise Triton's error for a kernel of which the assembler has made wrong code; of None, as hooks give, nothing.

    Disassembling takes longer than loading what Triton has kept: done where the PTX has what the assembler gets wrong.
    """
    if compiled is None or compiled.hash in _SOUND:
        return
    ptx = compiled.asm.get("ptx", "")
    if "wgmma.mma_async" in ptx and _SUSPECT.search(ptx):
        for op, register in (place for f in functions(disassemble(compiled.asm["cubin"])) for place in unwritten(f)):
            from triton.errors import TritonError

            raise TritonError(f"ptxas made wrong code of `{compiled.name}`: `{op}`, where {register} holds nothing")
    _SOUND.add(compiled.hash)


def unwritten(f: Function) -> Iterator[tuple[Instruction, str]]:
    """The instructions that read a uniform register which no path to them has written, and the register."""
    after, alone = _with_indirect(f)
    before = [EVERY if block in alone else 0 for block in range(len(f.starts))]
    work = list(range(len(f.starts)))
    while work:
        block = work.pop()
        out = before[block]
        for i in f.block(block):
            out |= _written(f.code[i])
        for follow in after[block]:
            if out & ~before[follow]:
                before[follow] |= out
                work.append(follow)
    for block, written in enumerate(before):
        for i in f.block(block):
            op = f.code[i]
            lost = _read(op) & ~written
            if lost:
                yield op, f"UR{(lost & -lost).bit_length() - 1}"
            written |= _written(op) | lost


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
            at = work.pop()
            if at not in reached:
                reached.add(at)
                work += f.successors[at]
    return after, alone


def _written(op: Instruction) -> int:
    """The uniform registers that an instruction writes: its first operand, behind a predicate."""
    found = _RESULT.match(op.operands)
    parts = op.opcode.split(".")
    wide = 4 if "128" in parts else 2 if not {"64", "WIDE"}.isdisjoint(parts) or parts[0] == "CS2UR" else 1
    return ((1 << wide) - 1) << int(found[1]) if found else 0


def _read(op: Instruction) -> int:
    """The uniform registers that an instruction is sure to read."""
    found = _RESULT.match(op.operands)
    sources = op.operands[found.end() :] if found else op.operands
    bits = 0
    for product, number in _UNIFORM.findall(sources):
        # The descriptor of a right operand is behind that of the left one, which nobody reads of one in registers.
        bits |= (0b1100 if product else 1) << int(number)
    return bits
