"""Asynchronous forms under compute-sanitizer, on small shapes: races, barriers, memory.

    python -m qa.sanitize [CASE …] [--tools racecheck,synccheck,memcheck] [--seconds 600] [--each 120] [--logs DIR]

Kernels are made first, each is saved, and a process under the sanitizer loads and calls it, whatever its verdict is.
Each run has its own limit (`--each`), and no run starts after `--seconds`. The exit status is 1 where something was
found or a run did not end, 2 where there is no compute-sanitizer here.

Triton hands roles to warps through a few bytes of shared memory, in order by a named barrier that racecheck does not
follow (`LDS.U8` behind `BAR.SYNC 1`, `STS.64` before it). It reports that as races between the line of the kernel and
that of `gl.warp_specialize`, in which no statement of ours touches shared memory: these are counted apart. Whatever
names a line of a role is a finding.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import neptune
from neptune.hopper.validate.kernel import on_trial, split_of
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.ops.attention import attention
from neptune.ops.linear import gated_linear, linear, matmul
from neptune.runtime.bench import drawn
from neptune.runtime.executable import Executable

TOOL = "compute-sanitizer"
TOOLS = ("racecheck", "synccheck", "memcheck")
FOUND = 9
"""The exit code of the sanitizer where it has found something."""
SUMMARY, RACE = "SUMMARY", "Race reported between"
Case = tuple[Callable[[], Program], str, Mapping[str, int]]


def _attention(s_q: int, s_kv: int, **options: Any) -> Case:
    sizes = {"batch": 1, "heads": 2, "s_q": s_q, "s_kv": s_kv}
    return partial(attention, causal=True, **options), "flash_attention", sizes


def _product(make: Callable[[], Program]) -> Case:
    return make, "matmul", {"m": 200, "n": 264, "k": 200}


CASES: Mapping[str, Case] = MappingProxyType(
    {
        **{f"causal {depth}": _attention(200, 330, depth=depth) for depth in (64, 128, 256)},
        "empty loops": _attention(400, 33, depth=128),
        "matmul": _product(matmul),
        "window": _attention(400, 400, depth=128, window=150),
        "softcap": _attention(200, 330, depth=64, softcap=30.0),
        "linear, gelu": _product(partial(linear, activation="gelu", bias=True)),
        "gated linear": _product(gated_linear),
    }
)


def sanitizer() -> str | None:
    """The path of compute-sanitizer; None where there is none."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [*(Path(h) for h in homes if h), *sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    wheels = (p for root in sys.path if root for p in Path(root).glob(f"nvidia/*/**/{TOOL}"))
    beside = (f / sub / TOOL for f in folders for sub in ("bin", "compute-sanitizer"))
    return shutil.which(TOOL) or next((str(p) for p in (*beside, *wheels) if os.access(p, os.X_OK)), None)


def save(name: str, folder: Path) -> tuple[Path, str]:
    """Make a kernel and save it such that its asynchronous form runs; and its text."""
    make, template, _ = CASES[name]
    kernel = neptune.compile(make(), template, target="cuda:90", form="asynchronous")
    of = kernel.executable
    path = folder / name.replace(" ", "_").replace(",", "")
    Kernel(Executable(on_trial(of.artifact, split_of(of.artifact)), of.loops)).save(path)
    return path, kernel.source


def call(name: str, path: Path) -> None:
    """What the sanitizer watches: a kernel that was saved, twice on small tensors."""
    kernel = neptune.load(path)
    args = drawn(kernel.executable.loops, CASES[name][2], "cuda")
    for _ in range(2):
        kernel(*args)
    torch.cuda.synchronize()


def of_roles(log: str, text: str) -> tuple[int, int]:
    """How many races of a log are Triton's own handing over of roles, and how many there are; `text` is the module."""
    lines = text.splitlines()

    def handed_over(at: str) -> bool:
        line = lines[int(at) - 1].strip() if int(at) <= len(lines) else ""
        return line.startswith("gl.warp_specialize(") or re.match(r"def \w+_kernel\(", line) is not None

    found = [re.findall(r" in generated_\d+\.py:(\d+)", block) for block in log.split(RACE)[1:]]
    return sum(bool(at) and all(map(handed_over, at)) for at in found), len(found)


def watched(command: Sequence[str], limit: float, log: Path, text: str) -> tuple[bool, str]:
    """Whether a command under the sanitizer ended without a finding, and its summary; all it says goes to `log`. `text`
    is the module that it runs."""
    with open(log, "w") as said:
        # A group of its own: what the sanitizer has started ends with it.
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return False, f"no end in {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    summary = next((x.strip("= ") for x in reversed(lines) if SUMMARY in x), "")
    if not summary:
        return False, f"exit status {status} without a summary: {(lines or [''])[-1]:.200}"
    own, races = of_roles("\n".join(lines), text)
    if own:
        summary += f"; {own} of {races} races are Triton's handing over of roles"
    return status == 0 or (status == FOUND and 0 < own == races), summary


def run(tool: str, names: Sequence[str], tools: Sequence[str], logs: Path, end: float, each: float) -> Iterator[bool]:
    """One run after the other, each with its row; those that there is no time for say so."""
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            made = None
            for kind in tools:
                left = end - time.monotonic()
                if left <= 0:
                    print(f"{kind} {name}: not run, the time is over", flush=True)
                    yield False
                    continue
                made = save(name, Path(temporary)) if made is None else made
                path, text = made
                command = [
                    tool,
                    "--tool",
                    kind,
                    "--error-exitcode",
                    str(FOUND),
                    "--target-processes",
                    "application-only",
                ]
                command += [sys.executable, "-m", "qa.sanitize", "--call", name, str(path)]
                start = time.monotonic()
                clean, said = watched(command, min(each, left), logs / f"{kind}-{path.name}.log", text)
                print(
                    f"{kind} {name}: {'clean' if clean else 'NOT CLEAN'}, {said}, {time.monotonic() - start:.0f} s",
                    flush=True,
                )
                yield clean


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--tools", type=lambda x: x.split(","), default=TOOLS)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--each", type=float, default=120.0)
    parser.add_argument("--logs", type=Path, default=Path("sanitizer-logs"))
    parser.add_argument("--call", nargs=2, metavar=("CASE", "FOLDER"), help="what the sanitizer watches")
    options = parser.parse_args(argv)
    if options.call:
        call(options.call[0], Path(options.call[1]))
        return 0
    if unknown := [n for n in options.names if n not in CASES]:
        parser.error(f"no case {unknown[0]!r}: {', '.join(CASES)}")
    tool = sanitizer()
    if tool is None:
        print(f"{TOOL} is not here: it comes with the CUDA toolkit, or `pip install nvidia-cuda-sanitizer-api`")
        return 2
    options.logs.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    names = options.names or list(CASES)
    return 0 if all(list(run(tool, names, options.tools, options.logs, end, options.each))) else 1


if __name__ == "__main__":
    sys.exit(main())
