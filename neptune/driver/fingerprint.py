"""A digest of a Python function that is the same exactly where the function does the same; None where nobody can say.

A template is a user's own function, and a compiled kernel may be taken from the cache only if that function would do
again what it did. So everything that a call can depend on is in the digest: bytecode, constants, defaults, closures,
the globals it names, and functions, classes and plain data behind them, to the end. What is not plain (an open file,
a tensor, a module that is not known to be pure, the environment, the clock) makes the whole function uncachable.

    def template(sch):                 # code, constants, and the globals that it names:
        i, j = sch.loops(STAGE)        #   STAGE, by value
        roles.tile(sch, i, j)          #   roles: a module of Neptune's, by name (its sources are in the key)
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import hashlib
import struct
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE_MODULES = _words(
    "__future__ abc bisect cmath collections collections.abc copy dataclasses enum fractions functools heapq itertools "
    "math numbers operator re string textwrap types typing"
)
"""Modules of Python's whose functions depend on their arguments alone."""
LAYERS = ("errors", "ir", "frontend.builder", "schedule", "fusion", "tile", "templates")
PURE_LAYERS = tuple(f"neptune.{x}" for x in LAYERS)
"""Modules of Neptune's that do not look at the machine; their sources are part of a cache key."""
IMPURE_BUILTINS = _words(
    "__import__ breakpoint compile delattr dir eval exec getattr globals hash help id input locals open setattr vars"
)
KNOWN_DUNDERS = _words("__class__ __doc__ __init__ __len__ __name__ __post_init__ __qualname__")
IGNORED_MEMBERS = _words(
    "__abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __classdictcell__ "
    "__dataclass_fields__ __dict__ __doc__ __firstlineno__ __match_args__ __module__ __orig_bases__ __parameters__ "
    "__static_attributes__ __weakref__ _abc_impl"
)
"""Of a class: what does not change what its methods do, or is written by `dataclass` from what is looked at."""
GENERATED = _words("__init__ __repr__ __eq__ __hash__ __setattr__ __delattr__ __lt__ __le__ __gt__ __ge__ __replace__")
METHODS = (FunctionType, property, staticmethod, classmethod)
SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
WORD = struct.calcsize("P")
LIMIT = 20_000
"""Objects after which a function is too large to look at."""


def fingerprint(value: Any) -> str | None:
    """The SHA-256 of what `value` is and does; None where that cannot be told.

    >>> fingerprint(lambda sch: sch.loops("y")) == fingerprint(lambda sch: sch.loops("y"))
    True
    >>> fingerprint(lambda sch: sch.loops("y")) == fingerprint(lambda sch: sch.loops("z"))
    False
    >>> fingerprint(open) is None
    True
    """
    return _Walk().digest(value)


def why_open(value: Any) -> str:
    """Return the reason why `fingerprint` fails for a value; "" if it does not."""
    walk = _Walk()
    walk.digest(value)
    return walk.why


