"""The parts of the comparison, in their order, and the plan: every column of every subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.comparison.columns import COLUMNS
from bench.comparison.results import Key
from bench.comparison.subjects import subjects

TWELVE = (
    "prefill_global 1×4096",
    "prefill_causal 1×4096",
    "prefill_alibi 1×4096",
    "prefill_gqa 1×4096",
    "prefill_softcap 1×4096",
    "prefill_window 1×8192",
    "decode_causal 1×8192",
    "decode_gqa 1×8192",
    "matmul 4096×4096×4096",
    "rms_norm_linear 1024×4096×4096",
    "gated_linear 1024×4096×4096",
    "softmax 4096×16384",
)
ABLATED = ("prefill_global 1×512", "prefill_causal 1×512", "prefill_causal 1×4096", "decode_gqa 1×8192")
"""The paper's Figure 7 has the first two; on one with more to do, and on one that is bound by memory."""
TUNED = tuple(
    f"{name} {size}"
    for sizes in (("1×1024", "1×4096", "8×4096"),)
    for size in sizes
    for name in ("prefill_causal", "prefill_softcap", "decode_gqa")
) + tuple(
    f"{name}"
    for name in (
        *(f"matmul {s}" for s in ("4096×4096×4096", "512×4096×4096", "8×4096×14336")),
        *(f"rms_norm_linear {s}×4096×4096" for s in (128, 1024, 4096)),
        *(f"softmax {s}" for s in ("4096×16384", "65536×1024", "8192×8192")),
    )
)
"""Six operators at three sizes."""


@dataclass(frozen=True)
class Part:
    """Subjects by name, with columns: those of a column that are not for a subject's group are left out."""

    name: str
    about: str
    subjects: Sequence[str]
    columns: Sequence[str]

    def measurements(self) -> Iterator[Key]:
        for name in self.subjects:
            group = subjects()[name].group
            yield from (Key(self.name, name, c) for c in self.columns if fits(c, group))


def fits(column: str, group: str) -> bool:
    """Whether a column may have something for a group of subjects; that of the tuner's part is for all."""
    return column not in COLUMNS or group in COLUMNS[column].families


def parts() -> Mapping[str, Part]:
    """All parts by name, in their order."""
    every = list(subjects())
    without = [n for n in COLUMNS if n.startswith("no ")]
    torchs = ("cuDNN", "FlashAttention-2", "FlexAttention", "torch", "torch.compile")
    autotuned = ("torch.compile, max-autotune", "FlexAttention, max-autotune")
    made = (
        Part("first", "a dozen setups, default and tuned", TWELVE, ("default", "tuned")),
        Part("grid", "the default beside torch's libraries and compilers", every, ("default", "tuned", *torchs)),
        Part(
            "best",
            "the dozen beside what takes long to compile",
            TWELVE,
            ("default", "tuned", *autotuned, "cuBLAS", "by hand", "Helion"),
        ),
        Part("ablation", "one idea less", ABLATED, ("default", "tuned", *without)),
        Part("tuner", "regret, and the time until within 3 %", TUNED, ("tuner",)),
    )
    return {p.name: p for p in made}
