"""docs/design and the code name each other truly: titles that code cites, files that the pages name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("neptune", "templates", "bench", "qa", "tests", "examples", "appendix_examples", "docs")
CITATION = re.compile(r'(?:docs/)?design/(\w+)\.md\]?(?:\([\w./]*\))?,\s+"([^"]+)"')
HEAD = re.compile(r"^#+ (.+)$|^\*\*([^*]+?)\.?\*\*", re.MULTILINE)
FILE = re.compile(r"`([\w*/]+/[\w*/]+(?:\.py|\.md)?)(?::[\w.]+)?`")


PAGES = {p.stem: p.read_text() for p in sorted((ROOT / "docs" / "design").glob("*.md"))}
FRONT = (ROOT / "docs" / "design.md").read_text()


def titles(text: str) -> set[str]:
    return {" ".join((m[1] or m[2]).split()) for m in HEAD.finditer(text)}


def citations() -> Iterator[tuple[str, str, str]]:
    """(file, page, title) of every citation of a page."""
    for path in (p for f in FOLDERS for p in sorted((ROOT / f).rglob("*")) if p.suffix in (".py", ".md")):
        for m in CITATION.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), m[1], " ".join(m[2].split())


def missing_files(text: str) -> list[str]:
    """The files and folders that the page names and the repository lacks."""
    names = {m[1] for m in FILE.finditer(text)}
    return sorted(n for n in names if not any(any(base.glob(n)) for base in (ROOT, ROOT / "neptune")))


PYTHON = re.compile(r"`([\w/]+\.py)`")
USERS = {"mine.py", "attention.py"}
"""Files of a reader's own, in examples."""


def test_every_module_that_a_page_names_exists():
    files = [str(p.relative_to(ROOT)) for f in FOLDERS for p in (ROOT / f).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {(p.name, m[1]) for p in pages for m in PYTHON.finditer(p.read_text())}
    assert not sorted(n for n in named if n[1] not in USERS and not any(f"/{f}".endswith(f"/{n[1]}") for f in files))


@pytest.mark.parametrize(("page", "title"), sorted({(page, title) for _, page, title in citations()}))
def test_the_titles_that_code_cites_exist(page, title):
    assert title in titles(PAGES[page]), [file for file, p, t in citations() if (p, t) == (page, title)]


def test_every_page_is_in_the_table():
    assert re.findall(r"\(design/(\w+)\.md\)", FRONT) and set(re.findall(r"\(design/(\w+)\.md\)", FRONT)) == set(PAGES)


def test_no_code_cites_sections_of_another_document():
    numbered = re.compile(r"\bdesign §" r"\d")
    files = [p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if numbered.search(p.read_text())]
    assert not files


def test_the_files_that_the_pages_name_exist():
    assert not {name: missing for name, text in {**PAGES, "design": FRONT}.items() if (missing := missing_files(text))}
    assert missing_files("`ir/nowhere.py`, `ir/expr.py`, `frontend/te*.py`") == ["ir/nowhere.py"]


def test_what_is_taken_for_titles_and_citations():
    assert titles("# A page\n\n**A title.** Text, **bold** text.\n\n**Two\nlines** (a)") == {
        "A page",
        "A title",
        "Two lines",
    }
    page = "docs/design/x.md"
    assert CITATION.findall(f'({page}, "A\ntitle"); [{page}](design/x.md), "B"') == [("x", "A\ntitle"), ("x", "B")]
