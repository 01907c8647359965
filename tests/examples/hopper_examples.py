"""Role bodies written by hand, as `neptune.hopper.bodies.write` would derive them: causal attention and a product."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.templates.flash_attention import flash_attention
from neptune.templates.matmul import matmul as by_tiles
from neptune.tile.ir import StoreTile, TileProgram
from neptune.tile.parser import parse_tiles
from neptune.tile.pipeline import lower
from tests.examples.lowering import scheduled

_OWN = "(min(i0 * 64 + 64, s_kv) + (BLOCK_N - 1)) // BLOCK_N"
_ALL = "(min(i0 // {n} * {rows} + {rows}, s_kv) + (BLOCK_N - 1)) // BLOCK_N"

_SOFTMAX = """
{pad}m_prev<i1> = m
{pad}m<i1> = max(m, (reduce({s}, max, 'j1') * {scale}))
{pad}p<i1 j1> = exp2((({s} * {scale}) - rearrange(m, 'i1 -> i1 1')))
{pad}m_rescale<i1> = exp2((m_prev - m))
{pad}l<i1> = ((l * m_rescale) + reduce(p, sum, 'j1'))
{pad}acc<i1 e> = (acc * rearrange(m_rescale, 'i1 -> i1 1'))  # acc_repair
{pad}p_cast<i1 j1> = cast(f16, p)
"""


def _span(start: str, axis: str, across: bool = False) -> str:
    """start + 0, 1, … along an axis, down or across a tile."""
    offsets = f"({start} + iota({axis}))" if start else f"iota({axis})"
    return f"rearrange({offsets}, '{axis} -> {f'1 {axis}' if across else f'{axis} 1'}')"


def _below(start: str, axis: str, size: str, across: bool = False) -> str:
    """The mask of what lies inside of a size."""
    return f"rearrange((({start} + iota({axis})) < {size}), '{axis} -> {f'1 {axis}' if across else f'{axis} 1'}')"


def _at(buffer: str, tile: str, axis: str) -> str:
    """A tile of keys or values."""
    first = f"{tile} * BLOCK_N"
    load = f"{buffer}[b, h, {_span(first, 'j1')}, {_span('', axis, across=True)}]<j1 {axis}>"
    return f"{buffer}<j1 {axis}> = masked({load}, {_below(first, 'j1', 's_kv')}, 0.0)"


@cache
def attention(consumers: int = 2, depth: int = 64) -> tuple[RoleBodies, TileProgram]:
    """Causal attention of equal lengths: keys from the last tile to the first, the masked one peeled, the values'
    product a step late; tiles behind the diagonal of a consumer's own rows are loaded and not used."""
    program = lower(scheduled(prefill_causal(depth=depth), flash_attention))
    scale = round(math.log2(math.e) / math.sqrt(depth), 9)
    own, every = _OWN, _ALL.format(n=consumers, rows=64 * consumers)
    row, inside = _span("i0 * 64", "i1"), _below("i0 * 64", "i1", "s_q")
    load_q = f"q<i1 d> = masked(q[b, h, {row}, {_span('', 'd', across=True)}]<i1 d>, {inside}, 0.0)"
    first = f"({own} - 1)"
    consumer = f"""
  m<i1> = full(-3.4028234663852886e+38, 'i1')  # m_init
  l<i1> = full(0.0, 'i1')  # l_init
  acc<i1 e> = full(0.0, 'i1 e')  # acc_init
  {load_q}
  for t in [0, {every} - {own}):
    {_at("k", f"({every} - 1 - t)", "d")}
    {_at("v", f"({every} - 1 - t)", "e")}
  if 0 < {own}:
    {_at("k", first, "d")}
    s<i1 j1> = dot(q, rearrange(k, 'j1 d -> d j1'))
    score<i1 j1> = where(({_span(first + " * BLOCK_N", "j1", across=True)} <= {row}), s, -inf)
    {_SOFTMAX.format(pad="    ", s="score", scale=scale).strip()}
    for j0 in [1, {own}):
      {_at("k", f"({own} - 1 - j0)", "d")}
      s<i1 j1> = dot(q, rearrange(k, 'j1 d -> d j1'))
      {_at("v", f"({own} - j0)", "e")}
      acc<i1 e> = (acc + dot(p_cast, v))
      {_SOFTMAX.format(pad="      ", s="s", scale=scale).strip()}
    {_at("v", "0", "e")}
    acc<i1 e> = (acc + dot(p_cast, v))
  inv_l<i1> = (1.0 / l)
  o[b, h, {row}, {_span("", "e", across=True)}] = cast(f16, (acc * rearrange(inv_l, 'i1 -> i1 1'))) if {inside}
"""
    union = every.replace(f"i0 // {consumers}", "group")
    producer = f"""
  {load_q}
  for j0 in [0, {union}):
    {_at("k", f"({union} - 1 - j0)", "d")}
    {_at("v", f"({union} - 1 - j0)", "e")}
"""
    axes = f"axes(i1: 64, e: {depth}, j1: BLOCK_N, d: {depth})"
    text = (
        "tile program prefill_causal\n"
        f"kernel attention_kernel  grid(b < batch @z, h < heads @y, i0 < (s_q + 63) // 64 @x)  {axes}{consumer}"
        f"kernel producer  grid(b < batch @z, h < heads @y, group < s_q @x, i0 < s_q @x)  {axes}{producer}"
    )
    return _walked(text, program, consumers, (("q", True), ("k", False), ("v", False)), ("acc",))


