"""How much code there is, how many ideas it holds, and how often each is written down: a ratchet.

    python -m bench.measures [--root CHECKOUT] [--json] [--list]
    python -m bench.measures --record [--feature "a line of CHANGELOG.md"]

Each measure is one function over the parsed files of the package and its templates; its docstring defines it. What it
finds are places, which `--list` prints. Code is counted over bench and qa, too. Files behind links count once.

`bench/results/measures.json` holds what was recorded. A measure may only fall (`tests/unit/bench/test_measures.py`),
and code grows only with a feature that CHANGELOG.md names. `--record` writes down what is there now, or says what has
grown.
"""

from __future__ import annotations

import ast
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, TypeGuard

import click

PACKAGE = ("neptune", "templates")
ROOTS = (*PACKAGE, "bench", "qa")
RECORDED = Path(__file__).parent / "results" / "measures.json"
OPERATOR = "exp2"
"""The operator by which it is counted how often one is named."""
NODES = frozenset({"Const", "Var", "Load", "Op", "Cast", "Select"})
"""The classes of scalar expressions."""
ACTIONS = frozenset({"Store", "Update"})
"""What a definition does: the classes of its action."""
DEFINITIONS = frozenset({"MapDef", "ReductionDef"})
LONG, SHORT = 400, 60
"""Lines of a file that holds more than an idea, and of one that holds a sliver of one."""
LONG_FUNCTION, MANY_ARGUMENTS = 40, 6
EMPTY = frozenset({"found", "made", "at", "of", "asked", "said"})
FORM = "asynchronous"
"""The word by which it is counted where a form is a special case."""
FORM_ROOMS = ("neptune/hopper/", "neptune/runtime/hopper/")
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
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[tuple[ast.AST, tuple[ast.AST, ...]], ...]:
        """Every node with those around it, the outermost first."""
        return tuple(_nodes(self.tree, ()))

    def place(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 0)}"


def _nodes(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    yield node, around
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, (*around, node))


def files(root: Path, folders: Sequence[str] = PACKAGE) -> list[File]:
    """The files of some folders of a checkout."""
    paths = (p for folder in folders for p in sorted((root / folder).rglob("*.py")))
    return [File(str(p.relative_to(root)), p.read_text()) for p in paths if not p.is_symlink()]


# --- code ------------------------------------------------------------------------------------------

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(f: File) -> int:
    """Lines that hold code: no docstring, comment, blank or import."""
    tokens = tokenize.generate_tokens(StringIO(f.text).readline)
    held = {n for t in tokens if t.type not in LAYOUT for n in range(t.start[0], t.end[0] + 1)}
    return len(held - {n for s, _ in f.nodes if _is_no_code(s) for n in range(s.lineno, (s.end_lineno or 0) + 1)})


def code_nodes(f: File) -> int:
    """Nodes of the syntax tree but those of docstrings and imports: what no layout changes."""
    return sum(
        not isinstance(n, ast.expr_context) and not any(_is_no_code(x) for x in (n, *around)) for n, around in f.nodes
    )


def _is_no_code(n: ast.AST) -> TypeGuard[ast.stmt]:
    text = isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
    return text or isinstance(n, ast.Import | ast.ImportFrom)


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


def short_files(code: Sequence[File]) -> list[str]:
    """Files of fewer than 60 lines, without the `__init__` of packages."""
    return [f"{f.path} ({f.lines})" for f in code if f.lines < SHORT and not f.path.endswith("__init__.py")]


def single_importers(code: Sequence[File]) -> list[str]:
    """Modules that exactly one other module of the package imports."""
    modules = {f.path.removesuffix(".py").replace("/", "."): f.path for f in code}
    importers: dict[str, set[str]] = {}
    for f in code:
        for n, _ in f.nodes:
            for name in _imported(n):
                importers.setdefault(name, set()).add(f.path)
    return [path for name, path in modules.items() if len(importers.get(name, ())) == 1]


def _imported(n: ast.AST) -> list[str]:
    if isinstance(n, ast.Import):
        return [a.name for a in n.names]
    return [n.module or "", *(f"{n.module}.{a.name}" for a in n.names)] if isinstance(n, ast.ImportFrom) else []


