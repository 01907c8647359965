"""Hook of mkdocs (`mkdocs.yml`): pages also link to files of the checkout, which the site does not hold.

`[cases](../bench/cases.py)` → `bench/cases.py`
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show links to files outside of docs/ as their paths."""
    here = Path(page.file.abs_src_path).parent
    parts = FENCE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [LINK.sub(lambda m: _shown(m, here), text) for text in parts[::2]]
    return "".join(parts)


def _shown(link: re.Match[str], here: Path) -> str:
    text, address = link.groups()
    if "://" in address:
        return link[0]
    target = (here / address).resolve()
    if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
        return link[0]
    if not target.exists():
        raise PluginError(f"{here.name}: the link [{text}]({address}) leads nowhere")
    path = target.relative_to(ROOT).as_posix()
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"
