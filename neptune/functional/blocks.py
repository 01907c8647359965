"""A BlockMask of FlexAttention as a mask that reads its blocks.

    kv_indices of row 0: 2 0 | full_kv_indices of row 0: 1        table of row 0: partial full partial -
                                                                  keys of row 0: from 0 to 3 · 128

What is in the lists is all that is seen: of a partial block what the mask_mod says, of a full block everything. Where
that is what the mask_mod says alone (`implied`), it is the mask. Elsewhere each call makes a table
anew from the lists, [b, h, rows, columns] of int8, with the first and the last key of each row of blocks, and a kernel
reads them as it reads any captured tensor: its loops run from the one to the other.

Blocks that say no more than the mask_mod, as those that `create_block_mask` makes do, are implied:

    blocks of a row: full partial -      the mask_mod there: true on all; anything; false on all     → implied

Then the mask_mod alone is the mask: its conditions bound a kernel's loops, and nothing is looked up for each score.
That is seen by evaluating it at all positions, once for as long as neither the lists nor what it reads are others:
on a CPU they are compared with copies, on a GPU, where that would make each call wait, torch counts the changes of a
tensor. What torch does not count (writes through `.data`, DLPack, collectives, kernels of one's own) is seen with
NEPTUNE_CHECK=1. What cannot be told so is not implied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from neptune import config
from neptune.base.boundary import frames_of_package
from neptune.base.locks import Lock
from neptune.errors import NeptunePerformanceWarning
from neptune.functional.captured import captured
from neptune.functional.flex import mods_of
from neptune.functional.mods import INDICES, refuse_wrapped
from neptune.functional.softmax_attention import of_scores
from neptune.functional.tensors import lengths_of, refuse, shape_of
from neptune.ir.expr import Const, Expr, Var, loads, variables
from neptune.runtime.custom_op import UNTYPED
from neptune.runtime.launching.launch import capturing
from neptune.runtime.transforms import is_recorded

Tensor = torch.Tensor
WHOLE = 1 << 30
"""The block size by which FlexAttention says that there are no blocks."""


def with_block_mask(name: str, mask_mod: Any, block_mask: Any, q: Tensor, k: Tensor) -> Callable[..., Tensor]:
    """The mask_mod that says what a BlockMask does. Raises ShapeError for one that does not fit, or beside another
    mask_mod."""
    if mask_mod is not None:
        refuse(name, "both mask_mod= and block_mask= were given", hint="and_masks(mask_mod, block_mask.mask_mod)")
    rule, lengths = getattr(block_mask, "mask_mod", None), getattr(block_mask, "seq_lengths", None)
    if rule is None or lengths is None:
        refuse(name, f"block_mask is {type(block_mask).__name__}", legal=["a BlockMask of FlexAttention"])
    if getattr(rule, "__name__", "") == "_sliced_mask_mod_error":
        refuse(name, "block_mask is a slice of another, which has no mask_mod", hint="create_block_mask for the slice")
    of_rows, of_columns = block_mask.BLOCK_SIZE
    whole = of_rows == of_columns == WHOLE
    if not whole and (q.shape[-2], k.shape[-2]) != tuple(lengths):
        refuse(
            name,
            f"block_mask is for {lengths[0]} queries and {lengths[1]} keys, q has {q.shape[-2]} and k {k.shape[-2]}",
            hint="mask_mod=block_mask.mask_mod, which serves all lengths",
        )
    of_call = lengths_of(q, k)

    def made() -> Blocks:
        table = _table(block_mask, -(-k.shape[-2] // of_columns))
        fits = all(n in (1, w) for n, w in zip(table.shape[:2], of_call[:2], strict=True)) and q.dim() <= 4
        if not fits or table.shape[2] * of_rows < q.shape[-2]:
            wrong = f"block_mask has blocks {shape_of(table)} of {of_rows} queries, q is {shape_of(q)}"
            refuse(name, wrong, legal=["a row for each block of queries; batches and heads as of q, or 1"])
        return Blocks(table, of_rows, of_columns, dict(zip(INDICES, of_call, strict=True)))

    why = why_not_implied(block_mask, q, k, made)
    if not why:
        implied: Callable[..., Tensor] = rule
        return implied
    if q.device.type != "cpu" and not torch.compiler.is_compiling():
        _say_slow(name, why)
    return _looked_up(rule, made(), full=block_mask.full_kv_num_blocks is not None)


def _looked_up(rule: Any, blocks: Blocks, full: bool) -> Callable[..., Tensor]:
    """The mask that looks up its block for each score."""
    table, of_rows, of_columns = blocks.table, blocks.of_rows, blocks.of_columns
    of_b, of_h = table.shape[0] > 1, table.shape[1] > 1
    first, last = _ends(table, of_columns)

    def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        row = (b if of_b else 0, h if of_h else 0, q_idx // of_rows)
        kind = table[(*row, kv_idx // of_columns)]
        shown: Tensor = rule(b, h, q_idx, kv_idx)
        listed = (kind >= FULL) | ((kind == PARTIAL) & shown) if full else (kind == PARTIAL) & shown
        return (kv_idx >= first[row]) & (kv_idx < last[row]) & listed

    return seen


def _table(block_mask: Any, columns: int) -> Tensor:
    """[b, h, rows, columns] of int8, what the lists of a BlockMask say of each block."""
    table = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, columns) * PARTIAL
    if block_mask.full_kv_num_blocks is None:
        return table
    return table + _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns) * FULL


@cache
def _say_slow(name: str, why: str) -> None:
    """Warn once that a table is looked up for each score."""
    message = f"neptune.functional.{name}: the blocks of block_mask are looked up for each score, since {why}"
    hint = "mask_mod=block_mask.mask_mod is several times faster, where the blocks say no more than it"
    warnings.warn(NeptunePerformanceWarning(f"{message}; {hint}"), stacklevel=frames_of_package() + 1)


def _ends(table: Tensor, of_columns: int) -> tuple[Tensor, Tensor]:
    """The first key of each row of blocks, and one behind the last, [b, h, rows] of int32; none where nothing is."""
    columns = table.shape[-1]
    places = UNTYPED.arange(columns, dtype=torch.int32, device=table.device)
    first = torch.where(table != 0, places, columns).amin(-1) if columns else table.new_zeros(table.shape[:-1])
    last = torch.where(table != 0, places + 1, 0).amax(-1) if columns else table.new_zeros(table.shape[:-1])
    return (first * of_columns).to(torch.int32), (last * of_columns).to(torch.int32)


def _listed(counts: Tensor, indices: Tensor, columns: Any) -> Tensor:
    """[b, h, rows, columns], 1 where the lists [b, h, rows, n] name a column within their counts."""
    lead = (1,) * (4 - indices.dim())
    indices, counts = indices.reshape(*lead, *indices.shape), counts.reshape(*lead, *counts.shape)
    there = UNTYPED.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    there = there & (indices >= 0) & (indices < columns)
    table = indices.new_zeros(*indices.shape[:-1], columns + 1, dtype=torch.int8)
    listed: Tensor = table.scatter(-1, torch.where(there, indices, columns).long(), 1)
    return listed[..., :columns]


# --- blocks that say no more than the mask_mod ------------------------------------------------------

functorch = torch._C._functorch
PARTIAL, FULL = 1, 2
CHUNK = 1 << 22
"""Positions that are evaluated at a time: some 100 MB of indices."""
MOST = {"cpu": 1 << 26, "cuda": 1 << 32}
"""Positions that are looked at: some tenths of a second."""
REMEMBERED = 16
"""Verdicts of a BlockMask: layers of other heads share it."""
COUNTED = (Tensor, torch.nn.Parameter)
"""Tensors whose changes torch counts."""
LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@dataclass(frozen=True)
class Blocks:
    """A BlockMask for some queries and keys: its `table` [b, h, rows, columns] says what each block is, of `of_rows`
    queries and `of_columns` keys; `lengths` are those of the batch, heads, queries and keys."""

    table: Tensor
    of_rows: int
    of_columns: int
    lengths: Mapping[str, int]


@dataclass(frozen=True)
class Seen:
    """A tensor as it was: by identity, layout, address and count of changes, and by its content where that is
    compared."""

    of: Callable[[], Tensor | None]
    layout: tuple[Any, ...]
    changes: int
    content: Tensor | None

    @staticmethod
    def now(t: Tensor) -> Seen:
        """A tensor as it is."""
        compared = t.device.type == "cpu" or config.checked_calls()
        return Seen(ref(t), _layout(t), t._version, t.detach().clone() if compared else None)

    def is_still(self, t: Tensor) -> bool:
        """Whether this is the tensor, unchanged."""
        same = self.of() is t and self.layout == _layout(t) and self.changes == t._version
        return same and (self.content is None or torch.equal(self.content, t))


def _layout(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.shape, t.stride()


@dataclass(frozen=True)
class Verdict:
    """The reason why a mask_mod is not all that is seen, "" where it is; with the tensors that this is of."""

    why: str
    tensors: tuple[Seen, ...]

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the tensors, as they were."""
        return len(tensors) == len(self.tensors) and all(map(Seen.is_still, self.tensors, tensors))


