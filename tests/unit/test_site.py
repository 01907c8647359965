"""The documentation site is built without a warning, holds every page and every public name, and loads nothing from
elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import neptune
from neptune.frontend import builder
from neptune.ops.shipped import OPERATORS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADS = {"src", "srcset", "poster", "data"}
"""Attributes whose address a browser fetches by itself; of a <link>, `href` too."""
SHOWN_ONLY = {"canonical", "prev", "next"}


class Fetches(HTMLParser):
    """What a browser loads for a page, the links of its navigation, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.loaded += [known[a] for a in LOADS & known.keys()]
        if tag == "link" and known.get("rel") not in SHOWN_ONLY:
            self.loaded.append(known["href"])
        self.loaded += re.findall(r"url\(([^)]*)\)", known.get("style", ""))
        self.classes.update(known.get("class", "").split())
        if tag == "a" and "md-nav__link" in known.get("class", "").split():
            self.links.add(known.get("href", "").partition("#")[0])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {p.relative_to(DOCS).with_suffix(".html").as_posix() for p in DOCS.rglob("*.md")}
    assert pages - {"index.html"} <= Fetches((site / "index.html").read_text()).links
    assert not list(site.rglob("*.py")), "the site's own machinery is not published"


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = Fetches(page.read_text())
        outside = [a for a in found.loaded if re.match(r"(\w+:)?//", a.strip("'\" "))]
        assert found.loaded and not outside, page
        # The theme's script fetches a renderer for diagrams, and figures about a repository, where a page has them.
        assert not found.classes & {"mermaid", "md-source"}, page
    sheets = "".join(p.read_text() for p in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?(?:\w+:)?//", sheets) == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    head, _, packed = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert b"inventory version 2" in head
    known = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    wanted = {f"{m.__name__}.{name}" for m in (neptune, builder) for name in m.__all__}
    # A package that can be called; the reference shows what it calls.
    wanted = wanted - {"neptune.autotune"} | {"neptune.autotune.tuner.autotune"}
    wanted |= {f"neptune.ops.{shipped.call.partition('(')[0]}" for shipped in OPERATORS.values()}
    assert sorted(wanted - known) == []
    assert {f"neptune.Schedule.{p}" for p in ("split", "rolling_update", "split_k")} <= known


def test_a_loader_is_seen() -> None:
    page = '<link href="//fonts.x/a.css" rel=stylesheet><link rel="canonical" href="https://x"><img src="https://y">'
    assert Fetches(page).loaded == ["//fonts.x/a.css", "https://y"]
    assert Fetches('<p style="background: url(https://z/b.png)">').loaded == ["https://z/b.png"]
