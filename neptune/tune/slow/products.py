"""Products of matrices that the matrix unit does not compute, or not at the rate of its narrow operands, and results
that no kernel holds, so that what they are summed from goes through memory.

Sums of what two matrices are together, such as squared distances, are such results where a product would compute them.

    far[i, j] += (q[i, d] - k[j, d])²     →     Σ q² - 2 Σ q·k + Σ k²: one product of matrices, and two sums of rows

Of what does not multiply out, such as Σ |q - k|, nothing is said: nothing better can be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import permutations, product

from neptune.fusion.schedule import Schedule
from neptune.ir.contraction import NARROW, Contraction, NoProduct, factors, grouped, matrix_product, product_form
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, loads, substitute, variables
from neptune.ir.program import Buffer, For, Program, Stage, Update, map_exprs
from neptune.ir.text.printer import print_expr
from neptune.schedule.alignment import Axes
from neptune.schedule.roles import reaches
from neptune.tile.ir import Assign, Dot, Local, Rearrange, Scalar, TExpr, TileKernel, walk_stmts
from neptune.tile.registers import dots
from neptune.tune.choose import candidates
from neptune.tune.family import Wishes
from neptune.tune.model.facts import read_facts
from neptune.tune.rank import ranked
from neptune.tune.subject import Subject, around

SHOWN = 3
"""Names of a list that are shown."""
USUAL = 128
"""The width of a result that is looked at where none was named: that of a head."""
FASTER = 1.5
"""How many times as fast a width as a number is predicted to be, where it is worth a word."""
Found = tuple[str, Mapping[str, str]]
"""A stage or an input, and what the words of a rule's message and remedy are."""
SHORTEST = 8
"""A product with a shorter side, such as a matrix times a vector, is no work for the matrix unit."""
OF_UNIT = (*NARROW, "float32", "int8", "uint8")
"""The dtypes that a matrix unit may multiply."""
WIDENED = (*NARROW, "int8", "uint8")
"""Those that float32 holds exactly and the matrix unit multiplies several times as fast."""


# --- lost altogether ------------------------------------------------------------------------------


def lost_products(s: Subject) -> Iterator[Found]:
    """Products of matrices of the expression for which no kernel has a product on the matrix unit."""
    for loops, stage in s.nests:
        product, hidden = _of_matrices(s, loops, stage), list[Expr]()
        if product is None:
            product, hidden = _hidden(s, loops, stage)
        if product is None or any(_computes(s, k, d, product) for k in s.tiles.kernels for d in dots(k)):
            continue
        if hidden:
            by = " * ".join(map(print_expr, hidden))
            why = f"is hidden by {by}, which does not move in the sum"
            behind = f"multiply behind the sum: sum(a[i, k] * b[k, j]) * {by}"
            yield stage.name, {"why": why, "remedy": f'sch.hoist_factor("{stage.name}"), or {behind}'}
        else:
            yield stage.name, _why_lost(stage, loops, product)


def _of_matrices(s: Subject, loops: tuple[For, ...], stage: Stage) -> Contraction | None:
    """A stage as a product of matrices that a matrix unit would take; None for anything else."""
    if not isinstance(stage.action, Update) or stage.action.reducer != "sum":
        return None
    product = product_form(unmasked(stage.action), [f.var for f in loops])
    if product is None or not product.of_matrices:
        return None
    lengths = {f.var: s.length(f) for f in loops}
    sides = (product.rows, product.cols, product.depth)
    long = all(max(lengths[a] for a in axes) >= SHORTEST for axes in sides)
    dtypes = {_narrowest(e).dtype for e in (product.a, product.b)}
    return product if long and dtypes <= set(OF_UNIT) else None


