"""The other half of the rule on registers of asynchronous products: what a product reads was written before its fence.

A product of a warpgroup reads registers past the ordinary pipeline, so that a write to its left operand or its
accumulator counts for it only behind a `WARPGROUP.ARRIVE` (PTX: wgmma.fence). Over all paths, no register that a
product takes may have been written since the last one by anything but products.
"""

from __future__ import annotations

from neptune.hopper.registers import access, is_product, names, product
from neptune.runtime.listing import Function, Instruction


def unfenced(f: Function) -> list[tuple[Instruction, str]]:
    """The products that take registers which were written behind the last fence, and which these are."""
    if not any(is_product(op) for op in f.code):
        return []
    writes = [_writes(op) for op in f.code]
    before = _written(f, writes)
    found = []
    for block, written in enumerate(before):
        for i in f.block(block):
            op = f.code[i]
            own = product(op) if is_product(op) else None
            if own is not None and (late := written & (own.left | own.accumulator)):
                found.append((op, names(late)))
            written = _after(op, written, writes[i])
    return found


def _writes(op: Instruction) -> int:
    found = None if is_product(op) else access(op)
    # What is not known is a fault of its own where a product is in flight (`neptune.hopper.sass`).
    return 0 if found is None else found.writes


def _after(op: Instruction, written: int, writes: int) -> int:
    if op.opcode.startswith("WARPGROUP.ARRIVE") and not op.guarded:
        return 0
    return written | writes


def _written(f: Function, writes: list[int]) -> list[int]:
    """The registers that may have been written since the last fence, at the start of each block."""
    kept, added = [], []
    for block in range(len(f.starts)):
        fenced, own = False, 0
        for i in f.block(block):
            own = _after(f.code[i], own, writes[i])
            fenced |= f.code[i].opcode.startswith("WARPGROUP.ARRIVE") and not f.code[i].guarded
        kept.append(not fenced)
        added.append(own)
    before = [0] * len(f.starts)
    work = list(range(len(f.starts)))
    while work:
        block = work.pop()
        out = added[block] | (before[block] if kept[block] else 0)
        for after in f.successors[block]:
            if out & ~before[after]:
                before[after] |= out
                work.append(after)
    return before