@cache
def product(consumers: int = 2) -> tuple[RoleBodies, TileProgram]:
    """y = a b in tiles of 64 rows to a consumer, all of one column tile of b."""
    program = lower(scheduled(matmul(), by_tiles))
    row, col = _span("i0 * 64", "i1"), _span("j0 * BLOCK_N", "j1", across=True)
    deep, depth = _span("p0 * BLOCK_K", "p1", across=True), _span("p0 * BLOCK_K", "p1")
    rows, cols = _below("i0 * 64", "i1", "m"), _below("j0 * BLOCK_N", "j1", "n", across=True)
    summed, across = (_below("p0 * BLOCK_K", "p1", "k", across=x) for x in (False, True))
    a = f"a<i1 p1> = masked(a[{row}, {deep}]<i1 p1>, ({rows} and {across}), 0.0)"
    b = f"b<p1 j1> = masked(b[{depth}, {col}]<p1 j1>, ({summed} and {cols}), 0.0)"
    y = f"y[{row}, {col}] = cast(f16, c) if ({rows} and {cols})"
    loop = "for p0 in [0, (k + (BLOCK_K - 1)) // BLOCK_K):"
    axes = "axes(i1: 64, j1: BLOCK_N, p1: BLOCK_K)"
    grid = "j0 < (n + (BLOCK_N - 1)) // BLOCK_N @y"
    text = f"""tile program matmul
kernel matmul_kernel  grid(i0 < (m + 63) // 64 @x, {grid})  {axes}
  c<i1 j1> = full(0.0, 'i1 j1')  # c_init
  {loop}
    {a}
    {b}
    c<i1 j1> = (c + dot(a, b))
  {y}
kernel producer  grid(group < m @x, i0 < m @x, {grid})  {axes}
  {loop}
    {a}
    {b}
"""
    return _walked(text, program, consumers, (("a", True), ("b", False)))


def _walked(
    text: str, program: TileProgram, consumers: int, staged: tuple[tuple[str, bool], ...], late: tuple[str, ...] = ()
) -> tuple[RoleBodies, TileProgram]:
    """The walk whose consumer and producer a text has, and the program with the consumer for its kernel."""
    consumer, producer = parse_tiles(text, program).kernels
    sent = tuple((s.buffer, True) for s in consumer.body if isinstance(s, StoreTile))
    return (
        RoleBodies(consumer, producer.body, "i0", "group", consumers, staged, late, sent=sent),
        replace(program, kernels=(consumer,)),
    )
