"""Random torch graphs through the backend, beside eager in float64: views, changes in place, aliases, 0-d and empty
tensors, promotion, mixed dtypes, chains of reductions, integers and positions, lengths that change between calls.

Regions are run by the evaluator (`Evaluated`), or compiled for the target of NEPTUNE_QA_TARGET. Values, dtypes, shapes,
NaN positions, strides, aliases and changed arguments are compared. A region that is left as "a defect" is a failure;
one that is not expressed or not compiled is counted under its reason.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch

from neptune.graph import backend as rest
from neptune.graph import choose
from neptune.graph.backend import Backend
from neptune.ir.evaluate import expressions
from neptune.ir.evaluate.program import evaluate
from neptune.ir.expr import Var
from neptune.ir.program import Program
from qa.harness import Outcome, command

Tensor = torch.Tensor
TARGET = os.environ.get("NEPTUNE_QA_TARGET", "")
"""Where regions run: "" is the evaluator."""
FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int64, torch.int32)
LARGEST = 3000.0


# --- the evaluator in place of kernels -----------------------------------------------------------------


@dataclass(eq=False)
class Evaluated:
    """A Program called like a kernel."""

    program: Program
    target: str = "llvm"

    @property
    def inputs(self) -> Sequence[Any]:
        return self.program.inputs

    def __call__(self, *args: Any) -> Any:
        tensors, scalars = args[: len(self.inputs)], args[len(self.inputs) :]
        sizes: dict[str, int] = {}
        arrays: dict[str, Any] = {}
        for b, t in zip(self.inputs, tensors, strict=True):
            sizes |= {d.name: n for d, n in zip(b.shape, t.shape, strict=True) if isinstance(d, Var)}
            arrays[b.name] = (t.double() if t.is_floating_point() else t).numpy()
        left = [s.name for s in self.program.scalars if s.name not in sizes]
        sizes |= dict(zip(left, map(int, scalars), strict=True))
        found = evaluate(self.program, arrays, sizes)
        made = [
            torch.from_numpy(np.ascontiguousarray(found[b.name])).to(getattr(torch, b.dtype))
            for b in self.program.outputs
        ]
        return made[0] if len(made) == 1 else tuple(made)


def _in_widths(domain: Any, name: str, args: Sequence[Any], arg_dtype: str, dtype: str) -> Any:
    """An operator as a back end has it: what leaves int32 wraps around."""
    found = _apply_op(domain, name, args, arg_dtype, dtype)
    return expressions.apply_cast(domain, found, "int64", "int32") if dtype == "int32" else found


_apply_op = expressions.apply_op


@contextmanager
def by_evaluator() -> Iterator[None]:
    """Within it regions are evaluated in place of compiled, and what is left runs op by op."""
    with (
        patch.object(rest, "inductor_here", lambda device: "left out"),
        patch.object(choose, "_compiled", lambda program, target, sizes: Evaluated(program)),
        patch.object(choose, "predicted", lambda *_: None),
        patch.object(expressions, "apply_op", _in_widths),
    ):
        yield


# --- programs ----------------------------------------------------------------------------------------


@dataclass
class Draft:
    """Lines of a function, tried one by one on real tensors; `values`: what each variable is then."""

    draw: random.Random
    inputs: dict[str, Tensor]
    lines: list[str] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)

    def pick(self, want: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        found = [n for n, t in self.values.items() if want(t)]
        # The newest are chosen more often, so that chains grow.
        weights = [1 + 3 * k for k in range(len(found))]
        return self.draw.choices(found, weights)[0] if found else None

    def attempt(self, line: str) -> bool:
        """Add a line where it runs and its values are of use."""
        made = {n: t.clone() for n, t in self.inputs.items()}
        try:
            kept = run([*self.lines, line], made)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return False
        new = {n: t for n, t in kept.items() if isinstance(t, Tensor) and n not in ("torch", "F")}
        for t in new.values():
            finite = t.double()[t.double().isfinite()] if t.numel() else t
            if t.numel() > 4000 or t.dtype not in NAMES or (finite.numel() and float(finite.abs().max()) > LARGEST):
                return False
        self.lines.append(line)
        self.values = new
        return True


NAMES = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}


def run(lines: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    """The variables that there are behind the lines."""
    scope = {"torch": torch, "F": torch.nn.functional, **values}
    with torch.no_grad():
        exec("\n".join(lines), scope)  # the fuzzer's own text
    scope.pop("__builtins__", None)
    return scope


def is_float(t: Tensor) -> bool:
    return t.is_floating_point()


def is_integer(t: Tensor) -> bool:
    return not t.is_floating_point() and t.dtype != torch.bool


UNARY = (
    "{x}.exp()", "{x}.relu()", "{x}.abs()", "-{x}", "{x}.tanh()", "{x}.sigmoid()", "{x}.abs().sqrt()", "{x} ** 2",
    "{x}.square()", "torch.rsqrt({x}.abs() + 1)", "F.silu({x})", "F.gelu({x})", "{x}.sign()", "{x}.floor()",
    "{x}.clamp(-1, 2)", "{x}.clamp(min=0.5)", "{x}.abs().log1p()", "{x}.sin()", "{x}.reciprocal()", "{x}.isnan()",
    "{x}.float()", "{x}.double()", "{x}.half()", "{x}.bfloat16()", "{x} ** 3", "{x} ** -1", "{x} ** 0.5", "{x}.erf()",
    "{x}.isinf()", "{x} != {x}", "{x}.trunc()", "{x}.round()", "{x}.neg()", "{x}.clone()", "{x}.contiguous()",
    "F.softplus({x})", "F.leaky_relu({x}, 0.1)", "{x}.exp2()", "{x}.nan_to_num(0.0, 1.0, -1.0)", "{x}.ceil()",
    "F.hardtanh({x})", "F.elu({x})", "{x}.frac()", "{x}.expm1()", "torch.zeros_like({x})", "torch.full_like({x}, 2)",
)  # fmt: skip
OF_INTEGERS = (
    "{x} + 1", "{x} * 3", "-{x}", "{x}.abs()", "{x} ** 2", "{x} ** 3", "{x} % 5", "{x} // 3", "{x}.float()", "{x} / 2",
    "{x}.clamp(-2, 3)", "{x} & 3", "{x} | 1", "{x} ^ 2", "{x} << 1", "{x} >> 1", "~{x}", "{x} * 0.5",
    "{x}.to(torch.int32)", "{x}.long()", "{x}.bool()", "{x}.half()", "{x} ** 0", "2 ** {x}.abs().clamp(max=4)",
    "{x} + 0.5", "{x}.sign()", "{x} == 2", "{x} * 1000000 * 5000 // 2500000000", "({x} + 2**33) - 2**33", "{x} * True",
    "1 - {x}", "{x}.double()",
)  # fmt: skip
OF_BOOLS = (
    "~{x}", "{x}.float()", "{x}.long()", "{x} & {x}", "{x}.logical_not()", "{x} * 2", "{x} + {x}", "{x} * 1.5",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "{x} < {y}", "{x} >= {y}", "{x} == {y}", "torch.where({x} > {y}, {x}, {y})", "torch.where({x} > 0, {y}, 0)",
    "torch.add({x}, {y}, alpha=2)", "{x}.masked_fill({y} > 0, float('-inf'))", "{x}.masked_fill({y} < 0, 0.5)",
    "{x} + {y}.mean(-1, keepdim=True)", "torch.lerp({x}, {y}, 0.25)", "{x} % ({y}.abs() + 1)", "torch.hypot({x}, {y})",
    "torch.sub({x}, {y}, alpha=0.5)", "torch.fmax({x}, {y})", "torch.addcmul({x}, {x}, {y}, value=0.5)",
    "{x}.clamp(max={y})", "torch.atan2({x}, {y})",
)  # fmt: skip
SCALARS = (
    "0.5", "2", "-1.5", "3", "0.1", "True", "1e-3", "{z}.shape[0]", "{z}.shape[-1] * 2", "{z}.sum()", "{z}.max()",
)  # fmt: skip
REDUCED = (
    "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.mean({d})", "{x}.mean({d}, keepdim=True)", "{x}.amax({d})",
    "{x}.amax({d}, keepdim=True)", "{x}.amin({d})", "{x}.max({d}).values", "{x}.max({d}).indices",
    "{x}.min({d}, keepdim=True).values", "{x}.argmax({d})", "{x}.argmin({d}, keepdim=True)", "{x}.prod({d})",
    "{x}.var({d})", "{x}.var({d}, correction=0, keepdim=True)", "{x}.std({d})", "torch.logsumexp({x}, {d})",
    "torch.logsumexp({x}, {d}, keepdim=True)", "{x}.softmax({d})", "{x}.log_softmax({d})", "F.softmin({x}, {d})",
    "{x}.norm(2, {d})", "{x}.norm(1, {d}, keepdim=True)", "F.normalize({x}, dim={d})", "{x}.sum()", "{x}.mean()",
    "{x}.max()", "{x}.min()", "{x}.softmax({d})", "{x}.topk(1, {d}).values",
    "{x}.gather({d}, {x}.topk(2, {d}).indices)", "{x}.topk(2, {d})[0]", "{x}.sum({d}, dtype=torch.float64)",
    "{x}.mean({d}, dtype=torch.float64)", "({x} > 0).sum({d})", "({x} > 0).any({d})", "({x} > -1).all({d})",
    "{x}.cumsum({d})", "{x}.sort({d}).values", "{x}.argsort({d})", "{x}.count_nonzero({d})", "{x}.argmax()",
    "torch.var_mean({x}, {d})[0]", "F.layer_norm({x}, {x}.shape[-1:])", "F.rms_norm({x}, {x}.shape[-1:])",
    "{x}.norm()", "{x}.softmax({d}).argmax({d})", "{x} - {x}.amax({d}, keepdim=True)",
    "{x} / {x}.sum({d}, keepdim=True)", "{x}.median({d}).values", "{x} / {x}.abs().amax({d}, keepdim=True)",
    "torch.aminmax({x}, dim={d}).max", "{x}.nansum({d})", "{x}.cummax({d}).values",
    "F.softmax({x}, {d}, dtype=torch.float32)", "{x}.sum(({d}, 0))", "{x}.amax(({d}, 0), keepdim=True)",
    "{x}.kthvalue(1, {d}).values",
)  # fmt: skip
VIEWED = (
    "{x}.transpose({d}, 0)", "{x}.reshape(-1)", "{x}.flatten()", "{x}.unsqueeze({d})", "{x}.squeeze()", "{x}[0]",
    "{x}[..., 0]", "{x}[1:]", "{x}[..., :-1]", "{x}[..., ::2]", "{x}.flip({d})", "{x}.chunk(2, {d})[0]",
    "{x}.split(2, {d})[-1]", "{x}[None]", "{x}.mT", "{x}.expand(2, *{x}.shape)", "{x}.unbind({d})[0]",
    "{x}.movedim({d}, 0)", "{x}.narrow({d}, 0, 1)", "{x}.view(-1)", "{x}.diagonal()",
    "{x}.repeat(2, *[1] * ({x}.dim() - 1))", "{x}.reshape({x}.shape[0], -1)", "torch.cat([{x}, {x}], {d})",
    "torch.stack([{x}, {x}], {d})", "{x}.roll(1, {d})", "F.pad({x}, (1, 0))", "{x}.tril()",
    "{x}.unflatten({d}, (1, -1))", "torch.cat([{x}, {x} * 2, {x}], {d})", "{x}.select({d}, -1)",
    "{x}.T if {x}.dim() == 2 else {x}", "{x}.t() if {x}.dim() < 3 else {x}",
)  # fmt: skip
PRODUCTS = (
    "{x} @ {y}", "{x} @ {y}.mT", "F.linear({x}, {y})", "torch.einsum('...i,...i->...', {x}, {y})",
    "torch.outer({x}.flatten()[:4], {y}.flatten()[:5])", "({x} @ {y}.mT).softmax(-1)",
    "({x} @ {x}.mT).softmax(-1) @ {x}", "F.scaled_dot_product_attention({x}, {x}, {x})",
    "({x} @ {x}.mT * 0.5).log_softmax(-1)",
)  # fmt: skip
POSITIONS = (
    "torch.arange({x}.shape[{d}])", "torch.arange({x}.shape[-1]) * 3",
    "torch.arange({x}.shape[-1])[:, None] - torch.arange({x}.shape[-1])",
    "torch.arange(1, {x}.shape[-1] + 1) * 10000000000", "torch.arange({x}.shape[-1], dtype=torch.float32)",
    "torch.arange(0, 2 * {x}.shape[-1], 2)", "(torch.arange({x}.shape[-1]) * 100000) ** 2",
    "torch.arange({x}.shape[-1], dtype=torch.int32)", "torch.arange(5)", "torch.arange({x}.shape[-1]) % 2 == 0",
)  # fmt: skip
WITH_INDICES = (
    "{x}.gather(-1, {x}.argmax(-1, keepdim=True))", "{x} * torch.arange({x}.shape[-1])",
    "{x}.index_select(0, torch.tensor([0, 0]))",
    "{x}.masked_fill(torch.arange({x}.shape[-1]) > 2, float('-inf')).softmax(-1)",
    "({x}.softmax(-1) * torch.arange({x}.shape[-1]) ** 2).sum(-1)",
    "{x}.masked_fill(torch.arange({x}.shape[-1]) * 3 > torch.arange({x}.shape[-2])[:, None], 0)",
    "F.one_hot({x}.argmax(-1), {x}.shape[-1])", "{x}.softmax(-1).gather(-1, {x}.softmax(-1).topk(2, -1).indices)",
    "(torch.arange({x}.shape[-1]) * 70000 * torch.arange({x}.shape[-1]) * 70000 * {x} * 1e-9).sum(-1)",
)  # fmt: skip
IN_PLACE = (
    "{x}.add_(1)", "{x}.mul_(0.5)", "{x}.relu_()", "{x}.sub_({y})", "{x}[0] = 1", "{x}[..., 0].zero_()",
    "{x}.copy_({y})", "{x}[..., :1] += 2", "{x}.clamp_(-1, 1)", "{x}.fill_(0.5)", "{x} += {y}",
    "{x}[..., 0] = {y}[..., 0]", "{x}.transpose(0, -1).mul_(2)", "{x}.masked_fill_({x} > 1, 0)",
)  # fmt: skip
KINDS: tuple[tuple[int, Sequence[str], Callable[[Tensor], bool]], ...] = (
    (5, UNARY, is_float),
    (2, OF_INTEGERS, is_integer),
    (1, OF_BOOLS, lambda t: t.dtype == torch.bool),
    (4, BINARY, lambda t: True),
    (9, REDUCED, lambda t: t.dim() > 0),
    (1, REDUCED, lambda t: t.dim() == 0),
    (4, VIEWED, lambda t: True),
    (2, PRODUCTS, lambda t: is_float(t) and t.dim() > 1),
    (1, POSITIONS, lambda t: t.dim() > 0),
    (2, WITH_INDICES, lambda t: is_float(t) and t.dim() > 0),
    (1, IN_PLACE, lambda t: True),
)


def drafted(seed: int) -> Draft:
    """A random program on random arguments."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [draw.choice((2, 3, 4, 5, 7)) for _ in range(3)]
    if draw.random() < 0.06:
        lengths[0] = draw.choice((0, 1))
    draft = Draft(draw, {f"a{k}": _argument(draw, lengths) for k in range(draw.choice((1, 2, 2, 3)))})
    draft.values = dict(draft.inputs)
    wanted, tries = draw.randint(2, 9), 0
    while len(draft.lines) < wanted and tries < 60:
        tries += 1
        line = _line(draft)
        if line is not None:
            draft.attempt(line)
    return draft