def long_functions(code: Sequence[File]) -> list[str]:
    """Functions of more than 40 lines."""
    return [f.place(n) for f, n in _functions(code) if (n.end_lineno or 0) - n.lineno >= LONG_FUNCTION]


def wide_functions(code: Sequence[File]) -> list[str]:
    """Functions of six arguments and more."""
    return [
        f.place(n)
        for f, n in _functions(code)
        if len(n.args.posonlyargs) + len(n.args.args) + len(n.args.kwonlyargs) >= MANY_ARGUMENTS
    ]


def _functions(code: Sequence[File]) -> Iterator[tuple[File, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return ((f, n) for f in code for n, _ in f.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def exception_classes(code: Sequence[File]) -> list[str]:
    """Classes of exceptions, warnings included."""
    places = {n.name: f.place(n) for f in code for n, _ in f.nodes if isinstance(n, ast.ClassDef)}
    return [places[name] for name in _exceptions(code)]


def empty_names(code: Sequence[File]) -> list[str]:
    """Variables and parameters whose names say nothing of what they hold; fields of classes, too."""
    bound = ((f, n, n.arg if isinstance(n, ast.arg) else n.id) for f in code for n, _ in f.nodes if _binds(n))
    return [f.place(n) for f, n, name in bound if name in EMPTY]


def _binds(node: ast.AST) -> TypeGuard[ast.arg | ast.Name]:
    return isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def questions(code: Sequence[File]) -> list[str]:
    """Catches of the package's own exceptions that raise nothing: a question that is asked by trying."""
    own = _exceptions(code)
    return [f.place(n) for f in code for n, _ in f.nodes if _caught(n) & own]


def _exceptions(code: Sequence[File]) -> set[str]:
    bases = {n.name: [_name(b) for b in n.bases] for f in code for n, _ in f.nodes if isinstance(n, ast.ClassDef)}
    own: set[str] = set()
    for _ in bases:
        more = {n for n, bs in bases.items() if any(b in own or b.endswith(("Error", "Exception")) for b in bs)}
        if more <= own:
            break
        own |= more
    return own


def _caught(n: ast.AST) -> set[str]:
    """Names of what a handler without a `raise`, or `suppress`, catches."""
    if isinstance(n, ast.ExceptHandler):
        raises = any(isinstance(x, ast.Raise) for s in n.body for x in ast.walk(s))
        caught = [] if raises or n.type is None else [n.type]
    else:
        caught = n.args if isinstance(n, ast.Call) and _name(n.func) == "suppress" else []
    return {_name(x) for c in caught for x in ast.walk(c) if isinstance(x, ast.Name | ast.Attribute)}


def form_branches(code: Sequence[File]) -> list[str]:
    """Lines outside the form's own rooms (what makes it, what runs it) whose code names the warp-specialised form."""
    found: dict[str, None] = {}
    for f in (f for f in code if not f.path.startswith(FORM_ROOMS)):
        for n, around in f.nodes:
            if FORM in _identifier(n) and not any(_is_no_code(x) for x in around):
                found[f.place(n)] = None
    return list(found)


def _identifier(n: ast.AST) -> str:
    """The identifier or string of a node; "" of others."""
    fields = (getattr(n, field, None) for field in ("id", "attr", "name", "arg", "value"))
    return next((x for x in fields if isinstance(x, str)), "")


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "files that name exp2": (operator_files, ""),
    "… outside of tables": (operator_files_outside, "≤ 6"),
    "matches on expressions": (expression_matches, "≤ 20"),
    "fields of Repair": (repair_fields, "≤ 6"),
    "isinstance tests of an action": (action_tests, "≤ 15"),
    "isinstance tests of a definition": (definition_tests, ""),
    "files over 400 lines": (long_files, "≤ 4"),
    "files under 60 lines": (short_files, ""),
    "modules with one importer": (single_importers, ""),
    "functions over 40 lines": (long_functions, ""),
    "functions of six arguments": (wide_functions, ""),
    "classes of exceptions": (exception_classes, ""),
    "names that say nothing": (empty_names, ""),
    "catches that ask a question": (questions, "≤ 10"),
    "lines that name the warp-specialised form elsewhere": (form_branches, "0"),
}
"""Each measure with what is aimed at."""


@dataclass(frozen=True)
class Measured:
    """`places` by measure; `lines` and `nodes` of code by folder: `neptune/ir`, or `bench` with all that is below."""

    places: Mapping[str, Sequence[str]]
    lines: Mapping[str, int]
    nodes: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(places) for name, places in self.places.items()}


def measured(root: Path) -> Measured:
    """What a checkout holds."""
    code = files(root, ROOTS)
    lines: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for f in code:
        folder = "/".join(f.path.split("/")[:-1][: 2 if f.path.startswith("neptune/") else 1])
        lines[folder] += code_lines(f)
        nodes[folder] += code_nodes(f)
    package = [f for f in code if f.path.startswith(tuple(f"{p}/" for p in PACKAGE))]
    places = {name: measure(package) for name, (measure, _) in MEASURES.items()}
    return Measured(places, dict(sorted(lines.items())), dict(sorted(nodes.items())))


# --- the ratchet -----------------------------------------------------------------------------------


def grown(recorded: Mapping[str, Any], now: Measured) -> list[str]:
    """What is more than was recorded, a line each."""
    before = recorded["measures"]
    more = [f"{name}: {n}, {before[name]} recorded" for name, n in now.counts.items() if n > before[name]]
    for what, count in (("lines", now.lines), ("nodes", now.nodes)):
        if (n := sum(count.values())) > recorded[what]:
            more.append(f"{what} of code: {n}, {recorded[what]} recorded")
    return more


def recording(recorded: Mapping[str, Any], now: Measured, feature: str | None) -> dict[str, Any]:
    """The record of what is there now; code that has grown is `feature`'s."""
    lines, nodes = sum(now.lines.values()), sum(now.nodes.values())
    features = list(recorded["features"])
    if feature is not None:
        features.append({"feature": feature, "lines": lines - recorded["lines"], "nodes": nodes - recorded["nodes"]})
    return {"lines": lines, "nodes": nodes, "measures": now.counts, "features": features}


def is_named(feature: str, changelog: str) -> bool:
    """True where the changelog holds a feature's words, however its lines are broken."""
    return " ".join(feature.split()) in " ".join(changelog.split())


# --- the command -----------------------------------------------------------------------------------


@click.command(help=__doc__)
@click.option("--root", type=click.Path(path_type=Path), default=Path(), help="A checkout; by default this folder.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
@click.option("--list", "listed", is_flag=True, help="The places, too.")
@click.option("--record", is_flag=True, help="Write down what is there now, where nothing but named code has grown.")
@click.option("--feature", help="What code has grown for, in words of CHANGELOG.md.")
def main(root: Path, as_json: bool, listed: bool, record: bool, feature: str | None) -> None:
    now = measured(root)
    if record:
        sys.exit(_record(root, now, feature))
    if as_json:
        places = {name: {"count": len(p), "places": p} for name, p in now.places.items()}
        click.echo(json.dumps({"measures": places, "lines": now.lines, "nodes": now.nodes}, indent=1))
        return
    for name, found in now.places.items():
        click.echo(f"{len(found):7}  {name}" + (f"  (aim: {MEASURES[name][1]})" if MEASURES[name][1] else ""))
        if listed:
            click.echo("".join(f"           {place}\n" for place in found), nl=False)
    click.echo(f"{sum(now.lines.values()):7}  lines of code, {sum(now.nodes.values())} nodes")
    for folder, n in now.lines.items():
        click.echo(f"{n:7}    {folder}  ({now.nodes[folder]} nodes)")


def _record(root: Path, now: Measured, feature: str | None) -> int:
    recorded = json.loads(RECORDED.read_text())
    if feature is not None and not is_named(feature, (root / "CHANGELOG.md").read_text()):
        click.echo(f"CHANGELOG.md has no line that says: {feature}")
        return 1
    more = [x for x in grown(recorded, now) if feature is None or " of code: " not in x]
    if more:
        click.echo("\n".join(more))
        return 1
    RECORDED.write_text(json.dumps(recording(recorded, now, feature), indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    main()
