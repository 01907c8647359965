"""Code blocks of a Markdown page: to be run on their own, or in order with what each prints beneath it."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return [(m[1], m[2]) for m in FENCE.finditer(text)]


@dataclass(frozen=True)
class Step:
    """A block of Python, its line in the page, and the block of text that follows at once: what it prints."""

    code: str
    line: int
    shown: str
    span: tuple[int, int]
    """Where `shown` stands in the page."""


def steps(text: str) -> Iterator[Step]:
    found = list(FENCE.finditer(text))
    for k, m in enumerate(found):
        if m[1] != "python":
            continue
        after = found[k + 1] if k + 1 < len(found) else None
        follows = after is not None and after[1] == "text" and not text[m.end() : after.start()].strip()
        span = after.span(2) if after is not None and follows else (m.end(), m.end())
        yield Step(m[2], text.count("\n", 0, m.start(2)), text[slice(*span)], span)


def run_in_order(page: Path) -> list[tuple[Step, str]]:
    """Run all blocks of a page in one namespace; what each printed. With NEPTUNE_UPDATE_GOLDENS=1 the page is
    rewritten to show that."""
    text, names = page.read_text(), dict[str, Any]()
    done: list[tuple[Step, str]] = []
    for step in steps(text):
        out = io.StringIO()
        # Errors and tracebacks name the lines of the page.
        code = compile("\n" * step.line + step.code, str(page), "exec")
        with contextlib.redirect_stdout(out):
            exec(code, names)
        done.append((step, out.getvalue()))
    if os.environ.get("NEPTUNE_UPDATE_GOLDENS") == "1":
        for step, printed in reversed(done):
            start, end = step.span
            block = printed if step.shown or not printed else f"\n\n```text\n{printed}```"
            text = text[:start] + block + text[end:]
        page.write_text(text)
        return [(s, p) for s, (_, p) in zip(steps(text), done, strict=True)]
    return done