def _argument(draw: random.Random, lengths: Sequence[int]) -> Tensor:
    rank = draw.choice((0, 1, 2, 2, 2, 3, 3, 4))
    shape = [1 if draw.random() < 0.07 else draw.choice(lengths) for _ in range(rank)]
    kind = draw.random()
    if kind < 0.18:
        t = torch.randint(-6, 7, shape).to(draw.choice(INTEGERS))
    elif kind < 0.22:
        t = torch.randint(0, 2, shape).bool()
    else:
        # Few different numbers that every dtype holds: ties are met, and roundings do not decide comparisons.
        t = (torch.randint(-12, 13, shape).float() / 4).to(draw.choice(FLOATS))
        if t.numel() and draw.random() < 0.2:
            for special in draw.sample((math.nan, math.inf, -math.inf, -0.0), draw.choice((1, 2))):
                t.view(-1)[draw.randrange(t.numel())] = special
    if rank > 1 and draw.random() < 0.25:
        t = t.transpose(0, draw.randrange(rank)).contiguous().transpose(0, draw.randrange(rank))
    return t


def _line(draft: Draft) -> str | None:
    draw = draft.draw
    _, forms, want = draw.choices(KINDS, [k[0] for k in KINDS])[0]
    x, y, z = draft.pick(want), draft.pick(), draft.pick(lambda t: t.dim() > 0)
    if x is None or z is None:
        return None
    form = draw.choice(forms)
    if forms is BINARY and draw.random() < 0.4:
        y = "(" + draw.choice(SCALARS).format(z=z) + ")"
        form = draw.choice(BINARY[:9])
    text = form.format(x=x, y=y, d=draw.randint(-2, 1))
    if forms is IN_PLACE:
        return text
    return f"v{len(draft.lines)} = {text}"


