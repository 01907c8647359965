"""Hooks of mkdocs (`mkdocs.yml`): what its configuration cannot say.

`errors/` in the navigation → every page of docs/errors; `[cases](../bench/cases.py)` → `bench/cases.py`, since pages
also link to files of the checkout, which the site does not hold.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the navigation names the folder."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show links to files outside of docs/ as their paths."""
    here = Path(page.file.abs_src_path).parent
    parts = FENCE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [LINK.sub(lambda m: _shown(m, here), text) for text in parts[::2]]
    return "".join(parts)


def _expanded(item: Any, docs: Path) -> Any:
    if isinstance(item, dict):
        return {title: _expanded(below, docs) for title, below in item.items()}
    if isinstance(item, list):
        return [x for below in item for x in _pages(below, docs)]
    return item


def _pages(item: Any, docs: Path) -> list[Any]:
    if isinstance(item, str) and item.endswith("/"):
        return [{p.stem: f"{item}{p.name}"} for p in sorted((docs / item).glob("*.md"))]
    return [_expanded(item, docs)]


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
