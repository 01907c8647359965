"""rotate: what may be late, and what keeps a product where it is. Each case is one edit of an attention's text."""

from __future__ import annotations

import pytest

from neptune.tile.ir import Assign, Loop, TileProgram
from neptune.tile.parser import parse_tiles
from neptune.tile.passes.rotate import rotated
from neptune.tile.verify import verify_tiles
from tests.examples.walks import tiles_of, walked

RESCALE = "    acc<i1 e> = (acc * rearrange(m_rescale, 'i1 -> i1 1'))  # acc_repair\n"
PRODUCT = "    acc<i1 e> = (acc + dot(p_cast, v))\n"
SUM = "    l<i1> = ((l * m_rescale) + reduce(p, sum, 'j1'))\n"
AGAIN = "    again<i1 j1> = dot(q, rearrange(k, 'j1 d -> d j1'))\n"
CAST = "    p_cast<i1 j1> = cast(f16, p)\n"


def original() -> TileProgram:
    return tiles_of("prefill_global", "flash_attention", depth=16, heads=2)[1]


def parsed(text: str) -> TileProgram:
    made = parse_tiles(text, original())
    verify_tiles(made)
    return made


def edited(old: str, new: str) -> TileProgram:
    """The attention with one text for another, in the loop and behind it."""
    text = str(original())
    assert text.count(old) == 2, text
    return parsed(text.replace(old, new))


def test_the_parts_of_an_attention() -> None:
    (loop,) = [s for s in original().kernels[0].body if isinstance(s, Loop)]
    parts = rotated(loop.body, frozenset({"q", "k", "v"}))
    assert not isinstance(parts, str)
    assert [s.name for s in parts.front if isinstance(s, Assign)] == ["k", "s"]
    assert [s.name for s in parts.late if isinstance(s, Assign)] == ["v", "acc"]
    assert parts.names == ("acc",) and parts.carried == {"p_cast"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (SUM, SUM.replace("reduce(p, sum, 'j1')", "reduce(acc, sum, 'e')"), "`l` reads a sum in the loop"),
        (PRODUCT, PRODUCT + "    l<i1> = (l + reduce(acc, sum, 'e'))\n", "`l` reads a sum behind its product"),
        (PRODUCT, PRODUCT + RESCALE, "`acc` reads a sum behind its product"),
        (PRODUCT, PRODUCT + "    top<j1> = reduce(v, max, 'e')\n", "`top` reads what is multiplied late"),
        (
            PRODUCT,
            PRODUCT + AGAIN,
            "`again` multiplies behind `acc`",
        ),
        (CAST, CAST + PRODUCT.replace("acc", "l_").replace("dot(p_cast, v)", "acc"), "a sum in the loop"),
        (SUM, "    l<i1> = exp2(l)\n", "`l` is no sum, maximum or minimum that may be taken in any order"),
        (SUM, "    l<i1> = (l - reduce(p, sum, 'j1'))\n", "`l` is no sum"),
        (SUM, "    l<i1> = reduce(p, sum, 'j1')\n", "`l` is no sum"),
        (SUM, "    l<i1> = (l + (l * m_rescale))\n", "`l` is no sum"),
    ],
)
def test_what_keeps_it(old: str, new: str, why: str) -> None:
    text = str(original()).replace("  l<i1> = full", "  l_<i1 e> = full(0.0, 'i1 e')\n  l<i1> = full", 1)
    found = walked(parsed(text.replace(old, new)))
    assert found.late == ()
    assert len(found.kept) == 1 and why in found.kept[0], found.kept


def test_bodies_that_differ_by_more_than_masks() -> None:
    before, _, after = str(original()).rpartition("p_cast<i1 j1> = cast(f16, p)")
    found = walked(parsed(f"{before}p_cast<i1 j1> = cast(f16, (p * p)){after}"))
    assert found.late == () and "differ by more than masks" in found.kept[0]


def test_what_is_read_behind_the_loop() -> None:
    """The tile visited last is not the last one: what it leaves is not what the kernel reads."""
    text = str(original()).replace("  l<i1> = full", "  p<i1 j1> = full(0.0, 'i1 j1')\n  l<i1> = full", 1)
    text = text.replace("inv_l<i1> = (1.0 / l)", "inv_l<i1> = (1.0 / (l + reduce(p, sum, 'j1')))")
    found = walked(parsed(text))
    assert found.late == () and "`p` is no sum" in found.kept[0]
