"""The HTML report: well formed, self-contained, complete, and its differences are the true ones."""

from __future__ import annotations

import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

import neptune
from neptune.driver.explanation import explanation
from neptune.errors import NeptuneError
from neptune.ops.softmax import softmax
from neptune.report.page import code_html, diff_html, report, source_html

VOID = {"meta", "br", "!doctype"}


class Balanced(HTMLParser):
    """Fails on a tag that closes nothing; collects links and scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href")]
        if tag in ("script", "link", "img", "iframe"):
            self.outside.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())


@pytest.fixture(scope="module")
def kernel():
    return neptune.compile(softmax(), "softmax_online", target="llvm")


@pytest.fixture(scope="module")
def page(kernel):
    return report(explanation(kernel.build, kernel.facts), kernel.build.trail)


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html)).replace("\xa0", " ")


def test_it_is_well_formed_and_needs_nothing_else(page):
    parser = Balanced()
    parser.feed(page)
    assert parser.open == [] and parser.outside == []
    assert "http" not in page and "@import" not in page and "url(" not in page
    assert "prefers-color-scheme: dark" in page


def test_it_says_what_explain_says(kernel, page):
    said, text = kernel.explain(json=True), text_of(page)
    for d in said["decisions"]:
        assert all(x in text for x in d["details"])
        for proof in d["proved"]:
            assert proof.split(": ", 1)[1].split("  [")[0] in text
    assert f"torch {__import__('torch').__version__}" in text and "neptune-compiler 0." in text
    assert all(f"{k} = {v}" in text for k, v in said["params"].items())
    # Declaring a tile size makes no form of the program.
    assert all(call in text for call in said["schedule"] if not call.startswith("sch.param("))
    assert all(c["verdict"] in text for c in said["checks"].values())
    # Every line of the source, whatever the colours made of it.
    assert all(line.strip() in text for line in kernel.source.splitlines())


def test_each_form_has_its_reason(kernel, page):
    assert page.count('<summary><span class="n">') == len(kernel.build.trail)
    assert all(f.why for f in kernel.build.trail)


def test_a_difference_shows_what_changed_and_hides_the_rest():
    before = "\n".join(f"line {k}" for k in range(20))
    html = diff_html(before, before.replace("line 9", "line nine").replace("line 15\n", ""))
    rows = re.findall(r'<div( class="(\w+)")? style[^>]*>(.*?)</div>', html)
    assert [(kind, text_of(t)) for _, kind, t in rows if kind] == [
        ("del", "line 9"),
        ("add", "line nine"),
        ("del", "line 15"),
    ]
    assert "<mark>nine</mark>" in html and html.count("…") == 3
    assert "line 0<" not in html and "line 8<" in html


def test_equal_texts_have_no_difference():
    assert diff_html("a\nb", "a\nb") == ""


def test_markup_in_a_text_stays_text():
    hostile = "<script>alert(1)</script> & 'x' < y"
    for html in (
        code_html(hostile),
        diff_html("x", hostile),
        diff_html(hostile, hostile + "!"),
        source_html(hostile)[0],
    ):
        assert "<script" not in html
        assert hostile in text_of(html)


def test_without_pygments_the_source_is_plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygments", None)
    assert source_html("x < 1") == ('<pre class="code">x &lt; 1</pre>', "")


def test_a_report_is_written_where_asked(kernel, page, tmp_path):
    path = kernel.report(tmp_path / "r.html")
    assert path.read_text() == page
    with pytest.raises(NeptuneError, match="cannot be written"):
        kernel.report(tmp_path / "missing" / "r.html")


def test_what_is_slow_and_what_is_predicted_is_there(tmp_path):
    kernel = neptune.compile(softmax(), "stagewise", target="llvm")
    page = kernel.report(tmp_path / "r.html").read_text()
    assert "is read in 3 passes" in page and "µs on H200" in page
