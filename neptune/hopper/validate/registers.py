"""The registers that an instruction of sm_90 reads and writes, from its text.

    HGMMA.64x128x16.F32 R88, R180, gdesc[UR12].tnspB, R88, gsb0    reads R180–R183 and R88–R151, writes R88–R151
    STSM.16.MT88.4 [R17+0x20], R24                                 reads R17 and R24–R27

Registers are bits of an integer: R3 is 1 << 3. Both may name a register too many (conversions of 64 bits, and reads of
matrix instructions), and none too few. What the tables do not have is `None`: it may do anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from neptune.runtime.machine_code.listing import Instruction

_REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.64)?")
_PREDICATE = re.compile(r"^!?U?P(?:\d|T)$")
_PRODUCT = re.compile(r"^[A-Z]GMMA\.(\d+)x(\d+)x(\d+)\.(F32|F16|S32|\w+)")
_DIGITS = re.compile(r"^R(\d+)$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOTHING = _words(
    """
    ST STS STG STL STSM RED REDG LDGSTS LDGDEPBAR CCTL CCTLL MEMBAR FENCE ERRBAR CGAERRBAR
    ISETP FSETP HSETP2 DSETP PLOP3 PSETP FCHK R2UR S2UR R2P R2B REDUX VOTEU ELECT
    BAR DEPBAR ARRIVES SYNCS WARPSYNC WARPGROUP WARPGROUPSET NANOSLEEP PREEXIT ACQBULK ENDCOLLECTIVE YIELD NOP
    BRA BRX JMP JMX CALL RET EXIT KILL BSSY BSYNC BREAK
    """
)
"""Opcodes that write no general register; SYNCS may, where its first operand is one."""
RESULT = _words(
    """
    MOV MOV32I MOVM SEL PRMT CS2R S2R P2R B2R BMOV SHFL VOTE MATCH
    LOP3 SHF SGXT BMSK BREV FLO POPC IABS IADD3 IMAD LEA LEPC VIADD VIADDMNMX VIMNMX VIMNMX3 IDP
    MUFU FADD FMUL FFMA FMNMX FSEL FSET FRND FSWZADD HADD2 HMUL2 HFMA2 HMNMX2 HSET2 DADD DMUL DFMA DMNMX
    I2F I2FP I2I I2IP F2F F2FP F2I F2IP
    LD LDS LDG LDL LDC LDSM ATOM ATOMG ATOMS QSPC HMMA IMMA DMMA BMMA QMMA
    """
)
"""Opcodes that write the first operand that is no predicate."""
FOUR = _words("HMMA IMMA DMMA BMMA QMMA")
DOUBLE = _words("DADD DMUL DFMA DMNMX DSETP LEPC")
CONVERSIONS = _words("F2F I2F F2I I2I")
WIDE = _words("64 F64 S64 U64")


@dataclass(frozen=True, slots=True)
class Access:
    """Registers that are read and written, one bit each."""

    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a warpgroup: the registers of its accumulator and, where its left operand lies in registers, of
    that; `closes` where it ends a group that a wait can count."""

    accumulator: int
    left: int
    closes: bool


def span(first: int, count: int) -> int:
    """The bits of `count` registers from `first` on.

    >>> span(2, 3)
    28
    """
    return ((1 << count) - 1) << first


def names(bits: int) -> str:
    """Registers for people.

    >>> names(span(4, 4) | span(9, 1))
    'R4-R7, R9'
    """
    ranges, bit = [], 0
    while bits >> bit:
        if bits >> bit & 1:
            first = bit
            while bits >> bit & 1:
                bit += 1
            ranges.append(f"R{first}" if bit == first + 1 else f"R{first}-R{bit - 1}")
        bit += 1
    return ", ".join(ranges)


def is_product(op: Instruction) -> bool:
    """True for HGMMA and its kin."""
    return op.opcode[1:5] == "GMMA"


def product(op: Instruction) -> Product | None:
    """The registers of a product of a warpgroup; None where its form is not known.

    The left operand is 64 rows of 32 bytes for 128 threads: four registers of each, whatever its dtype.
    """
    shape = _PRODUCT.match(op.opcode)
    operands = _operands(op.operands)
    accumulator = _DIGITS.match(operands[0])
    if shape is None or accumulator is None or shape[1] != "64" or ".SP" in op.opcode:
        return None
    columns = int(shape[2])
    left = _DIGITS.match(operands[1])
    if left is None and not operands[1].startswith("gdesc["):
        return None
    return Product(
        span(int(accumulator[1]), columns // 4 if shape[4] == "F16" else columns // 2),
        0 if left is None else span(int(left[1]), 4),
        "gsb0" in operands,
    )


def access(op: Instruction) -> Access | None:
    """The registers that an instruction other than a product reads and writes; None for an opcode that is not known."""
    base, *parts = op.opcode.split(".")
    operands = _operands(op.operands)
    if base.startswith("U") or base in NOTHING:
        # Uniform instructions write registers of their own.
        results, sources = _results(operands[:1]) if base == "SYNCS" else 0, operands
    elif base in RESULT:
        first = next((i for i, o in enumerate(operands) if not _PREDICATE.match(o)), len(operands))
        results = _results(operands[first : first + 1], _width(base, parts))
        sources = operands[first + 1 :]
    else:
        return None
    return Access(_reads(base, parts, sources), results)


def _operands(text: str) -> list[str]:
    """Operands, split where no bracket is open.

    >>> _operands("R4, desc[UR24][R2.64], c[0x0][0x210]")
    ['R4', 'desc[UR24][R2.64]', 'c[0x0][0x210]']
    """
    return [part.strip() for part in text.split(",")] if text else [""]


def _results(operands: Sequence[str], width: int = 1) -> int:
    register = _DIGITS.match(operands[0]) if operands else None
    return span(int(register[1]), width) if register else 0


def _width(base: str, parts: Sequence[str]) -> int:
    """Registers of a result, by the modifiers of the opcode."""
    if base in FOUR:
        return 4
    if base == "LDSM":
        return next((int(p) for p in parts if p in ("2", "4")), 1)
    if "128" in parts:
        return 4
    if base == "SHF":
        # A shift of 64 bits takes its halves one by one.
        return 1
    if base == "CS2R":
        return 1 if "32" in parts else 2
    types = parts[:1] if base in CONVERSIONS else parts
    return 2 if base in DOUBLE or "WIDE" in parts or not WIDE.isdisjoint(types) else 1


def _reads(base: str, parts: Sequence[str], sources: Sequence[str]) -> int:
    """Registers of sources: wide ones as wide as the instruction may take them."""
    if base in FOUR:
        width = 4
    elif base in ("STSM", "ST", "STS", "STG", "STL", "RED", "REDG", "ATOM", "ATOMG", "ATOMS"):
        width = next((int(p) for p in parts if p in ("2", "4")), 1) if base == "STSM" else _width(base, parts)
    else:
        width = 2 if base in DOUBLE or (base != "SHF" and not WIDE.isdisjoint(parts)) else 1
    bits = 0
    long = base == "IMAD" and ("WIDE" in parts or "HI" in parts)
    for i, operand in enumerate(sources):
        inside = "[" in operand
        addend = long and i == 2
        for number, double in _REGISTER.findall(operand):
            wide = 2 if double or addend else 1 if inside else width
            bits |= span(int(number), wide)
    return bits
