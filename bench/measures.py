"""How many ideas the code holds, and how often each is written down: the measures that redesigns are judged by.

    python -m bench.measures [--root CHECKOUT] [--json] [--list]

Each measure is one function over the parsed files of `git ls-files 'neptune/*.py' 'templates/*.py'`; its docstring
defines it. What it finds are places, which `--list` prints. Files behind links count once.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PATTERNS = ("neptune/*.py", "templates/*.py")
OPERATOR = "exp2"
"""The operator by which it is counted how often one is named."""
NODES = frozenset({"Const", "Var", "Load", "Op", "Cast", "Select"})
"""The classes of scalar expressions."""
ACTIONS = frozenset({"Store", "Update"})
"""What a definition does: the classes of its action."""
DEFINITIONS = frozenset({"MapDef", "ReductionDef"})
LONG = 400
NAME_TABLES = (
    *("neptune/ir/expr.py", "neptune/ir/ops.py", "neptune/ir/evaluate/", "neptune/verify/"),
    *("neptune/codegen/", "neptune/frontend/"),
)
"""Where a table with a row an operator is at home: OPS, and the names of front ends, back ends and domains."""


@dataclass(frozen=True)
class File:
    """A file of the package by its path in the repository."""

    path: str
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> tuple[tuple[ast.AST, tuple[ast.AST, ...]], ...]:
        """Every node with those around it, the outermost first."""
        return tuple(_nodes(ast.parse(self.text), ()))

    def place(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 0)}"


def _nodes(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    yield node, around
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, (*around, node))


def files(root: Path) -> list[File]:
    """The files that are measured."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", *PATTERNS], capture_output=True, text=True, check=True)
    paths = (root / p for p in listed.stdout.splitlines())
    return [File(str(p.relative_to(root)), p.read_text()) for p in paths if p.is_file() and not p.is_symlink()]


# --- measures --------------------------------------------------------------------------------------

Measure = Callable[[Sequence[File]], list[str]]


def operator_files(code: Sequence[File]) -> list[str]:
    """Files that hold the name of one operator (`exp2`) as a string."""
    return list(dict.fromkeys(f.path for f, _, _ in _named(code)))


def operator_files_outside(code: Sequence[File]) -> list[str]:
    """Files that hold it outside of tables: of OPS, and of the names that front ends, back ends and the domains of
    verification have for operators. A table is a dict, a list, a set or a tuple that is not compared with."""
    return list(dict.fromkeys(f.path for f, _, around in _named(code) if not _in_table(f, around)))


def _named(code: Sequence[File]) -> Iterator[tuple[File, ast.AST, tuple[ast.AST, ...]]]:
    for f in code:
        for n, around in f.nodes:
            if isinstance(n, ast.Constant) and n.value == OPERATOR:
                yield f, n, around


def _in_table(f: File, around: tuple[ast.AST, ...]) -> bool:
    display = any(isinstance(n, ast.Dict | ast.List | ast.Set | ast.Tuple) for n in around)
    compared = any(isinstance(n, ast.Compare | ast.pattern) for n in around)
    return f.path.startswith(NAME_TABLES) and display and not compared


def expression_matches(code: Sequence[File]) -> list[str]:
    """`match` statements of which a case has, at any depth, a class of scalar expressions."""
    return [f.place(n) for f in code for n, _ in f.nodes if isinstance(n, ast.Match) and NODES & _classes(n)]


def _classes(match: ast.Match) -> set[str]:
    patterns = (p for case in match.cases for p in ast.walk(case.pattern))
    return {_name(p.cls) for p in patterns if isinstance(p, ast.MatchClass)}


def _name(e: ast.expr) -> str:
    return e.attr if isinstance(e, ast.Attribute) else e.id if isinstance(e, ast.Name) else ""


def repair_fields(code: Sequence[File]) -> list[str]:
    """Annotated fields of the class `Repair`."""
    classes = (n for f in code for n, _ in f.nodes if isinstance(n, ast.ClassDef) and n.name == "Repair")
    fields = (x for c in classes for x in c.body if isinstance(x, ast.AnnAssign))
    return [x.target.id for x in fields if isinstance(x.target, ast.Name)]


def action_tests(code: Sequence[File]) -> list[str]:
    """Calls of `isinstance` with `Store` or `Update`, the classes of a definition's action."""
    return _tests(code, ACTIONS)


def definition_tests(code: Sequence[File]) -> list[str]:
    """Calls of `isinstance` with `MapDef` or `ReductionDef`, which such a test could become."""
    return _tests(code, DEFINITIONS)


def _tests(code: Sequence[File], classes: frozenset[str]) -> list[str]:
    calls = ((f, n) for f in code for n, _ in f.nodes if isinstance(n, ast.Call) and _name(n.func) == "isinstance")
    return [
        f.place(n)
        for f, n in calls
        if classes & {_name(x) for x in ast.walk(n.args[1]) if isinstance(x, ast.Name | ast.Attribute)}
    ]


def long_files(code: Sequence[File]) -> list[str]:
    """Files of more than 400 lines."""
    return [f"{f.path} ({f.lines})" for f in code if f.lines > LONG]


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "files that name exp2": (operator_files, ""),
    "… outside of tables": (operator_files_outside, "≤ 6"),
    "matches on expressions": (expression_matches, "≤ 20"),
    "fields of Repair": (repair_fields, "≤ 6"),
    "isinstance tests of an action": (action_tests, "≤ 15"),
    "isinstance tests of a definition": (definition_tests, ""),
    "files over 400 lines": (long_files, "≤ 4"),
}
"""Each measure with what is aimed at."""


def folders(code: Sequence[File]) -> dict[str, int]:
    """Lines by folder, those of the package's own files as `neptune`."""
    found: Counter[str] = Counter()
    for f in code:
        found["/".join(f.path.split("/")[:-1][:2])] += f.lines
    return dict(sorted(found.items()))


# --- the command -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.measures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(), help="a checkout; by default the present folder")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--list", action="store_true", help="print the places, too")
    options = parser.parse_args(argv)
    code = files(options.root)
    found = {name: measure(code) for name, (measure, _) in MEASURES.items()}
    lines = folders(code)
    if options.json:
        numbers = {name: {"count": len(places), "places": places} for name, places in found.items()}
        print(json.dumps({"measures": numbers, "lines": lines, "files": len(code)}, indent=1, ensure_ascii=False))
        return 0
    for name, places in found.items():
        print(f"{len(places):6}  {name}{f'  (aim: {MEASURES[name][1]})' if MEASURES[name][1] else ''}")
        if options.list:
            print("".join(f"          {place}\n" for place in places), end="")
    print(f"{sum(lines.values()):6}  lines in {len(code)} files  (aim: ≤ 31000)")
    for folder, n in lines.items():
        print(f"{n:6}    {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
