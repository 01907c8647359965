"""The ratchet of the code's measures: what each counts, and that nothing has grown."""

import json
from pathlib import Path

import pytest

from bench import measures
from bench.measures import MEASURES, RECORDED, File, Measured, code_lines, code_nodes, grown, is_named, recording

ROOT = Path(__file__).parents[3]

TEXT = '''"""A module."""

import os
from a import (
    b,
)

# A comment.


def f(x):
    """What it does."""
    return {  # a comment
        "one": """two
lines""",
    }


FIELD = 1
"""What it holds."""
'''


def test_code_is_no_docstring_comment_blank_or_import():
    # def, return, two lines of an item, }, FIELD
    assert code_lines(File("neptune/x.py", TEXT)) == 6
    bare = "def f(x):\n    return {'one': 'two\\nlines'}\nFIELD = 1\n"
    assert code_nodes(File("neptune/x.py", TEXT)) == code_nodes(File("neptune/x.py", bare)) == 11


PLANTED = {
    "files that name exp2": ("x = 'exp2'", "x = 'exp'"),
    "… outside of tables": ("x = op == 'exp2'", "x = {'exp2': 1}"),
    "matches on expressions": ("match x:\n  case Op(y): pass", "match x:\n  case Store(y): pass"),
    "fields of Repair": ("class Repair:\n  x: int", "class Other:\n  x: int"),
    "isinstance tests of an action": ("isinstance(x, Store)", "isinstance(x, Load)"),
    "isinstance tests of a definition": ("isinstance(x, MapDef | Op)", "isinstance(x, Load)"),
    "files over 400 lines": ("x\n" * 401, "x\n" * 400),
    "files under 60 lines": ("x\n" * 59, "x\n" * 60),
    "functions over 40 lines": ("def f():\n" + " x\n" * 40, "def f():\n" + " x\n" * 39),
    "functions of six arguments": ("def f(a, b, c, /, d, *, e, g): pass", "def f(a, b, c, d, e, *g): pass"),
    "classes of exceptions": ("class A(ValueError): pass\nclass B(A): pass", "class A: pass"),
    "names that say nothing": ("def f(x, of): pass", "def f(x): return at(x)"),
    "catches that ask a question": (
        "class A(ValueError): pass\ntry: x\nexcept A: y\nwith suppress(A): z",
        "class A(ValueError): pass\ntry: x\nexcept A: raise\ntry: x\nexcept OSError: y",
    ),
    "lines that name the warp-specialised form elsewhere": ("x = asynchronous", "'''asynchronous'''\nx = 1"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_measure_finds_what_is_planted_and_no_more(name):
    planted, clean = (MEASURES[name][0]([File("neptune/codegen/x.py", text)]) for text in PLANTED[name])
    assert planted and not clean


def test_a_module_with_two_importers_is_not_counted():
    code = [File(f"neptune/{n}.py", text) for n, text in {"a": "", "b": "from neptune import a", "c": ""}.items()]
    single = MEASURES["modules with one importer"][0]
    assert single(code) == ["neptune/a.py"]
    assert single([*code, File("neptune/d.py", "import neptune.a")]) == []


def test_every_measure_is_tried():
    assert {*PLANTED, "modules with one importer"} == set(MEASURES)


BEFORE = {"lines": 10, "nodes": 20, "measures": {"m": 1}, "features": []}


def _measured(lines, places):
    return Measured({"m": places}, {"neptune": lines}, {"neptune": 20})


def test_what_grows_is_told_and_what_falls_is_not():
    assert grown(BEFORE, _measured(9, [])) == []
    assert grown(BEFORE, _measured(11, ["a", "b"])) == ["m: 2, 1 recorded", "lines of code: 11, 10 recorded"]


def test_growth_is_recorded_with_its_feature():
    made = recording(BEFORE, _measured(12, ["a"]), "a stub form")
    assert made["lines"] == 12 and made["features"] == [{"feature": "a stub form", "lines": 2, "nodes": 0}]
    assert is_named("a stub form", "- A line\n  of a stub\n  form.") and not is_named("a stub form", "a form")


def test_nothing_has_grown():
    """`python -m bench.measures --list` has the places; `--record` writes down what has fallen."""
    recorded = json.loads(RECORDED.read_text())
    assert grown(recorded, measures.measured(ROOT)) == []
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert all(is_named(f["feature"], changelog) for f in recorded["features"])
