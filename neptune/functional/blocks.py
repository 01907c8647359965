"""A BlockMask of FlexAttention as a mask that reads its blocks.

    kv_indices of row 0: 2 0 | full_kv_indices of row 0: 1        table of row 0: partial full partial -
                                                                  keys of row 0: from 0 to 3 · 128

What is in the lists is all that is seen: of a partial block what the mask_mod says, of a full block everything. Where
that is what the mask_mod says alone (`neptune.functional.implied`), it is the mask. Elsewhere each call makes a table
anew from the lists, [b, h, rows, columns] of int8, with the first and the last key of each row of blocks, and a kernel
reads them as it reads any captured tensor: its loops run from the one to the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from neptune.base.boundary import frames_of_package
from neptune.errors import NeptunePerformanceWarning
from neptune.functional.implied import FULL, PARTIAL, Blocks, why_not_implied
from neptune.functional.mods import INDICES
from neptune.functional.tensors import lengths_of, refuse, shape_of
from neptune.runtime.custom_op import UNTYPED

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
