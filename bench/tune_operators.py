"""The tuner on the ten operators of the paper, at a few sizes each, and on calls of `neptune.functional` that the model
alone chooses less well for: what it measures is what ships.

    python -m bench.tune_operators [--only decode …] [--budget 10s] [--seconds 560]

Records go to the ordinary store (NEPTUNE_CACHE_DIR), each at once: a run that is cut off goes on by the same command.
`python -m bench.records --ship … --tuned records.jsonl` makes shipped records of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import neptune
from neptune.ir.program import Program
from neptune.ops.attention import OPERATORS, operator
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import add_rms_norm, layer_norm, rms_norm

LENGTHS = (4096, 1024, 16384)
CACHES = ((1, 8192), (8, 8192), (1, 32768), (32, 1024))
"""Of decoding: how many sequences, and how many keys each."""
CALLS: Mapping[str, tuple[Callable[[], Program], Sequence[Mapping[str, int]]]] = {
    "linear": (partial(matmul, trans_b=True), [{"m": 128, "n": 4096, "k": 4096}, {"m": 16, "n": 14336, "k": 4096}]),
    "gated_linear": (partial(gated_linear, trans_b=True), [{"m": 16, "n": 14336, "k": 4096}]),
    "layer_norm": (layer_norm, [{"rows": 4096, "cols": 131072}]),
    "rms_norm": (rms_norm, [{"rows": 2048, "cols": 32768}, {"rows": 16, "cols": 4096}]),
    "add_rms_norm": (add_rms_norm, [{"rows": 2048, "cols": 32768}]),
}
"""Programs as `neptune.functional` makes them of weights as nn.Linear's, in float16, and sizes of `bench.default`."""


def program(name: str) -> Program:
    """The program of an operator, or of a call."""
    return CALLS[name][0]() if name in CALLS else operator(name)


def shapes(name: str) -> Sequence[Mapping[str, int]]:
    """The sizes at which an operator is tuned."""
    if name in CALLS:
        return CALLS[name][1]
    if "queries" in OPERATORS[name]:
        return [{"batch": batch, "s_kv": keys} for batch, keys in CACHES]
    return [{"batch": 1, "s_q": n, "s_kv": n} for n in LENGTHS]


def jobs(only: Sequence[str]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Operators and sizes, the first sizes of all operators first."""
    names = [n for n in (*OPERATORS, *CALLS) if not only or any(text in n for text in only)]
    for k in range(max(len(LENGTHS), len(CACHES))):
        for name in names:
            if k < len(shapes(name)):
                yield name, shapes(name)[k]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tune_operators", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="operators whose name has one of these")
    parser.add_argument("--budget", default="10s", help="of each operator at each size")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so long")
    parser.add_argument("--workers", type=int, help="processes that compile")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    for name, sizes in jobs(options.only):
        if time.monotonic() - begin > options.seconds:
            print(f"{name} {dict(sizes)}: not tuned, the time is over")
            continue
        at = time.monotonic()
        neptune.autotune(program(name), shapes=[sizes], budget=options.budget, workers=options.workers)
        print(f"{name} {dict(sizes)}: {time.monotonic() - at:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
