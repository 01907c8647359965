"""From tensors that refer to one another to a Program: what every front end shares.

A front end makes `Tensor`s whose bodies read other tensors (`Read`) at loop variables (`Axis`). Both node
kinds carry their object, so that names are chosen once, here, when the whole program is known:

    y = Tensor("y", (n,), "float32", Body((i,), reduction_of("sum", x[i, j], (j,), init)))

becomes

    for i in [0, n):
      for j in [0, m):
        y: y[i] += x[i, j]  init 0.0
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from neptune.base.boundary import public
from neptune.errors import ExpressionError
from neptune.frontend.named import Names, names_of
from neptune.frontend.named import unique as unique
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Const, Expr, ExprLike, Load, Op, Var, as_expr, loads, rewrite, walk
from neptune.ir.indices.widths import settled
from neptune.ir.program import ZERO, Buffer, For, Program, Scalar, Stage, Stmt, Store, Update, seq
from neptune.ir.text.printer import print_expr


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Var):
    """A loop variable with its range [lo, hi). Two axes are equal when they are the same object."""

    lo: Expr = ZERO
    hi: Expr = ZERO

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True, slots=True)
class Read(Load):
    """A load that remembers which Tensor it reads."""

    source: Tensor = field(kw_only=True, repr=False)

    def with_parts(self, parts: tuple[Expr, ...]) -> Expr:
        """A read of the same tensor at other indices."""
        return Read(self.buffer, parts, self.dtype, source=self.source)


@dataclass(frozen=True, repr=False)
class Fold:
    """`reducer` folded over `axes`, as the body of a stage."""

    reducer: str
    values: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    inits: tuple[Expr, ...]

    def __repr__(self) -> str:
        return f"{self.reducer}(…, axis={', '.join(a.name for a in self.axes)})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Reduction(Var, Fold):
    """A fold of one value, which may stand inside a larger expression: `compute` gives it a stage of its own there
    (`neptune.frontend.nested`). As a variable it has the name of its reducer and the dtype of its value."""

    __repr__ = Fold.__repr__
    of_data: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def reduction_of(reducer: str, value: Expr, axes: tuple[Axis, ...], init: Expr) -> Reduction:
    """`reducer` folded over `axes`, from `init`."""
    return Reduction(reducer, (value,), axes, (init,), name=reducer, dtype=value.dtype)


@dataclass(frozen=True, repr=False)
class TupleReduction(Fold):
    """A fold of several values at once, which stands alone. `parts` says what each result is called behind the stage's
    name."""

    parts: tuple[str, ...]

    @public
    def _refuse(self, *_: Any) -> NoReturn:
        raise ExpressionError(
            f"{self!r} inside a larger expression",
            "a reduction of several results must be the outermost expression of its stage",
            hint="give the reduction a stage of its own and read that stage here",
            kind="reduction_inside",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    astype = __bool__ = _refuse


@dataclass(frozen=True)
class Body:
    """The value, or the fold, that a stage computes at each point of `axes`."""

    axes: tuple[Axis, ...]
    value: Expr | Fold

    @property
    def loops(self) -> tuple[Axis, ...]:
        """All loop variables, outermost first."""
        return self.axes + (self.value.axes if isinstance(self.value, Fold) else ())

    @property
    def exprs(self) -> Iterator[Expr]:
        """Every expression of the nest in the order of reading: loop bounds, value, init."""
        for axis in self.loops:
            yield from (axis.lo, axis.hi)
        if isinstance(self.value, Fold):
            yield from (*self.value.values, *self.value.inits)
        else:
            yield self.value


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named array: a placeholder (`body` is None) or the result of one stage of the same name.

    `t[i, j]` and `t(i, j)` read one element. The results of one stage that has several make up a `family`, in
    the order of its reducer, and share `body`; the stage has a name of its own. Where the name is `soft`, nobody has
    given it: a program in which it is taken has another.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    body: Body | None = field(default=None, repr=False)
    stage: str = field(default="", repr=False)
    family: list[Tensor] = field(default_factory=list, repr=False)
    soft: bool = field(default=False, repr=False)

    @property
    def written_by(self) -> str:
        """The name of the stage."""
        return self.stage or self.name

    @property
    def leads(self) -> bool:
        """False for the results of a stage behind its first."""
        return not self.family or self.family[0] is self

    @public
    def __call__(self, *index: ExprLike) -> Read:
        exprs = tuple(self._index(k, i) for k, i in enumerate(index))
        if len(exprs) != len(self.shape):
            raise ExpressionError(
                f"reading `{_read(self.name, exprs)}`",
                f"`{self.name}` has {len(self.shape)} dimensions, but {len(exprs)} indices were given",
                kind="reading",
            )
        for i, dim in zip(exprs, self.shape, strict=True):
            if isinstance(i, Const) and (i.value < 0 or (isinstance(dim, Const) and i.value >= dim.value)):
                raise ExpressionError(
                    f"reading `{_read(self.name, exprs)}`",
                    f"index {i.value} is outside the dimension [0, {print_expr(dim)})",
                    kind="reading",
                )
        return Read(self.name, exprs, self.dtype, source=self)

    @public
    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Read:
        return self(*index) if isinstance(index, tuple) else self(index)

    def __iter__(self) -> NoReturn:
        # Without this, Python would iterate a Tensor through __getitem__, for ever.
        raise TypeError(f"tensor `{self.name}` cannot be iterated: index it")

    def _index(self, position: int, value: ExprLike) -> Expr:
        try:
            e = as_expr(value)
        except TypeError:
            e = None
        if e is None or not is_int(e.dtype):
            what = repr(value) if e is None else f"`{print_expr(e)}` ({e.dtype})"
            wrong = f"index {position} is {what}, not an integer expression"
            raise ExpressionError(f"reading `{self.name}`", wrong, kind="reading")
        return e


def _read(name: str, index: Sequence[Expr]) -> str:
    return f"{name}[{', '.join(print_expr(i) for i in index)}]"


def reachable(outputs: Sequence[Tensor]) -> list[Tensor]:
    """All tensors behind `outputs`, producers first: depth-first, left to right, entered at the first read."""
    order: dict[Tensor, None] = {}

    def visit(tensor: Tensor) -> None:
        if tensor in order:
            return
        for e in tensor.body.exprs if tensor.body is not None else ():
            for node in walk(e):
                if isinstance(node, Read):
                    visit(node.source)
        order.update(dict.fromkeys(tensor.family or [tensor]))

    for t in outputs:
        visit(t)
    return list(order)


@public
def build(
    outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor | Var] | None = None, name: str | None = None
) -> Program:
    """The Program that computes `outputs`: one top-level nest per stage, producers first.

    `inputs` orders the tensor arguments (and, by the `Var`s in it, the trailing scalar arguments). By
    default tensors come depth-first, left to right from the outputs, a stage being entered at its first
    read, and scalars that no input's shape binds follow by name. `name` defaults to the first output's.

    Before: `y = compute((n,), lambda i: sum(x[i, j], axis=j), "y")`; after `build(y)`: a program with
    input x, output y, size n and the one stage y.

    Raises ExpressionError for outputs that are placeholders or repeated, inputs that are missing, and names
    that clash.
    """
    outs = _listed(outputs)
    first = outs[0] if outs else None
    program = name or (first.name if isinstance(first, Tensor) else "program")
    request = f"building program `{program}`"
    _check_outputs(request, outs)
    tensors = reachable(outs)
    args, scalar_order = _arguments(request, tensors, inputs)
    tensors = [t for t in args if t not in tensors] + tensors
    _check_names(request, [t for t in tensors if not t.soft])
    scalars = _scalars(request, tensors, args, scalar_order)
    stages = [t for t in tensors if t.body is not None]
    sizes = {s.name for s in scalars}
    _check_sizes(request, tensors, sizes)
    _check_name(request, program)
    names = names_of(tensors, sizes)
    buffers = {t: Buffer(names[t].tensor, t.shape, t.dtype) for t in tensors}
    program_of_stages = Program(
        program,
        tuple(buffers[t] for t in args),
        tuple(buffers[t] for t in outs),
        tuple(buffers[t] for t in stages if t not in outs),
        scalars,
        (),
        seq(*(_nest(t, names, sizes) for t in stages if t.leads)),
    )
    return settled(program_of_stages)


def _listed(outputs: Any) -> tuple[Tensor, ...]:
    """The outputs one by one: of a choice or a family, which is a tuple of tensors, its parts."""
    if not isinstance(outputs, list | tuple):
        return (outputs,)
    return tuple(t for x in outputs for t in (x if isinstance(x, tuple) else (x,)))


def _check_outputs(request: str, outs: tuple[Tensor, ...]) -> None:
    if not outs:
        raise ExpressionError(request, "there is no output")
    for k, t in enumerate(outs):
        if not isinstance(t, Tensor):
            raise ExpressionError(request, f"output {k} is {t!r}, not a tensor")
        if t.body is None:
            raise ExpressionError(request, f"output `{t.name}` is an input", hint="copy it with a compute of its own")
        if t in outs[:k]:
            raise ExpressionError(request, f"output `{t.name}` is listed twice")


def _arguments(
    request: str, tensors: list[Tensor], inputs: Sequence[Tensor | Var] | None
) -> tuple[list[Tensor], list[str]]:
    """The input tensors in order, and the names of the scalars whose order was asked for."""
    needed = [t for t in tensors if t.body is None]
    if inputs is None:
        return needed, []
    args = [t for t in inputs if isinstance(t, Tensor)]
    for k, t in enumerate(inputs):
        if isinstance(t, Tensor) and t.body is not None:
            raise ExpressionError(request, f"input {k}, `{t.name}`, is computed", hint="list placeholders only")
        if not isinstance(t, Tensor | Var):
            raise ExpressionError(request, f"input {k} is {t!r}, not a tensor or a scalar")
        if isinstance(t, Tensor) and args.count(t) > 1:
            raise ExpressionError(request, f"input `{t.name}` is listed twice")
    if missing := [t.name for t in needed if t not in args]:
        raise ExpressionError(request, f"`inputs` lacks {', '.join(f'`{m}`' for m in missing)}")
    return args, [v.name for v in inputs if isinstance(v, Var)]


def _check_name(request: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ExpressionError(
            request, f"`{name}` is not a name", hint="use letters, digits and underscores", kind="naming"
        )


def _check_names(request: str, tensors: Sequence[Tensor]) -> None:
    seen: set[str] = set()
    for t in tensors:
        _check_name(request, t.name)
        if t.name in seen:
            same = [x for x in tensors if x.name == t.name]
            wrong, hint = f"two tensors are named `{t.name}`", "stage names must be unique"
            if any(t.name in {x.buffer for e in x.body.exprs for x in loads(e)} for x in same if x.body is not None):
                wrong += (
                    ", and one of them reads the other: scans cannot be written, where an element needs those before"
                )
                hint = "a reduction for each element, or a scan of torch's in front of the kernel; else unique names"
            raise ExpressionError(request, wrong, hint=hint, kind="naming")
        seen.add(t.name)
    for t in tensors:
        if t.stage and t.leads and t.stage in seen:
            wrong = f"a tensor has the name of the stage `{t.stage}`"
            raise ExpressionError(request, wrong, hint="rename one of them", kind="naming")
        seen.add(t.written_by)


def _check_sizes(request: str, tensors: Sequence[Tensor], sizes: set[str]) -> None:
    if clash := {t.name for t in tensors if not t.soft} & sizes:
        shared = sorted(clash)[0]
        wrong = f"`{shared}` names both a tensor and a size or scalar"
        raise ExpressionError(request, wrong, hint="rename one of them", kind="naming")


# --- sizes and scalars -------------------------------------------------------------------------


def _factors(dim: Expr) -> Iterator[str]:
    """The variables of a pure product; in a dimension each of them is then at least 1 or the array empty."""
    if isinstance(dim, Var):
        yield dim.name
    elif isinstance(dim, Op) and dim.name == "mul":
        for arg in dim.args:
            yield from _factors(arg)


def _scalars(request: str, tensors: list[Tensor], args: list[Tensor], listed: list[str]) -> tuple[Scalar, ...]:
    """Sizes in the order in which the inputs' shapes bind them, then listed ones, then the rest by name."""
    dims = [d for t in tensors for d in t.shape]
    used = [e for t in tensors if t.body is not None for e in t.body.exprs]
    dtypes: dict[str, str] = {}
    for v in (v for e in (*dims, *used) for v in walk(e) if isinstance(v, Var) and not isinstance(v, Axis)):
        _check_name(request, v.name)
        if dtypes.setdefault(v.name, v.dtype) != v.dtype:
            raise ExpressionError(request, f"`{v.name}` is used both as {dtypes[v.name]} and as {v.dtype}")
    sizes = {n for d in dims for n in _factors(d)}
    in_shapes = {v.name for d in dims for v in walk(d) if isinstance(v, Var)}
    bound = [d.name for t in args for d in t.shape if isinstance(d, Var)]
    order = dict.fromkeys([*bound, *(n for n in listed if n in dtypes), *sorted(dtypes)])
    return tuple(Scalar(n, dtypes[n], lo=1 if n in sizes else 0 if n in in_shapes else None) for n in order)