def _hidden(s: Subject, loops: tuple[For, ...], stage: Stage) -> tuple[Contraction | None, list[Expr]]:
    """The product that a sum is without the factors that no reduced axis moves, and these; None and [] for others."""
    if not isinstance(stage.action, Update) or len(stage.action.values) != 1:
        return None, []
    fixed = {v for i in stage.action.index for v in variables(i)}
    reduced = {f.var for f in loops} - fixed
    every = list(factors(stage.action.values[0]))
    still = [x for x in every if not variables(x) & reduced]
    moving = [x for x in every if variables(x) & reduced]
    if not still or not moving:
        return None, []
    value = grouped(reduce(partial(binary, "mul"), moving), fixed)
    if value is None:
        return None, []
    return _of_matrices(s, loops, replace(stage, action=replace(stage.action, values=(value,)))), still


def unmasked(action: Update) -> Update:
    """A sum without the choice of what it leaves out."""
    match action.values:
        case (Select(_, value, Const(0)),):
            return Update(action.buffers, action.index, action.reducer, (value,), action.init)
    return action


def _narrowest(e: Expr) -> Expr:
    return _narrowest(e.arg) if isinstance(e, Cast) else e


def _computes(s: Subject, kernel: TileKernel, dot: Dot, product: Contraction) -> bool:
    """True for a product on tiles whose operands come from the same inputs as those of the expression."""
    sources = [s.inputs_of(e, s.sources) for e in (product.a, product.b)]
    operands = [s.behind(e, kernel.name) for e in (dot.a, dot.b)]
    return any(all(a & b for a, b in zip(sources, others, strict=True)) for others in (operands, operands[::-1]))


def _why_lost(stage: Stage, loops: tuple[For, ...], product: Contraction) -> dict[str, str]:
    form = matrix_product(stage.action, [f.var for f in loops])
    wide = {_narrowest(e).dtype for e in (product.a, product.b)} - set(NARROW) - {"float32"}
    if isinstance(form, NoProduct) and wide and product.dtype != "float32":
        hint = 'x.astype("float16").astype("float32") * …, exact for 8 bits; the sum is exact below 2**24'
        return {"why": form.wrong, "remedy": hint}
    if isinstance(form, NoProduct):
        masked = isinstance(stage.action.values[0], Select)
        hint = "put the mask into an operand: select(mask, a[i, k], 0) * b[k, j]"
        return {"why": form.wrong, "remedy": hint if masked else form.hint or form.legal[0]}
    axes = ", ".join(f"`{x[-1]}`" for x in (form.rows, form.cols, form.depth))
    return {
        "why": f"is computed element by element: no program has a tile of {axes}",
        "remedy": f"no template: then one is chosen; or split {axes} by params of at least 16 and bind the outer loops",
    }


# --- at the rate of float32 -----------------------------------------------------------------------


def widened_products(s: Subject) -> Iterator[Found]:
    """Products in float32 with an operand that is a widening of narrower data."""
    for kernel in s.tiles.kernels:
        steps = [x for x in walk_stmts(kernel.body) if isinstance(x, Assign)]
        given: dict[str, list[TExpr]] = {}
        for x in steps:
            given.setdefault(x.name, []).append(x.value)
        for x in steps:
            for dot in dots(TileKernel(kernel.name, (), kernel.axes, (x,))):
                if dot.a.dtype == "float32" and not dot.allow_tf32:
                    pair = tuple(_before(e, given) for e in (dot.a, dot.b))
                    if any(d in WIDENED for d in pair):
                        yield x.stage, _why_widened(*pair)


def _before(e: TExpr, given: Mapping[str, list[TExpr]], seen: frozenset[str] = frozenset()) -> str:
    """The dtype that an operand is an exact widening of; its own where it is none."""
    match e:
        case Rearrange(arg, _):
            return _before(arg, given, seen)
        case Select(_, then, Scalar(Const(0))):
            return _before(then, given, seen)
        case Cast(arg, "float32") if arg.dtype in WIDENED:
            return arg.dtype
        case Local(name, _, _) if name not in seen:
            before = {_before(v, given, seen | {name}) for v in given.get(name, ())}
            return before.pop() if len(before) == 1 else e.dtype
    return e.dtype