# --- comparison --------------------------------------------------------------------------------------


def trial(seed: int) -> Outcome:
    """One program, called at one or two sizes."""
    draft = drafted(seed)
    made = [n for n in draft.values if n.startswith("v")]
    if not made:
        return Outcome("right", case="nothing was drawn")
    given = list(draft.inputs)
    chosen = sorted({made[-1], *draft.draw.sample(made, min(len(made), draft.draw.choice((0, 1, 2))))})
    if draft.draw.random() < 0.08:
        chosen.append(draft.draw.choice(given))
    text = "\n".join(
        [f"def f({', '.join(given)}):", *("    " + x for x in draft.lines), f"    return {', '.join(chosen)},"]
    )
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(text, scope)  # the fuzzer's own text
    case = "\n".join([text, *(f"# {n}: {_shown(t)}" for n, t in draft.inputs.items())])
    backend = Backend(TARGET or "llvm", "all")
    torch._dynamo.reset()
    left_out = patch.object(rest, "inductor_here", lambda device: "left out")
    with torch.no_grad(), left_out if TARGET else by_evaluator():
        compiled = torch.compile(scope["f"], backend=backend, dynamic=True)
        calls = [list(draft.inputs.values())]
        if (longer := _longer(draft, scope["f"])) is not None:
            calls.append(longer)
        for args in calls:
            if wrong := compared(scope["f"], compiled, args):
                return Outcome("wrong", re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", wrong)[:90], f"{case}\n# {wrong}")
    return _judged(backend, case)


def _judged(backend: Backend, case: str) -> Outcome:
    """Right; refused, where a region is not Neptune's; raised, where that is a defect."""
    for report in backend.reports:
        for why in (report.whole, *(c.why for c in report.choices if not c.taken)):
            if "defect" in why:
                return Outcome("raised", re.sub(r"\d+", "#", why)[:160], f"{case}\n# {why}")
    left = [c.why for r in backend.reports for c in r.choices if not c.taken]
    regions = sum(len(r.choices) for r in backend.reports)
    COUNTS["regions"] += regions
    COUNTS["left"] += len(left)
    if left:
        return Outcome("refused", re.sub(r"`[^`]*`|\d+", "#", left[0])[:140], case)
    return Outcome("right")


COUNTS = {"regions": 0, "left": 0}


def _shown(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)} strides {list(t.stride())} = {t.flatten().tolist()[:64]}"


