"""Machine code as the disassembler prints it: instructions, basic blocks, and the loops between them.

No GPU is needed: the disassembler comes with Triton. Reading is by text, so that a test may write its own listing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from neptune.errors import InternalError

_SECTION = re.compile(r"^\.text\.(\S+):")
_LABEL = re.compile(r"^(\.L\S+):")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z]\S*)\s*([^;]*);")
_TARGET = re.compile(r"`\((\.L\S+)\)")
ENDS = ("EXIT", "RET", "BRX", "JMX", "JMP", "KILL")
"""What control does not come back from; where it goes is not written in the listing."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of SASS: `guarded` when a predicate decides whether it takes effect, `target` a label it names."""

    address: int
    opcode: str
    operands: str
    guarded: bool
    target: str | None

    def __str__(self) -> str:
        return f"{self.opcode} {self.operands}".strip()


@dataclass(frozen=True)
class Function:
    """The instructions of one kernel: `starts` are those that begin a block, `successors` what follows each block."""

    name: str
    code: tuple[Instruction, ...]
    starts: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]

    def block(self, number: int) -> range:
        """The instructions of a block."""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.code)
        return range(self.starts[number], end)


@dataclass(frozen=True)
class Span:
    """A loop: the blocks from its header to its last backward branch that belong to it. Blocks that were moved behind
    the kernel (spinning on a barrier that is not ready yet) are left out."""

    header: int
    blocks: tuple[int, ...]
    latch: int


def disassemble(cubin: bytes, tool: str | None = None) -> str:
    """The listing of a cubin by the disassembler `tool` (that of the Triton here), some 0.3 s for 4000 lines.

    Without the disassembler's own analysis of branches, which takes as long again and finds where an indirect branch
    leads alone.
    """
    if tool is None:
        # Here, so that reading a listing needs no Triton.
        from triton import knobs

        tool = str(knobs.nvidia.nvdisasm.path)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", "-ndf", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise InternalError(f"nvdisasm: {done.stderr.strip()[:400]}")
    return done.stdout


def functions(text: str) -> Iterator[Function]:
    """Each kernel of a listing."""
    name, code, labels = "", list[Instruction](), dict[str, int]()
    for line in text.splitlines():
        if section := _SECTION.match(line):
            if code:
                yield _function(name, code, labels)
            name, code, labels = section[1], [], {}
        elif label := _LABEL.match(line):
            labels[label[1]] = len(code)
        elif match := _INSTRUCTION.match(line):
            address, guard, opcode, operands = match.groups()
            target = _TARGET.search(operands)
            guarded = guard is not None
            code.append(Instruction(int(address, 16), opcode, operands.strip(), guarded, target and target[1]))
    if code:
        yield _function(name, code, labels)


def _function(name: str, code: Sequence[Instruction], labels: dict[str, int]) -> Function:
    """Blocks, and which of them follow each: an instruction that names a label may go there."""
    # Where a label is not in the listing, nothing says where control goes.
    code = [op if op.target is None or op.target in labels else replace(op, target=None) for op in code]
    cuts = {0, *labels.values()}
    cuts |= {
        i + 1 for i, op in enumerate(code) if op.target is not None or op.opcode.startswith(("BRA", "BSYNC", *ENDS))
    }
    starts = sorted(cut for cut in cuts if cut < len(code))
    number = {start: block for block, start in enumerate(starts)}
    numbers = {name: number[i] for name, i in labels.items() if i in number}
    successors: list[tuple[int, ...]] = []
    for block, end in enumerate((*starts[1:], len(code))):
        last = code[end - 1]
        # A BSSY goes on: where it says that threads meet, they come to by a BSYNC.
        follow = [numbers[last.target]] if last.target in numbers and not last.opcode.startswith("BSSY") else []
        if not _leaves(last) and block + 1 < len(starts):
            follow.append(block + 1)
        successors.append(tuple(dict.fromkeys(follow)))
    plain = Function(name, tuple(code), tuple(starts), tuple(successors))
    return replace(plain, successors=_with_reconvergence(plain, numbers))


def _leaves(last: Instruction) -> bool:
    """True for what never goes on to the next line."""
    if last.guarded:
        return False
    # A branch may also be conditional through an operand: `BRA.U !UP0, target`.
    certain = last.target is None or last.operands.startswith("`")
    return last.opcode.startswith(ENDS) or (last.opcode.startswith("BRA") and certain)


