"""docs/design.md and the code name each other truly: titles that code cites, files that the page names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("neptune", "templates", "bench", "qa", "tests", "examples", "appendix_examples", "docs")
CITATION = re.compile(r'docs/design\.md\]?(?:\([\w./]*\))?,\s+"([^"]+)"')
HEAD = re.compile(r"^#+ (.+)$|^\*\*([^*]+?)\.?\*\*", re.MULTILINE)
FILE = re.compile(r"`([\w*/]+/[\w*/]+(?:\.py|\.md)?)(?::[\w.]+)?`")


def page() -> str:
    return (ROOT / "docs" / "design.md").read_text()


def titles(text: str) -> set[str]:
    return {" ".join((m[1] or m[2]).split()) for m in HEAD.finditer(text)}


def citations() -> Iterator[tuple[str, str]]:
    """(file, title) of every citation of the page."""
    for path in (p for f in FOLDERS for p in sorted((ROOT / f).rglob("*")) if p.suffix in (".py", ".md")):
        for m in CITATION.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), " ".join(m[1].split())


def missing_files(text: str) -> list[str]:
    """The files and folders that the page names and the repository lacks."""
    names = {m[1] for m in FILE.finditer(text)}
    return sorted(n for n in names if not any(any(base.glob(n)) for base in (ROOT, ROOT / "neptune")))


@pytest.mark.parametrize("title", sorted({title for _, title in citations()}))
def test_the_titles_that_code_cites_exist(title):
    assert title in titles(page()), [file for file, t in citations() if t == title]


def test_no_code_cites_sections_of_another_document():
    numbered = re.compile(r"\bdesign §" r"\d")
    files = [p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if numbered.search(p.read_text())]
    assert not files


def test_the_files_that_the_page_names_exist():
    assert not missing_files(page())
    assert missing_files("`ir/nowhere.py`, `ir/expr.py`, `frontend/te*.py`") == ["ir/nowhere.py"]


def test_what_is_taken_for_titles_and_citations():
    assert titles("# A page\n\n**A title.** Text, **bold** text.\n\n**Two\nlines** (a)") == {
        "A page",
        "A title",
        "Two lines",
    }
    page = "docs/design.md"
    assert CITATION.findall(f'({page}, "A\ntitle"); [{page}](design.md), "B"') == ["A\ntitle", "B"]
