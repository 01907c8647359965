"""Fingerprints of templates: equal where functions do the same, different where anything they depend on differs."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import math
import os
import random
import subprocess
import sys
import types
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

import neptune
from neptune.driver.fingerprint import fingerprint, why_open
from neptune.ir.expr import Const, Var
from neptune.schedule import roles
from neptune.templates.flash_attention import flash_attention
from tests.examples.kernel_examples import rows_fused

ROOT = Path(__file__).resolve().parents[3]
PREAMBLE = "import math, functools, enum, dataclasses, operator\n"


def made(source: str, name: str = "t", **names):
    """A function of a module of its own."""
    module = types.ModuleType("made")
    sys.modules["made"] = module  # where dataclasses look for it
    module.__dict__.update(names)
    exec(PREAMBLE + source, module.__dict__)
    return getattr(module, name)


SAME = {
    "other lines": ("def t(s): return s.a + 1", "\n\n\n# moved\ndef t(s):\n    # a comment\n    return s.a + 1"),
    "names of modules": ("def t(s): return math.pi", "def t(s): return math.pi"),
    "unused globals": ("X = 1\ndef t(s): return s", "X = 2\ndef t(s): return s"),
    "order of sets": ("X = {'a', 'b', 'c'}\ndef t(s): return X", "X = {'c', 'b', 'a'}\ndef t(s): return X"),
    "a recursive function": ("def t(s): return t(s)",) * 2,
    "two that call each other": ("def u(s): return t(s)\ndef t(s): return u(s)",) * 2,
    "a list in itself": ("X = []\nX.append(X)\ndef t(s): return X",) * 2,
}


@pytest.mark.parametrize("name", list(SAME))
def test_the_same(name):
    first, second = (fingerprint(made(text)) for text in SAME[name])
    assert first == second and first is not None


SIMPLE = {
    "constant": ("return s.split({})", ["1", "2", "1.0", "True", "'1'", "-0.0", "0.0", "None", "b'1'", "(1,)", "1j"]),
    "operator": ("return s {} 1", ["+", "-", "<", "<="]),
    "attribute": ("return s.{}", ["fuse", "split"]),
    "default": ("return (lambda x={}: x)(s)", ["1", "2"]),
    "branch": ("if {}: return 1", ["s", "not s"]),
    "except": ("try: return s.a\n    except {}: return 2", ["ValueError", "TypeError"]),
}
GLOBALS = {
    "number": "X = {}|1|2|1.0|True|'1'|None|math.nan|math.inf",
    "container": "X = {}|(1, 2)|[1, 2]|{{1, 2}}|frozenset({{1, 2}})|{{1: 2}}|range(3)|slice(3)",
    "nested": "X = {{'a': [1, ({},)]}}|1|2",
    "order of dicts": "X = {}|{{'a': 1, 'b': 2}}|{{'b': 2, 'a': 1}}",
    "shared or not": "Y = []\nX = {}|[Y, Y]|[[], []]|[Y]",
    "function": "def X(s): return {}|1|2",
    "default of a function": "def X(s={}): return s|1|2",
    "keyword default": "def X(*, s={}): return s|1|2",
    "closure": "def outer(v):\n    def inner(): return v\n    return inner\nX = outer({})|1|2|[1]",
    "two functions on": "def Z(): return {}\ndef Y(): return Z()\ndef X(): return Y()|1|2",
    "lambda": "X = lambda s: {}|1|2",
    "partial": "X = functools.partial(max, {})|1|2",
    "keywords of a partial": "X = functools.partial(max, key={})|abs|len",
    "attribute of a function": "def X(): pass\nX.block = {}|1|2",
    "decorated": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(s): return f(s) * {}\n    return g\n"
        "@twice\ndef X(s): return s|1|2"
    ),
    "method": "class C:\n    def __init__(self, v): self.v = v\n    def m(self): return self.v\nX = C({}).m|1|2",
    "code of a method": "class C:\n    def m(self): return {}\nX = C().m|1|2",
    "callable object": "class C:\n    block = {}\n    def __call__(self, s): return s\nX = C()|1|2",
    "base class": "class B:\n    def m(self): return {}\nclass C(B): pass\nX = C()|1|2",
    "class": "class X:\n    v = {}|1|2",
    "property": "class C:\n    @property\n    def m(self): return {}\nX = C()|1|2",
    "static method": "class C:\n    @staticmethod\n    def m(): return {}\nX = C()|1|2",
    "slots": "class C:\n    __slots__ = ('v',)\n    def __init__(self, v): self.v = v\nX = C({})|1|2",
    "dataclass": "@dataclasses.dataclass\nclass C:\n    v: int\nX = C({})|1|2",
    "default of a dataclass": "@dataclasses.dataclass\nclass X:\n    v: int = {}|1|2",
    "factory of a dataclass": (
        "@dataclasses.dataclass\nclass X:\n    v: list = dataclasses.field(default_factory={})|list|dict"
    ),
    "method of a dataclass": "@dataclasses.dataclass\nclass X:\n    v: int\n    def __repr__(self): return {}|'1'|'2'",
    "frozen dataclass": "@dataclasses.dataclass(frozen={})\nclass X:\n    v: int|True|False",
    "enum": "class E(enum.Enum):\n    A = {}\n    B = 9\nX = E.A|1|2",
    "member of an enum": "class E(enum.Enum):\n    A = 1\n    B = 2\nX = E.{}|A|B",
    "method of an enum": "class E(enum.Enum):\n    A = 1\n    def __call__(self): return {}\nX = E.A|1|2",
    "hook of an enum": (
        "class E(enum.Enum):\n    A = 1\n    @classmethod\n    def _missing_(cls, v): return {}\nX = E|1|2"
    ),
    "builtin": "X = {}|abs|len|min|print|math.floor|math.ceil|operator.add",
    "builtin class": "X = {}|int|float|list",
    "bound builtin": "X = [1, {}].index|1|2",
    "module": "X = {}|math|operator",
    "absent": "{}|X = 1|pass",
}


def variants():
    for name, (body, values) in SIMPLE.items():
        yield name, [f"def t(s):\n    {body.format(v)}" for v in values]
    for name, text in GLOBALS.items():
        template, *values = text.split("|")
        yield name, [f"{template.format(v.format())}\ndef t(s): return X" for v in values]


@pytest.mark.parametrize(("name", "sources"), list(variants()), ids=lambda x: x if isinstance(x, str) else "")
def test_whatever_differs_is_seen(name, sources):
    found = [fingerprint(made(s)) for s in sources]
    assert None not in found, why_open(made(sources[found.index(None)]))
    assert len(set(found)) == len(found)
    assert found == [fingerprint(made(s)) for s in sources]


@pytest.mark.parametrize(
    "source",
    [
        "def t(s):\n    def inner():\n        return X\n    return inner()",
        "def t(s):\n    return [X for _ in s]",
        "def t(s):\n    class C:\n        v = X\n    return C.v",
        "def t(s):\n    return (lambda: (lambda: X))()()",
    ],
)
def test_globals_of_inner_functions_count(source):
    assert fingerprint(made(source, X=1)) != fingerprint(made(source, X=2))


def test_mutable_globals_are_seen_as_they_are_now():
    blocks = [64]
    t = made("def t(s): return s.split(X[0])", X=blocks)
    before = fingerprint(t)
    blocks[0] = 128
    assert fingerprint(t) != before
    blocks[0] = 64
    assert fingerprint(t) == before


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os\ndef t(s): return os.environ", "module os"),
        ("from os import environ\ndef t(s): return environ", "_Environ"),
        ("from os import getenv\ndef t(s): return getenv('X')", ""),
        ("import random\ndef t(s): return random.random()", "module random"),
        ("from random import random\ndef t(s): return random()", ""),
        ("from time import time\ndef t(s): return time()", "time.time"),
        ("def t(s):\n    import os\n    return os.environ", "it imports os"),
        ("def t(s):\n    import neptune\n    return neptune.runtime", "it imports neptune"),
        (
            "def t(s):\n    import neptune.schedule.roles\n    return neptune.runtime",
            "it imports neptune.schedule.roles",
        ),
        (
            "def t(s):\n    from neptune.runtime.launching.launch import gpu_target\n    return gpu_target()",
            "it imports neptune.runtime",
        ),
        ("import neptune\ndef t(s): return neptune.runtime.launching.launch.gpu_target()", "module neptune"),
        ("from neptune.runtime.launching.launch import gpu_target\ndef t(s): return gpu_target()", ""),
        ("import torch\ndef t(s): return torch.cuda.is_available()", "module torch"),
        ("import numpy\ndef t(s): return numpy", "module numpy"),
        ("def t(s): return open('x').read()", "io.open"),
        ("def t(s): return eval('1')", "builtins.eval"),
        ("def t(s): return globals()['X']", "builtins.globals"),
        ("def t(s): return t.__globals__['X']", "__globals__"),
        ("def t(s): return getattr(s, 'a')", "builtins.getattr"),
        ("def t(s): return id(s)", "builtins.id"),
        ("def t(s): return hash('a')", "builtins.hash"),
        ("X = 0\ndef t(s):\n    global X\n    X += 1", "it writes the global X"),
        (
            "def outer():\n    n = 0\n    def t(s):\n        nonlocal n\n        n += 1\n    return t\nt = outer()",
            "it writes n",
        ),
        ("@functools.lru_cache\ndef u(): return 1\ndef t(s): return u()", "lru_cache"),
        ("class M(type): pass\nclass C(metaclass=M): pass\ndef t(s): return C", "metaclass"),
        ("class C:\n    __slots__ = ('__v',)\nX = C()\ndef t(s): return X", "private slots"),
        ("class C(list): pass\nX = C()\ndef t(s): return X", "not plain data"),
        ("class C(dict): pass\nX = C()\ndef t(s): return X", "not plain data"),
        ("X = Exception('a')\ndef t(s): return X", "not plain data"),
        ("X = iter([1])\ndef t(s): return X", "not plain data"),
        ("X = (i for i in [1])\ndef t(s): return X", "not plain data"),
        ("X = list(range(30_000))\ndef t(s): return X", "too much"),
        ("X = []\nfor _ in range(5000): X = [X]\ndef t(s): return X", "nested too deeply"),
    ],
)
def test_what_cannot_be_told_is_not_told(source, why):
    t = made(source)
    assert fingerprint(t) is None and why in why_open(t)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2),
        torch.float16,
        np.zeros(2),
        np.float64(1.0),
        np.int64(1),
        deque([1]),
        types.SimpleNamespace(a=1),
        sys.stdout,
        random.Random(1),
        types.ModuleType("math"),
        neptune,
    ],
    ids=lambda v: type(v).__name__,
)
def test_values_that_cannot_be_told(value):
    assert fingerprint(made("def t(s): return X", X=value)) is None
    assert why_open(made("def t(s): return X", X=value))


def test_builtins_of_its_own():
    t = types.FunctionType(made("def t(s): return len(s)").__code__, {"__builtins__": {"len": lambda s: 7}})
    assert fingerprint(t) is None


def test_names_that_claim_to_be_neptunes():
    def impostor(sch):
        return 1

    real = flash_attention.schedule
    impostor.__module__, impostor.__qualname__ = real.__module__, real.__qualname__
    assert fingerprint(impostor) not in (None, fingerprint(flash_attention))


def test_neptunes_own():
    assert fingerprint(flash_attention) == fingerprint(flash_attention) is not None
    assert fingerprint(made("def t(s): return X.tiles(s)", X=roles)) is not None
    assert fingerprint(rows_fused) is not None
    exprs = [Var("n"), Var("m"), Const(1, "int32"), Const(1, "int64"), Const(1.0, "float32")]
    found = {fingerprint(made("def t(s): return X", X=e)) for e in exprs}
    assert None not in found and len(found) == len(exprs)
    assert fingerprint(copy.deepcopy(exprs[0])) == fingerprint(exprs[0])


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a template with declared tunables may look like."""

    name: str
    function: object
    tunables: dict[str, list[int]]

    def __call__(self, sch):
        return self.function(sch)


