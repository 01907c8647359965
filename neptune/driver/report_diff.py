"""Two texts of IR as one HTML difference, line by line, with the words that changed marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from html import escape

CONTEXT = 2
WORD = re.compile(r"\w+|\s+|[^\w\s]")
SIMILAR = 0.5
"""Lines that are less alike than this are another line, not a changed one."""


def diff_html(before: str, after: str) -> str:
    """Return the difference of two forms as HTML; an empty string if they are equal.

    >>> print(diff_html("a = b", "a = c"))
    <div class="code"><div class="del" style="--i:0ch">a = <mark>b</mark></div><div class="add" style="--i:0ch">a = <mark>c</mark></div></div>
    """  # noqa: E501
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    rows: list[str] = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        if group[0][1] > 0:
            rows.append('<div class="gap">…</div>')
        for tag, i1, i2, j1, j2 in group:
            rows += _same(old[i1:i2]) if tag == "equal" else _changed(old[i1:i2], new[j1:j2])
        if group[-1][2] < len(old):
            rows.append('<div class="gap">…</div>')
    return f'<div class="code">{"".join(_merged_gaps(rows))}</div>' if rows else ""


def code_html(text: str) -> str:
    """A text with the lines of a difference, none of them changed."""
    return f'<div class="code">{"".join(_same(text.splitlines()))}</div>'


def _merged_gaps(rows: Iterable[str]) -> Iterator[str]:
    last = ""
    for row in rows:
        if not (row == last and "gap" in row):
            yield row
        last = row


def _same(lines: Iterable[str]) -> list[str]:
    return [_row("", line, escape(line.lstrip())) for line in lines]


def _changed(old: list[str], new: list[str]) -> Iterator[str]:
    """Removed and added lines; words are marked where each removed line has become one that is like it."""
    pairs = list(zip(old, new, strict=True)) if len(old) == len(new) else []
    if pairs and all(SequenceMatcher(None, *p, autojunk=False).ratio() > SIMILAR for p in pairs):
        for a, b in pairs:
            left, right = _marked(a, b)
            yield _row("del", a, left)
            yield _row("add", b, right)
        return
    yield from (_row("del", line, escape(line.lstrip())) for line in old)
    yield from (_row("add", line, escape(line.lstrip())) for line in new)


def _marked(a: str, b: str) -> tuple[str, str]:
    x, y = WORD.findall(a.lstrip()), WORD.findall(b.lstrip())
    left: list[str] = []
    right: list[str] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, x, y, autojunk=False).get_opcodes():
        for side, words in ((left, x[i1:i2]), (right, y[j1:j2])):
            text = escape("".join(words))
            side.append(text if tag == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(left), "".join(right)


def _row(kind: str, line: str, html: str) -> str:
    """A line; `--i` is its indentation, under which its continuations hang."""
    cls = f' class="{kind}"' if kind else ""
    return f'<div{cls} style="--i:{len(line) - len(line.lstrip())}ch">{html or "&nbsp;"}</div>'