def _why_widened(a: str, b: str) -> dict[str, str]:
    """Say what is multiplied, and how to write it for the matrix unit."""
    narrow = [d for d in (a, b) if d in WIDENED]
    floats = [d for d in narrow if d in NARROW]
    to = floats[0] if floats else NARROW[0]
    if len(narrow) < 2:
        remedy = f'round the other operand, where that may be: x.astype("{to}").astype("float32")'
    elif a == b and floats:
        remedy = f'cast within the product: x[i, k].astype("float32") * y[k, j].astype("float32"), both {to}'
    elif len(floats) == 2:
        remedy = f'bring both to one dtype, where that rounding may be: x.astype("{to}").astype("float32")'
    else:
        remedy = f'cast integers, exactly, by way of {to}: x.astype("{to}").astype("float32")'
    shown = " by ".join(f"{d} widened to float32" if d in WIDENED else DTYPES[d].name for d in (a, b))
    return {"why": shown, "remedy": remedy}


# --- results that no kernel holds -------------------------------------------------------------------


def unknown_widths(s: Subject) -> Iterator[Found]:
    """Results of chains of reductions, such as attention's, that are as wide as a size, where a number is faster: a
    tile holds o[i, c] then, and the scores before it stay on chip."""
    stored = read_facts(s.tiles).temporaries
    sch = Schedule(s.loops)
    d = {x: sch.definition(x) for x in sch.stages if stored}
    axes = Axes(d)
    pairs = [(x, y) for x in sch.reductions if x in d for y in sch.reductions if y in reaches(sch, [x])]
    for early, late in pairs:
        over = [b for a in d[early].reduced for b in d[late].reduced if axes.same((early, a), (late, b))]
        like = [*((early, a.name) for a in d[early].spatial), *((late, b) for b in over)]
        wide = [
            a for a in d[late].spatial if variables(a.extent) and not any(axes.same((late, a.name), x) for x in like)
        ]
        elements = [e for e in stored if e in d and {axes.of(e, x) for x in like} <= {a.name for a in d[e].spatial}]
        if over and wide and elements:
            names = sorted(frozenset[str]().union(*(variables(a.extent) for a in wide)))
            sizes = {n: s.sizes[n] if s.given else USUAL for n in names}
            if (times := _times_as_fast(s, sizes)) >= FASTER:
                words = {"axis": wide[0].name, "sizes": " and ".join(f"`{n}`" for n in names), "times": f"{times:.1f}"}
                shown = ", ".join(f"{n}={v}" for n, v in sizes.items())
                yield late, {**words, "elements": listed(elements, "is", "are"), "at": shown}
                return