def test_callables_with_attributes():
    def block(n):
        return Declared("mine", rows_fused, {"BLOCK_M": [n]})

    assert fingerprint(block(16)) == fingerprint(block(16)) != fingerprint(block(32))
    assert fingerprint(block(16)) is not None
    other = dataclasses.replace(block(16), function=flash_attention)
    assert fingerprint(other) not in (None, fingerprint(block(16)))


class Level(enum.IntEnum):
    LOW = 1


def test_numbers_that_are_more_than_numbers():
    """An IntEnum equals its number, and prints otherwise."""
    t = "def t(s): return X"
    assert fingerprint(made(t, X=Level.LOW)) not in (None, fingerprint(made(t, X=1)))
    assert fingerprint(made(t, X=math.inf)) != fingerprint(made(t, X=-math.inf))


def test_a_reloaded_module(tmp_path, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "reloaded_templates.py"
    path.write_text("N = 1\ndef t(s): return s.split(N)\n")
    module = importlib.import_module("reloaded_templates")
    first, kept = fingerprint(module.t), module.t
    path.write_text("N = 22\ndef t(s): return s.split(N)\n")
    importlib.invalidate_caches()
    importlib.reload(module)
    # The old function reads the new global, too.
    assert fingerprint(module.t) == fingerprint(kept) != first
    path.write_text("N = 1\ndef t(s): return s.split(N)\n\n")
    importlib.reload(module)
    assert fingerprint(module.t) == first
    del sys.modules["reloaded_templates"]


def test_processes_agree():
    """Whatever their hash seeds."""
    script = """
from neptune.driver.fingerprint import fingerprint
from tests.examples.kernel_examples import rows_fused, pair_apart
X = {"a", "b", "c", ("d", 1)}
Y = frozenset(X)
def t(s): return X, Y, [k for k in s if k in {"x", "y", "z"}]
print(fingerprint(rows_fused), fingerprint(pair_apart), fingerprint(t))
"""
    found = set()
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        found.add(subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True).stdout)
    (only,) = found
    assert len(set(only.split())) == 3 and "None" not in only


def test_partials_and_methods_of_templates():
    def t(sch, block):
        return block

    found = {fingerprint(functools.partial(t, block=n)) for n in (1, 2)}
    assert len(found) == 2 and None not in found
