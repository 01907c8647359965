"""Do generated kernels compute the right thing on this GPU?  The shipped operators, on inputs that kernels get wrong.

    python -m qa.gpu_check [--target cuda]      # exit status 0: all pass, 1: not, 2: no GPU
    python -m qa.gpu_check --target interpret   # the same at small sizes, on the CPU

Needs torch, triton, numpy, sympy and einops, not TVM. Every operator is compiled by `neptune.compile` and compared
with float64 on random and large inputs, needles and zero tiles at every tile boundary, lengths that no tile divides
and rows that see no key; in dense tensors, in strided views and at odd addresses (which tensor descriptors cannot
serve, so that the pointer form runs); with poison around every tensor and in every output; and called twice. The
limit is that of docs/design/numerics.md, "Numerics": 1.1 (float16, bfloat16) or 10 (float32) times the error of the
unfused expression, or one unit in the last place. Nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import neptune
from bench.cases import ATTENTION, Case, attention_cases, errors, operator_cases, row_cases, worse
from bench.references import Outputs
from neptune import Kernel
from neptune.errors import NeptuneError
from neptune.runtime.launching.launch import default_target, parse_target
from neptune.verify.numerics import allowance, input_families
from qa.guards import PAD, Guarded, guarded

VIEWS = ("dense", "strided", "unaligned")
SKIPPED = ("x1000",)
"""Scores of a million hang on the last bits of their sums wherever two nearly tie: there a limit taken from another
order of summation says nothing. (The tests on the CPU, which know the order, have them.)"""
Families = Mapping[str, Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Plan:
    """What to run: cases, (queries, keys) and heads or rows of each call, and tunables where not the default."""

    cases: tuple[Case, ...]
    sizes: tuple[tuple[int, int], ...]
    outer: int
    params: Mapping[str, Mapping[str, int]]

    def params_of(self, case: Case) -> Mapping[str, int]:
        return self.params.get(case.template, {})


@dataclass
class Result:
    """One call of one kernel: the worst of its errors, and everything that went wrong."""

    case: str
    sizes: tuple[int, int]
    view: str
    of_limit: float = 0.0
    worst: str = ""
    problems: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        return not self.problems


FULL = Plan(
    cases=(
        *attention_cases(lse=True),
        *attention_cases(("float16", "bfloat16"), depth=128, layout="bshd"),
        *operator_cases(("float16", "float32"), lse=True),
        *row_cases(),
    ),
    sizes=((128, 128), (300, 300), (17, 1000), (257, 129), (1, 1)),
    outer=3,
    params={},
)
DECODE_HEADS = 8
SMALL_TILES = {"BLOCK_M": 16, "BLOCK_N": 16}
SMALL = Plan(
    cases=(*attention_cases(depth=16, lse=True), *operator_cases(depth=16, lse=True, window=9), *row_cases()),
    sizes=((5, 21), (21, 5)),
    outer=1,
    params={
        "flash_attention": SMALL_TILES,
        "attention_unfused": SMALL_TILES,
        "softmax_online": {"BLOCK_M": 4, "BLOCK_N": 16},
    },
)


def plan_for(target: str) -> Plan:
    """Everything on a GPU; on the CPU what runs in seconds."""
    return FULL if parse_target(target).on_gpu else SMALL


# --- inputs ---------------------------------------------------------------------------------------


def families(case: Case, sizes: tuple[int, int], outer: int, tile: int) -> Families:
    """Hostile inputs by name; for rows also with -inf in them."""
    shapes = case.shapes(*sizes, outer)
    rows = case.operator not in ATTENTION
    axis = -1 if rows else -2 if case.layout == "bhsd" else -3
    found = dict(input_families(shapes, tile=tile, axis=axis))
    if rows:
        masked = input_families(shapes, tile=tile, axis=axis, additive=tuple(shapes))
        found |= {name: arrays for name, arrays in masked if name.startswith("-inf")}
    return {name: case.rounded(arrays) for name, arrays in found.items() if name not in SKIPPED}


def placed(t: torch.Tensor, view: str, device: str, *, empty: bool = False) -> Guarded:
    """A copy of a tensor on the device (poison if `empty`), with poison around it."""
    fill = None if empty else t
    if view != "unaligned":
        return guarded(t.shape, t.dtype, device, strided=view == "strided", fill=fill)
    memory = torch.full((t.numel() + 2 * PAD,), float("nan"), dtype=t.dtype, device=device)
    inside = memory[PAD + 1 : PAD + 1 + t.numel()].view(t.shape)
    if fill is not None:
        inside.copy_(fill)
    return Guarded(memory, inside)


# --- checking -------------------------------------------------------------------------------------


def unfused(case: Case, inputs: Sequence[torch.Tensor]) -> list[Outputs]:
    """The unfused expression, its sums folded forwards and backwards: one of the two may be right by luck."""
    there = case.reference.unfused(*inputs)
    back = case.reference.unfused(*(t.flip(-1) if t.ndim > 1 else t for t in inputs))
    # Outputs of fewer dimensions have lost the one that was reversed.
    return [there, tuple(t.flip(-1) if t.ndim == inputs[0].ndim else t for t in back)]


def compiled(case: Case, target: str, params: Mapping[str, int]) -> Kernel:
    return neptune.compile(case.program, case.template, target=target, params=params)


def check(case: Case, kernel: Kernel, sizes: tuple[int, int], view: str, outer: int) -> Result:
    """One kernel on all families at once: they lie side by side in the first dimension."""
    result = Result(str(case), sizes, view)
    params = kernel.params
    # A row for each head is all there is in decode: of three numbers, an error in a norm is a matter of luck.
    outer *= DECODE_HEADS if "queries" in (case.options if case.operator in ATTENTION else {}) else 1
    given = families(case, sizes, outer, params.get("BLOCK_N", 16))
    # What belongs to a head and not to a batch is the same for all families.
    sets = zip(*given.values(), strict=True)
    inputs = [torch.cat(list(tensors)) if tensors[0].ndim > 1 else tensors[0] for tensors in sets]
    exact = case.reference.float64(*inputs)
    plain = unfused(case, inputs)
    try:
        outputs = run(kernel, inputs, plain[0], view, result)
    except Exception as error:  # whatever one kernel does, the others are to be checked
        result.problems.append(f"{type(error).__name__}: {error}")
        return result
    for k, b in enumerate(case.program.outputs):
        parts = [t.chunk(len(given)) for t in (outputs[k], exact[k], *(p[k] for p in plain))]
        for name, out, ref, *others in zip(given, *parts, strict=True):
            judge(result, f"{b.name}, {name}", b.dtype, out, ref, others)
    return result


def run(kernel: Kernel, inputs: Sequence[torch.Tensor], like: Outputs, view: str, result: Result) -> Outputs:
    """Call the kernel twice, and note whatever it does besides computing."""
    device = parse_target(kernel.target).device
    given = [placed(t, view, device) for t in inputs]
    runs = []
    for _ in range(2):
        made = [placed(t, view, device, empty=True) for t in like]
        kernel(*(g.view for g in given), out=[g.view for g in made])
        if not all(g.intact() for g in made):
            result.problems.append("written outside of an output")
        runs.append([g.view.cpu() for g in made])
    if not all(g.intact() and bits(g.view.cpu(), t) for g, t in zip(given, inputs, strict=True)):
        result.problems.append("an input was changed")
    if not all(bits(a, b) for a, b in zip(*runs, strict=True)):
        result.problems.append("the second call gave other bits")
    return tuple(runs[0])


def bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality, but for which NaN."""
    return bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


