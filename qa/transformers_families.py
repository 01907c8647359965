"""Families of transformers with random weights: Neptune's attention beside eager attention in float64.

    python -m qa.transformers_families [--only REGEX] [--kernels] [--json FILE] [--page docs/transformers.md]

A family is served where every case agrees, refused where Neptune says so before any logits, and *wrong* elsewhere. By
default attention itself is a formula in float64, so that what models ask for is compared, with the digits that norms
leave; with `--kernels` it is compiled (target llvm, float32).
"""

# mypy: disable-error-code="attr-defined, assignment"
# Attention of the interface is exchanged while a sweep runs.
from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

import neptune
import neptune.models.interface
from qa.tiny_models import VOCABULARY, Family, built, classes, families, takes, windowed

Tensor = torch.Tensor
LENGTH, PADDING, DECODED = 9, 3, 6
EXACT, KERNELS = 1e-6, 1e-4
"""Errors: norms of models are float32 whatever the model is; a mask that differs is off by 1e-3 and more."""


# --- attention as a formula -----------------------------------------------------------------------


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    attn_mask: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `neptune.functional.attention` says of the same arguments."""
    assert enable_gqa or q.shape[1] == k.shape[1]
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])[None]
    if causal or window is not None:
        s = s.masked_fill(j > i, -torch.inf)
    if window is not None:
        s = s.masked_fill(i - j >= window, -torch.inf)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    if sinks is not None:
        s = torch.cat([s, sinks.to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    p = torch.softmax(s, -1).nan_to_num()
    return (p[..., :-1] if sinks is not None else p) @ v


@contextmanager
def by_formula() -> Iterator[None]:
    """Attention of models is the formula."""
    before = neptune.models.interface.attention
    neptune.models.interface.attention = formula
    try:
        yield
    finally:
        neptune.models.interface.attention = before


# --- cases ----------------------------------------------------------------------------------------


@contextmanager
def whole_digits() -> Iterator[None]:
    """A softmax of float64 stays float64: eager attention asks for float32, where the least float64 is -inf."""
    before = torch.nn.functional.softmax

    def softmax(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
        return before(x, dim, dtype=None if x.dtype == torch.float64 else dtype)

    torch.nn.functional.softmax = softmax
    try:
        yield
    finally:
        torch.nn.functional.softmax = before


def _ids(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(5, VOCABULARY - 2, (rows, length), generator=torch.Generator().manual_seed(7))


def _result(out: Any) -> Tensor:
    found = next((out[n] for n in ("logits", "last_hidden_state") if out.get(n) is not None), None)
    return found if found is not None else next(v for v in out.values() if isinstance(v, Tensor))


def _more(model: Any, rows: int) -> dict[str, Any]:
    """Inputs of a decoder of an encoder, where there is one."""
    if model.config.is_encoder_decoder and takes(model, "decoder_input_ids"):
        return {"decoder_input_ids": _ids(rows, 5)}
    return {}


def plain(model: Any) -> Tensor:
    return _result(model(input_ids=_ids(), **_more(model, 2)))


def _keep(left: bool) -> Tensor:
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    keep[1, slice(PADDING) if left else slice(LENGTH - PADDING, None)] = 0
    return keep


def _padded(model: Any, left: bool) -> Tensor:
    keep, more = _keep(left), _more(model, 2)
    out = _result(model(input_ids=_ids(), attention_mask=keep, **more))
    return out if more or out.shape[:2] != keep.shape else out[keep.bool()]


def padded_left(model: Any) -> Tensor:
    return _padded(model, True)


def padded_right(model: Any) -> Tensor:
    return _padded(model, False)


def packed(model: Any) -> Tensor:
    positions = torch.cat([torch.arange(4), torch.arange(LENGTH - 4)])[None].expand(2, -1)
    return _result(model(input_ids=_ids(), position_ids=positions, use_cache=False))


def _greedy(model: Any, **options: Any) -> Tensor:
    out = model.generate(
        _ids(),
        attention_mask=_keep(True),
        max_new_tokens=DECODED,
        min_new_tokens=DECODED,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return torch.stack(out.logits)


def greedy(model: Any) -> Tensor:
    return _greedy(model)


def static(model: Any) -> Tensor:
    return _greedy(model, cache_implementation="static", disable_compile=True)


CASES: dict[str, tuple[Callable[[Any], Tensor], ...]] = {
    "decoder": (plain, padded_left, padded_right, packed, greedy, static),
    "seq2seq": (plain, padded_right, greedy, static),
    "encoder": (plain, padded_left, padded_right),
}


# --- verdicts -------------------------------------------------------------------------------------


@dataclass
class Verdict:
    family: str
    model: str
    kind: str
    status: str
    """served, refused, wrong, raised, apart (never asks for attention), unbuilt"""
    reason: str = ""
    cases: dict[str, str] = field(default_factory=dict)
    """Case: right, or what was seen; a case in which eager attention itself fails has no row."""
    asked: int = 0
    """How often attention was asked for."""


def _off(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm().clamp_min(1e-300))


def _line(error: BaseException) -> str:
    if isinstance(error, neptune.NeptuneError):
        return f"{error.asked}: {error.wrong}"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def _cases(family: Family, window: bool) -> Iterator[tuple[str, Callable[[Any], Tensor]]]:
    for case in CASES[family.kind]:
        yield case.__name__ + (", window" if window else ""), case


def _of_eager(family: Family, window: bool, verdict: Verdict) -> dict[str, Tensor]:
    """The result of each case by eager attention in float64; cases that it fails itself are said in `verdict`."""
    model, right = built(family, "eager", window=window), {}
    for name, case in _cases(family, window):
        try:
            with torch.no_grad():
                right[name] = case(model)
            if not bool(torch.isfinite(right[name]).all()):
                raise ValueError("NaN or infinity")
        except Exception as error:
            if case is plain:
                raise
            verdict.cases[name] = f"eager: {_line(error)}"
            right.pop(name, None)
    return right


def _compare(family: Family, window: bool, dtype: torch.dtype, limit: float, verdict: Verdict) -> None:
    right = _of_eager(family, window, verdict)
    try:
        model = built(family, "neptune", dtype, window)
        for name, case in _cases(family, window):
            if name in right:
                with torch.no_grad():
                    off = _off(case(model).double(), right[name])
                verdict.cases[name] = "right" if off < limit else f"{off:.1e} off"
    except Exception as error:
        refused = isinstance(error, neptune.NeptuneError)
        verdict.status, verdict.reason = "refused" if refused else "raised", _line(error)


def examined(family: Family, limit: float = EXACT, dtype: torch.dtype = torch.float64) -> Verdict:
    """What became of the family."""
    verdict = Verdict(family.name, family.model, family.kind, "served")
    calls = _counted()
    try:
        _refusal(family)
        windows = [False, *[True] * bool(windowed(classes(family)[0]))]
        with calls:
            for window in windows:
                _compare(family, window, dtype, limit, verdict)
    except neptune.NeptuneError as error:
        verdict.status, verdict.reason = "refused", _line(error)
    except Exception as error:
        if not verdict.cases:
            verdict.status, verdict.reason = "unbuilt", _line(error)
    verdict.asked = calls.count
    wrong = [n for n, c in verdict.cases.items() if c.endswith(" off")]
    if wrong:
        verdict.status, verdict.reason = "wrong", ", ".join(f"{n} {verdict.cases[n]}" for n in wrong)
    elif verdict.status == "served" and not calls.count:
        verdict.status = "apart"
    return verdict


def _refusal(family: Family) -> None:
    """Raise what Neptune refuses when the model is made; what else it raises, eager attention says, too."""
    try:
        with torch.device("meta"):
            built(family, "neptune")
    except neptune.NeptuneError:
        raise
    except Exception:
        return


class _counted:
    """Counts the calls of attention."""

    count = 0

    def __enter__(self) -> _counted:
        self.before = neptune.models.interface.attention

        def attention(*args: Any, **options: Any) -> Any:
            self.count += 1
            return self.before(*args, **options)

        neptune.models.interface.attention = attention
        return self

    def __exit__(self, *_: object) -> None:
        neptune.models.interface.attention = self.before


# --- the page -------------------------------------------------------------------------------------

ABOUT = """# Models of transformers

