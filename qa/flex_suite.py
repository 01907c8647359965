"""FlexAttention's face: calls of its own tests, masks and scores of attention-gym and of one line from the wild.

    python -m qa.flex_suite [--kernels] [words…]

Each row goes through `neptune.functional.flex_attention`, by the evaluator (by kernels with --kernels), and is compared
with torch's own flex_attention in float64. Rows are in `qa.flex_rows` and `qa.zoo`. The status is 1 where a row is
wrong or raises what is no refusal, or less than 97 % are right; every refusal is shown with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    _vmap_for_bhqkv,
    create_block_mask,
    create_mask,
    flex_attention,
)

import neptune.functional as F
from neptune.errors import NeptuneError
from qa.evaluated import evaluated
from qa.flex_rows import CALLS, MASKS, SCORES, Call, held, qkv
from qa.harness import Outcome
from qa.zoo import ZOO, inputs

Tensor = torch.Tensor
RIGHT = 0.97
NEAR = 2e-5


def rows() -> Iterator[tuple[str, Callable[[], Call]]]:
    """(name, what makes the call) of every row; masks of one line are scores of -inf to torch, which has no blocks."""
    for name, make in CALLS.items():
        yield name, make
    for name, zoo in ZOO.items():
        yield f"zoo: {name}", lambda zoo=zoo: _of_zoo(zoo)  # type: ignore[misc]
    for line in SCORES:
        yield f"score: {line}", lambda line=line: (qkv(), {"score_mod": _function("s, b, h, i, j", line)})  # type: ignore[misc]
    for line in MASKS:
        yield f"mask: {line}", lambda line=line: (qkv(), {"mask_mod": _function("b, h, i, j", line)})  # type: ignore[misc]


def outcome(make: Callable[[], Call]) -> Outcome:
    """What becomes of a row."""
    try:
        (q, k, v), options = make()
        wanted = of_torch((q, k, v), options)
        mask = options.pop("mask_mod", None)
        ours = F.flex_attention(q, k, v, **options) if mask is None else F.attention(q, k, v, mask_mod=mask)
    except NeptuneError as error:
        return Outcome("refused", " ".join(str(error).splitlines()[1:2]).strip())
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error}"[:200])
    for found, exact in zip(_flat(ours), _flat(wanted), strict=True):
        if found.shape != exact.shape or not torch.allclose(
            found.double(), exact, atol=NEAR, rtol=NEAR, equal_nan=True
        ):
            return Outcome("wrong", f"off by {(found.double() - exact).abs().nan_to_num(9.0).max().item():.2g}")
    return Outcome("right")


def of_torch(tensors: Sequence[Tensor], options: dict[str, Any]) -> Any:
    """torch's own result, of float64 tensors, operation by operation; blocks as masks, since eager torch reads none."""
    options = {n: o for n, o in options.items() if n != "kernel_options"}
    mask, blocks, score = options.pop("mask_mod", None), options.pop("block_mask", None), options.pop("score_mod", None)
    q, k, v = (t.double() for t in tensors)
    aux = options.get("return_aux")
    if aux is not None and aux.max_scores:
        # torch has none on a CPU.
        options["return_aux"] = AuxRequest(lse=aux.lse)
    seen = None if mask is None and blocks is None else dense(mask, blocks, q, k)

    def both(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if score is None else score(s, b, h, i, j)
        return s if seen is None else torch.where(seen[b, h, i, j], s, -float("inf"))

    face: Any = sys.modules[flex_attention.__module__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        face._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        try:
            found: Any = flex_attention(q, k, v, score_mod=both, **options)
        finally:
            face._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False
    if aux is None or not aux.max_scores:
        return found
    scores = q @ k.mT * q.shape[-1] ** -0.5
    with TransformGetItemToIndex():
        scores = _vmap_for_bhqkv(both, (0,))(scores, *(torch.arange(n) for n in scores.shape))
    return *_flat(found), scores.amax(-1)


def dense(mask: Any, blocks: BlockMask | None, q: Tensor, k: Tensor) -> Tensor:
    """[b, h, s_q, s_kv]: what a mask_mod or a BlockMask shows, by the definition of its blocks."""
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if blocks is None:
        return create_mask(mask, *sizes, device="cpu").expand(sizes)
    rule = create_mask(blocks.mask_mod, *sizes, device="cpu").expand(sizes)
    full = (
        torch.zeros_like(rule)
        if blocks.full_kv_indices is None
        else _shown(blocks.full_kv_num_blocks, blocks.full_kv_indices, blocks.BLOCK_SIZE, sizes)
    )
    return full | (rule & _shown(blocks.kv_num_blocks, blocks.kv_indices, blocks.BLOCK_SIZE, sizes))


def _shown(counts: Any, indices: Any, size: tuple[int, int], sizes: tuple[int, ...]) -> Tensor:
    seen = torch.zeros(sizes, dtype=torch.bool)
    for b in range(sizes[0]):
        for h in range(sizes[1]):
            at = (b % counts.shape[0], h % counts.shape[1])
            for r, n in enumerate(counts[at].tolist()):
                for c in indices[at][r, :n].tolist():
                    seen[b, h, r * size[0] : (r + 1) * size[0], c * size[1] : (c + 1) * size[1]] = True
    return seen


def _of_zoo(make: Any) -> Call:
    mods = make(18, 33)
    q, k, v = inputs(18, 33, "float32")
    if mods.mask_mod is None:
        return (q, k, v), {"score_mod": mods.score_mod}
    blocks = create_block_mask(mods.mask_mod, q.shape[0], q.shape[1], 18, 33, device="cpu", BLOCK_SIZE=4)
    return (q, k, v), {"score_mod": mods.score_mod, "block_mask": blocks}


def _function(takes: str, line: str) -> Any:
    """The line as a function of a module that holds what it reads."""
    made = held()
    exec(compile(f"def mod({takes}):\n    return {line}", line, "exec"), made)
    return made["mod"]


def _flat(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    return [t for p in parts for t in (_flat(tuple(p)) if isinstance(p, tuple) else [p]) if isinstance(t, Tensor)]


def run(words: Sequence[str] = (), kernels: bool = False, every: int = 1) -> dict[str, list[tuple[str, Outcome]]]:
    """The outcomes of all rows whose names have one of the words (of each `every`-th), by kind."""
    found: dict[str, list[tuple[str, Outcome]]] = {}
    how = contextlib.nullcontext() if kernels else evaluated()
    with torch.no_grad(), how:
        for name, make in list(rows())[::every]:
            if not words or any(w in name for w in words):
                one = outcome(make)
                found.setdefault(one.kind, []).append((name, one))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--kernels", action="store_true")
    given = parser.parse_args()
    found = run(given.words, given.kernels)
    for kind in ("refused", "raised", "wrong"):
        for name, one in found.get(kind, []):
            print(f"{kind}: {name}\n    {one.reason}")
    total = sum(map(len, found.values()))
    print(f"{total} rows: " + ", ".join(f"{len(x)} {kind}" for kind, x in found.items()))
    good = len(found.get("right", [])) >= RIGHT * total and not found.get("wrong") and not found.get("raised")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
