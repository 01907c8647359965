"""A compilation as one HTML page that needs nothing else: what was decided, every form on the way, the source."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neptune.errors import NeptuneError
from neptune.report.explain import HEADINGS, OTHER
from neptune.report.snapshots import Snapshot
from neptune.runtime.artifact import PREDICTION, WARNINGS
from neptune.verify.exact import ExactReport

CONTEXT = 2
"""Lines of a difference around what has changed."""
WORD = re.compile(r"\w+|\s+|[^\w\s]")
SIMILAR = 0.5
"""Lines that are less alike than this are another line, not a changed one."""
PACKAGES = ("neptune-compiler", "torch", "triton", "sympy", "numpy", "apache-tvm")
TONES = {
    "rolled": "good",
    "deferred": "good",
    "fused": "good",
    "chosen": "good",
    "accepted": "good",
    "does not apply": "warn",
    "not fused to one kernel": "warn",
    "not performed, nor anything behind it": "warn",
    "rejected": "bad",
}


def report(e: dict[str, Any], trail: Sequence[Snapshot]) -> str:
    """The page of a compiled kernel, from its explanation and what each step and pass has left behind."""
    source = next((f.text for f in reversed(trail) if f.name == "generate"), "")
    code, style = source_html(source)
    sections = [
        _head(e),
        *_decisions(e["decisions"]),
        _section("Kernels", "".join(_kernel(k) for k in e["kernels"])),
        _section("Exact checks against the expression", "".join(_checks(e["checks"])) or "<p>none were asked for</p>"),
        _section("Every form on the way", "".join(_forms(trail)) or "<p>they were not kept</p>"),
        _section("Triton", code) if source else "",
    ]
    title = f"{escape(e['name'])} · Neptune"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{CSS}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def write_report(page: str, path: str | Path) -> Path:
    """Write the page to a file; NeptuneError where that cannot be done."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise NeptuneError(f"kernel.report({path!r})", f"it cannot be written: {error}") from None
    return Path(path)


def _prose(text: str) -> str:
    """A sentence; what stands in backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}"


# --- what it is ----------------------------------------------------------------------------------


def _head(e: dict[str, Any]) -> str:
    rows = {
        "inputs": _codes(e["inputs"]),
        "scalars": _codes(e["scalars"]),
        "outputs": _codes(e["outputs"]),
        "params": _pairs(e["params"]),
        "bounds": _pairs(e["bounds"]),
        "typical sizes": _pairs(e["shapes"]),
        "slow": "<br>".join(_prose(f"{w['message']}; try: {w['remedy']}") for w in e[WARNINGS]),
        "predicted": _predicted(e[PREDICTION]),
        "versions": escape(", ".join(versions())),
    }
    terms = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows.items() if text)
    verdicts = [d["verdict"] for d in e["decisions"] if d["kind"] != "template"]
    repaired = sum(v in ("rolled", "deferred") for v in verdicts)
    passes = ", ".join(map(str, dict.fromkeys(e["traversals"].values())))
    facts = {
        "kernel" + "s" * (len(e["kernels"]) != 1): len(e["kernels"]),
        "global temporar" + ("y" if len(e["temporaries"]) == 1 else "ies"): len(e["temporaries"]),
        "passes over each input": passes or "–",
        "repaired reduction" + "s" * (repaired != 1): repaired,
    }
    tiles = "".join(f"<div><b>{escape(str(n))}</b><span>{name}</span></div>" for name, n in facts.items())
    lead = f"for <b>{escape(e['target'])}</b>, by template <b>{escape(e['template'])}</b>"
    title = f'<h1>{escape(e["name"])}</h1>\n<p class="soft">{lead}</p>'
    return f'{title}\n<dl>{terms}</dl>\n<div class="tiles">{tiles}</div>'


def _predicted(p: dict[str, Any] | None) -> str:
    """The time that the cost model predicts, and what bounds it."""
    if p is None:
        return ""
    sizes = f" at {_pairs(p['sizes'])}" if p["sizes"] else ""
    return f"{p['us']:.1f} µs on {escape(p['machine'])}{sizes}, bound by {escape(p['bound'])}"


def versions() -> Iterator[str]:
    """Yield the versions of Python and of the packages that made this page."""
    yield f"Python {platform.python_version()}"
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _codes(items: Iterable[str]) -> str:
    return "<br>".join(f"<code>{escape(x)}</code>" for x in items)


def _pairs(values: dict[str, Any]) -> str:
    return " &nbsp; ".join(f"<code>{escape(f'{k} = {v}')}</code>" for k, v in values.items())


# --- what was decided ----------------------------------------------------------------------------


def _decisions(decisions: list[dict[str, Any]]) -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for d in decisions:
        sections.setdefault(HEADINGS.get(d["kind"], OTHER), []).append(_decision(d))
    for heading, cards in sections.items():
        yield _section(heading.capitalize(), "".join(cards))


def _decision(d: dict[str, Any]) -> str:
    reason = "".join(f"<p>{_prose(line)}</p>" for line in d["reason"].splitlines())
    details = "".join(f"<li><code>{escape(x)}</code></li>" for x in d["details"])
    return (
        f'<div class="card"><header><b>{escape(d["subject"])}</b>{_verdict(d["verdict"])}'
        f'<span class="soft">{escape(d["kind"])}</span></header>{reason}'
        + (f"<ul>{details}</ul>" if details else "")
        + (_proofs(d["proved"]) if d["proved"] else "")
        + "</div>"
    )


def _verdict(verdict: str) -> str:
    """A badge; a verdict with its data behind a colon is cut there."""
    short, _, rest = verdict.partition(": ")
    tail = f" <code>{escape(rest)}</code>" if rest else ""
    return f'<span class="verdict {TONES.get(short, "")}">{escape(short)}</span>{tail}'


def _proofs(proofs: list[str]) -> str:
    rows = []
    for proof in proofs:
        name, _, rest = proof.partition(": ")
        statement, _, how = rest.partition("  [")
        cells = (escape(name), f"<code>{escape(statement)}</code>", escape(how.removesuffix("]")))
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f"<table><tr><th>proved</th><th>statement</th><th>how</th></tr>{''.join(rows)}</table>"


# --- what it does --------------------------------------------------------------------------------


def _kernel(k: dict[str, Any]) -> str:
    rows = [("grid " + axis, f"<code>{escape(n)}</code>") for axis, n in k["grid"].items()]
    rows += [(f"loop {x['axis']}", f"<code>{escape(x['trips'])}</code> iterations") for x in k["loops"]]
    rows += [("temporary", f"<code>{escape(t)}</code>, written and read back") for t in k["temporaries"]]
    body = "".join(f"<tr><td>{escape(name)}</td><td>{text}</td></tr>" for name, text in rows)
    return f'<div class="card"><header><b>{escape(k["name"])}</b></header><table>{body}</table></div>'


def _checks(checks: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, c in checks.items():
        lines = [f"by the {c['model']}, {c['draws']} draws, {c['elements']} elements", c["bound"], *c["notes"]]
        lines.append(f"seeds {', '.join(map(str, c['seeds']))}")
        body = "".join(f"<p>{escape(x)}</p>" for x in lines)
        yield f'<div class="card"><header><b>{escape(name)}</b>{_verdict(c["verdict"])}</header>{body}</div>'


# --- how it came about ---------------------------------------------------------------------------


def _forms(trail: Iterable[Snapshot]) -> Iterator[str]:
    """One fold-out a form: the reason, the difference to the last form of its kind, the whole."""
    last: Snapshot | None = None
    for k, form in enumerate(trail):
        check = isinstance(form.made, ExactReport)
        comparable = last is not None and type(last.made) is type(form.made)
        before = last.text if last is not None and comparable else ""
        yield _form(k, form, before)
        if not check:
            last = form


def _form(k: int, form: Snapshot, before: str) -> str:
    text = form.text
    reasons = (form.why, *(f"{d.subject} {d.verdict}: {d.reason}" for d in form.decisions))
    why = "".join(f"<p>{_prose(reason)}</p>" for reason in reasons)
    if not before:
        shown, delta = code_html(text), ""
    elif before == text:
        shown, delta = "<p>Nothing changed.</p>", "no change"
    else:
        plus, minus = _counts(before, text)
        shown, delta = diff_html(before, text), f"+{plus} −{minus} lines"
        shown += f"<details><summary>the whole program after it</summary>{code_html(text)}</details>"
    return (
        f'<details><summary><span class="n">{k}</span><code>{escape(form.title)}</code>'
        f'<span class="delta">{delta}</span></summary><div class="body">{why}{shown}</div></details>'
    )


def _counts(before: str, after: str) -> tuple[int, int]:
    ops = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    changed = [(j2 - j1, i2 - i1) for tag, i1, i2, j1, j2 in ops if tag != "equal"]
    return sum(a for a, _ in changed), sum(b for _, b in changed)


# --- differences: two texts line by line, with the words that changed marked -----------------------------


def diff_html(before: str, after: str) -> str:
    """Return the difference of two forms as HTML; an empty string if they are equal.

    >>> print(diff_html("a = b", "a = c"))
    <div class="code"><div class="del" style="--i:0ch">a = <mark>b</mark></div><div class="add" style="--i:0ch">a = <mark>c</mark></div></div>
    """  # noqa: E501
    old, new = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    rows: list[str] = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        if group[0][1] > 0:
            rows.append('<div class="gap">…</div>')
        for tag, i1, i2, j1, j2 in group:
            rows += _same(old[i1:i2]) if tag == "equal" else _changed(old[i1:i2], new[j1:j2])
        if group[-1][2] < len(old):
            rows.append('<div class="gap">…</div>')
    return f'<div class="code">{"".join(_merged_gaps(rows))}</div>' if rows else ""


def code_html(text: str) -> str:
    """A text with the lines of a difference, none of them changed."""
    return f'<div class="code">{"".join(_same(text.splitlines()))}</div>'


def _merged_gaps(rows: Iterable[str]) -> Iterator[str]:
    last = ""
    for row in rows:
        if not (row == last and "gap" in row):
            yield row
        last = row


def _same(lines: Iterable[str]) -> list[str]:
    return [_row("", line, escape(line.lstrip())) for line in lines]


def _changed(old: list[str], new: list[str]) -> Iterator[str]:
    """Removed and added lines; words are marked where each removed line has become one that is like it."""
    pairs = list(zip(old, new, strict=True)) if len(old) == len(new) else []
    if pairs and all(SequenceMatcher(None, *p, autojunk=False).ratio() > SIMILAR for p in pairs):
        for a, b in pairs:
            left, right = _marked(a, b)
            yield _row("del", a, left)
            yield _row("add", b, right)
        return
    yield from (_row("del", line, escape(line.lstrip())) for line in old)
    yield from (_row("add", line, escape(line.lstrip())) for line in new)


def _marked(a: str, b: str) -> tuple[str, str]:
    x, y = WORD.findall(a.lstrip()), WORD.findall(b.lstrip())
    left: list[str] = []
    right: list[str] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, x, y, autojunk=False).get_opcodes():
        for side, words in ((left, x[i1:i2]), (right, y[j1:j2])):
            text = escape("".join(words))
            side.append(text if tag == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(left), "".join(right)


def _row(kind: str, line: str, html: str) -> str:
    """A line; `--i` is its indentation, under which its continuations hang."""
    cls = f' class="{kind}"' if kind else ""
    return f'<div{cls} style="--i:{len(line) - len(line.lstrip())}ch">{html or "&nbsp;"}</div>'


# --- style: one style sheet, light and dark, and colours for Triton source if pygments is installed ------


CSS = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5c6675; --page: #fbfbfa; --card: #fff; --line: #e0e2e6;
  --accent: #245fa8; --add: #e3f4e5; --add-word: #a9dfb0; --del: #fbe7e6; --del-word: #f1b5b1; --code: #f5f6f7;
  --good: #1b7a37; --warn: #8a5a00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe3ea; --soft: #98a2b3; --page: #14171c; --card: #1b1f26;
  --line: #313743; --accent: #7fb2f0; --add: #16301f; --add-word: #2a6a3d; --del: #381d1f; --del-word: #80383a;
  --code: #171b21; --good: #6fcf8a; --warn: #e0b25c; --bad: #f28b82; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.55rem; margin: 0; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.12rem; margin: 2.4rem 0 .7rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p { margin: .3rem 0; }
code, .code, dd.mono { font: 12.5px/1.5 ui-monospace, "SF Mono", "DejaVu Sans Mono", Consolas, monospace; }
.soft { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .8rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1.2rem 0 0; }
.tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem;
  min-width: 8rem; } .tiles b { display: block; font-size: 1.15rem; } .tiles span { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem;
  margin: .5rem 0; }
.card > header { display: flex; flex-wrap: wrap; gap: .6rem; align-items: baseline; }
.card ul { margin: .3rem 0; padding-left: 1.2rem; } .card li { overflow-wrap: anywhere; }
.verdict { font-size: .8rem; font-weight: 600; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .55rem;
  color: var(--accent); } .verdict.good { color: var(--good); } .verdict.warn { color: var(--warn); }
.verdict.bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: .88rem; margin: .4rem 0; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; } td:first-child { white-space: nowrap; }
details { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; margin: .35rem 0; }
details details { margin: .6rem 0 0; border: 0; background: none; }
summary { cursor: pointer; padding: .4rem .9rem; } details details > summary { padding: .1rem 0; color: var(--soft); }
summary .n { color: var(--soft); display: inline-block; min-width: 1.7rem; font-variant-numeric: tabular-nums; }
summary .delta { float: right; color: var(--soft); font-size: .82rem; padding-left: 1rem; }
.body { padding: 0 .9rem .8rem; } .body > p { color: var(--soft); margin-bottom: .5rem; }
.code { background: var(--code); border-radius: .35rem; padding: .5rem 0; overflow-x: auto; }
.code > div { position: relative; white-space: pre-wrap; overflow-wrap: anywhere; text-indent: -2ch;
  padding: 0 .8rem 0 calc(var(--i, 0ch) + 5ch); }
.code > div::before { position: absolute; left: 1ch; text-indent: 0; color: var(--soft); }
.code > .add { background: var(--add); } .code > .add::before { content: "+"; }
.code > .del { background: var(--del); } .code > .del::before { content: "\\2212"; }
.code > .gap { color: var(--soft); }
mark { color: inherit; background: none; border-radius: .2rem; }
.add mark { background: var(--add-word); } .del mark { background: var(--del-word); }
pre.code { margin: 0; padding: .7rem .9rem; white-space: pre; }
@media print { details > *:not(summary) { display: block; } }
"""


def source_html(source: str) -> tuple[str, str]:
    """Python source as HTML, and the style that it needs; in one colour where there is no pygments."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f'<pre class="code">{escape(source)}</pre>', ""
    body = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))
    light, dark = (HtmlFormatter(style=s).get_style_defs("pre.code") for s in ("default", "github-dark"))
    # The page has its own background.
    rules = [f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}", "pre.code { background: var(--code); }"]
    return f'<pre class="code">{body}</pre>', "\n".join(rules)
