"""Random sizes through one kernel: which variants they take, what that loses by the model, how long a choice takes.

    python -m bench.classes [--count 1000] [--operator prefill_gqa] [--regret 100]

Sizes are drawn evenly by their logarithms. Regret is the time predicted for what is taken over that of the best of the
whole space of all templates, at the sizes themselves; so much is lost by keeping few variants, and by choosing once for
a class. The choices are made anew in another order and in another process, and must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from statistics import median

import numpy as np

import neptune
from neptune.driver.device import machine_for
from neptune.kernel import Kernel
from neptune.ops.attention import operator
from neptune.runtime.launching.launch import parse_target
from neptune.tune.choose import candidates
from neptune.tune.family import Wishes
from neptune.tune.points import Sizes, sizes_of

LONGEST = 16384
"""The longest size that is drawn; batches are up to 16."""


def drawn(names: Sequence[str], count: int) -> list[Sizes]:
    """Random sizes: no more queries than keys, as causal attention has them."""
    draw = random.Random(0)

    def size(most: int) -> int:
        return round(2 ** draw.uniform(0, log(most, 2)))

    found = [{n: size(16 if n == "batch" else LONGEST) for n in names} for _ in range(count)]
    return [{**s, "s_q": min(s["s_q"], s["s_kv"])} if {"s_q", "s_kv"} <= s.keys() else s for s in found]


def chosen(kernel: Kernel, calls: Sequence[Sizes]) -> tuple[list[int], list[float]]:
    """The numbers of the variants that calls take, and the milliseconds that each new class took."""
    members, decided = kernel.executable.members, kernel._family.decided if kernel._family else None
    assert members is not None and decided is not None
    numbers, times = [], []
    for sizes in calls:
        known, start = decided.classes, time.perf_counter()
        numbers.append(members.number_of(sizes))
        times += [1e3 * (time.perf_counter() - start)] if decided.classes > known else []
    return numbers, times


def regrets(kernel: Kernel, numbers: Sequence[int], calls: Sequence[Sizes]) -> list[float]:
    """The predicted time of what each call takes over that of the best of the whole space."""
    machine, family = machine_for(parse_target(kernel.target)), kernel.build.family
    assert family is not None
    found = []
    for number, sizes in zip(numbers, calls, strict=True):
        best = next(candidates(kernel.build.loops, None, Wishes(sizes), machine)).family
        of = family.choices[number]
        us = family.rows[of.template].predicted([of.params], [sizes])[0, 0]
        found.append(float(us) / best.us() if best is not None else np.nan)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.classes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--operator", default="prefill_gqa")
    parser.add_argument("--regret", type=int, default=100, metavar="N", help="compare so many with the whole space")
    parser.add_argument("--numbers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    kernel = neptune.compile(operator(options.operator), target="cuda:90", records=False)
    calls = drawn(sizes_of(kernel.executable.loops), options.count)
    numbers, times = chosen(kernel, calls)
    if options.numbers:
        print(json.dumps(numbers))
        return 0
    switches = sum(a != b for a, b in pairwise(numbers))
    print(f"{len(calls)} calls of {len(times)} classes take {len(set(numbers))} of {len(kernel.variants)} variants")
    print(f"{switches} switches; compilations: {len(set(numbers))} at most, one for each")
    print(f"time of a choice: {median(times):.1f} ms, {max(times):.1f} at most; once a class")
    lost = regrets(kernel, numbers[: options.regret], calls[: options.regret])
    mean = exp(sum(map(log, lost)) / len(lost)) - 1
    print(f"predicted loss of the first {len(lost)}: {mean:.1%} on average, {max(lost) - 1:.0%} at most")
    return 0 if _same(options, kernel, calls, numbers) else 1


def _same(options: argparse.Namespace, kernel: Kernel, calls: Sequence[Sizes], numbers: Sequence[int]) -> bool:
    """Whether the choices are the same in another order, and in another process."""
    order = random.Random(1).sample(range(len(calls)), len(calls))
    again = kernel.saying("note", "")
    permuted = chosen(again, [calls[k] for k in order])[0] == [numbers[k] for k in order]
    asked = [sys.executable, "-m", "bench.classes", "--numbers", "--operator", options.operator]
    made = subprocess.run([*asked, "--count", str(options.count)], capture_output=True, text=True, check=True)
    elsewhere = json.loads(made.stdout.splitlines()[-1]) == numbers
    print(f"the same in another order: {permuted}; in another process: {elsewhere}")
    return permuted and elsewhere


if __name__ == "__main__":
    sys.exit(main())
