"""Random calls of neptune.functional.attention and flex_attention, against float64.

    python -m qa.fuzz_functional --count 200 --seed 0 --jobs 2                     # CPU: programs are evaluated
    python -m qa.fuzz_functional --device cuda --jobs 16 --seconds 600 --count 100000 --limit 300
    NEPTUNE_FORM=triton python -m qa.fuzz_functional --device cuda …               # the other form

A case draws dtype, lengths, depth, heads and groups, layouts with NaN around the data, and either options (causal,
window, softcap, ALiBi, sinks, scale) or mods with captured tables, masks as mods or by blocks, and lse. On a CPU small
ones are evaluated (`qa.evaluated`), so that what is looked at is the way from a call to its Program; `--device llvm`
compiles them. Each row of a result may differ by a share of its norm: a tile left out is far more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

import neptune.functional as F
from neptune.errors import InternalError, NeptuneError
from qa.evaluated import evaluated
from qa.harness import Outcome, command

Tensor = torch.Tensor
DEVICE = "QA_FUNCTIONAL_DEVICE"
SHARES = {torch.float64: 1e-6, torch.float32: 4e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""What a row may be off by, as a share of its norm (float32 products may be of TF32)."""
DEPTHS = (16, 17, 32, 40, 64, 64, 64, 72, 80, 96, 100, 128, 128, 160, 192, 256)
LENGTHS = (1, 2, 7, 16, 33, 64, 100, 129, 200, 257, 500, 777, 1000)
HEADS = ((1, 1), (2, 2), (3, 3), (4, 2), (8, 1), (6, 3), (8, 2))