`attn_implementation="neptune"` ([how](fuse.md#models-of-transformers)) is for classes whose attention transformers may
exchange. Others are refused, when a model is made or at the first mask, before any logits:
`attn_implementation="eager"` serves them.

Tiny models of random weights of every family of transformers {version} that can be made so, beside eager attention in
float64: plain, padded on either side, with packed position_ids, decoded with dynamic and static caches, each with a
window too where the family has one. Written by `python -m qa.transformers_families --page docs/transformers.md`.
"""
WORDS = {
    "served": "agree in every case that eager attention itself can run",
    "refused": "have attention of their own, or pass an option whose meaning is not known",
    "wrong": "differ",
    "raised": "end in an exception that is no refusal",
    "apart": "never ask for attention",
    "unbuilt": "are not tried: no tiny model of text alone could be made or run with eager attention",
}


def page(verdicts: list[dict[str, Any]]) -> str:
    """docs/transformers.md."""
    import transformers

    lines = [ABOUT.format(version=transformers.__version__)]
    for status, word in WORDS.items():
        found = [v for v in verdicts if v["status"] == status]
        if not found:
            continue
        lines.append(f"## {status.capitalize()}: {len(found)}\n\nThese {word}.\n")
        if status in ("served", "wrong", "raised"):
            lines += ["| family | class | cases |", "|---|---|---|"]
            lines += [f"| {v['family']} | {v['model']} | {_said(v)} |" for v in found]
        else:
            lines.append(", ".join(v["family"] for v in found) + ".")
        lines.append("")
    return "\n".join(lines)


def _said(v: dict[str, Any]) -> str:
    if v["status"] != "served":
        return str(v["reason"]).replace("|", "/")
    ran = [n for n, c in v["cases"].items() if c == "right"]
    plainly, windows = ([n for n in ran if n.endswith(", window") == w] for w in (False, True))
    return ", ".join(n.replace("_", " ") for n in plainly) + ("; all with a window" if windows else "")


@click.command(help=__doc__)
@click.option("--only", default="", help="Families whose name matches.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Verdicts, added to those that are there.")
@click.option("--page", "to", type=click.Path(path_type=Path), help="Where the page is written.")
@click.option("--kernels", is_flag=True, help="Compile attention.")
@click.option("--again", is_flag=True, help="Families of the file, too.")
def main(only: str, path: Path | None, to: Path | None, kernels: bool, again: bool) -> None:
    warnings.filterwarnings("ignore")
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    neptune.models.register()
    known = {v["family"]: v for v in json.loads(path.read_text())} if path and path.exists() else {}
    for family in families():
        if not re.search(only, family.name) or (family.name in known and not again):
            continue
        with nullcontext() if kernels else by_formula(), whole_digits():
            v = examined(family, KERNELS, torch.float32) if kernels else examined(family)
        known[family.name] = asdict(v)
        print(f"{v.family:32} {v.status:8} {v.asked:4} {v.reason or v.cases}", flush=True)
        if path:
            path.write_text(json.dumps(list(known.values()), indent=1))
    if to:
        to.write_text(page(sorted(known.values(), key=lambda v: v["family"])))
    sys.exit(any(v["status"] in ("wrong", "raised") for v in known.values()))


if __name__ == "__main__":
    main()