def judge(
    result: Result, where: str, dtype: str, out: torch.Tensor, exact: torch.Tensor, plain: Sequence[torch.Tensor]
) -> None:
    """One output on one family: its errors by the criterion, and zeros where rows are zero."""
    mine, theirs = errors(out, exact), worse(*(errors(t, exact) for t in plain))
    shares = [e / allowance(dtype, u) for e, u in zip(mine, theirs, strict=True)]
    result.samples.append({"of": where, "error": mine._asdict(), "unfused": theirs._asdict(), "of_limit": max(shares)})
    if max(shares) > result.of_limit:
        result.of_limit, result.worst = max(shares), where
    if max(shares) > 1:
        result.problems.append(f"{where}: error {mine.total:.2e}, worst row {mine.row:.2e}: {max(shares):.3g} × limit")
    # Rows without keys, in which a norm would forgive an absolute error.
    if exact.ndim > 1 and not bool((out[(exact == 0).all(-1)] == 0).all()):
        result.problems.append(f"{where}: a row that is zero is not exactly zero")


def results(target: str, plan: Plan) -> Iterator[Result]:
    """Every check of a plan; each kernel is compiled once, and takes every size and view."""
    for case in plan.cases:
        try:
            kernel = compiled(case, target, plan.params_of(case))
        except NeptuneError as error:
            yield Result(str(case), (0, 0), "", problems=[str(error)])
            continue
        for sizes in plan.sizes:
            for view in VIEWS:
                yield check(case, kernel, sizes, view, plan.outer)


# --- output ---------------------------------------------------------------------------------------

HEAD = f"{'kernel':<52} {'queries×keys':>12}  {'view':<9} {'inputs':>6} {'of limit':>8}  worst"


def line(r: Result) -> str:
    """A row of the table; the problems of a check follow it."""
    size = f"{r.sizes[0]}×{r.sizes[1]}"
    verdict = "pass" if r.passes else "FAIL"
    first = f"{r.case:<52} {size:>12}  {r.view:<9} {len(r.samples):>6} {r.of_limit:>8.2f}  {verdict}  {r.worst}"
    return "\n".join([first, *(f"    {p}" for p in r.problems[:5])])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=("cuda", "hip", "interpret", "llvm"), help="by default the GPU here")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="by default all")
    options = parser.parse_args(argv)
    target = options.target or str(default_target())
    plan = plan_for(target)
    if options.operators:
        plan = replace(plan, cases=tuple(c for c in plan.cases if c.operator in options.operators))
        if not plan.cases:
            parser.error(f"no such operator: {', '.join(options.operators)}")
    if not present(target, asked=options.target is not None):
        print("torch sees no such GPU here; --target interpret runs the same checks on the CPU, at small sizes")
        return 2
    print(HEAD)
    count = failed = 0
    for r in results(target, plan):
        print(line(r), flush=True)
        count, failed = count + 1, failed + (not r.passes)
    print(f"{count} checks on {target}, {failed} failed")
    return 1 if failed else 0


def present(target: str, asked: bool) -> bool:
    """Whether to go ahead: on the GPU that is here, or on the CPU if that was asked for."""
    return str(default_target()) == target if parse_target(target).on_gpu else asked


if __name__ == "__main__":
    sys.exit(main())