@dataclass
class Case:
    """A call: tensors, options, and how a person would write it."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    score: tuple[str, Any] | None = None
    mask: tuple[str, Any] | None = None
    blocks: BlockMask | None = None
    seen: Tensor | None = None
    flex: bool = False

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{n} {list(t.shape)} by {t.stride()}" for n, t in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        options = ", ".join(f"{n}={tuple(o.shape) if isinstance(o, Tensor) else o}" for n, o in self.options.items())
        mods = ", ".join(f"{n} {m[0]}" for n, m in (("score", self.score), ("mask", self.mask)) if m)
        kind = "flex_attention" if self.flex else "attention"
        return f"{kind}: {self.q.dtype} {shapes}; {options}; {mods}{'; by blocks' if self.blocks else ''}"


# --- drawing ------------------------------------------------------------------------------------------


def laid_out(draw: random.Random, t: Tensor) -> Tensor:
    """The tensor in a layout of some kind, with NaN in front of it, behind it and between its rows."""
    b, h, n, d = t.shape
    kind = draw.choice(("plain", "rows first", "padded", "packed", "offset", "turned"))
    if kind == "plain":
        return t.contiguous()
    if kind == "rows first":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "turned":
        return t.transpose(2, 3).contiguous().transpose(2, 3)
    if kind == "padded":
        wide = t.new_full((b, h, n + 3, d + 8), float("nan"))
        view = wide[:, :, 1 : n + 1, :d]
    elif kind == "packed":
        view = t.new_full((b, n, 3, h, d), float("nan"))[:, :, 1].transpose(1, 2)
    else:
        flat = t.new_full((t.numel() + 2 * d + 9,), float("nan"))
        view = flat[d + 3 : d + 3 + t.numel()].view(b, h, n, d)
    return view.copy_(t)


def scores(n: int, m: int, b: int, h: int, device: str, draw: random.Random) -> list[tuple[str, Any]]:
    """Score functions, with what they hold."""

    def table(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(draw.randrange(99))).to(device)

    bias, by_head, relative = table(h, n, m), table(h), table(h, n + m)
    short, cap, number = table(b, 1 + m).half(), float(draw.randint(2, 30)), table(1)[0]
    kind = torch.arange(n + m, device=device, dtype=torch.int16) % 5
    return [
        ("s + bias[h, i, j]", lambda s, b, h, i, j: s + bias[h, i, j]),
        ("s + relative[h, i - j + m]", lambda s, b, h, i, j: s + relative[h, i - j + m]),
        ("s + relative[h][i - j]", lambda s, b, h, i, j: s + relative[h, i - j]),
        ("s * by_head[h]", lambda s, b, h, i, j: s * by_head[h]),
        ("s + short[b, j]", lambda s, b, h, i, j: s + short[b, j]),
        ("cap tanh(s / cap)", lambda s, b, h, i, j: cap * torch.tanh(s / cap)),
        ("s - 0.1 |i - j|", lambda s, b, h, i, j: s - torch.abs(i - j) * 0.1),
        (
            "where(kind[i] == kind[j], s, s - number)",
            lambda s, b, h, i, j: torch.where(kind[i] == kind[j], s, s - number),
        ),
        ("where(j <= i, s, -inf)", lambda s, b, h, i, j: torch.where(j <= i, s, -float("inf"))),
        ("s where h is even, else s / 2", lambda s, b, h, i, j: torch.where(h % 2 == 0, s, s * 0.5)),
    ]


def masks(n: int, m: int, b: int, h: int, device: str, draw: random.Random) -> list[tuple[str, Any]]:
    """Mask functions, with what they hold."""
    longest = n + m
    w, step = draw.randint(0, m + 2), draw.randint(1, 7)
    limit = torch.tensor([draw.randint(0, m) for _ in range(b)], device=device, dtype=torch.int32)
    document = torch.arange(longest, device=device) // draw.randint(1, longest)
    flags = torch.rand(longest, generator=torch.Generator().manual_seed(w)).to(device) > 0.4
    whole = torch.rand(n, m, generator=torch.Generator().manual_seed(w)).to(device) > 0.5
    shift = torch.tensor([draw.randint(-m, m) for _ in range(h)], device=device)
    return [
        ("i >= j", lambda b, h, i, j: i >= j),
        (f"|i - j| <= {w}", lambda b, h, i, j: (i - j).abs() <= w),
        (f"j <= i and i - j < {w}", lambda b, h, i, j: (j <= i) & (i - j < w)),
        (f"j < {w} or j <= i", lambda b, h, i, j: (j < w) | (j <= i)),
        (f"j < limit[b], {limit.tolist()}", lambda b, h, i, j: j < limit[b]),
        ("document[i] == document[j]", lambda b, h, i, j: document[i] == document[j]),
        ("same document, causal", lambda b, h, i, j: (document[i] == document[j]) & (i >= j)),
        ("flags[j] or i == j", lambda b, h, i, j: flags[j] | (i == j)),
        ("whole[i, j]", lambda b, h, i, j: whole[i, j]),
        (f"i + shift[h] >= j, {shift.tolist()}", lambda b, h, i, j: i + shift[h] >= j),
        (f"i // {step} == j // {step}", lambda b, h, i, j: i // step == j // step),
        (f"(i - j) % {step} == 0", lambda b, h, i, j: (i - j) % step == 0),
        ("none", lambda b, h, i, j: i < 0),
    ]


def blocks_of(draw: random.Random, case: Case) -> None:
    """Random lists of blocks, partial and full, into the case; what they show goes into `seen`."""
    b, h, n, m = case.q.shape[0], case.q.shape[1], case.q.shape[2], case.k.shape[2]
    size = (draw.choice((4, 16, 64, 128)), draw.choice((4, 16, 64, 128)))
    lead = (draw.choice((1, b)), draw.choice((1, h)))
    rows, columns = -(-n // size[0]), -(-m // size[1])
    kind = torch.tensor([draw.choice((0, 1, 1, 2)) for _ in range(lead[0] * lead[1] * rows * columns)])
    kind = kind.view(*lead, rows, columns)

    def listed(which: int) -> tuple[Tensor, Tensor]:
        there = kind == which
        order = torch.argsort(there.int(), dim=-1, descending=True, stable=True).int()
        return there.sum(-1).int().to(case.q.device), order.to(case.q.device)

    rule = case.mask[1] if case.mask else None
    (count, some), full = listed(1), listed(2) if draw.random() < 0.7 else (None, None)
    case.blocks = BlockMask.from_kv_blocks(
        count, some, full[0], full[1], size, mask_mod=rule, seq_lengths=(n, m), compute_q_blocks=False
    )
    wide = kind.repeat_interleave(size[0], 2).repeat_interleave(size[1], 3)[:, :, :n, :m].to(case.q.device)
    grid = grids(case)
    shown = torch.ones((), dtype=torch.bool, device=case.q.device) if rule is None else rule(*grid)
    case.seen = ((wide == 1) & shown) | ((wide == 2) & (full[0] is not None))


def drawn(seed: int, device: str) -> Case:
    """The case of a seed."""
    draw, on_gpu = random.Random(seed), device == "cuda"
    small = not on_gpu
    dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16) if on_gpu else (torch.float32, torch.float64))
    heads, kv_heads = draw.choice(HEADS[:4] if small else HEADS)
    b, n, m = (
        draw.randint(1, 2 if small else 3),
        *(draw.choice((1, 2, 3, 5, 9, 14) if small else LENGTHS) for _ in "qk"),
    )
    depth = draw.choice((1, 3, 4, 8) if small else DEPTHS)
    wide = depth if draw.random() < 0.8 else draw.choice((2, 5) if small else DEPTHS)
    noise = torch.Generator().manual_seed(seed)
    shapes = ((b, heads, n, depth), (b, kv_heads, m, depth), (b, kv_heads, m, wide))
    tensors = (torch.randn(s, generator=noise).to(device if on_gpu else "cpu", dtype) for s in shapes)
    q, k, v = (laid_out(draw, t) for t in tensors)
    case = Case(q, k, v, flex=draw.random() < 0.5)
    on = case.q.device.type
    if heads != kv_heads:
        case.options["enable_gqa"] = True
    if draw.random() < 0.3:
        case.options["scale"] = draw.choice((0.05, 0.3, 1.0))
    if draw.random() < 0.4:
        case.options["return_lse"] = True
    if case.flex or draw.random() < 0.5:
        case.score = draw.choice(scores(n, m, b, heads, on, draw)) if draw.random() < 0.6 else None
        case.mask = draw.choice(masks(n, m, b, heads, on, draw)) if draw.random() < 0.7 else None
    if case.flex and (case.mask or draw.random() < 0.4):
        blocks_of(draw, case)
    if not case.flex:
        options = {
            "causal": True,
            "window": draw.choice((1, 3, 17, 100)),
            "softcap": draw.choice((2.0, 30.0)),
            "alibi_slopes": torch.rand(heads, generator=noise).to(on),
            "sinks": torch.randn(heads, generator=noise).to(on),
        }
        case.options |= {name: value for name, value in options.items() if draw.random() < 0.25}
    return case


# --- float64 --------------------------------------------------------------------------------------------


def grids(case: Case) -> tuple[Tensor, ...]:
    sizes = (*case.q.shape[:3], case.k.shape[2])
    axes = (torch.arange(s, device=case.q.device) for s in sizes)
    return tuple(a.view([-1 if k == at else 1 for k in range(4)]) for at, a in enumerate(axes))


def exact(case: Case) -> tuple[Tensor, Tensor]:
    """(o, lse) in float64, over all pairs of queries and keys at once."""
    q, group, o = case.q.double(), case.q.shape[1] // case.k.shape[1], case.options
    k, v = (t.double().repeat_interleave(group, 1) for t in (case.k, case.v))
    b, h, i, j = grids(case)
    at = i + k.shape[2] - q.shape[2]
    s = q @ k.mT * o.get("scale", q.shape[3] ** -0.5)
    s = o["softcap"] * torch.tanh(s / o["softcap"]) if "softcap" in o else s
    s = s + o["alibi_slopes"].double()[h] * (j - at) if "alibi_slopes" in o else s
    s = case.score[1](s, b, h, i, j) if case.score else s
    seen = torch.ones((), dtype=torch.bool, device=q.device)
    if case.seen is not None or case.mask:
        seen = case.seen if case.seen is not None else case.mask[1](b, h, i, j)  # type: ignore[index]
    if o.get("causal") or "window" in o:
        seen = seen & (j <= at)
    if "window" in o:
        seen = seen & (at - j < o["window"])
    s = s.masked_fill(~seen.expand(s.shape), -float("inf"))
    total = s
    if "sinks" in o:
        total = torch.cat([s, o["sinks"].double()[h].expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(total, -1)
    p = torch.exp(s - torch.where(lse.isinf(), 0.0, lse)[..., None])
    return p @ v, lse


# --- the verdict -----------------------------------------------------------------------------------------


class _Rejections(logging.Handler):
    """What a compile says of forms and templates that gave other results."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "results differ" in text or "uninitialised" in text or "is wrong" in text:
            self.said.append(text[:200])


