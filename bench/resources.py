"""What compilers make of generated attention, next to the kernel written by hand. No GPU is needed.

    python -m bench.resources [--json resources.json] [--depths 64 128 256] [--skip-others]

Both kernels are compiled in the same run, for sm_90 through host descriptors, at the same tiles. The figures are
registers, spills, shared memory, and the instructions of one iteration of the loop over unmasked tiles and of the
masked one (a dash where what is masked is one tile after the loop). A ratio is generated to hand-written: below 1
the generated kernel needs less. For sm_80 and gfx942 there is nothing to compare with: registers and spills of the
generated kernels, which load through pointers there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.baselines import flash_attention_triton as baseline
from bench.sass import CompileError, LoopStats, Report, Request, clean_loop, compile_kernel
from neptune.codegen.compile import compile_offline, launch_types
from neptune.codegen.triton import generate
from neptune.errors import TargetError
from neptune.fusion.schedule import Schedule
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import lower

PACKAGES = ("torch", "triton", "neptune-compiler")
Tile = baseline.Tile
OTHER_TILES = {
    "cuda:80": {64: Tile(128, 64, 8, 2), 128: Tile(128, 64, 8, 2)},
    "hip:gfx942": {64: Tile(128, 64, 4, 2), 128: Tile(128, 64, 4, 2), 256: Tile(128, 32, 8, 2)},
}


@dataclass(frozen=True)
class Case:
    """One expression at one tile."""

    depth: int
    tile: Tile
    causal: bool
    lse: bool

    def __str__(self) -> str:
        t = self.tile
        kind = "causal" if self.causal else "global"
        return (
            f"{kind}{' +lse' if self.lse else ''} d{self.depth} {t.block_m}x{t.block_n} w{t.num_warps} s{t.num_stages}"
        )


def tiles_of(case: Case) -> TileProgram:
    """The fused program of a case."""
    build = prefill_causal if case.causal else prefill_global
    schedule = Schedule(build(depth=case.depth, lse=case.lse))
    flash_attention(schedule)
    return lower(schedule.program)


def params(tile: Tile) -> dict[str, int]:
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def generated(case: Case, folder: Path) -> Report:
    """The generated kernel on sm_90, through descriptors."""
    program = tiles_of(case)
    path = folder / f"generated_{case.depth}_{case.causal}_{case.lse}.py"
    path.write_text(generate(program, loads="descriptor"))
    (kernel,) = launch_types(program, params(case.tile), loads="descriptor")
    return compile_kernel(
        Request(
            kernel=f"{path}:{kernel.function}",
            signature=kernel.types,
            constants=kernel.constants,
            divisible=kernel.aligned,
            num_warps=case.tile.num_warps,
            num_stages=case.tile.num_stages,
        )
    )


def by_hand(case: Case) -> Report:
    """The baseline on sm_90."""
    return compile_kernel(baseline.request(case.depth, case.tile, causal=case.causal, lse=case.lse))


def figures(report: Report) -> dict[str, Any]:
    """The figures of one kernel that are compared, and what may not be in it."""
    loops = [loop for loop in report.loops if loop.hgmma]
    clean = clean_loop(loops)
    masked = next((loop for loop in loops if loop is not clean), None)
    return {
        "registers": report.registers,
        "spill_bytes": report.spill_bytes,
        "shared_bytes": report.shared_bytes,
        "clean": _instructions(clean),
        "masked": _instructions(masked),
        "warnings": list(report.warnings),
        "loops": [asdict(loop) for loop in report.loops],
    }


def _instructions(loop: LoopStats | None) -> int | None:
    return loop.instructions if loop else None


def compare(case: Case, folder: Path) -> dict[str, Any]:
    """Generated against hand-written for one case."""
    ours, theirs = figures(generated(case, folder)), figures(by_hand(case))
    both = [key for key in ("registers", "clean", "masked") if ours[key] and theirs[key]]
    ratios = {key: round(ours[key] / theirs[key], 3) for key in both}
    return {"case": str(case), **asdict(case), "generated": ours, "baseline": theirs, "ratio": ratios}


def other(target: str, case: Case) -> dict[str, Any]:
    """The generated kernel on another GPU, through pointers."""
    program = tiles_of(case)
    (c,) = compile_offline(generate(program), program, target, params(case.tile))
    numbers = {"registers": c.registers, "spill_bytes": c.spill_bytes, "shared_bytes": c.shared_bytes}
    return {"target": target, "case": str(case), **numbers, "matrix": c.matrix}


def machine() -> dict[str, str]:
    """Where and with what the figures were made."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def measure(depths: Sequence[int], folder: Path, others: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every figure as it is made: ("sm_90", row) and ("other", row). A case that fails is a row with its error."""
    flags = list(itertools.product((False, True), (False, True)))
    for depth in depths:
        for tile, (causal, lse) in itertools.product(baseline.TILES[depth], flags):
            case = Case(depth, tile, causal, lse)
            try:
                yield "sm_90", compare(case, folder)
            except (CompileError, TargetError) as error:
                yield "sm_90", {"case": str(case), "error": str(error)}
    for target, tiles in OTHER_TILES.items() if others else ():
        for depth, causal in itertools.product([d for d in depths if d in tiles], (False, True)):
            case = Case(depth, tiles[depth], causal, lse=True)
            try:
                yield "other", other(target, case)
            except TargetError as error:
                yield "other", {"target": target, "case": str(case), "error": str(error)}


HEADS = {
    "sm_90": "| case | registers | ratio | spill B | clean loop | ratio | masked loop | ratio | overlap | warnings |",
    "other": "| target | case | registers | spill B | shared B | matrix |",
}


def line(kind: str, row: dict[str, Any]) -> str:
    """A row of a Markdown table."""
    if "error" in row:
        return f"| {row['case']} | {row['error'].splitlines()[0]} |"
    if kind == "other":
        return "| " + " | ".join(str(row[k]) for k in ("target", "case", *_OTHER)) + " |"
    ours, theirs, ratio = row["generated"], row["baseline"], row["ratio"]
    words = [row["case"], f"{ours['registers']} / {theirs['registers']}", f"{ratio['registers']:.3f}"]
    words.append(f"{ours['spill_bytes']} / {theirs['spill_bytes']}")
    for key in ("clean", "masked"):
        words += [f"{ours[key] or '-'} / {theirs[key] or '-'}", f"{ratio[key]:.3f}" if key in ratio else "-"]
    words += [_overlap(ours), " ".join(ours["warnings"]) or "-"]
    return f"| {' | '.join(words)} |"


_OTHER = ("registers", "spill_bytes", "shared_bytes", "matrix")


def _overlap(found: dict[str, Any]) -> str:
    """Exponentials of the clean loop that run under a matrix instruction, of all."""
    clean = next((x for x in found["loops"] if x["hgmma"] and x["instructions"] == found["clean"]), None)
    return f"{clean['overlapped']}/{clean['ex2']}" if clean else "-"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.resources", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--depths", type=int, nargs="+", default=sorted(baseline.TILES), choices=baseline.TILES)
    parser.add_argument("--skip-others", action="store_true", help="sm_90 only")
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"environment": machine(), "sm_90": [], "other": []}
    print(json.dumps(report["environment"]))
    shown = ""
    with tempfile.TemporaryDirectory() as folder:
        for kind, row in measure(options.depths, Path(folder), not options.skip_others):
            if kind != shown:
                print(f"\n{HEADS[kind]}\n{'|---' * (HEADS[kind].count('|') - 1)}|")
                shown = kind
            print(line(kind, row), flush=True)
            report[kind].append(row)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