def _longer(draft: Draft, fn: Callable[..., Any]) -> list[Tensor] | None:
    """Arguments with every length one longer, where the program takes them."""
    args = [torch.cat([t, t.narrow(0, 0, 1)]) if t.dim() and t.shape[0] > 1 else t for t in draft.inputs.values()]
    try:
        fn(*(a.clone() for a in args))
    except Exception:  # whatever torch says of other shapes
        return None
    return args


def compared(fn: Callable[..., Any], compiled: Callable[..., Any], args: Sequence[Tensor]) -> str:
    """What is wrong with the compiled function, or ""."""
    wide = [_kept_strides(a.double() if a.is_floating_point() else a) for a in args]
    ours, eager = [_kept_strides(a) for a in args], [_kept_strides(a) for a in args]
    exact = fn(*wide)
    theirs = fn(*eager)
    found = compiled(*ours)
    for k, (o, e, x) in enumerate(zip((*found, *ours), (*theirs, *eager), (*exact, *wide), strict=True)):
        what = f"result {k}" if k < len(found) else f"argument {k - len(found)} afterwards"
        wrong = _different(o, e, x)
        if wrong:
            return f"{what}: {wrong}"
    for k, (o, e) in enumerate(zip(found, theirs, strict=True)):
        if _aliases(o, ours) != _aliases(e, eager):
            return f"result {k} aliases other arguments than eager's"
        if e.numel() and any(n > 1 and a != b for n, a, b in zip(e.shape, o.stride(), e.stride(), strict=True)):
            return f"result {k} has strides {o.stride()}, eager's {e.stride()}"
    return ""


