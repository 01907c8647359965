"""The comparison without a GPU: every program compiled for one, every mask and every torch form checked on the CPU, and
all that would be measured, listed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import neptune
from bench.comparison import attention
from bench.comparison.measure import line
from bench.comparison.parts import Part
from bench.comparison.subjects import Subject, as_tuple, subjects
from neptune.autotune.reference import errors
from neptune.driver.device import machine_for
from neptune.ops.attention import OPERATORS, operator
from neptune.runtime.launch import parse_target

TARGET = "cuda:90"
LENGTHS = ((1, 77), (50, 77), (77, 77))
"""Queries and keys at which masks are checked; a decode has one query."""
SMALL, LIMIT = 97, 1e-5
WINDOW = 24
"""In the place of the operator's, which is longer than all of these."""


def small(row: attention.Row) -> attention.Row:
    """An operator's options with few heads and a short window."""
    kv = 2 if "kv_heads" in row else 4
    made = {**row, "heads": 4, **({"kv_heads": kv} if kv == 2 else {})}
    return {**made, "window": WINDOW} if "window" in row else made


def mask_errors(name: str) -> Iterator[tuple[str, float]]:
    """The errors of the plain torch form and of FlexAttention, which runs eagerly here, against float64: float32 data,
    other numbers of queries than of keys."""
    from torch.nn.attention.flex_attention import flex_attention

    row = small(OPERATORS[name])
    for s_q, s_kv in LENGTHS:
        if "queries" in row and s_q != 1:
            continue
        program = partial(operator, name, depth=16, dtype="float32", **{k: v for k, v in row.items() if k != "causal"})
        sizes = {"batch": 2, "s_kv": s_kv, "s_q": s_q}
        s = Subject(name, "attention", program, sizes, attention.eager(row), "", 0.0, row)
        q, k, v, *slopes = args = s.inputs("cpu")
        score, mask = attention.mods(row, s_kv - s_q, slopes[0] if slopes else None)
        blocks = attention.block_mask(mask, s_q, s_kv, "cpu") if mask else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not compiled
            flexed = flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])
        for what, out in (("torch", s.eager(*args)), ("FlexAttention", flexed)):
            worst = max(errors(out[at], exact[0]).row for at, exact, _ in attention.blocks(row, args))
            yield f"{name} {s_q}×{s_kv} {what}", worst


def chain_errors(subject: Subject) -> float:
    """The error of a chain's torch form at a small size, in its own dtypes, beside float64 of the whole."""
    sizes = dict.fromkeys(subject.sizes, SMALL)
    s = replace(subject, sizes=sizes, below=min(subject.below, SMALL))
    args = s.inputs("cpu")
    whole = as_tuple(s.eager(*args))
    found = [errors(out[at], e).row for at, exact, _ in s.blocks(args) for out, e in zip(whole, exact, strict=True)]
    return max(found)


def dry(chosen: Sequence[Part], only: Sequence[str]) -> int:
    """Build, check, list; 1 where something is wrong."""
    wrong = 0
    for name in OPERATORS:
        for what, error in mask_errors(name):
            wrong += error > LIMIT
            print(f"{what}: {error:.1e}{'' if error <= LIMIT else ' WRONG'}", flush=True)
    asked = list(dict.fromkeys(n for p in chosen for n in p.subjects if any(t in n for t in only)))
    programs: dict[str, str] = {}
    for name in asked:
        subject = subjects()[name]
        text = str(subject.program())
        if text not in programs:
            programs[text] = built(subject)
            wrong += programs[text].startswith("cannot")
            print(f"{name}: {programs[text]}", flush=True)
            if not subject.row:
                error = chain_errors(subject)
                print(f"{name}: in torch off by {error:.1e}")
    for part in chosen:
        keys = [k for k in part.measurements() if any(t in k.subject for t in only)]
        print(f"{part.name}: {part.about}; {len(keys)} measurements")
        for key in keys:
            print(f"  {key.subject} | {key.column}")
    print(f"{wrong} wrong; nothing was measured")
    return 1 if wrong else 0


def built(subject: Subject) -> str:
    """What a plain compile takes for a GPU that is not here, or why there is nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = neptune.compile(subject.program(), target=TARGET)
        chosen = kernel.chosen(**subject.sizes)
    except Exception as error:
        return f"cannot be compiled: {line(error)}"
    machine = machine_for(parse_target(TARGET)).name
    return f"{len(kernel.variants)} variants on {machine}; here {chosen.template} {dict(chosen.params)}"