class _Walk:
    """One walk over everything that is reachable; what was met before is named by its number.

    It ends at the first thing whose behaviour cannot be told: `why`, "" of none.
    """

    def __init__(self) -> None:
        self.why = ""
        self._hash = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._alive: list[Any] = []
        self._count = 0

    def digest(self, value: Any) -> str | None:
        try:
            self.value(value)
        except RecursionError:
            self.open("it is nested too deeply")
        return None if self.why else self._hash.hexdigest()

    def open(self, why: str) -> None:
        """Something was met whose behaviour cannot be told."""
        self.why = self.why or why

    def emit(self, tag: str, text: str | bytes = b"") -> None:
        """One token. Lengths are written, so that no two sequences of tokens are the same bytes."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._hash.update(f"{tag} {len(data)}:".encode())
        self._hash.update(data)
        self._count += 1
        if self._count > LIMIT:
            self.open("it refers to too much")

    def value(self, v: Any) -> None:
        kind = type(v)
        if self.why:
            return
        if kind in SIMPLE:
            self.emit(kind.__name__, repr(v))
        elif kind is tuple:
            self.items("tuple", v)
        elif kind is frozenset:
            self.emit("frozenset", "".join(sorted(self.apart(x) for x in v)))
        elif kind is CodeType:
            self.code(v)
        elif kind is ModuleType:
            self.module(v)
        elif kind is BuiltinFunctionType:
            self.builtin(v)
        elif id(v) in self._met:
            self.emit("again", str(self._met[id(v)]))
        else:
            self._met[id(v)] = len(self._met)
            self._alive.append(v)
            self.shared(v)

    def shared(self, v: Any) -> None:
        """Objects with an identity: containers that can change, functions, classes, instances."""
        match v:
            case list() if type(v) is list:
                self.items("list", v)
            case set() if type(v) is set:
                self.emit("set", "".join(sorted(self.apart(x) for x in v)))
            case dict() if type(v) is dict:
                self.items("dict", [x for pair in v.items() for x in pair])
            case FunctionType():
                self.function(v)
            case MethodType():
                self.items("method", (v.__func__, v.__self__))
            case functools.partial() if type(v) is functools.partial:
                self.items("partial", (v.func, v.args, v.keywords, vars(v)))
            case range() | slice():
                self.emit(type(v).__name__, repr(v))
            case staticmethod() | classmethod():
                self.items(type(v).__name__, (v.__func__,))
            case property():
                self.items("property", (v.fget, v.fset, v.fdel))
            case type():
                self.cls(v)
            case _:
                self.instance(v)

    def items(self, tag: str, values: Iterable[Any]) -> None:
        values = list(values)
        self.emit(tag, str(len(values)))
        for x in values:
            self.value(x)

    def apart(self, v: Any) -> str:
        """The digest of a member of a set, which has no place in an order."""
        walk = _Walk()
        walk._count = self._count
        digest = None if self.why else walk.digest(v)
        self._count = walk._count
        self.open(walk.why)
        return digest or ""

    # --- code ---

    def function(self, f: FunctionType) -> None:
        if _is_known(f):
            self.emit("known", f"{f.__module__}:{f.__qualname__}")
            return
        if getattr(f, "__builtins__", None) is not vars(builtins):
            return self.open(f"{f.__qualname__} has builtins of its own")
        self.emit("function", f.__name__)
        self.items("defaults", (f.__code__, f.__defaults__, f.__kwdefaults__, vars(f)))
        self.emit("closure", str(len(f.__closure__ or ())))
        for cell in f.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                self.emit("empty cell")
            else:
                self.value(content)
        known, names = f.__globals__, _names(f.__code__)
        if isinstance(names, str):
            return self.open(names)
        for name in sorted(names):
            self.emit("name", name)
            if name in known:
                self.value(known[name])
            elif hasattr(builtins, name):
                self.value(getattr(builtins, name))
            else:
                self.emit("undefined")

    def code(self, c: CodeType) -> None:
        """Add the behaviour of a code object, whatever its place in its file."""
        self.emit("code", c.co_code)
        self.emit("exceptions", getattr(c, "co_exceptiontable", b""))
        shape = (c.co_argcount, c.co_posonlyargcount, c.co_kwonlyargcount, c.co_flags)
        self.items("shape", (*shape, c.co_names, c.co_varnames, c.co_freevars, c.co_cellvars, c.co_name))
        self.items("constants", c.co_consts)

    def builtin(self, f: Any) -> None:
        """A function written in C, by name, if it depends on its arguments alone."""
        home, name, owner = f.__module__, f.__qualname__, f.__self__
        if isinstance(owner, ModuleType) or owner is None:
            pure = home in PURE_MODULES or home in ("_operator", "_functools", "_bisect", "_heapq")
            pure |= home == "builtins" and name not in IMPURE_BUILTINS
            if not pure:
                return self.open(f"{home}.{name} may depend on more than its arguments")
            self.emit("builtin", f"{home}:{name}")
        else:
            self.emit("builtin method", f.__name__)
            self.value(owner)

    def module(self, m: ModuleType) -> None:
        if not _is_pure(m.__name__):
            return self.open(f"module {m.__name__} is not known to be pure")
        if sys.modules.get(m.__name__) is not m:
            return self.open(f"module {m.__name__} is not the one that is imported by this name")
        self.emit("module", m.__name__)

    # --- objects ---

    def cls(self, c: type) -> None:
        if _is_known(c):
            if c.__module__ == "builtins" and c.__name__ in IMPURE_BUILTINS:
                return self.open(f"{c.__name__} may depend on more than its arguments")
            self.emit("class", f"{c.__module__}:{c.__qualname__}")
            return
        if type(c) not in (type, enum.EnumMeta):
            return self.open(f"class {c.__qualname__} has a metaclass of its own")
        self.emit("own class", c.__qualname__)
        self.items("bases", c.__bases__)
        content: dict[str, Any] = dict(vars(c))
        members = {
            n: m for n, m in content.items() if n not in IGNORED_MEMBERS and not isinstance(m, MemberDescriptorType)
        }
        if isinstance(c, enum.EnumMeta):
            values: dict[str, Any] = {name: member.value for name, member in vars(c)["_member_map_"].items()}
            self.value(values)
            # The rest is what Enum keeps its books with.
            members = {n: m for n, m in members.items() if isinstance(m, METHODS)}
        params = members.pop("__dataclass_params__", None)
        if params is not None:
            self.emit("dataclass", repr(params))
            for f in dataclasses.fields(c):
                self.items("field", (f.name, f.init, f.compare, f.repr, *map(_given, (f.default, f.default_factory))))
        for name in sorted(members):
            self.emit("member", name)
            member = members[name]
            if params is not None and _is_generated(member):
                self.value(member.__code__)
            else:
                self.value(member)

    def instance(self, v: Any) -> None:
        """An object of a class written in Python: the class and all fields."""
        c = type(v)
        if isinstance(v, enum.Enum):
            self.items("enum", (c, v.name))
            return
        slots = [s for k in c.__mro__ for s in _slots(k)]
        if any(s.startswith("__") for s in slots):
            return self.open(f"{c.__qualname__} has private slots")
        if c.__module__ in PURE_MODULES or not _is_plain(c):
            return self.open(f"{c.__module__}.{c.__qualname__} is not plain data")
        self.value(c)
        fields = {**{s: getattr(v, s) for s in slots if hasattr(v, s)}, **getattr(v, "__dict__", {})}
        for name in sorted(fields):
            self.emit("field", name)
            self.value(fields[name])


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> frozenset[str] | str:
    """The globals that code names, that of functions within it too; why not where it writes or reaches past them."""
    names: set[str] = set()
    before: Any = None
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            names.add(i.argval)
        elif i.opname == "IMPORT_NAME":
            # `import a.b` gives all of `a`; `from a.b import c` comes with a list of names.
            if not _is_pure(i.argval) or ("." in i.argval and before is None):
                return f"it imports {i.argval}, which is not known to be pure"
        elif i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"it writes the global {i.argval}"
        elif i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in code.co_freevars:
            return f"it writes {i.argval} of the function around it"
        elif i.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") and _reaches_out(i.argval):
            return f"it reads {i.argval}"
        before = i.argval
    for c in code.co_consts:
        inner = _names(c) if isinstance(c, CodeType) else ()
        if isinstance(inner, str):
            return inner
        names.update(inner)
    return frozenset(names)


def _reaches_out(name: Any) -> bool:
    """`__globals__`, `__subclasses__` and the like lead anywhere."""
    return isinstance(name, str) and name.startswith("__") and name.endswith("__") and name not in KNOWN_DUNDERS


def _is_pure(module: str) -> bool:
    return module in PURE_MODULES or any(module == x or module.startswith(f"{x}.") for x in PURE_LAYERS)


def _is_known(v: Any) -> bool:
    """Return True if a pure module, or Python itself, has this very function or class under its name."""
    home = v.__module__ or ""
    if home != "builtins" and not _is_pure(home):
        return False
    value: Any = sys.modules.get(home)
    for part in v.__qualname__.split("."):
        value = getattr(value, part, None)
    return value is v


def _is_generated(member: Any) -> bool:
    """Return True if `dataclass` wrote this method: then the class's fields and the method's code determine it."""
    if not isinstance(member, FunctionType) or member.__name__ not in GENERATED:
        return False
    file = member.__code__.co_filename
    named = (i.argval for i in dis.get_instructions(member.__code__) if i.opname == "LOAD_GLOBAL")
    return file == dataclasses.__file__ or (file == "<string>" and all(hasattr(builtins, n) for n in named))


def _given(default: Any) -> tuple[Any, ...]:
    """The default of a dataclass field, () for none."""
    return () if default is dataclasses.MISSING else (default,)


def _is_plain(c: type) -> bool:
    """Return True if instances hold nothing but the fields that Python sees: no memory of an extension's own."""
    words = sum(len(_slots(k)) for k in c.__mro__) + (c.__dictoffset__ > 0) + (c.__weakrefoffset__ > 0)
    return c.__itemsize__ == 0 and c.__basicsize__ == object.__basicsize__ + WORD * words


def _slots(c: type) -> tuple[str, ...]:
    own = vars(c).get("__slots__", ())
    return tuple(s for s in ((own,) if isinstance(own, str) else own) if s not in ("__dict__", "__weakref__"))