def listed(names: Sequence[str], one: str, many: str) -> str:
    """A few names of many, with the verb.

    >>> listed(["a"], "is", "are"), listed([*"abcde"], "is", "are")
    ('`a` is', '`a`, `b`, `c` and 2 more are')
    """
    shown = ", ".join(f"`{n}`" for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{shown}{more} {one if len(names) == 1 else many}"


def _times_as_fast(s: Subject, numbers: Mapping[str, int]) -> float:
    """How many times as fast the best schedule is predicted where some sizes are numbers."""
    sizes = {**s.sizes, **numbers}
    best = next(candidates(_with_numbers(s.loops, numbers), None, Wishes(sizes), s.machine))
    ours, best_ranked = (ranked(t, sizes, s.machine) for t in (s.tiles, best.tiles))
    return ours[0].prediction.us / best_ranked[0].prediction.us if ours and best_ranked else 0.0


def _with_numbers(program: Program, numbers: Mapping[str, int]) -> Program:
    """A program with some of its sizes as numbers."""
    env: dict[str, Expr] = {n: Const(v, "int32") for n, v in numbers.items()}

    def buffers(group: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(replace(b, shape=tuple(substitute(e, env) for e in b.shape)) for b in group)

    return replace(
        program,
        inputs=buffers(program.inputs),
        outputs=buffers(program.outputs),
        temporaries=buffers(program.temporaries),
        scalars=tuple(
            replace(x, upto=None if x.upto is None else substitute(x.upto, env))
            for x in program.scalars
            if x.name not in numbers
        ),
        body=map_exprs(program.body, lambda e: substitute(e, env)),
    )


# --- distances --------------------------------------------------------------------------------------

MOST = 16
"""Products that a sum is multiplied out into: of more, nobody would write them."""
Term = tuple[frozenset[str], frozenset[str]]
"""A product: the variables of its factor on either side."""


@dataclass(frozen=True)
class Sides:
    """Two operands of a sum, and the axes that either alone has, and that both are summed along."""

    a: Load
    b: Load
    rows: frozenset[str]
    cols: frozenset[str]
    depth: frozenset[str]

    def are_matrices(self, term: Term) -> bool:
        """True for a product of an element of either side's matrix."""
        a, b = term
        return bool(a & self.rows and a & self.depth and b & self.cols and b & self.depth)


def lost_expansions(s: Subject) -> Iterator[Found]:
    """Sums over both sides of a tile that are several products of matrices, multiplied out, where no kernel has one."""
    for loops, stage in s.nests:
        action = stage.action
        if not isinstance(action, Update) or action.reducer != "sum" or len(action.values) != 1:
            continue
        sides = _sides(s, loops, stage)
        terms = None if sides is None else _terms(unmasked(action).values[0], sides)
        # One product, hidden or not, is none that has to be multiplied out.
        if sides is None or terms is None or len(terms) < 2 or _is_multiplied_out(s, sides):
            continue
        if any(map(sides.are_matrices, terms)):
            axes = (sorted(x)[-1] for x in (sides.rows, sides.cols, sides.depth))
            yield stage.name, dict(zip(("i", "j", "d"), axes, strict=True))


def _sides(s: Subject, loops: tuple[For, ...], stage: Stage) -> Sides | None:
    """The operands of a sum that would be those of a product of matrices."""
    kept, folded = (frozenset(f.var for f in loops_of if s.length(f) >= SHORTEST) for loops_of in around(loops, stage))
    for x, y in permutations(loads(stage.action.values[0]), 2):
        left, right = (frozenset[str]().union(*map(variables, e.index)) for e in (x, y))
        sides = Sides(x, y, (left - right) & kept, (right - left) & kept, left & right & folded)
        if sides.rows and sides.cols and sides.depth and {x.dtype, y.dtype} <= set(OF_UNIT):
            return sides
    return None


def _terms(e: Expr, sides: Sides) -> list[Term] | None:
    """What a value is multiplied out, as products of one factor of either side; None for what is no such sum."""
    names = variables(e)
    if not names & sides.cols:
        return [(names, frozenset())]
    if not names & sides.rows:
        return [(frozenset(), names)]
    match e:
        case Op("add" | "sub", (x, y)):
            a, b = _terms(x, sides), _terms(y, sides)
            return None if a is None or b is None else a + b
        case Op("neg", (x,)):
            return _terms(x, sides)
        case Op("div", (x, y)) if not (variables(y) & sides.rows and variables(y) & sides.cols):
            return _product(_terms(x, sides), _terms(y, sides))
        case Op("pow", (x, Const(2))):
            return _product(_terms(x, sides), _terms(x, sides))
        case Op("mul", (x, y)):
            return _product(_terms(x, sides), _terms(y, sides))
    return None


def _product(a: list[Term] | None, b: list[Term] | None) -> list[Term] | None:
    if a is None or b is None or len(a) * len(b) > MOST:
        return None
    return [(x[0] | y[0], x[1] | y[1]) for x, y in product(a, b)]


def _is_multiplied_out(s: Subject, sides: Sides) -> bool:
    """True where a kernel has a product on tiles of these two operands and nothing else."""
    sources = [s.inputs_of(e, s.sources) for e in (sides.a, sides.b)]
    products = [[s.behind(e, k.name) for e in (dot.a, dot.b)] for k in s.tiles.kernels for dot in dots(k)]
    return sources in products or sources[::-1] in products