_KNOWN: WeakKeyDictionary[Any, dict[Any, Verdict]] = WeakKeyDictionary()
"""By BlockMask, and by lengths, device and everything else that its mask_mod reads."""
_LOCK = Lock()


def why_not_implied(block_mask: Any, q: Tensor, k: Tensor, table: Callable[[], Blocks]) -> str:
    """The reason why its mask_mod is not all that a BlockMask says, for these q and k; "" where it is."""
    if torch.compiler.is_compiling() or is_recorded():
        return "it is traced by torch, which knows no values"
    if q.device.type == "cuda" and capturing():
        return "a CUDA graph is captured"
    rule, behind = block_mask.mask_mod, captured(block_mask.mask_mod)
    refuse_wrapped("mask_mod", rule, behind)
    if opaque := next((c for c in behind if c.kind == "opaque"), None):
        return f"its mask_mod reads `{opaque.name}`, of which nothing is known"
    lists = [t for t in (getattr(block_mask, name, None) for name in LISTS) if t is not None]
    tensors = [*lists, *(c.value for c in behind if c.kind == "tensor")]
    if any(type(t) not in COUNTED or t.is_inference() or functorch.is_batchedtensor(t) for t in tensors):
        return "changes of the tensors that it reads are not counted"
    others = (q.device, lengths_of(q, k), *((c.path, c.key) for c in behind))
    with _LOCK:
        known = _KNOWN.get(block_mask, {}).get(others)
    if known is None or not known.is_of(tensors):
        # Before it is evaluated: what is changed meanwhile is looked at again.
        seen = tuple(map(Seen.now, tensors))
        known = Verdict(_why_not(rule, q, table()), seen)
        with _LOCK:
            before = _KNOWN.get(block_mask, {})
            _KNOWN[block_mask] = {**(before if len(before) < REMEMBERED else {}), others: known}
    return known.why


