"""Random programs for `qa.variety`: drawn once as a neutral tree, then said in TE's, the builder's or numpy's words.

A `Spec` has inputs, one to four stages and outputs. Values stay small, and what is discontinuous (roundings,
comparisons, casts to integers) is applied only where every target computes its argument exactly, so that results
can be compared; NaN and infinities come in behind `isfinite` and its like.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

FLOATS = ("float32", "float32", "float32", "float32", "float16", "bfloat16", "float64")
MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
INTS = ("int32", "int32", "int8", "uint8", "int64")
ARITHMETIC = ("add", "sub", "mul", "min", "max", "floordiv", "mod", "divide", "abs", "neg", "select", "cast")
INTEGER_OPS = (*ARITHMETIC, "bitand", "bitor", "bitxor", "shl", "shr")
CHOICES = ("argmax", "argmin", "top2")
LENGTHS = (1, 2, 3, 4, 5, 7, 8)
MOST = 40
LIMIT = {"float16": 500.0}


@dataclass(frozen=True)
class Size:
    """A length: a symbol with the value it has when the program runs, or that number."""

    name: str
    value: int
    symbolic: bool


@dataclass(frozen=True)
class Extent:
    """A dimension: Σ factor·size + offset."""

    terms: tuple[tuple[int, Size], ...]
    offset: int = 0

    @property
    def value(self) -> int:
        return sum(f * s.value for f, s in self.terms) + self.offset


@dataclass(frozen=True)
class Node:
    """`op` on `args`. `mag` bounds the magnitude; a float with `frac` bits behind the point is exact, with None
    it is rounded."""

    op: str
    args: tuple[Any, ...]
    dtype: str
    mag: float = 1.0
    frac: int | None = 0

    @property
    def exact(self) -> bool:
        return self.frac is not None


@dataclass(frozen=True)
class Axis:
    """A loop variable over [lo, extent)."""

    name: str
    extent: Extent
    lo: int = 0


@dataclass(frozen=True)
class Fold:
    reducer: str
    axes: tuple[Axis, ...]
    where: Node | None = None
    init: float | None = None


@dataclass(frozen=True)
class Tensor:
    """An input (`value` is None), a stage, or with `part` that result of a stage that chooses pairs."""

    name: str
    shape: tuple[Extent, ...]
    dtype: str
    mag: float
    frac: int | None
    special: bool = False
    axes: tuple[Axis, ...] = ()
    value: Node | None = None
    fold: Fold | None = None
    part: int = 0

    @property
    def stage(self) -> str:
        """The name of the stage that computes it."""
        return self.name.partition("_")[0]


@dataclass
class Spec:
    """A program. `source` is how it is handed over: te, builder or primfunc."""

    seed: int
    source: str
    inputs: list[Tensor] = field(default_factory=list)
    stages: list[Tensor] = field(default_factory=list)
    scalars: dict[str, str] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """True where no stage has `where=` or `init=`, which te.create_prim_func drops."""
        return not any(s.fold and (s.fold.where is not None or s.fold.init is not None) for s in self.stages)

    @property
    def dtypes(self) -> set[str]:
        return {n.dtype for s in self.stages if s.value for n in nodes(s.value)} | {t.dtype for t in self.inputs}


def nodes(n: Node) -> Iterator[Node]:
    yield n
    for a in n.args:
        if isinstance(a, Node):
            yield from nodes(a)


def draw(seed: int) -> Spec:
    """The program of a seed."""
    rng = random.Random(seed)
    spec = Spec(seed, rng.choice(("te", "te", "builder", "primfunc")))
    sizes = [Size(n, rng.choice(LENGTHS), rng.random() < 0.5) for n in ("m", "n", "k")]
    if rng.random() < 0.06:
        sizes[0] = Size("m", 0, True)
    for k in range(rng.randint(1, 4)):
        spec.stages += _Stage(rng, spec, sizes, f"s{k}").draw()
    read = {n.args[0] for s in spec.stages if s.value for n in _all_nodes(s) if n.op == "read"}
    # All results of a stage that chooses pairs are outputs, or none that is read nowhere else.
    unread = {s.stage for s in spec.stages} - {s.stage for s in spec.stages if s.name in read}
    kept = unread | {s.stage for s in spec.stages if rng.random() < 0.25} | {spec.stages[-1].stage}
    spec.outputs = [s for s in spec.stages if s.stage in kept]
    spec.inputs = [t for t in spec.inputs if t.name in read]
    used = {n.args[0] for s in spec.stages for n in _all_nodes(s) if n.op == "scalar"}
    spec.scalars = {n: d for n, d in spec.scalars.items() if n in used}
    return spec


def _all_nodes(s: Tensor) -> Iterator[Node]:
    if s.value is not None:
        yield from nodes(s.value)
    if s.fold is not None and s.fold.where is not None:
        yield from nodes(s.fold.where)


class _Stage:
    """Draws one stage."""

    def __init__(self, rng: random.Random, spec: Spec, sizes: list[Size], name: str) -> None:
        self.rng, self.spec, self.sizes, self.name = rng, spec, sizes, name
        self.axes: list[Axis] = []
        self.inside = 0  # how many reads an expression is an index of

    def draw(self) -> list[Tensor]:
        """The results of the stage: one, or those of a choice of pairs."""
        rng = self.rng
        rank = rng.choice((0, 1, 1, 2, 2, 2, 3))
        shape = [Extent(((1, s),)) for s in rng.sample(self.sizes, rank)]
        axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(shape))
        self.axes = list(axes)
        dtype = rng.choice(FLOATS) if rng.random() < 0.65 else rng.choice((*INTS, "bool"))
        fold = None
        if dtype != "bool" and rng.random() < 0.55:
            over = [Extent(((1, s),)) for s in rng.sample(self.sizes, rng.choice((1, 1, 2)))]
            lows = [1 if e.value > 1 and rng.random() < 0.15 else 0 for e in over]
            folded = tuple(Axis(f"r{k}", e, lo) for k, (e, lo) in enumerate(zip(over, lows, strict=True)))
            self.axes += folded
            fold = self.fold(folded, dtype)
        value = self.small(dtype, fold)
        mag, frac = value.mag, value.frac
        if fold is not None:
            count = 1
            for a in fold.axes:
                count *= a.extent.value - a.lo
            if fold.reducer == "sum":
                mag, frac = mag * count + 2, _fits(mag * count + 2, frac, dtype)
            elif fold.reducer == "prod":
                mag, frac = max(2.0, mag**count), None if frac is None or dtype in MANTISSA else 0
            elif fold.reducer in ("max", "min"):
                mag = max(mag, 2.0)
        if fold is not None and value.exact and not any(a.lo for a in fold.axes) and rng.random() < 0.3:
            return self.pairs(
                Tensor(self.name, tuple(shape), dtype, value.mag, value.frac, axes=axes, value=value), fold
            )
        return [Tensor(self.name, tuple(shape), dtype, mag, frac, axes=axes, value=value, fold=fold)]

    def pairs(self, t: Tensor, fold: Fold) -> list[Tensor]:
        """Values and indices of the best elements; what there are too few elements for is read nowhere."""
        count = 1
        for a in fold.axes:
            count *= a.extent.value
        # TE has no top-k; and what a TE combiner starts from is its own business.
        reducer = self.rng.choice(CHOICES if self.spec.source == "builder" else CHOICES[:2])
        where = fold.where if self.spec.source == "builder" else None
        k = 2 if reducer == "top2" else 1
        few = where is not None or count < k
        chosen = Fold(reducer, fold.axes, where)
        best = [replace(t, name=f"{t.name}_{q}", fold=chosen, special=few, part=q) for q in range(k)]
        at = [replace(b, name=f"{t.name}_{k + b.part}", dtype="int32", part=k + b.part) for b in best]
        return [*best, *(replace(b, mag=float(max(count, 1)), frac=0) for b in at)]

    def small(self, dtype: str, fold: Fold | None) -> Node:
        """A value of at most MOST nodes."""
        for depth in (3, 2, 2, 1, 1, 0):
            value = self.clamped(self.expr(dtype, self.rng.randint(min(1, depth), depth)), fold)
            if sum(1 for _ in nodes(value)) <= MOST:
                break
        return value

    def fold(self, axes: tuple[Axis, ...], dtype: str) -> Fold:
        rng = self.rng
        count = 1
        for a in axes:
            count *= a.extent.value
        reducer = rng.choice(("sum", "sum", "max", "min", "prod" if count <= 8 and dtype != "int8" else "sum"))
        if not count:  # the extremes are no values to go on with
            reducer = "sum"
        plain = self.spec.source == "primfunc" or rng.random() < 0.7
        where = None if plain else self.boolean(1)
        init = float(rng.choice((-2, 0, 1))) if not plain and rng.random() < 0.5 and dtype != "uint8" else None
        return Fold(reducer, axes, where, init)

    def clamped(self, e: Node, fold: Fold | None) -> Node:
        """Small enough to be folded."""
        rng = self.rng
        if e.dtype in MANTISSA:
            limit = 1.5 if fold is not None and fold.reducer == "prod" else LIMIT.get(e.dtype, 1e5)
            if fold is not None and fold.reducer == "sum" and e.dtype == "float16":
                limit = 30.0
            if e.mag <= limit:
                return e
            limit = min(limit, 8.0)
            low, high = (Node("const", (x,), e.dtype, limit, 1) for x in (-limit, limit))
            top = Node("min", (e, high), e.dtype, limit, e.frac)
            return Node("max", (top, low), e.dtype, limit, None if e.frac is None else max(e.frac, 1))
        if e.dtype == "bool":
            return e
        bound = 3 if fold is not None and fold.reducer == "prod" else 30 if rng.random() < 0.5 else 50
        if fold is not None and fold.reducer == "sum" and e.dtype in ("int8", "uint8"):
            bound = 2
        return e if e.mag < bound else Node("mod", (e, Node("const", (bound,), e.dtype)), e.dtype, bound)

    # --- expressions -----------------------------------------------------------------------------

    def expr(self, dtype: str, depth: int) -> Node:
        if dtype == "bool":
            return self.boolean(depth)
        return self.floating(dtype, depth) if dtype in MANTISSA else self.integer(dtype, depth)

    def floating(self, dtype: str, depth: int) -> Node:
        rng = self.rng
        if depth == 0:
            return self.leaf(dtype)
        kind = rng.choice(("two", "two", "two", "one", "one", "round", "select", "cast", "special"))
        if kind == "special" and rng.random() < 0.6:
            kind = "two"
        a = self.floating(dtype, depth - 1)
        if kind == "two":
            return self.pair(dtype, a, self.floating(dtype, depth - 1))
        if kind == "one":
            return self.smooth(dtype, a)
        if kind == "round":
            name = rng.choice(("floor", "ceil", "round", "trunc"))
            return Node(name, (a,), dtype, a.mag + 1, 0) if a.exact else Node("neg", (a,), dtype, a.mag, a.frac)
        if kind == "select":
            b = self.floating(dtype, depth - 1)
            frac = None if a.frac is None or b.frac is None else max(a.frac, b.frac)
            return Node("select", (self.boolean(1), a, b), dtype, max(a.mag, b.mag), frac)
        if kind == "cast":
            other = rng.choice(("int32", "bool", *(f for f in MANTISSA if f != dtype)))
            b = self.expr(other, depth - 1)
            return Node("cast", (b,), dtype, b.mag, _fits(b.mag, b.frac, dtype))
        x = self.special()
        safe = Node("select", (Node("isfinite", (x,), "bool"), x, _const(0.5, "float32")), "float32", 2.0, 2)
        return safe if dtype == "float32" else Node("cast", (safe,), dtype, 2.0, 2)

    def pair(self, dtype: str, a: Node, b: Node) -> Node:
        name = self.rng.choice(("add", "sub", "mul", "mul", "min", "max", "div"))
        both = None if a.frac is None or b.frac is None else max(a.frac, b.frac)
        if name in ("add", "sub"):
            return Node(name, (a, b), dtype, a.mag + b.mag, _fits(a.mag + b.mag, both, dtype))
        if name == "mul":
            frac = None if a.frac is None or b.frac is None else a.frac + b.frac
            if a.mag * b.mag > LIMIT.get(dtype, 1e6):
                return Node("min", (a, b), dtype, max(a.mag, b.mag), both)
            return Node(name, (a, b), dtype, a.mag * b.mag, _fits(a.mag * b.mag, frac, dtype))
        if name == "div":
            return Node(name, (a, self.positive(b)), dtype, a.mag * 2, None)
        return Node(name, (a, b), dtype, max(a.mag, b.mag), both)

    def positive(self, x: Node) -> Node:
        """|x| + 1/2."""
        size = Node("abs", (x,), x.dtype, x.mag, x.frac)
        frac = None if x.frac is None else _fits(x.mag + 0.5, max(x.frac, 1), x.dtype)
        return Node("add", (size, _const(0.5, x.dtype)), x.dtype, x.mag + 0.5, frac)

    def smooth(self, dtype: str, a: Node) -> Node:
        name = self.rng.choice(
            ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "abs", "pow", "neg")
        )
        if name in ("abs", "neg"):
            return Node(name, (a,), dtype, a.mag, a.frac)
        if name in ("exp", "exp2"):
            return Node(name, (Node("min", (a, _const(2.0, dtype)), dtype, a.mag, a.frac),), dtype, 8.0, None)
        if name in ("tanh", "sigmoid", "erf"):
            return Node(name, (a,), dtype, 1.0, None)
        if name in ("sin", "cos"):  # of a large angle nothing is known in 16 bits
            small = Node("min", (Node("max", (a, _const(-3.0, dtype)), dtype), _const(3.0, dtype)), dtype)
            return Node(name, (small,), dtype, 1.0, None)
        if name == "sqrt":
            return Node(name, (Node("abs", (a,), dtype, a.mag, a.frac),), dtype, max(1.0, a.mag), None)
        inner = self.positive(a)
        if name == "pow":
            inner = Node("min", (inner, _const(4.0, dtype)), dtype, 4.0, None)
            return Node(name, (inner, _const(self.rng.choice((2.0, 3.0, 0.5, -1.0, 1.5)), dtype)), dtype, 64.0, None)
        return Node(name, (inner,), dtype, 20.0, None)

    def integer(self, dtype: str, depth: int) -> Node:
        rng = self.rng
        if dtype != "int32":
            inner = self.integer("int32", depth)
            small = inner if inner.mag < 100 else Node("mod", (inner, _const(50, "int32")), "int32", 50)
            if dtype == "uint8":
                small = Node("abs", (small,), "int32", small.mag)
            return Node("cast", (small,), dtype, small.mag)
        if depth == 0:
            return self.leaf(dtype)
        a = self.integer(dtype, depth - 1)
        name = rng.choice(INTEGER_OPS)
        if a.mag > 1e4:
            return Node("mod", (a, _const(97, dtype)), dtype, 97)
        if name in ("abs", "neg"):
            return Node(name, (a,), dtype, a.mag)
        if name in ("floordiv", "mod"):
            by = rng.choice((2, 3, 5, -2, -3))
            return Node(name, (a, _const(by, dtype)), dtype, a.mag + 1 if name == "floordiv" else 5)
        if name in ("shl", "shr"):
            by = rng.randint(0, 3)
            return Node(name, (a, _const(by, dtype)), dtype, a.mag * 2**by if name == "shl" else a.mag)
        if name == "cast":
            x = self.expr(rng.choice(("float32", "bool", "float16")), depth - 1)
            if x.exact and x.mag < 1e4:
                return Node("cast", (x,), dtype, x.mag + 1)
            return a
        b = self.integer(dtype, depth - 1)
        if name == "divide":  # data may be negative on either side
            size = Node("add", (Node("abs", (b,), dtype, b.mag), _const(1, dtype)), dtype, b.mag + 1)
            by_data = size if rng.random() < 0.5 else Node("neg", (size,), dtype, size.mag)
            return Node(rng.choice(("floordiv", "mod")), (a, by_data), dtype, max(a.mag, b.mag) + 1)
        if name == "select":
            return Node(name, (self.boolean(1), a, b), dtype, max(a.mag, b.mag))
        mags = {"add": a.mag + b.mag, "sub": a.mag + b.mag, "mul": a.mag * b.mag}
        bits = 2.0 * max(a.mag, b.mag) + 1 if name.startswith("bit") else max(a.mag, b.mag)
        if name == "mul" and a.mag * b.mag > 1e5:
            name = "max"
        return Node(name, (a, b), dtype, mags.get(name, bits))

    def boolean(self, depth: int) -> Node:
        rng = self.rng
        kind = rng.choice(("compare", "compare", "compare", "logic", "not", "read", "isnan"))
        if kind == "logic" and depth:
            return Node(rng.choice(("and", "or")), (self.boolean(depth - 1), self.boolean(depth - 1)), "bool")
        if kind == "not" and depth:
            return Node("not", (self.boolean(depth - 1),), "bool")
        if kind == "read":
            return self.leaf("bool")
        if kind == "isnan":
            return Node(rng.choice(("isnan", "isinf", "isfinite")), (self.special(),), "bool")
        dtype = rng.choice(("int32", "float32", "float16"))
        a, b = self.expr(dtype, max(0, depth - 1)), self.leaf(dtype)
        if not (a.exact and b.exact):
            a, b = self.integer("int32", 0), self.integer("int32", 0)
        return Node(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), (a, b), "bool")

    # --- leaves ------------------------------------------------------------------------------------

    def leaf(self, dtype: str) -> Node:
        rng, roll = self.rng, self.rng.random()
        if roll < 0.12 and dtype != "bool":
            value = rng.choice((-1, 0, 1, 2, 3)) if dtype not in MANTISSA else rng.choice((-1.5, 0.0, 0.25, 1.0, 2.0))
            return _const(value, dtype)
        if roll < 0.2 and dtype in ("int32", "float32"):
            self.spec.scalars[name := "w" if dtype == "int32" else "alpha"] = dtype
            return Node("scalar", (name,), dtype, 3.0, 1)
        if roll < 0.32 and dtype == "int32" and self.axes:
            axis = rng.choice(self.axes)
            return Node("axis", (axis.name,), dtype, axis.extent.value)
        t = self.some_tensor(dtype)
        if t.dtype == dtype:
            return self.read(t)
        found = self.read(t)
        return Node("cast", (found,), dtype, found.mag, _fits(found.mag, found.frac, dtype))

    def some_tensor(self, dtype: str) -> Tensor:
        """A stage or an input whose values can be cast to `dtype`, often a new input."""
        rng = self.rng
        pool = [*self.spec.inputs, *self.spec.stages, *self.spec.stages]
        fits = [t for t in pool if not t.special and self.castable(t, dtype)]
        if fits and rng.random() < 0.7:
            return rng.choice(fits)
        return self.new_input(dtype)

    def castable(self, t: Tensor, dtype: str) -> bool:
        if dtype == "bool" or t.dtype == dtype:
            return t.dtype == dtype
        if dtype in MANTISSA:
            return t.mag < LIMIT.get(dtype, 1e6)
        return t.frac is not None and t.mag < 100

    def new_input(self, dtype: str, special: bool = False) -> Tensor:
        rng = self.rng
        if len(self.spec.inputs) >= 6 and (
            same := [t for t in self.spec.inputs if (t.dtype, t.special) == (dtype, special)]
        ):
            return rng.choice(same)
        shape = tuple(Extent(((1, s),)) for s in rng.sample(self.sizes, rng.choice((0, 1, 1, 2, 2, 3))))
        if len(self.axes) >= 2 and rng.random() < 0.25:  # as a convolution reads it: step·i + k
            step, (a, b) = rng.choice((1, 2)), rng.sample(self.axes, 2)
            window = Extent((*((step * f, s) for f, s in a.extent.terms), *b.extent.terms))
            # The last window begins at step·(i - 1); of no windows that would be a negative length.
            shape = (replace(window, offset=-min(step, window.value)), *shape[:1])
        kind = rng.choice(INTS) if dtype == "int32" else dtype
        t = Tensor(f"x{len(self.spec.inputs)}", shape, kind, 5.0 if dtype == "int32" else 2.0, 2, special)
        self.spec.inputs.append(t)
        return t

    def special(self) -> Node:
        """An element of an input that holds NaN and infinities."""
        pool = [t for t in self.spec.inputs if t.special]
        return self.read(self.rng.choice(pool) if pool else self.new_input("float32", special=True))

    def read(self, t: Tensor) -> Node:
        self.inside += 1
        index = tuple(self.index(d) for d in t.shape)
        self.inside -= 1
        return Node("read", (t.name, *index), t.dtype, t.mag, t.frac)

    def index(self, dim: Extent) -> Node:
        """An index in [0, dim)."""
        rng = self.rng
        same = [a for a in self.axes if a.extent == dim]
        if len(dim.terms) == 2 and (found := self.window(dim)) is not None:
            return found
        if same and rng.random() < 0.8:
            axis = Node("axis", (rng.choice(same).name,), "int32", dim.value)
            if rng.random() < 0.15:
                last = Node("sub", (Node("extent", (dim,), "int32"), _const(1, "int32")), "int32")
                return Node("sub", (last, axis), "int32", dim.value)
            return axis
        if rng.random() < 0.3:
            return _const(0, "int32")
        gather = self.inside == 1 and rng.random() < 0.6
        anything = self.integer("int32", rng.randint(0, 1)) if gather else self.leaf_index()
        return Node("mod", (anything, Node("extent", (dim,), "int32")), "int32", dim.value)

    def leaf_index(self) -> Node:
        if not self.axes:
            return _const(1, "int32")
        return Node("axis", (self.rng.choice(self.axes).name,), "int32", 8)

    def window(self, dim: Extent) -> Node | None:
        """step·i + k where the dimension was made for it."""
        (step, size), (_, other) = dim.terms
        a = [x for x in self.axes if x.extent == Extent(((1, size),))]
        b = [x for x in self.axes if x.extent == Extent(((1, other),))]
        if not a or not b or step > 2:
            return None
        i, k = (Node("axis", (self.rng.choice(x).name,), "int32", 8) for x in (a, b))
        scaled = i if step == 1 else Node("mul", (_const(step, "int32"), i), "int32", 16)
        return Node("add", (scaled, k), "int32", 24)


def _const(value: float, dtype: str) -> Node:
    return Node("const", (value,), dtype, abs(value), 2)


def _fits(mag: float, frac: int | None, dtype: str) -> int | None:
    """`frac` where such numbers are exact in `dtype`."""
    if frac is None or dtype not in MANTISSA:
        return frac
    return frac if mag * 2.0**frac < 2.0 ** MANTISSA[dtype] else None
