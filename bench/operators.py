"""The shipped operators: how long each expression is, what it becomes, how exact it is, what it needs of a GPU.

    python -m bench.operators [--only rms_norm …] [--dtypes float16 …] [--targets llvm interpret]
                              [--resources] [--no-errors] [--json FILE] [--page FILE]

Facts are those of `neptune.compile(OPERATORS[name]())` and nothing more, at the model's reference sizes: template,
kernels, how often inputs are read, temporaries, products of tiles, what was deferred or rolled, warnings. Errors are
those of small kernels by the automatic choice against float64, over numbers of one size, large ones, all magnitudes,
needles, zeros and -inf, beside those of plain torch in the same dtype; *of limit* above 1 fails, the limit being that
of docs/design/numerics.md. `--resources` compiles for sm_80, sm_90 and gfx942, no GPU needed. Rows that are not made
anew stay in the file. `--page` writes the file as a page and does no more.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neptune
from bench import record
from bench.cases import environment
from bench.chain_errors import poisoned_like, unfused_of
from bench.chains import OFFLINE, outcome, resources
from bench.operator_references import REFERENCES, Reference
from bench.operator_tables import page
from neptune.errors import NeptuneError
from neptune.ir.integers import evaluate_size
from neptune.ops.options import DTYPES
from neptune.ops.shipped import OPERATORS, Shipped
from neptune.verify.numerics import allowance, rel_error

SIZES = {"rows": 19, "cols": 52, "m": 19, "n": 37, "k": 52, "width": 37, "others": 23, "depth": 16}
SIZES |= {"batch": 2, "groups": 3, "channels": 4, "heads": 4, "s_q": 19, "s_kv": 52, "length": 52}
"""Of the inputs that errors are measured of: no multiples of tiles, and more keys than queries."""
KINDS = ("random", "huge", "tails", "needle", "zeros")
INFINITE = "-inf"


def hard(kind: str, *shape: int, seed: int = 0) -> Any:
    """Numbers of one size, large (squares leave float16), of all magnitudes, one large among small, zeros; -inf in a
    fifth of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "huge":
        x = x * 300
    elif kind == "tails":
        x = x * 10.0 ** rng.uniform(-4, 3, shape)
    elif kind == "needle":
        x[..., shape[-1] // 2] = 1000.0
    elif kind == "zeros":
        x[..., : shape[-1] // 2] = 0
        x[0] = 0
    elif kind == INFINITE:
        x[rng.uniform(size=shape) < 0.2] = -np.inf
    return x


# --- errors ----------------------------------------------------------------------------------------


def inputs_of(program: neptune.Program, reference: Reference, kind: str) -> list[torch.Tensor]:
    """Inputs in the order of a call; the first is of this kind, and so are others of its size."""
    rng, made = np.random.default_rng(1), []
    for n, b in enumerate(program.inputs):
        shape = tuple(evaluate_size(d, SIZES) for d in b.shape)
        if b.dtype == "int8":
            x: Any = rng.integers(-127, 128, shape)
        elif b.dtype.startswith("int"):
            x = rng.integers(0, SIZES["cols"], shape)
        elif b.name in reference.positive:
            x = np.abs(hard("random", *shape, seed=n)) + 0.5
        elif kind == INFINITE and b.name not in reference.infinite:
            x = hard("random", *shape, seed=n)
        else:
            # Weights stay ordinary: products of two hard operands leave float16 in every expression.
            x = hard(kind if n == 0 else "random", *shape, seed=n)
        made.append(torch.from_numpy(np.array(x)).to(getattr(torch, b.dtype)))
    return made


def errors(shipped: Shipped, dtype: str, targets: Sequence[str]) -> dict[str, Any]:
    """The worst error over all kinds of inputs by target, beside plain torch's."""
    reference = REFERENCES[shipped.name]
    program = shipped(dtype=dtype, **reference.options)
    kernel = neptune.compile(program, target=targets[0])
    kinds = (*KINDS, *([INFINITE] if reference.infinite else []))
    worst: dict[str, Any] = {"ours": 0.0, "torch": 0.0, "of limit": 0.0, "kind": "random"}
    plainly = unfused_of(program, SIZES)[1]
    for kind in kinds:
        given = inputs_of(program, reference, kind)
        with np.errstate(all="ignore"):
            exact = [x.double() for x in reference.results(*(wide(x) for x in given))]
            own = reference.results(*given)
        plain = poisoned_like(program, exact)
        plainly(given, plain)
        settle = partial(reference.settled, [wide(x) for x in given])
        for target in targets:
            outs = poisoned_like(program, exact)
            kernel.for_target(target)(*given, out=outs[0] if len(outs) == 1 else tuple(outs))
            found = (settle(outs), settle(plain), settle(own), settle(exact))
            for b, out, base, theirs, ref in zip(program.outputs, *found, strict=True):
                mine, other = rel_error(out.double(), ref), rel_error(base.double(), ref)
                if not np.isfinite(other).all():
                    continue  # the expression itself leaves its dtype
                kept = b.dtype if "float" in b.dtype else "float32"
                share = max(e / allowance(kept, u) for e, u in zip(mine, other, strict=True))
                if share >= worst["of limit"]:
                    worst |= {"of limit": share, "kind": kind}
                worst["ours"] = max(worst["ours"], mine.total)
                worst["torch"] = max(worst["torch"], rel_error(theirs.double(), ref).total)
    # JSON knows no infinity: None is what left its dtype.
    return worst | ({} if np.isfinite(worst["torch"]) else {"torch": None})


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


# --- facts -----------------------------------------------------------------------------------------


def lines(shipped: Shipped) -> int:
    """Lines of the operator's function, without its description, blank lines and comments."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(shipped.builder)))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    start = function.body[1].lineno if ast.get_docstring(function) else function.body[0].lineno
    said = source.splitlines()[start - 1 :]
    return 1 + sum(bool(x.strip()) and not x.strip().startswith("#") for x in said)


def facts(shipped: Shipped, offline: Sequence[str] = ()) -> dict[str, Any]:
    """What a plain compile makes of it, on the GPU that the model knows best."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = neptune.compile(shipped(), target="cuda:90")
    row = asdict(outcome(kernel)) | {"dots": kernel.source.count("tl.dot("), "params": kernel.params}
    row["warnings"] = [w.code for w in kernel.warnings]
    if offline:
        row["resources"] = {t: resources(kernel, t) for t in offline}
    return row


def measure(
    shipped: Shipped, dtypes: Sequence[str], targets: Sequence[str], offline: Sequence[str] = ()
) -> dict[str, Any]:
    """The row of an operator; what is refused says so."""
    row: dict[str, Any] = {"operator": shipped.name, "task": shipped.task, "lines": lines(shipped)}
    try:
        row["facts"] = facts(shipped, offline)
        if targets:
            mine = ("float8_e4m3fn",) if shipped.family == "float8" else dtypes
            row["errors"] = {d: errors(shipped, d, targets) for d in mine}
    except NeptuneError as error:
        row["refused"] = str(error)
    return row


# --- the command -----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.operators", description=(__doc__ or "").splitlines()[0])
    names = list(OPERATORS)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="by default all")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--targets", nargs="+", choices=("llvm", "interpret"), default=["llvm"])
    parser.add_argument("--resources", nargs="*", metavar="TARGET", help=f"compile for these, by default {OFFLINE}")
    parser.add_argument("--no-errors", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the rows of --json as a page, and do no more")
    return parser


def rows_of(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows in the order of the table."""
    by_name = {r["operator"]: r for r in content.get("rows", [])}
    return (by_name[n] for n in OPERATORS if n in by_name)


def main(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("NEPTUNE_STRICT", "1")
    options = _parser().parse_args(argv)
    kept = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"rows": []}
    if options.page:
        options.page.write_text(page(list(rows_of(kept)), kept["environment"]))
        return 0
    offline = () if options.resources is None else tuple(options.resources) or OFFLINE
    made = {r["operator"]: r for r in kept["rows"]}
    failed = 0
    for name in options.only:
        row = measure(OPERATORS[name], options.dtypes, () if options.no_errors else options.targets, offline)
        before = made.get(name, {})
        for part in ("facts", "errors"):
            row[part] = {**before.get(part, {}), **row.get(part, {})}
        made[name] = row
        above = {d: e["of limit"] for d, e in row["errors"].items() if e["of limit"] > 1}
        failed += bool(above) or "refused" in row
        print(f"{name}: {row.get('refused') or above or row['facts'].get('template')}", file=sys.stderr, flush=True)
        if options.json:
            content = {"environment": environment(), "rows": list(rows_of({"rows": list(made.values())}))}
            options.json.write_text(record.as_json(content))
    print(f"{len(options.only)} operators, {failed} refused or above the limit")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