Meets: TypeAlias = "dict[str, frozenset[str]]"
"""Where threads that wait at each barrier may go on: the labels of its BSSYs."""


def _with_reconvergence(f: Function, numbers: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """The successors of blocks, a BSYNC followed by what the BSSYs of its barrier name that come to it on some path.

    What comes into a block that nothing names, as by an indirect branch, and what a barrier gets from a register, may
    be any of them.
    """
    every: Meets = {}
    for op in f.code:
        if op.opcode.startswith("BSSY") and op.target is not None:
            every[_barrier(op)] = every.get(_barrier(op), frozenset()) | {op.target}
    successors = [list(x) for x in f.successors]
    named = {x for follow in successors for x in follow}
    before: list[Meets] = [{} if block in named else every for block in range(len(successors))]
    work = list(range(len(successors)))
    while work:
        block = work.pop()
        after = _meets(f, block, before[block], every)
        op = f.code[f.block(block)[-1]]
        if op.opcode.startswith("BSYNC"):
            names = after.get(_barrier(op), frozenset())
            successors[block] += sorted({numbers[n] for n in names if n in numbers} - set(successors[block]))
        for follow in successors[block]:
            joined = {b: before[follow].get(b, frozenset()) | after.get(b, frozenset()) for b in before[follow] | after}
            if joined != before[follow]:
                before[follow] = joined
                work.append(follow)
    return tuple(map(tuple, successors))


def _meets(f: Function, block: int, before: Meets, every: Meets) -> Meets:
    """Where threads may go on behind a block."""
    after = dict(before)
    for i in f.block(block):
        op = f.code[i]
        if op.opcode.startswith("BSSY") and op.target is not None:
            kept = after.get(_barrier(op), frozenset()) if op.guarded else frozenset()
            after[_barrier(op)] = kept | {op.target}
        elif op.opcode.startswith("BMOV") and _barrier(op) in every:
            after[_barrier(op)] = every[_barrier(op)]
    return after


def _barrier(op: Instruction) -> str:
    return op.operands.split(",")[0]


def loops(function: Function) -> list[Span]:
    """Natural loops: backward edges to a block that dominates their source, by header.

    Dominance matters: a wait that ptxas moved behind the kernel ends with a jump back into the middle of a loop, which
    is backward and yet no loop.
    """
    starts, successors = function.starts, function.successors
    dominators = _dominators(successors)
    spans: dict[int, set[int]] = {}
    for source, targets in enumerate(successors):
        for header in targets:
            if header in dominators[source] and starts[header] <= starts[source]:
                spans.setdefault(header, set()).update(_natural_loop(header, source, successors))
    every = []
    for header, body in spans.items():
        latch = max(block for block in body if header in successors[block])
        # What lies behind a program begins with a jump to itself, which nothing reaches.
        if len(body) == 1 and len(function.block(header)) == 1:
            continue
        every.append(Span(header, tuple(b for b in sorted(body) if header <= b <= latch), latch))
    return every


def _dominators(successors: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each block, the blocks on every path to it from an entry: the first block, and where an indirect branch leads
    (the roles of a warp-specialised kernel), which are blocks that nothing else reaches."""
    sources: list[list[int]] = [[] for _ in successors]
    for block, targets in enumerate(successors):
        for target in targets:
            sources[target].append(block)
    known: list[set[int]] = [set() for _ in successors]
    entries: set[int] = set()
    while not all(known):
        entries.add(next(block for block, dominator in enumerate(known) if not dominator))
        changed = True
        while changed:
            changed = False
            for block in range(len(successors)):
                reached = [] if block in entries else [known[source] for source in sources[block] if known[source]]
                now = {block} | (set.intersection(*reached) if reached else set())
                if now != known[block] and (reached or block in entries):
                    known[block], changed = now, True
    return known


def _natural_loop(header: int, latch: int, successors: Sequence[Sequence[int]]) -> set[int]:
    """The header and every block that reaches the latch without passing the header."""
    body, work = {header, latch}, [latch]
    while work:
        block = work.pop()
        if block == header:
            continue
        before = [source for source, targets in enumerate(successors) if block in targets and source not in body]
        body.update(before)
        work += before
    return body
