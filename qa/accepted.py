"""Which operators get an asynchronous form, and what the verdict on its machine code is. No GPU is needed.

    python -m qa.accepted [NAME …] [--shipped] [--json FILE]

Options that matter to the form, or with `--shipped` every shipped operator by default. Each is compiled for sm_90 with
the first levers that fit. Without a GPU no verdict is whole, as numbers are compared there: `faults` are the others. A
form that has one does not run, and the Triton form does.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import neptune
from bench.record import as_json
from neptune.errors import NeptunePerformanceWarning, TargetError
from neptune.frontend.builder import build, compute, log, reduce_axis, sum
from neptune.hopper.validate.kernel import form_of
from neptune.hopper.validate.verdicts import examined
from neptune.ir.program import Program
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.ops.attention_variants import sigmoid_attention
from neptune.ops.cross_entropy import linear_cross_entropy, linear_logsumexp
from neptune.ops.linear import gated_linear, linear, matmul
from neptune.ops.mixture import gaussian_mixture
from neptune.ops.norm import rms_norm_linear
from neptune.ops.parts import COLS, ROWS, cells, exponentials, matrix, vector, wide
from neptune.ops.shipped import OPERATORS
from neptune.runtime.hopper.accepted import CLEAN, Compared, Verdict
from qa.masks import cases

FLASH, MATMUL = "flash_attention", "matmul"
FIGURES = ("products", "in_flight", "exps", "overlapped", "spill_bytes", "local_inner")
COMPARED = Compared(1, 0.0, 0.0)
"""Stands for the comparison that needs a GPU."""


Row: TypeAlias = "tuple[Callable[[], Program], str | None]"


def _attention(depth: int = 128, causal: bool = True, **options: Any) -> tuple[Callable[[], Program], str]:
    return lambda: attention(depth=depth, causal=causal, **options), FLASH


def _masked(name: str) -> Row:
    return lambda: attention(depth=128, mask=cases()[name].mask), FLASH


def expanded_mixture(depth: int = 64, dtype: str = "float16") -> Program:
    """The log-likelihoods of a Gaussian mixture by products, as its user may write them (x² a + x b + c).

    x, squares (of x): [rows, depth], linear, quadratic: [cols, depth], of `dtype`; offset: f32[cols], likely:
    f32[rows]. It is another program of floats than `gaussian_mixture`: what far points have in common cancels.
    """
    x, squares = matrix("x", ROWS, depth, dtype), matrix("squares", ROWS, depth, dtype)
    linear, quadratic = matrix("linear", COLS, depth, dtype), matrix("quadratic", COLS, depth, dtype)
    offset, d, e = vector("offset", "float32"), reduce_axis((0, depth), "d"), reduce_axis((0, depth), "e")
    lin = cells(lambda i, j: sum(wide(x[i, d]) * wide(linear[j, d]), axis=d), "lin")
    quad = cells(lambda i, j: sum(wide(squares[i, e]) * wide(quadratic[j, e]), axis=e), "quad")
    score = cells(lambda i, j: lin[i, j] + quad[i, j] + offset[j], "score")
    m, _, l = exponentials(lambda i, j: score[i, j])  # noqa: E741 (the field's name)
    inputs = [x, squares, linear, quadratic, offset]
    return build(compute((ROWS,), lambda i: m[i] + log(l[i]), "likely"), inputs=inputs, name="expanded_mixture")


OPTIONS: Mapping[str, Row] = MappingProxyType(
    {
        **{f"causal {d}": _attention(d) for d in (64, 128, 256)},
        **{f"full {d}": _attention(d, causal=False) for d in (64, 128, 256)},
        **{f"softcap {d}": _attention(d, softcap=30.0) for d in (64, 128)},
        **{f"window {d}": _attention(d, window=512) for d in (64, 128)},
        "alibi": _attention(alibi=True),
        "sinks": _attention(sinks=True),
        "log-sum-exp": _attention(lse=True),
        "prefix": _attention(causal=False, mask=masks.or_(masks.causal(), masks.prefix(100))),
        **{f"mask {name}": _masked(name) for name in ("document and causal", "segments", "lengths and causal")},
        "grouped heads": _attention(heads=8, kv_heads=2),
        "rows first": _attention(layout="bshd"),
        "bfloat16": _attention(dtype="bfloat16"),
        "float8 keys": _attention(kv_dtype="float8_e4m3fn"),
        "depth of v 64": _attention(depth_v=64),
        "sigmoid": (lambda: sigmoid_attention(128), FLASH),
        "matmul": (matmul, MATMUL),
        "linear, gelu": (lambda: linear(activation="gelu", bias=True), MATMUL),
        "gated linear": (gated_linear, MATMUL),
        "norm, linear": (rms_norm_linear, "norm_linear"),
        "linear, log-sum-exp": (lambda: linear_logsumexp(depth=256), FLASH),
        "linear, cross-entropy": (lambda: linear_cross_entropy(depth=256), FLASH),
        "mixture by products": (expanded_mixture, FLASH),
        "gaussian mixture": (lambda: gaussian_mixture(64, "float16"), FLASH),
    }
)


SHIPPED: Mapping[str, Row] = MappingProxyType({name: (made, None) for name, made in OPERATORS.items()})


def verdict_of(row: Row) -> dict[str, Any]:
    """One row: `refused` with the reason, or levers and figures of each kernel, why others stay `on_tiles`, `faults`,
    seconds."""
    make, template = row
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        try:
            kernel = neptune.compile(make(), template, target="cuda:90", form="asynchronous")
        except TargetError as error:
            return {"refused": error.wrong}
    artifact = kernel.executable.artifact
    of, said = form_of(artifact), artifact.explanation["asynchronous"]
    made = time.perf_counter()
    registers = said["kernels"][0]["registers"]
    found = examined(of, (registers["consumer"], registers["producer"]))
    assert isinstance(found, Verdict), found
    kernels = {
        k["name"]: {"levers": k["levers"], **{n: getattr(of, n) for n in FIGURES}}
        for k, of in zip(said["kernels"], (found, *found.others), strict=True)
    }
    return {
        "kernels": kernels,
        "on_tiles": {k["name"]: k["why"] for k in said["triton"]},
        # Its protocol is checked where the form is made.
        "faults": list(replace(found, protocol=CLEAN, compared=COMPARED).faults),
        "seconds": {"neptune": round(made - start, 1), "triton": round(time.perf_counter() - made, 1)},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(OPTIONS))
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    known = SHIPPED if options.shipped else OPTIONS
    unknown = [n for n in options.names if n not in known]
    if unknown:
        parser.error(f"no operator {unknown[0]!r}: {', '.join(known)}")
    rows = {}
    for name in options.names or known:
        row = rows[name] = verdict_of(known[name])
        print(f"{name:22} {_said(row)}", flush=True)
    if options.json:
        options.json.write_text(as_json(rows))


def _said(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"no form: {row['refused']}"
    verdict = f"not accepted: {'; '.join(row['faults'])}" if row["faults"] else "accepted but for numbers"
    several = len(row["kernels"]) + len(row["on_tiles"]) > 1
    parts = [f"{name}: {_figures(k)}" if several else _figures(k) for name, k in row["kernels"].items()]
    return "; ".join([*parts, *(f"{name} on tiles: {why}" for name, why in row["on_tiles"].items()), verdict])


def _figures(of: Mapping[str, Any]) -> str:
    levers = " ".join(f"{n}={v}" for n, v in of["levers"].items())
    under = f", {of['overlapped']} of {of['exps']} exponentials under a product" if of["exps"] else ""
    return f"{levers}: {of['in_flight']} groups in flight{under}"


if __name__ == "__main__":
    main()