def _why_not(rule: Any, q: Tensor, blocks: Blocks) -> str:
    mods, read = mods_of(None, rule, of_scores(q))
    assert mods.mask is not None
    e = mods.mask.expression(*(Var(n) for n in INDICES))
    # A tensor without dimensions is one of one element to an expression.
    shapes = {p.name: tuple(t.shape) or (1,) for p, t in zip(mods.mask.placeholders, read, strict=True)}
    # An index beyond a tensor would end a CUDA context: so that what is evaluated must be known to lie inside.
    if not all(
        _inside(x, n, blocks.lengths) for load in loads(e) for x, n in zip(load.index, shapes[load.buffer], strict=True)
    ):
        return "its mask_mod reads a tensor at other indices than b, h, q_idx and kv_idx, or not all of these"
    names = [n for n in INDICES if n in variables(e) or blocks.table.shape[INDICES.index(n)] > 1 or n in INDICES[2:]]
    count = prod(blocks.lengths[n] for n in names)
    if count > MOST.get(blocks.table.device.type, 0):
        return "there are too many positions to look at"
    try:
        return "" if _holds(rule, names, blocks) else "its blocks show other keys than its mask_mod"
    except Exception as error:
        # What a user's function does with torch's batches of indices is its own: a condition that is a Python bool,
        # a division by 0 of integers on a CPU.
        return f"its mask_mod has no value at all positions ({type(error).__name__})"


def _inside(index: Expr, length: int, lengths: Mapping[str, int]) -> bool:
    """True for an index that is one of a mod's, or a number, and less than a dimension's length."""
    if isinstance(index, Const):
        return 0 <= index.value < length
    return isinstance(index, Var) and lengths.get(index.name, length + 1) <= length


def _holds(rule: Any, names: Sequence[str], blocks: Blocks) -> bool:
    """Whether the rule is true on full blocks and false where there is none, at all positions of the indices `of`."""
    device, lengths = blocks.table.device, blocks.lengths
    grids = {n: torch.arange(lengths[n] if n in names else 1, device=device) for n in INDICES}
    keys, rows = grids["kv_idx"], max(1, CHUNK // max(1, len(grids["b"]) * len(grids["h"]) * lengths["kv_idx"]))
    evaluated = _over_all(rule)
    wrong = torch.zeros((), dtype=torch.bool, device=device)
    for queries in torch.split(grids["q_idx"], rows):
        seen = evaluated(grids["b"], grids["h"], queries, keys)
        kind = blocks.table[:, :, queries // blocks.of_rows][..., keys // blocks.of_columns]
        wrong |= (((kind >= FULL) & ~seen) | ((kind == 0) & seen)).any()
    return not bool(wrong)


def _over_all(rule: Any) -> Callable[..., Tensor]:
    """The rule on vectors of indices: [b, h, q_idx, kv_idx] of bool."""
    over = rule
    for k in reversed(range(len(INDICES))):
        over = torch.vmap(over, in_dims=tuple(0 if j == k else None for j in range(len(INDICES))))
    return over  # type: ignore[no-any-return]