def _kept_strides(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.preserve_format)


def _aliases(t: Tensor, args: Sequence[Tensor]) -> list[bool]:
    return [t.numel() > 0 and t.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for a in args]


def _different(ours: Tensor, eager: Tensor, exact: Tensor) -> str:
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype} {tuple(ours.shape)}, eager's is {eager.dtype} {tuple(eager.shape)}"
    if not ours.is_floating_point():
        off = (ours != eager) & (ours != exact.to(ours.dtype))
        return f"{ours[off][0].item()}, eager {eager[off][0].item()}" if bool(off.any()) else ""
    o, e, x = ours.double(), eager.double(), exact.double()
    nan = o.isnan()
    if bool(((nan != e.isnan()) & (nan != x.isnan())).any()):
        return f"NaN where eager has none, or none: {o.flatten().tolist()[:12]}, eager {e.flatten().tolist()[:12]}"
    scale = _scale(e, x)
    eps = torch.finfo(ours.dtype).eps
    error = (e - x).abs().nan_to_num(0.0, 0.0, 0.0)
    allowed = 8 * float(error.max()) + 64 * eps * scale if error.numel() else 0.0
    off = ~nan & (o != e) & (o != x) & ~((o - x).abs() <= allowed)
    off &= ~(e.isnan() | x.isnan())
    if bool(off.any()):
        return f"{o[off][0].item()}, eager {e[off][0].item()}, exactly {x[off][0].item()}"
    return ""


def _scale(e: Tensor, x: Tensor) -> float:
    both = torch.cat([e.flatten(), x.flatten()]).abs()
    both = both[both.isfinite()]
    return float(both.max()) if both.numel() else 0.0


if __name__ == "__main__":
    command(cast(Callable[[int], Outcome], trial), __doc__)