# --- nests -------------------------------------------------------------------------------------


def _nest(tensor: Tensor, names: Mapping[Tensor, Names], used: set[str]) -> Stmt:
    """The loops and the stage of one tensor; loop names avoid `used` and one another."""
    assert tensor.body is not None
    loops: dict[Axis, str] = {}
    for k, axis in enumerate(tensor.body.loops):
        plain = axis.name if axis.name.isidentifier() and axis.name.strip("_") else f"i{k}"
        loops[axis] = unique(plain, used | set(loops.values()))

    def plain_node(e: Expr) -> Expr | None:
        if isinstance(e, Axis):
            return Var(loops[e], e.dtype)
        if isinstance(e, Read):
            return Load(names[e.source].tensor, tuple(resolve(i) for i in e.index), e.dtype)
        return None

    def resolve(e: Expr) -> Expr:
        return rewrite(e, plain_node)

    index = tuple(resolve(a) for a in tensor.body.axes)
    value = tensor.body.value
    action: Store | Update
    if isinstance(value, Fold):
        values, inits = (tuple(resolve(e) for e in part) for part in (value.values, value.inits))
        action = Update(tuple(names[t].tensor for t in tensor.family or [tensor]), index, value.reducer, values, inits)
    else:
        action = Store(names[tensor].tensor, index, resolve(value))
    nest: Stmt = Stage(names[tensor].stage, action)
    for axis in reversed(tensor.body.loops):
        nest = For(loops[axis], resolve(axis.lo), resolve(axis.hi), nest)
    return nest
