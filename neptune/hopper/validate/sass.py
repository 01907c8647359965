"""A linter over machine code: what a product in flight owns stays untouched until a wait covers it.

An asynchronous product of warpgroups (HGMMA) reads its left operand from registers, and writes its accumulator, long
after it was issued. Nothing in hardware guards them; a compiler that gives these registers to another value before the
wait makes a kernel that compiles without a warning, and is wrong now and then. So between the product and the
`WARPGROUP.DEPBAR` that covers it

- nothing may write a register of its left operand,
- nothing may read or write a register of its accumulator, other products aside (they run in order),
- control may not go where the listing does not say, registers may not be given away, and the kernel may not end.

And nothing but products may write what a product takes behind the fence in front of it: it reads registers past the
ordinary pipeline, so that a write to its left operand or its accumulator counts for it only behind a `WARPGROUP.ARRIVE`
(PTX: wgmma.fence). And no product takes a descriptor that holds no address
(`neptune.runtime.machine_code.descriptors`).

The rule is the one of PTX for wgmma.mma_async; a guarded instruction counts as if it ran, and one that is not known as
if it wrote everything. Which products may be in flight is worked out over all paths: at a join the newest groups of
the paths are united, the second newest, and so on, so that a wait for all but n drops what it drops on every path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from neptune.hopper.validate.registers import Access, Product, access, is_product, names, product
from neptune.runtime.machine_code.descriptors import lost
from neptune.runtime.machine_code.listing import ENDS, Function, Instruction, functions, loops

MOST_GROUPS = 8
"""A wait leaves seven groups in flight at most: what is older is one group."""
Groups = tuple[int, ...]
Held = TypeVar("Held")


@dataclass(frozen=True)
class Finding:
    """One place that breaks the rule: the instruction, the product that it disturbs (None: of no one product)."""

    address: int
    instruction: str
    product: int | None
    what: str

    def __str__(self) -> str:
        owner = "" if self.product is None else f" of the product at {self.product:#06x}"
        return f"{self.address:#06x} {self.instruction}: {self.what}{owner}"


@dataclass(frozen=True)
class Lint:
    """The facts to be known of a kernel's machine code.

    `findings` break the rule. `products` are matrix instructions of warpgroups, `in_flight` the most groups of them
    that may be at once. Of the innermost loops with products, `exps` are exponentials a thread and `overlapped` those
    that issue while a product may be in flight. `consumers` and `producers` are the registers that `setmaxnreg` leaves
    to warps that issue products and copies (0: it was not called before), `local` accesses to spilled registers, and
    `local_inner` those of them in these loops.
    """

    kernel: str
    findings: tuple[Finding, ...]
    products: int
    in_flight: int
    exps: int
    overlapped: int
    consumers: tuple[int, ...]
    producers: tuple[int, ...]
    local: int
    local_inner: int


@dataclass(frozen=True)
class State:
    """The products that may be in flight: the group that is still open, and closed ones, the newest first. A group is a
    set of products, one bit each; `registers` are values of setmaxnreg that may be in force."""

    open: int = 0
    groups: Groups = ()
    registers: frozenset[int] = frozenset()

    def join(self, other: State) -> State:
        """The products that may be in flight on either path."""
        long, short = sorted((self.groups, other.groups), key=len, reverse=True)
        united = tuple(g | (short[i] if i < len(short) else 0) for i, g in enumerate(long))
        return State(self.open | other.open, united, self.registers | other.registers)

    def after(self, op: Instruction, number: Mapping[int, int]) -> State:
        """The state behind an instruction; `number` counts the products of the kernel by address."""
        state = self._after(op, number)
        return state.join(self) if op.guarded and state is not self else state

    def _after(self, op: Instruction, number: Mapping[int, int]) -> State:
        if is_product(op):
            group = self.open | 1 << number[op.address]
            if "gsb0" not in op.operands:
                return State(group, self.groups, self.registers)
            return State(0, _bounded((group, *self.groups)), self.registers)
        if op.opcode.startswith("WARPGROUP.DEPBAR") and op.operands.startswith("gsb0"):
            left = self.groups[: int(op.operands.split(",")[1], 16)]
            return State(self.open, left, self.registers)
        if op.opcode.startswith("USETMAXREG"):
            return State(self.open, self.groups, frozenset((int(op.operands.split(",")[-1], 16),)))
        return self

    @property
    def flying(self) -> int:
        """Every product that may be in flight."""
        united = self.open
        for group in self.groups:
            united |= group
        return united


def _bounded(groups: Groups) -> Groups:
    """At most MOST_GROUPS groups; what is older is in the last."""
    kept, oldest = groups[:MOST_GROUPS], 0
    for group in groups[MOST_GROUPS:]:
        oldest |= group
    return kept if not oldest else (*kept[:-1], kept[-1] | oldest)


def lint(text: str) -> list[Lint]:
    """The verdict on every kernel of a listing (`neptune.runtime.machine_code.listing.disassemble`)."""
    return [_lint(f) for f in functions(text)]


def _lint(f: Function) -> Lint:
    issued = [op for op in f.code if is_product(op)]
    number = {op.address: k for k, op in enumerate(issued)}
    owned = _Owned([(op.address, product(op)) for op in issued])
    before = _states(f, number)
    late = "was written behind the fence before it"
    findings = [Finding(op.address, str(op), None, f"{registers} {late}") for op, registers in unfenced(f)]
    findings += [Finding(op.address, str(op), None, f"{register} holds no address") for op, register in lost(f)]
    consumers: set[int] = set()
    producers: set[int] = set()
    flying: dict[int, bool] = {}
    most = 0
    for block, state in enumerate(before):
        for i in f.block(block):
            op = f.code[i]
            findings += owned.disturbed(op, state.flying)
            flying[i] = bool(state.flying)
            if is_product(op):
                consumers |= state.registers or {0}
            elif op.opcode.startswith("UTMALDG"):
                producers |= state.registers or {0}
            state = state.after(op, number)
            most = max(most, len([g for g in state.groups if g]) + (state.open != 0))
    inner = _inner(f)
    exps = [i for i in inner if f.code[i].opcode.startswith("MUFU.EX2")]
    local = [i for i, op in enumerate(f.code) if op.opcode.startswith(("STL", "LDL"))]
    return Lint(
        f.name, tuple(findings), len(issued), most, len(exps), sum(flying[i] for i in exps),
        tuple(sorted(consumers)), tuple(sorted(producers)), len(local), len(set(local) & set(inner)),
    )  # fmt: skip


def _states(f: Function, number: Mapping[int, int]) -> list[State]:
    """The products that may be in flight at the start of each block."""
    events = [
        [f.code[i] for i in f.block(b) if is_product(f.code[i]) or f.code[i].opcode.startswith(_EVENTS)]
        for b in range(len(f.starts))
    ]

    def through(block: int, state: State) -> State:
        return reduce(lambda before, op: before.after(op, number), events[block], state)

    return _settled(f, State(), through, State.join)


def _settled(
    f: Function, start: Held, through: Callable[[int, Held], Held], join: Callable[[Held, Held], Held]
) -> list[Held]:
    """The states at the start of each block: the least that all paths agree with, given what a block makes of it."""
    before = [start] * len(f.starts)
    work = list(range(len(f.starts) - 1, -1, -1))
    while work:
        block = work.pop()
        behind = through(block, before[block])
        for after in f.successors[block]:
            joined = join(before[after], behind)
            if joined != before[after]:
                before[after] = joined
                work.append(after)
    return before


_ENDING = {"EXIT": "the kernel ends", "KILL": "the kernel ends", "USETMAXREG": "registers are given away"}
_EVENTS = ("WARPGROUP.DEPBAR", "USETMAXREG")


class _Owned:
    """The registers that products own while they are in flight."""

    def __init__(self, products: Sequence[tuple[int, Product | None]]) -> None:
        self._products = products
        self._united: dict[int, tuple[int, int]] = {}

    def united(self, flying: int) -> tuple[int, int]:
        """The registers of left operands, and of accumulators, of the products in a set."""
        if flying not in self._united:
            known = [p for _, p in self.members(flying) if p is not None]
            left = accumulators = 0
            for p in known:
                left, accumulators = left | p.left, accumulators | p.accumulator
            self._united[flying] = left, accumulators
        return self._united[flying]

    def members(self, flying: int) -> Iterator[tuple[int, Product | None]]:
        """Address and registers of the products in a set."""
        return ((a, p) for k, (a, p) in enumerate(self._products) if flying >> k & 1)

    def disturbed(self, op: Instruction, flying: int) -> list[Finding]:
        """The faults of an instruction towards products that may be in flight."""
        if is_product(op):
            return self._by_product(op, flying)
        if not flying:
            return []
        if op.opcode.startswith(("CALL", "USETMAXREG", *ENDS)) or (op.opcode.startswith("BRA") and op.target is None):
            ends = _ENDING.get(op.opcode.split(".")[0], "control goes where nothing says")
            return [Finding(op.address, str(op), next(self.members(flying))[0], f"{ends} before the wait")]
        touched = access(op)
        if touched is None:
            return [Finding(op.address, str(op), None, "this instruction is not known, and a product is in flight")]
        left, accumulators = self.united(flying)
        if not (touched.writes & (left | accumulators) or touched.reads & accumulators):
            return []
        return [self._finding(op, address, p, touched) for address, p in self.members(flying) if _touches(p, touched)]

    def _finding(self, op: Instruction, address: int, p: Product | None, touched: Access) -> Finding:
        assert p is not None
        if bits := touched.writes & p.left:
            what = f"writes {names(bits)}, the left operand"
        elif bits := touched.writes & p.accumulator:
            what = f"writes {names(bits)}, the accumulator"
        else:
            what = f"reads {names(touched.reads & p.accumulator)}, the accumulator"
        return Finding(op.address, str(op), address, f"{what}, before the wait for it,")

    def _by_product(self, op: Instruction, flying: int) -> list[Finding]:
        """A product may go on with the accumulator of one in flight, and nothing else of it."""
        own = product(op)
        if own is None:
            return [Finding(op.address, str(op), None, "a product of a form that is not known")]
        left, accumulators = self.united(flying)
        wrong = []
        if bits := own.accumulator & left:
            wrong.append(f"writes {names(bits)}, a left operand of a product in flight")
        if bits := own.left & accumulators:
            wrong.append(f"reads {names(bits)}, an accumulator of a product in flight")
        return [Finding(op.address, str(op), None, what) for what in wrong]


def _touches(p: Product | None, touched: Access) -> bool:
    return p is not None and bool(touched.writes & (p.left | p.accumulator) or touched.reads & p.accumulator)


def _inner(f: Function) -> list[int]:
    """The instructions of the innermost loops that have products."""
    spans = [s for s in loops(f) if any(is_product(f.code[i]) for b in s.blocks for i in f.block(b))]
    inner = [a for a in spans if not any(b is not a and set(b.blocks) < set(a.blocks) for b in spans)]
    return sorted({i for s in inner for b in s.blocks for i in f.block(b)})


# --- fences ---------------------------------------------------------------------------------------


def unfenced(f: Function) -> list[tuple[Instruction, str]]:
    """The products that take registers which were written behind the last fence, and which these are."""
    if not any(is_product(op) for op in f.code):
        return []
    writes = [_writes(op) for op in f.code]
    before = _written(f, writes)
    late_products = []
    for block, written in enumerate(before):
        for i in f.block(block):
            op = f.code[i]
            own = product(op) if is_product(op) else None
            if own is not None and (late := written & (own.left | own.accumulator)):
                late_products.append((op, names(late)))
            written = _behind(op, written, writes[i])
    return late_products


def _writes(op: Instruction) -> int:
    touched = None if is_product(op) else access(op)
    # What is not known is a fault of its own where a product is in flight (`disturbed`).
    return 0 if touched is None else touched.writes


def _behind(op: Instruction, written: int, writes: int) -> int:
    if op.opcode.startswith("WARPGROUP.ARRIVE") and not op.guarded:
        return 0
    return written | writes


def _written(f: Function, writes: list[int]) -> list[int]:
    """The registers that may have been written since the last fence, at the start of each block."""
    kept, added = [], []
    for block in range(len(f.starts)):
        fenced, own = False, 0
        for i in f.block(block):
            own = _behind(f.code[i], own, writes[i])
            fenced |= f.code[i].opcode.startswith("WARPGROUP.ARRIVE") and not f.code[i].guarded
        kept.append(not fenced)
        added.append(own)
    return _settled(f, 0, lambda block, written: added[block] | (written if kept[block] else 0), int.__or__)