def called(case: Case) -> Any:
    options = dict(case.options)
    score = case.score and case.score[1]
    if case.flex:
        return F.flex_attention(case.q, case.k, case.v, score, case.blocks, **options)
    mask = case.mask and case.mask[1]
    return F.attention(case.q, case.k, case.v, score_mod=score, mask_mod=mask, **options)


def trial(seed: int) -> Outcome:
    """The outcome of a seed's case."""
    device = os.environ.get(DEVICE, "cpu")
    case = drawn(seed, device)
    heard = _Rejections()
    logger = logging.getLogger("neptune")
    logger.addHandler(heard)
    level = logger.level
    logger.setLevel(logging.INFO)
    how: Callable[[], Any] = evaluated if device == "cpu" else contextlib.nullcontext
    try:
        with torch.no_grad(), how():
            found = called(case)
    except InternalError as error:
        return Outcome("raised", str(error)[:300], str(case))
    except NeptuneError as error:
        return Outcome("refused", " ".join(str(error).splitlines()[1:2]).strip(), str(case))
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
    o, lse = found if isinstance(found, tuple) else (found, None)
    right, sums = exact(case)
    share = SHARES[case.q.dtype]
    off = (o.double() - right).norm(dim=-1)
    allowed = share * (right.norm(dim=-1) + 0.02)
    if not bool((off <= allowed).all()):
        worst = ((off - allowed).nan_to_num(1e9).argmax()).item()
        return Outcome("wrong", "o", f"{case}\nrow {worst}: off by {off.flatten()[int(worst)]:.3g}")
    if lse is not None and not torch.allclose(lse.double(), sums, atol=10 * share, rtol=10 * share):
        return Outcome("wrong", "lse", str(case))
    if heard.said:
        return Outcome("rejected", heard.said[0], str(case))
    return Outcome("right")


if __name__ == "__main__":
    if "--device" in sys.argv:
        at = sys.argv.index("--device")
        os.environ[DEVICE] = sys.argv[at + 1]
        # So that each call is one of the fastest kernel.
        os.environ.setdefault("NEPTUNE_TIERED", "wait")
        del sys.argv[at : at + 2]
    command(trial, __doc__)
