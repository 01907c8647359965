"""Code blocks of a Markdown page: to be run on their own, or in order with what each prints beneath it.

```python                  run, in one namespace for the page
```python title="mine.py"  written to that file
```sh                      run by bash
```console                 commands for a GPU or for files of the reader's: not run
```text                    right behind one of these: what it prints, where … stands for lines, or the rest of one
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
RUN = ("python", "sh")
OURS = 'neptune() { python -m neptune.cli "$@"; }; python() { "$PYTHON" "$@"; };'
"""The commands that an installation puts on the path."""


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return [(m[1], m[3]) for m in FENCE.finditer(text)]


@dataclass(frozen=True)
class Step:
    """A block that is run, its line in the page, and the block of text that follows at once: what it prints."""

    code: str
    line: int
    shown: str
    span: tuple[int, int]
    """Where `shown` stands in the page."""
    language: str = "python"
    file: str | None = None


def steps(text: str) -> Iterator[Step]:
    found = list(FENCE.finditer(text))
    for k, m in enumerate(found):
        if m[1] not in RUN:
            continue
        after = found[k + 1] if k + 1 < len(found) else None
        follows = after is not None and after[1] == "text" and not text[m.end() : after.start()].strip()
        span = after.span(3) if after is not None and follows else (m.end(), m.end())
        yield Step(m[3], text.count("\n", 0, m.start(3)), text[slice(*span)], span, m[1], m[2])


def agrees(shown: str, printed: str) -> bool:
    """True where `printed` is what is shown, but for spaces at the ends of lines. In `shown` a line … stands for any
    number of lines, and … at the end of a line for the rest of it."""
    printed = re.sub(r" +$", "", printed, flags=re.MULTILINE)
    return re.fullmatch("".join(_pattern(line) for line in shown.splitlines()), printed) is not None


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*?"
    return re.escape(line[:-1]) + ".*\n" if line.endswith(" …") else re.escape(line) + "\n"


def run_in_order(page: Path, but: tuple[str, ...] = ()) -> list[tuple[Step, str]]:
    """Run all blocks of a page, but these texts, in one namespace; what each printed. With NEPTUNE_UPDATE_GOLDENS=1 the
    page is rewritten to show that."""
    text, names = page.read_text(), dict[str, Any]()
    done = [(step, _run(step, page, names)) for step in steps(text) if step.code not in but]
    if os.environ.get("NEPTUNE_UPDATE_GOLDENS") == "1":
        for step, printed in reversed(done):
            if agrees(step.shown, printed):
                continue
            start, end = step.span
            block = printed if step.shown or not printed else f"\n\n```text\n{printed}```"
            text = text[:start] + block + text[end:]
        page.write_text(text)
        now = (step for step in steps(text) if step.code not in but)
        return [(s, p) for s, (_, p) in zip(now, done, strict=True)]
    return done


def _run(step: Step, page: Path, names: dict[str, Any]) -> str:
    """What a block prints."""
    if step.file is not None:
        Path(step.file).write_text(step.code)
        return ""
    if step.language == "sh":
        return shell(step.code)
    # Errors and tracebacks name the lines of the page.
    code = compile("\n" * step.line + step.code, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def shell(script: str) -> str:
    """The standard output of a shell script in the present folder, which finds Neptune as if it were installed."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": path}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{OURS}\n{script}"], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout
