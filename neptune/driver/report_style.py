"""The style of reports: one style sheet, light and dark, and colours for Triton source if pygments is installed."""

from __future__ import annotations

from html import escape

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
