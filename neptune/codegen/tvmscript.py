"""Print a Program as TVMScript text, for the LLVM target (docs/design/repairs.md, "A cast is part of the expression").

TVM rewrites floats in ways that IEEE arithmetic does not allow, so the text says nothing it could rewrite:

- A 16-bit float is *carried* as float32 and rounded after every operation that can be inexact (float32 has
  more than twice the precision, so rounding twice is rounding once).  bfloat16 is rounded on its bits: TVM
  erases `Cast(f32, Cast(bf16, x))`.  So is an 8-bit float, whose code is what memory holds (`neptune.ir.dtypes`).
- Float literals are printed by their bits, because TVM folds `x * 0` to 0, `x + 0` to x and `x / c` to
  `x * (1 / c)` when it sees a literal.  `x - x`, `x == x` and `not (x > 0)` are likewise spelled differently.
- Integers are carried as int64: sizes, indices and products of them are exact; arithmetic on data, and a Cast, wraps.
- What `Select`, `and` and `or` do not take is not executed where it could trap (loads, integer divisions).
- What is read many times is in scratch memory, not in a `T.Let`: TVM's analyzers evaluate the value of a name many
  times, so nested ones exponentially often, and fail where they make different things of it.
- Conditions deep in conditions are there, too: passes simplify all of them under each outer one and its opposite.
  So are long bounds of loops, which TVM repeats wherever they are read.
- `max` and `min` of floats are LLVM's maxnum and minnum: of NaN and a number the number (`neptune.ir.edges`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from neptune.codegen.tvm_values import Values, carrier, float_literal, storage
from neptune.errors import InternalError
from neptune.ir.dtypes import FLOAT8, holds, is_float, is_int
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var, cast, walk
from neptune.ir.indices.widths import ARITHMETIC, interval, is_data
from neptune.ir.nodes import children
from neptune.ir.ops import LIBM
from neptune.ir.program import Alloc, Buffer, For, If, Program, Seq, Stage, Stmt, Store, Update
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_stage

_CONSTANTS = {"log2e": math.log2(math.e), "ln2": math.log(2.0)}
# TVM's own tanh cancels near 0 (relative error 1e-3 at 1e-5): the C library's is called instead.
_LIBM = ("tanh", "erf", "fmod", *LIBM)
_DIVISION = {"floordiv": "floordiv", "mod": "floormod"}
_BITS = {
    "bitand": "bitwise_and",
    "bitor": "bitwise_or",
    "bitxor": "bitwise_xor",
    "shl": "shift_left",
    "shr": "shift_right",
}

DEEP = 2
"""Conditions in conditions so deep have places."""
LONG = 200
"""Bounds of so many characters have places."""


def _wraps(e: Op[Expr]) -> bool:
    """True for arithmetic that may leave its dtype; on indices in 32 bits it does not."""
    counted = is_int(e.dtype) and e.name in ARITHMETIC and (is_data(e) or e.dtype == "int64")
    return counted and not holds(e.dtype, interval(e))


def _can_trap(e: Expr) -> bool:
    """Return True if evaluating `e` under a false guard could fault: it loads, or divides integers."""
    return any(isinstance(x, Load) or (isinstance(x, Op) and x.name in ("floordiv", "mod")) for x in walk(e))


def _nesting(e: Expr) -> int:
    """How deep selects, and what is printed like them, stand in conditions of each other."""
    # Once each: a condition is the first of what stands in its node.
    below = [_nesting(x) for x in children(e)]
    if isinstance(e, Select) or (isinstance(e, Op) and (e.name == "not" or _is_lazy(e.name, e.args))):
        below[0] += 1
    return max(below, default=0)


def _is_lazy(name: str, args: tuple[Expr, ...]) -> bool:
    """True for an `and` or `or` that evaluates its second operand only where it has to."""
    return name in ("and", "or") and _can_trap(args[1])


def _has_product(e: Expr) -> bool:
    """Return True if a sum of integers has a product of variables among its terms."""
    if isinstance(e, Op) and is_int(e.dtype) and e.name in ("add", "sub", "mul", "neg"):
        return any(map(_has_product, e.args)) or (e.name == "mul" and not any(isinstance(a, Const) for a in e.args))
    return False


# --- the printer -----------------------------------------------------------------------------------


class Printer(Values):
    """Prints one Program. `strided` names the buffers whose last stride is not 1; with `fence` a product is
    kept from being contracted with a sum (for machines on which a fused multiply-add cannot be switched off).
    """

    def __init__(self, program: Program, strided: frozenset[str], fence: bool) -> None:
        super().__init__()
        self.program, self.strided, self.fence = program, strided, fence
        self.scalars = {s.name: s.dtype for s in program.scalars}
        # Everything that is visible from the start gets its name first, so that it keeps it.
        for b in program.globals:
            self.name("buffer", b)
        for v in (*self.scalars, *(t.name for t in program.tunables)):
            self.name("var", v)

    # --- expressions

    def const(self, e: Const) -> str:
        if e.dtype == "bool":
            return f"T.bool({bool(e.value)})"
        if is_float(e.dtype):
            return float_literal(float(e.value), e.dtype)
        return f"T.{carrier(e.dtype)}({int(e.value)})"

    def load(self, e: Load) -> str:
        text = f"{self.name('buffer', e.buffer)}[{self.index(map(self.expr, e.index))}]"
        if e.dtype == "bfloat16":
            return f'T.reinterpret("float32", T.shift_left(T.Cast("uint32", {text}), T.uint32(16)))'
        if e.dtype in FLOAT8:
            return self.decode8(text, e.dtype)
        if e.dtype == "bool":
            return f"({text} != T.uint8(0))"
        return text if carrier(e.dtype) == e.dtype else f'T.Cast("{carrier(e.dtype)}", {text})'

    def index(self, parts: Iterable[str]) -> str:
        """An index; a 0-d buffer is passed as one element."""
        return ", ".join(parts) or "T.int64(0)"

    def var(self, e: Var) -> str:
        text = self.name("var", e.name)
        dtype = self.scalars.get(e.name, e.dtype)
        if dtype == "bool":
            return f"({text} != T.int64(0))"
        return text

    def expr(self, e: Expr) -> str:
        """The text of an expression, in its carrier."""
        match e:
            case Const():
                return self.const(e)
            case Var():
                return self.var(e)
            case Load():
                return self.load(e)
            case Cast(arg, dtype):
                return self.cast(self.expr(arg), arg.dtype, dtype)
            case Select(p, a, b):
                if _can_trap(a) or _can_trap(b):
                    return self.either(carrier(e.dtype), self.condition(p), lambda: self.expr(a), lambda: self.expr(b))
                return f"T.Select({self.condition(p)}, {self.expr(a)}, {self.expr(b)})"
            case Op(name, args, dtype):
                if OPS[name].kind == "constant":
                    return float_literal(_CONSTANTS[name], dtype)
                if OPS[name].kind == "logic":
                    return self.logic(name, args)
                if OPS[name].kind == "compare":
                    return self.compare(name, args)
                text = self.arith(name, args, carrier(dtype), dtype == "int64" and _wraps(e))
                if name == "shl" or _wraps(e):
                    return self.cast(text, carrier(dtype), dtype)
                exact = name in ("neg", "abs", "min", "max") or OPS[name].whole or OPS[name].within
                return text if exact or dtype not in ("float16", "bfloat16") else self.round16(text, dtype)

    def condition(self, p: Expr) -> str:
        """A condition, in a place of its own where conditions stand in it: TVM's passes simplify what is inside under
        what is outside and its opposite, and take twice as long for each."""
        text = self.expr(p)
        if _nesting(p) < DEEP:
            return text
        place = self.let("int64", f'T.Cast("int64", {text})')
        return f"({place} != T.int64(0))"

    def logic(self, name: str, args: tuple[Expr, ...]) -> str:
        if _is_lazy(name, args):
            ways = (lambda: self.expr(args[1])), (lambda: f"T.bool({name == 'or'})")
            return self.either("bool", self.condition(args[0]), *(ways if name == "and" else reversed(ways)))
        texts = [self.expr(a) for a in args]
        # Not T.Not: it would turn `not (x > 0)` into `x <= 0`, which differs for NaN.
        if name == "not":
            return f"T.Select({texts[0]}, T.bool(False), T.bool(True))"
        return f"T.{name.capitalize()}({texts[0]}, {texts[1]})"

    def compare(self, name: str, args: tuple[Expr, ...]) -> str:
        a, b = (self.expr(x) for x in args)
        if args[0].dtype == "bool":
            a, b = f'T.Cast("int64", {a})', f'T.Cast("int64", {b})'
        elif is_float(args[0].dtype) and name in ("eq", "ne"):
            # For NaN, `x == x` is folded to true (`x <= x` is not), and `x != y` compiles to false.
            same = f"({a} {'<=' if args[0] == args[1] else '=='} {b})"
            return same if name == "eq" else f"T.Select({same}, T.bool(False), T.bool(True))"
        return f"({a} {OPS[name].infix} {b})"

    def arith(self, name: str, args: tuple[Expr, ...], dtype: str, wraps: bool = False) -> str:
        """An arithmetic or math operator in the carrier `dtype`, before the rounding to 16 bits. `wraps`: it may leave
        the dtype of its arguments, which is the carrier."""
        texts = [self.expr(a) for a in args]
        if wraps and dtype == "int64" and name in ("add", "sub", "mul", "neg"):
            # Neither TVM nor LLVM, to which TVM says so, takes overflow of 64 bits into account.
            wide = [f'T.Cast("int128", {t})' for t in texts]
            return self.cut_off(f" {OPS[name].infix} ".join(wide) if len(wide) > 1 else f"-{wide[0]}", "int64")
        one = float_literal(1.0, dtype) if is_float(dtype) else ""
        match name:
            case "sub" if is_float(dtype) and args[0] == args[1]:
                return f"({texts[0]} + (-{texts[1]}))"  # `x - x` is folded to 0, wrong for inf and NaN
            case "sub" if _has_product(args[1]):  # TVM comes to a division by -1, which its code generator fails on
                return f"(({texts[0]} + T.bitwise_not({texts[1]})) + T.{dtype}(1))"
            case "mul" if self.fence and is_float(dtype):
                return f'T.call_llvm_pure_intrin("{dtype}", "llvm.arithmetic.fence", {texts[0]} * {texts[1]})'
            case "add" | "sub" | "mul" | "div":
                return f"({texts[0]} {OPS[name].infix} {texts[1]})"
            case "floordiv" | "mod":
                if any(isinstance(x, Load) for x in walk(args[1])):
                    return self.divided_by_data(name, texts, dtype)
                return f"T.{_DIVISION[name]}({texts[0]}, {texts[1]})"
            case _ if name in _BITS:
                return f"T.{_BITS[name]}({texts[0]}, {texts[1]})"
            case "round":
                return f"T.nearbyint({texts[0]})"
            case "neg":
                return f"(-{texts[0]})" if is_float(dtype) else f"(T.{dtype}(0) - {texts[0]})"
            case "abs" if is_float(dtype):
                return f"T.fabs({texts[0]})"
            case "abs":  # T.abs would repeat its argument
                return f'T.call_llvm_pure_intrin("{dtype}", "llvm.abs", {texts[0]}, T.bool(False))'
            case "rsqrt":
                return f"({one} / T.sqrt({texts[0]}))"
            case "sigmoid":
                return f"({one} / ({one} + T.exp(-{texts[0]})))"
            case "max" | "min" if is_float(dtype):
                return f'T.call_llvm_pure_intrin("{dtype}", "llvm.{name}num", {", ".join(texts)})'
            case _ if name in _LIBM:
                function = f"{name}f" if dtype == "float32" else name
                return f'T.call_pure_extern("{dtype}", "{function}", {", ".join(texts)})'
            case _:
                return f"T.{name}({', '.join(texts)})"

    def divided_by_data(self, name: str, texts: list[str], dtype: str) -> str:
        """floordiv or mod by what memory holds: a 0 there, or -1 below the least int64, would end the process."""
        # The dividend too is read once: TVM would repeat it, and so a chain of divisions exponentially often.
        a, by = (self.let(dtype, text) for text in texts)
        none, minus = (f'T.Cast("{dtype}", {by} == T.{dtype}({n}))' for n in (0, -1))
        safe = self.let(dtype, f"{by} + {none} + T.{dtype}(2) * {minus}")
        quotient = f"T.{_DIVISION[name]}({a}, {safe})"
        if name == "mod":  # by -1 nothing is left, as by 1
            return quotient
        return f"({quotient} * (T.{dtype}(1) - T.{dtype}(2) * {minus}))"

    # --- statements

    def stored(self, value: Expr, dtype: str) -> str:
        """A value as it is written to a buffer of `dtype`."""
        text = self.expr(cast(value, dtype))
        if dtype in FLOAT8:
            return self.encode8(text, dtype)
        if dtype == "bfloat16":
            return f'T.Cast("uint16", T.shift_right(T.reinterpret("uint32", {text}), T.uint32(16)))'
        return text if carrier(dtype) == storage(dtype) else f'T.Cast("{storage(dtype)}", {text})'

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        """The lines of a statement."""
        pad = "    " * indent
        match s:
            case For(var, lo, hi, body, _, _):
                head = f"for {self.name('var', var)} in range({self.limit(lo)}, {self.limit(hi)}):"
                return [pad + line for line in (*self.filled(), head)] + self.stmt(body, indent + 1)
            case If(pred, body):
                head = f"if {self.expr(pred)}:"
                return [pad + line for line in (*self.filled(), head)] + self.stmt(body, indent + 1)
            case Seq(stmts):
                lines: list[str] = []
                outer = self.taken
                for x in stmts:
                    self.taken = outer  # those of a head stay untouched in its body: TVM may read it there again
                    lines += self.stmt(x, indent)
                return lines or [f"{pad}T.evaluate(0)"]
            case Stage():
                return self.stage(s, indent)
            case Alloc():
                raise InternalError("an Alloc was not hoisted before printing")

    def limit(self, e: Expr) -> str:
        """A bound of a loop, in a place of its own where it is long: TVM repeats it, and simplifies under it."""
        text = self.expr(e)
        return self.let("int64", text) if len(text) > LONG else text

    def stage(self, s: Stage, indent: int) -> list[str]:
        lines = ["    " * indent + "# " + print_stage(s)]
        if s.when is not None:
            head = f"if {self.expr(s.when)}:"
            lines += ["    " * indent + line for line in (*self.filled(), head)]
            indent += 1
        return lines + ["    " * indent + line for line in self.action(s.action)]

    def action(self, action: Store | Update) -> list[str]:
        buffers = action.buffers
        dtypes = [self.program.globals[b].dtype for b in buffers]
        targets = [f"{self.name('buffer', b)}[{self.index(map(self.expr, action.index))}]" for b in buffers]
        if isinstance(action, Store):
            text = self.stored(action.value, dtypes[0])
            return [*self.filled(), f"{targets[0]} = {text}"]
        reducer = REDUCERS[action.reducer]
        state: tuple[Expr, ...] = tuple(Load(b, action.index, d) for b, d in zip(buffers, dtypes, strict=True))
        if reducer.width == 1:
            (folded,) = reducer.combine(state, action.values).result
            text = self.stored(folded, dtypes[0])
            return [*self.filled(), f"{targets[0]} = {text}"]
        # What the parts are computed from has a name: it is read many times, and before any part is written.
        lines: list[str] = []
        names = [f"%{word}{k}" for word in ("state", "value") for k in range(reducer.width)]
        bound = [self.bound(n, e, lines) for n, e in zip(names, (*state, *action.values), strict=True)]
        combined = reducer.combine(bound[: reducer.width], bound[reducer.width :])
        for let, e in combined.lets:
            self.bound(let.name, e, lines)
        stored = [self.stored(v, d) for v, d in zip(combined.result, dtypes, strict=True)]
        return [*lines, *self.filled(), *(f"{target} = {text}" for target, text in zip(targets, stored, strict=True))]

    def bound(self, name: str, e: Expr, lines: list[str]) -> Var:
        """A variable that stands for `e` in the lines that follow, whatever it stood for before.

        It is a place in memory, as in `let`.
        """
        # Variables of a Program that are bools are integers.
        dtype = "int64" if e.dtype == "bool" else carrier(e.dtype)
        text = f'T.Cast("int64", {self.expr(e)})' if e.dtype == "bool" else self.expr(e)
        place = self.names["var", name] = self.place(dtype, name)
        lines += [*self.filled(), f"{place} = {text}"]
        return Var(name, e.dtype)

    # --- the function

    def parameter(self, name: str, dtype: str) -> str:
        return f"{self.name('var', name)}: T.{carrier(dtype) if is_float(dtype) else 'int64'}"

    def buffer(self, b: Buffer, handle: str) -> list[str]:
        """The lines that declare a buffer behind its handle, with free strides if it is an argument."""
        name, dims = self.name("buffer", b.name), [self.expr(d) for d in b.shape] or ["T.int64(1)"]
        strides = [self.fresh(f"{name}_s{k}") for k in range(len(dims))]
        if b.name not in self.strided:
            strides[-1] = "T.int64(1)"
        lines = [f"    {s} = T.int64()" for s in strides if not s.startswith("T.")]
        shape, steps = "".join(f"{d}, " for d in dims), "".join(f"{s}, " for s in strides)
        # Alignment 1 element: torch views begin anywhere.
        size = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "uint16": 2}.get(storage(b.dtype), 1)
        head = f'T.match_buffer({handle}, ({shape}), "{storage(b.dtype)}", strides=({steps}), align={size})'
        return [*lines, f"    {name} = {head}"]

    def function(self) -> str:
        """The whole text."""
        p = self.program
        handles = {b: self.fresh(f"{self.name('buffer', b)}_h") for b in p.globals}
        params = [f"{h}: T.handle" for h in handles.values()]
        params += [self.parameter(s.name, s.dtype) for s in p.scalars]
        params += [self.parameter(t.name, "int32") for t in p.tunables]
        declared = [line for b in p.globals.values() for line in self.buffer(b, handles[b.name])]
        body = self.stmt(p.body, 1)
        scratch = []
        for dtype, name in self.scratch.items():
            size = sum(1 for d, _ in self.places if d == dtype)
            # Of the scope "local" it would be on the heap, and every store to it be done.
            scratch.append(f'    {name} = T.alloc_buffer(({size},), "{dtype}")')
        attrs = '    T.func_attr({"global_symbol": "main", "tirx.noalias": True})'
        head = ["@T.prim_func", f"def main({', '.join(params)}):", attrs]
        return "\n".join([*head, *declared, *scratch, *body]) + "\n"


def print_tvmscript(program: Program, strided: frozenset[str] = frozenset(), fence: bool = False) -> str:
    """The TVMScript text of a decomposed Program without Allocs (see `llvm.hoist_allocs`).

    The parameters are the inputs, outputs and temporaries, then the scalars and the tunables. The comment
    over each statement is the stage it comes from. Example::

        # s: y[i] += x[i, j]
        y[i] = (y[i] + x[i, j])
    """
    return Printer(program, strided, fence).function()
