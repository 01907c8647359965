"""What GPUs can do, as a table: a row for each device that is known by name, a default for each architecture.

Numbers are those of the datasheet and of the vendor's tuning guides, but for those that a row's `source` calls
measured. The cost model (`neptune.tune.model.cost`) reads nothing else about a device.

    BY_ARCH["sm_90"].processors  →  132
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.ir.dtypes import FLOAT8

MEASURED = ", measured "
"""What stands in a name between a row of the table and a digest of constants that were measured."""


@dataclass(frozen=True, eq=False)
class Machine:
    """One GPU. Rates are per processor and cycle unless they say otherwise.

    `processors`: streaming multiprocessors or compute units. `clock`: GHz under load. `lanes`: threads that issue one
    instruction. `special`: special functions. `matrix`: FLOP of the matrix unit by dtype of the operands; what is not
    there has no unit. `asynchronous`: products read their operands from shared memory, 64 rows by four warps.
    `shared_rate`, `port`: bytes of shared memory, and from L2. `shared`: bytes of shared memory for all programs of a
    processor; `shared_own`: what each takes beside its own. `registers`, `threads`, `programs`: of a processor.
    `l2`: bytes. `memory`: GB/s that can be read. `warp`: threads.
    """

    name: str
    arch: str
    processors: int
    clock: float
    memory: float
    l2: int
    matrix: Mapping[str, float]
    special: float = 16
    lanes: int = 128
    shared_rate: float = 128
    port: float = 64
    shared: int = 233472
    shared_own: int = 1638
    shared_limit: int = 232448
    registers: int = 65536
    threads: int = 2048
    programs: int = 32
    asynchronous: bool = False
    warp: int = 32
    source: str = ""

    @property
    def device(self) -> str:
        """The GPU by its name in the table, whatever `neptune calibrate` measured of it: a time is one of the GPU, a
        prediction one of its constants.

        >>> replace(DEFAULT, name="H200, measured 5d0c1a").device
        'H200'
        """
        return self.name.partition(MEASURED)[0]


MB = 1 << 20


def _units(half: float, **others: float) -> dict[str, float]:
    """FLOP a cycle of the matrix unit: 16-bit floats, and others by name; 8-bit ones without a rate are widened.

    >>> _units(1024)["float8_e5m2"], _units(1024, float8=2048)["float8_e5m2"]
    (1024, 2048)
    """
    short = others.pop("float8", half)
    return {"float16": half, "bfloat16": half, **dict.fromkeys(FLOAT8, short), **others}


_HOPPER = Machine(
    "H200", "sm_90", 132, 1.75, 4350.0, 50 * MB,
    _units(4096, int8=8192, float8=8192, tf32=2048), asynchronous=True,
    source="NVIDIA H100 white paper for the processor; clock under load and memory rate measured on an H200",
)  # fmt: skip
_ROWS = (
    _HOPPER,
    replace(_HOPPER, name="H100 SXM", memory=3050.0, source="NVIDIA H100 white paper; memory at 0.91 of 3350 GB/s"),
    replace(_HOPPER, name="H100 PCIe", processors=114, clock=1.5, memory=1850.0,
            source="NVIDIA H100 white paper; memory at 0.91 of 2039 GB/s"),
    replace(_HOPPER, name="H100 NVL", clock=1.6, memory=3580.0,
            source="NVIDIA H100 NVL product brief, 3938 GB/s; clock between SXM and PCIe, no card was at hand"),
    replace(_HOPPER, name="GH200", clock=1.75, memory=3640.0,
            source="NVIDIA GH200 datasheet, 96 GB of 4000 GB/s; clock of an H200, no card was at hand"),
    replace(_HOPPER, name="GH200 144G", memory=4450.0,
            source="NVIDIA GH200 datasheet, 144 GB of 4900 GB/s; clock of an H200, no card was at hand"),
    Machine("A100", "sm_80", 108, 1.41, 1800.0, 40 * MB, _units(2048, int8=4096, tf32=1024), shared=167936,
            shared_own=1024, shared_limit=166912, source="NVIDIA A100 white paper; memory at 0.9 of 2039 GB/s"),
    Machine("A10", "sm_86", 72, 1.5, 540.0, 6 * MB, _units(1024, int8=2048, tf32=512), shared=102400,
            shared_own=1024, shared_limit=101376, threads=1536, programs=16,
            source="NVIDIA GA102 white paper, fp32 accumulation at full rate; memory at 0.9 of 600 GB/s"),
    Machine("L40S", "sm_89", 142, 2.3, 780.0, 96 * MB, _units(1024, int8=2048, float8=2048,
            tf32=512), shared=102400, shared_own=1024, shared_limit=101376, threads=1536, programs=24,
            source="NVIDIA Ada white paper; memory at 0.9 of 864 GB/s"),
    Machine("L4", "sm_89", 58, 2.04, 270.0, 48 * MB, _units(1024, int8=2048, float8=2048, tf32=512), shared=102400,
            shared_own=1024, shared_limit=101376, threads=1536, programs=24,
            source="NVIDIA L4 datasheet, clock that its rates are of; memory at 0.9 of 300 GB/s, no card was at hand"),
    Machine("MI250X", "gfx90a", 110, 1.6, 1400.0, 8 * MB, _units(1024, int8=1024), lanes=64, shared=65536,
            shared_own=0, shared_limit=65536, registers=131072, warp=64,
            source="AMD CDNA2 white paper, one of two dies; memory at 0.87 of 1638 GB/s"),
    Machine("MI300X", "gfx942", 304, 1.9, 4300.0, 256 * MB, _units(2048, int8=4096), lanes=128,
            shared=65536, shared_own=0, shared_limit=65536, registers=131072, warp=64,
            source="AMD CDNA3 white paper; memory at 0.81 of 5325 GB/s, infinity cache as L2"),
)  # fmt: skip
DEVICES: Mapping[str, Machine] = {m.name: m for m in _ROWS}
BY_ARCH: Mapping[str, Machine] = {m.arch: m for m in reversed(_ROWS)}
"""The first row of each architecture."""
DEFAULT = DEVICES["H200"]
"""The device for targets without a GPU, so that what is tested is what runs."""


def machine_of(arch: str, name: str = "") -> Machine:
    """The row of a GPU by its name, as its driver has it, else by its architecture ("90", "gfx942"), else DEFAULT.

    >>> machine_of("90", "NVIDIA H100 80GB HBM3").name, machine_of("80").name, machine_of("gfx942").name
    ('H100 SXM', 'A100', 'MI300X')
    """
    return named(arch, name) or BY_ARCH.get(_own(arch), DEFAULT)


def named(arch: str, name: str) -> Machine | None:
    """The row of a GPU by its name; None where the table does not have it. Of several that a name may be of, it is the
    one of which it has the most words.

    >>> [named("90", f"NVIDIA {n}").name for n in ("H100 NVL", "H100 PCIe", "GH200 480GB", "GH200 144G HBM3e", "H200")]
    ['H100 NVL', 'H100 PCIe', 'GH200', 'GH200 144G', 'H200']
    >>> named("90", "NVIDIA H20") is None
    True
    """
    words = set(re.split(r"[\s-]+", name))
    known = [m for m in _ROWS if m.arch == _own(arch) and m.name.split()[0] in words]
    # The first of those alike, so that "H100 80GB HBM3" is an SXM card, which its name does not say.
    return max(known, key=lambda m: len(words & set(m.name.split())), default=None)


def _own(arch: str) -> str:
    """An architecture as the table has it."""
    return f"sm_{arch}" if arch.isdigit() else arch
