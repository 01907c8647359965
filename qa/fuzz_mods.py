"""Random mods against torch: functions of scores, positions and captured tensors, as FlexAttention calls them.

A mod is a line of Python from the operators of `neptune.torch_ops`, traced as `neptune.functional` traces it, and
evaluated in float64 at all points at once, beside torch in float64, which is called point by point: under vmap a
number beside 16 bits is rounded to 16 bits, in eager mode and in compiled code it is not. A value may differ as far
as torch's own moves under what neither IEEE 754 nor torch settles (`Unsettled`). One in a thousand is compiled,
for target llvm, in a whole attention.

    python -m qa.fuzz_mods --count 10000 [--seed 0] [--jobs 2]
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import neptune
from neptune.errors import NeptuneError
from qa.graphs import modded
from qa.harness import Outcome, command

HEADS, ROWS, COLUMNS = 3, 9, 11
COMPILED = 1000
DRAWS = 9
UNARY = (
    *("torch.exp", "torch.log1p", "torch.expm1", "torch.tanh", "torch.sigmoid", "torch.erf", "torch.erfc", "torch.sin"),
    *("torch.cos", "torch.atan", "torch.asinh", "torch.sinh", "torch.square", "torch.neg", "torch.abs", "torch.sqrt"),
    *("torch.log", "torch.rsqrt", "torch.reciprocal", "torch.relu", "F.softplus", "F.logsigmoid", "F.elu", "F.gelu"),
    *("F.silu", "F.mish", "F.hardtanh", "F.leaky_relu", "F.softsign", "torch.nan_to_num", "torch.exp2", "torch.sinc"),
    *("torch.tan", "torch.acosh", "torch.atanh", "torch.asin", "torch.acos", "torch.cosh", "F.celu", "F.hardswish"),
)
JUMPS = ("torch.floor", "torch.ceil", "torch.round", "torch.trunc", "torch.frac", "torch.sign")
BINARY = ("({} + {})", "({} - {})", "({} * {})", "({} / {})", "torch.maximum({}, {})", "torch.minimum({}, {})",
          "torch.atan2({}, {})", "torch.hypot({}, {})", "torch.logaddexp({}, {})", "torch.fmax({}, {})",
          "torch.xlogy({}, {})", "torch.copysign({}, {})", "torch.lerp({}, {}, 0.3)")  # fmt: skip
NUMBERS = ("0.5", "-2.0", "3", "0.1", "1.5", "-0.25", "7")
HELD = {
    "bias": torch.randn(HEADS, ROWS, COLUMNS, dtype=torch.float64),
    "slopes": torch.tensor([0.5, 0.25, -0.125], dtype=torch.float64),
    "narrow": torch.tensor([0.1, 0.7, -1.3, 2.0, 0.3, 0.9, -0.2, 1.1, 4.0, 0.6, -0.5], dtype=torch.bfloat16),
    "words": torch.tensor([4, 0, 3, 9, 7, 1, 2, 8, 10, 6, 5]),
    "flags": torch.tensor([True, False, True, True, False, False, True, False, True, True, False]),
    "ends": torch.tensor([2, 5, 9]),
    "scale": torch.tensor(0.75, dtype=torch.float64),
}


# What is exact, or correctly rounded, in every implementation: a jump that follows has to be the same.
EXACT = (
    *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "radd", "rsub", "rmul", "rdiv", "rtruediv"),
    *("floor", "ceil", "round", "trunc", "frac", "sign", "remainder", "fmod", "heaviside", "neg", "abs"),
    *("where", "copysign", "getitem", "nan_to_num", "double", "float", "view", "transpose", "to", "rfloordiv"),
)
OF_EQUALS = ("minimum", "maximum", "fmax", "fmin", "max", "min", "clamp", "relu", "hardtanh")


class Unsettled(TorchFunctionMode):
    """Torch, moved in what neither IEEE 754 nor torch settles, each call in a way that is drawn.

    That is: the last digits of functions that are not correctly rounded, the sign of a NaN, which of two zeros a
    maximum takes, and whether a number from which 16 bits are taken is rounded (torch's CPU does, its GPU does not).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "__rsub__" and args[0].dtype == torch.bfloat16:
            rounded = torch.tensor(args[1], dtype=self.random.choice((torch.bfloat16, torch.float32))).item()
            out = func(args[0].float(), rounded).to(out.dtype)
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return out
        name, way = func.__name__.strip("_"), self.random.choice((1, -1))
        if name in OF_EQUALS:
            out = torch.where(out == 0, way * torch.zeros_like(out), out)
        elif name not in EXACT:
            out = out * (1 + way * max(1e-12, torch.finfo(out.dtype).eps))
        return torch.where(out.isnan(), torch.copysign(out, way * torch.ones_like(out)), out)


class Writer:
    """A line of Python, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def real(self, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.12:
            return self.leaf()
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return f"{self.one(*UNARY)}({self.real(depth - 1)})"
            case 3 | 4:
                return self.one(*BINARY).format(self.real(depth - 1), self.real(depth - 1))
            case 5:
                return f"torch.where({self.truth(depth - 1)}, {self.real(depth - 1)}, {self.real(depth - 1)})"
            case 6:
                return self.one("({0} + {1})", "({0} * {1})", "({1} - {0})", "({0} / {1})").format(
                    self.real(depth - 1), self.one(*NUMBERS)
                )
            case _:
                return self.jump(depth)

    def leaf(self) -> str:
        reads = ("bias[h, i, j]", "bias[0, :, j][i]", "bias.transpose(1, 2)[h, j, i]", "slopes[h]",
                 "narrow[j].double()",
                 "scale", "bias[h].view(-1)[i * 11 + j]", "slopes.sum()",
                 "torch.dot(slopes, slopes)", "(slopes * s).max()")  # fmt: skip
        return self.one(
            "s", "s", "s", f"({self.whole(1)}).double() * 0.1", f"({self.whole(1)}).double()", self.one(*reads)
        )

    def jump(self, depth: int) -> str:
        """What jumps, of numbers that are the same in torch and here."""
        x = self.one("s", "narrow[j]", "bias[h, i, j]", "(j * 0.1)", "(i - j) / 4")
        by = self.one("0.1", "2", "-1.5", "0.3", "scale")
        return self.one(f"{self.one(*JUMPS)}({x})", f"({x} // {by})", f"({x} % {by})", f"torch.fmod({x}, {by})",
                        f"torch.div({x}, {by}, rounding_mode='trunc')",
                        f"torch.heaviside({x} * scale, scale)")  # fmt: skip

    def whole(self, depth: int) -> str:
        if depth <= 0:
            return self.one("i", "j", "h", "b", "words[j]", "(i - j)", "torch.bucketize(j, ends)")
        n = self.one("2", "3", "-3", "5", "7")
        a, c = self.whole(depth - 1), self.whole(depth - 1)
        return self.one(f"({a} + {c})", f"({a} - {c})", f"({a} * {n})", f"({a} // {n})", f"({a} % {n})", f"({a} << 2)",
                        f"({a} >> 1)", f"torch.fmod({a}, {n})", f"torch.div({a}, {n}, rounding_mode='trunc')",
                        f"torch.maximum({a}, {c})", f"torch.abs({a})", f"torch.sign({a})", f"({a} & 6)", f"({a} ^ {c})",
                        f"(~{a})", f"torch.where({self.truth(depth - 1)}, {a}, {c})", f"({a})**2", "(ends <= j).sum()",
                        f"torch.clamp({a}, -2, 5)", f"({self.truth(depth - 1)} + {a})")  # fmt: skip

    def truth(self, depth: int) -> str:
        if depth <= 0:
            return self.one("i >= j", "flags[j]", "j < 5", "s > 0.25", "narrow[j] == 0.1", "narrow[j] > 0.3").join("()")
        a, c, order = self.whole(depth - 1), self.whole(depth - 1), self.one("<", "<=", ">", ">=", "==", "!=")
        p, q = self.truth(depth - 1), self.truth(depth - 1)
        return self.one(f"({a} {order} {c})", f"({p} & {q})", f"({p} | {q})", f"(~{p})", f"({p} ^ {q})",
                        f"torch.isin({a}, ends)", f"(words[:5] == {a}).any()",
                        f"(s {order} {self.one(*NUMBERS)})")  # fmt: skip


def written(seed: int) -> tuple[str, Any]:
    """The line of a seed, and the mod."""
    text = f"lambda s, b, h, i, j: {Writer(seed).real(3)} + 0 * s"
    return text, eval(text, {"torch": torch, "F": F, **HELD})


def points(seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Scores and positions: all of a head's rows and columns, scores of all sizes."""
    draw = np.random.default_rng(seed)
    h, i, j = (a.reshape(-1) for a in np.meshgrid(*map(np.arange, (HEADS, ROWS, COLUMNS)), indexing="ij"))
    score = draw.standard_normal(h.size) * 10.0 ** draw.integers(-8, 3, h.size)
    score[:6] = [0.0, -0.0, 0.25, -1.0, 0.1, 100.0]
    return score, np.zeros_like(h), h, i, j


def trial(seed: int) -> Outcome:
    """One mod at all points, and the same by torch."""
    text, mod = written(seed)
    at = points(seed)
    try:
        narrow, wide = _by_torch(mod, at, torch.int32), _by_torch(mod, at, torch.int64)
        right = _by_points(mod, at)
    except Exception as error:
        return Outcome("right", f"torch refuses it: {type(error).__name__}")
    if not np.array_equal(narrow, wide, equal_nan=True):
        return Outcome("right", "integers of 32 bits wrap around in torch")
    try:
        ours = modded(mod, "score_mod", *at, wide="float64")
    except NeptuneError as error:
        return Outcome("refused", str(error).splitlines()[1].strip(), text)
    moved = ((at[0] * (1 + (k % 3 - 1) * 1e-12), *at[1:]) for k in range(DRAWS))
    near = np.stack([_by_torch(mod, points, torch.int32, Unsettled(k)) for k, points in enumerate(moved)])
    with np.errstate(all="ignore"):
        room = 1e-9 * np.abs(right) + 1e-300 + 10 * np.nan_to_num(np.ptp(near, axis=0), posinf=np.inf)
        off = (np.isnan(ours) != np.isnan(right)) | (
            (ours != right) & ~(np.abs(ours - right) <= room) & ~np.isnan(ours)
        )
    off &= np.isnan(near).all(axis=0) == np.isnan(near).any(axis=0)
    if off.any():
        k = int(np.flatnonzero(off)[0])
        return Outcome("wrong", f"{ours[k]!r}, not {right[k]!r}", f"{text}\nat {[float(x[k]) for x in at]}")
    return _compiled(text, mod, seed) if seed % COMPILED == COMPILED - 1 else Outcome("right")


def _tensors(at: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    score, *places = (torch.from_numpy(np.asarray(x)) for x in at)
    return [score, *(p.to(dtype) for p in places)]


def _by_torch(mod: Any, at: Any, dtype: torch.dtype, mode: Any = None) -> np.ndarray[Any, Any]:
    with mode or nullcontext():
        found: np.ndarray[Any, Any] = torch.vmap(mod)(*_tensors(at, dtype)).double().numpy()
    return found


def _by_points(mod: Any, at: Any) -> np.ndarray[Any, Any]:
    columns = [t.unbind() for t in _tensors(at, torch.int32)]
    found: np.ndarray[Any, Any] = torch.stack([mod(*point) for point in zip(*columns, strict=True)]).double().numpy()
    return found


def _compiled(text: str, mod: Any, seed: int) -> Outcome:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, HEADS, n, 16) for n in (ROWS, COLUMNS, COLUMNS))
    h, i, j = torch.meshgrid(*map(torch.arange, (HEADS, ROWS, COLUMNS)), indexing="ij")
    scores = (q.double() @ k.double().mT)[0] / 4
    given = (scores, torch.zeros_like(h), h, i, j)
    right = torch.vmap(mod)(*(g.reshape(-1) for g in given)).reshape(scores.shape)
    if not right.isfinite().all() or right.abs().max() > 50:
        return Outcome("right", "not compiled: scores of all sizes")
    ours = neptune.functional.attention(q, k, v, score_mod=mod)[0]
    wanted = right.softmax(-1) @ v.double()[0]
    off = float((ours.double() - wanted).abs().max())
    return Outcome("right", "compiled") if off < 1e-3 else Outcome("wrong", f"compiled: {off:.1e} off", text)


if __name__ == "__main__":
    command(trial, __doc__)
