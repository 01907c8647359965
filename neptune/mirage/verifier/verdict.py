"""Is a graph the expression? All tiers of the verifier on one graph, and one answer that says how it is known.

1. Draws of two finite fields (`candidates.py`): wrong graphs fall.
2. Draws until a false accept is shown to be less likely than 2⁻³⁰ (`bound.py`), where a bound is to be had.
3. A proof for all sizes (`indexed.py`), where normal forms decide; exact checks of the definitions that the graph is
   lowered to, and of what is compiled.
4. That the graph has a value wherever the expression has one, for all sizes (`domain.py`).
5. The floating-point gate (`gate.py`).

What fields reject float64 has to confirm, with a counterexample; where it does not, only a proof makes a graph equal.
Of the sizes at which float64 compares one is drawn, by the graph itself, and of the inputs some are small integers,
at which divisors are 0.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite

import numpy as np

from neptune.base.boundary import public
from neptune.errors import ExpressionError, NeptuneError, Unsupported, or_refusal
from neptune.ir.evaluate.domains import Array, EvaluationError, Unevaluated
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.lower import lowered_or_why
from neptune.mirage.reference import graph_or_why, reference
from neptune.mirage.renamed import aligned, ordered, orders
from neptune.mirage.types import fault
from neptune.mirage.verifier.bound import check
from neptune.mirage.verifier.candidates import DRAWS, ENOUGH, FEW, Candidates
from neptune.mirage.verifier.evaluate import Defined, Evaluator, Reals
from neptune.mirage.verifier.gate import gate
from neptune.mirage.verifier.indexed import lacks, prove_equal
from neptune.mirage.verifier.witness import Witness, draw_inputs, drawn, linked, witness
from neptune.verify.exact import ExactReport, exact_report

ACCEPTED, REJECTED, UNDECIDED = "accepted", "rejected", "undecided"
LENGTHS = (((5, 4, 7, 6, 8), 2), ((7, 5, 4, 8, 6), 3), ((3, 8, 5, 4, 6), 1))
"""Lengths of folded axes, and of others, at which float64 looks for a counterexample. At some of them an axis is cut
into two programs, at others into three."""
INSTANCES = 8
EXACT_DRAWS = 4
"""Draws of the exact check of definitions, each of another size."""
CLOSE = 1e-6
"""What float64 takes for equal, relatively to the largest element."""
ExactChecks = Callable[[Graph], Mapping[str, ExactReport]]
"""Exact checks of what a graph was compiled to, by what was checked: `lambda g: neptune.compile(program,
template=lowered(g, program).template).build.checks`."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What one tier says. `bound` is log₂ of the probability of a false accept where one is proved."""

    name: str
    outcome: str
    text: str
    draws: int = 0
    seeds: tuple[int, ...] = ()
    bound: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        seeds = f", seed {', '.join(map(str, self.seeds))}" if self.seeds else ""
        return f"{self.name}: {self.outcome}: {self.text} ({1e3 * self.seconds:.0f} ms{seeds})"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """An element in which a graph differs from the expression in float64, and on which instance."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    lengths: Mapping[str, int]
    seed: int

    def __str__(self) -> str:
        lengths = ", ".join(f"{a} = {n}" for a, n in self.lengths.items())
        element = f"{self.output}[{', '.join(map(str, self.index))}]"
        return f"{element} is {self.got:.6g} and has to be {self.expected:.6g}, at {lengths} (seed {self.seed})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. `equal`: the graph is the expression, by the tiers; `accepted`: the gate admits it as well.

    `order` says which output of the graph each of the expression's is; `graph` is the graph with its outputs in that
    order, in the expression's names. `why` says what is wrong with a graph that is not equal.
    """

    equal: bool
    accepted: bool
    tiers: tuple[Tier, ...]
    graph: Graph
    order: tuple[int, ...] = ()
    why: str = ""
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.accepted

    @property
    def bound(self) -> float | None:
        """log₂ of the probability of a false accept, of the best tier that proves one."""
        return min((t.bound for t in self.tiers if t.bound is not None), default=None)

    def __str__(self) -> str:
        answer = "equal to the expression" if self.equal else f"not accepted: {self.why}"
        if self.equal and not self.accepted:
            answer = f"equal to the expression, and not accepted: {self.why}"
        lines = [f"graph `{self.graph.name}`: {answer}"]
        if self.counterexample is not None:
            lines.append(f"  {self.counterexample}")
        if self.order != tuple(range(len(self.order))):
            names = ", ".join(o.name for o in self.graph.outputs)
            lines.append(f"  its outputs {', '.join(map(str, self.order))} are {names}")
        return "\n".join([*lines, *(f"  {t}" for t in self.tiers)])


@public
def verify(
    graph: Graph,
    expr: Program | Graph,
    *,
    draws: int | None = None,
    seed: int = 0,
    safe: bool = True,
    exact: ExactChecks | None = None,
) -> Verdict:
    """Verify a graph, from anywhere, against an expression.

    `draws` of the first tier are 64; with `safe` a graph has to be finite where the true result is even if the
    expression overflows; `exact` runs more exact checks, of what a graph was compiled to. Those of its definitions are
    run where the expression is a Program. A graph that is wrong, of other inputs or not valid is a Verdict with the
    reason. Raises ExpressionError where the expression has no graph, or there is no expression.

    >>> from neptune.ir.expr import Var
    >>> from neptune.mirage.ir import Node, Output, Tensor
    >>> def rows(*steps):
    ...     x = Tensor("x", ("i", "k"), "float32")
    ...     return Graph("rows", {"i": Var("m"), "k": Var("n")}, (x,), steps, (Output("y", ("i",), "float32", "y"),))
    >>> sums = rows(Node("t", "scale", ("x",), constant=Var("n")), Node("y", "sum", ("t",), axis="k"))
    >>> scaled = rows(Node("t", "sum", ("x",), axis="k"), Node("y", "scale", ("t",), constant=Var("n")))
    >>> verify(scaled, sums).equal
    True
    >>> print(verify(rows(Node("y", "max", ("x",), axis="k")), sums).why)
    it computes something else
    """
    if not isinstance(graph, Graph) or not isinstance(expr, Program | Graph):
        given = type(expr if isinstance(graph, Graph) else graph).__name__
        legal = ("a graph and a neptune.Program", "a graph and the graph of an expression")
        hint = "neptune.mirage.parser reads a graph, neptune.frontend.builder.build makes a Program"
        raise ExpressionError("verify a graph", f"{given} is neither a graph nor an expression", legal=legal, hint=hint)
    program = None if isinstance(expr, Graph) else expr
    expression = expr if isinstance(expr, Graph) else reference(expr)
    return Verifier(expression, DRAWS if draws is None else draws, seed, safe, exact, program).verdict(graph)


@dataclass(frozen=True)
class Verifier:
    """Verifies graphs against one expression's graph: what belongs to that alone is made once."""

    expression: Graph
    draws: int = DRAWS
    seed: int = 0
    safe: bool = True
    exact: ExactChecks | None = None
    program: Program | None = None

    @cached_property
    def candidates(self) -> Candidates:
        """The draws of the first tier."""
        return Candidates(self.expression, draws=self.draws, seed=self.seed)

    def verdict(self, graph: Graph) -> Verdict:
        """What all tiers say of a graph."""
        fitted = self._fitted(graph)
        if isinstance(fitted, ExpressionError | Unsupported):
            text = fitted.text if isinstance(fitted, ExpressionError) else fitted.why
            why = f"{fitted.asked}: {fitted.wrong}" if isinstance(fitted, ExpressionError) else text
            return Verdict(False, False, (Tier("graph", REJECTED, text),), graph, why=why)
        (order, first_graph), *others = fitted
        first = self._first(first_graph)
        while others and first.outcome != ACCEPTED:
            (order, first_graph), *others = others
            first = self._first(first_graph)
        return replace(self._decided(first_graph, first), order=order)

    def _fitted(self, graph: Graph) -> list[tuple[tuple[int, ...], Graph]] | ExpressionError | Unsupported:
        """A graph in the expression's words by the orders of its outputs, or why it is no graph of the expression."""
        fitted = fault(graph) or aligned(graph, self.expression)
        if isinstance(fitted, ExpressionError | Unsupported):
            return fitted
        fitting = orders(fitted, self.expression)
        return (
            fitting if isinstance(fitting, Unsupported) else [(o, ordered(fitted, self.expression, o)) for o in fitting]
        )

    def _decided(self, graph: Graph, first: Tier) -> Verdict:
        floats, counterexample = self._floats(graph)
        tiers = [first, floats]
        if counterexample is not None and not self._by_numbers(graph):
            why = "it computes something else"
            if not isfinite(counterexample.got):
                why = "it has no value where the expression has one"
            return Verdict(False, False, tuple(tiers), graph, why=why, counterexample=counterexample)
        for tier, why in self._further(graph, first):
            tiers.append(tier)
            if why:
                return Verdict(False, False, tuple(tiers), graph, why=why)
        tiers.append(_timed("gate", lambda: self._gate(graph)))
        return Verdict(True, tiers[-1].outcome != REJECTED, tuple(tiers), graph, why=tiers[-1].text)

    def _further(self, graph: Graph, first: Tier) -> Iterator[tuple[Tier, str]]:
        """The tiers behind the draws, but for the gate, each with why the graph is not equal where that ends it."""
        if first.outcome == ACCEPTED:
            bound = _timed("bound", lambda: self._bound(graph))
            yield bound, bound.text if bound.outcome == REJECTED else ""
        proof = _timed("proof", lambda: _proof(graph, self.expression))
        proved = proof.outcome == ACCEPTED
        why = first.text if first.outcome == REJECTED else f"no tier decides: {first.text}"
        yield proof, "" if proved or first.outcome == ACCEPTED else why
        if not proved:
            sizes = _timed("sizes", lambda: self._elsewhere(graph))
            yield sizes, f"it is another function: {sizes.text}" if sizes.outcome == REJECTED else ""
        domain = _timed("domain", lambda: _domain(graph, self.expression))
        yield domain, "" if domain.outcome == ACCEPTED else domain.text
        for exact in self._exactly(graph):
            yield exact, f"an exact check rejects it: {exact.text}" if exact.outcome == REJECTED else ""

    def _first(self, graph: Graph) -> Tier:
        def run() -> Tier:
            outcome = self.candidates.outcome(graph)
            verdict = ACCEPTED if outcome.accepted else UNDECIDED if outcome.why == FEW else REJECTED
            return Tier("fields", verdict, str(outcome), outcome.draws, (self.seed,))

        return _timed("fields", run)

    def _elsewhere(self, graph: Graph) -> Tier:
        """Draws of the fields at sizes that are drawn from the graph: what is not proved may be right at some only."""
        for probe in drawn(self.expression, _of_graphs(graph, self.expression, self.seed)):
            outcome = Candidates(self.expression, draws=ENOUGH, seed=self.seed, probe=probe).outcome(graph)
            if not outcome.accepted and outcome.why != FEW:
                return Tier("sizes", REJECTED, f"{outcome}, at {probe}", outcome.draws, (self.seed,))
        return Tier("sizes", ACCEPTED, "agrees at two sets of sizes that are drawn", ENOUGH, (self.seed,))

    def _floats(self, graph: Graph) -> tuple[Tier, Counterexample | None]:
        start = time.perf_counter()
        different = counterexample(graph, self.expression, self.seed)
        if isinstance(different, Unevaluated):
            return Tier("float64", UNDECIDED, str(different), seconds=time.perf_counter() - start), None
        count = INSTANCES * (len(LENGTHS) + 2)
        text = f"agrees on {count} instances" if different is None else "differs"
        verdict = ACCEPTED if different is None else REJECTED
        return Tier("float64", verdict, text, count, (self.seed,), seconds=time.perf_counter() - start), different

    def _by_numbers(self, graph: Graph) -> bool:
        """True where a graph is proved, and lengths that float64 took are not what the sizes say."""
        return not linked(self.expression, witness(self.expression)) and prove_equal(graph, self.expression).proved

    def _bound(self, graph: Graph) -> Tier:
        checked = check(self.expression, graph, seed=self.seed + 1)
        verdict = ACCEPTED if checked.accepted else REJECTED if checked.counted else UNDECIDED
        return Tier("bound", verdict, str(checked), checked.draws, (self.seed + 1,), checked.log)

    def _exactly(self, graph: Graph) -> Iterator[Tier]:
        """Exact checks of the graph's definitions, and of what it was compiled to."""
        if (program := self.program) is not None:
            yield _timed("exact", lambda: _of_definitions(graph, program, self.seed, self.safe))
        if self.exact is None:
            return
        start = time.perf_counter()
        reports = or_refusal(self.exact, graph)
        if isinstance(reports, NeptuneError):
            yield Tier("exact", UNDECIDED, f"it is not compiled: {reports.text.splitlines()[0]}")
            return
        each = (time.perf_counter() - start) / max(len(reports), 1)
        yield from (replace(_of_report(r), name=f"exact, {what}", seconds=each) for what, r in reports.items())

    def _gate(self, graph: Graph) -> Tier:
        """The gate of what a graph is lowered to, with its casts and its repairs; else of the graph."""
        lowered, how = self._lowered(graph)
        result = gate(lowered, self.expression, seed=self.seed, safe=self.safe, casts=lowered is not graph)
        if isinstance(result, Unevaluated):
            return Tier("gate", UNDECIDED, str(result))
        return Tier("gate", ACCEPTED if result.passed else REJECTED, f"{result}{how}", seeds=(self.seed,))

    def _lowered(self, graph: Graph) -> tuple[Graph, str]:
        """The graph of what a graph is lowered to, or the graph, and which it is."""
        if self.program is None:
            return graph, ""
        low = lowered_or_why(graph, self.program, self.safe)
        back = low if isinstance(low, NeptuneError) else graph_or_why(low.definitions)
        aligned_graph = aligned(back, self.expression) if isinstance(back, Graph) else Unsupported(str(back))
        if isinstance(aligned_graph, Unsupported):
            return graph, f"; it is not lowered: {aligned_graph.why.splitlines()[0]}"
        return aligned_graph, ", as it is lowered"


def counterexample(graph: Graph, expression: Graph, seed: int = 0) -> Counterexample | Unevaluated | None:
    """An element in which two graphs differ in float64, on a few small instances; None if none was found.

    Inputs, sizes and outputs correspond by name. Unevaluated where one of them has no value in float64.
    """
    others = drawn(expression, _of_graphs(graph, expression, seed))
    for probe in (*(witness(expression, lengths, kept) for lengths, kept in LENGTHS), *others):
        inputs, scalars = _inputs(expression, probe, np.random.default_rng((seed, 0xF64)))
        with np.errstate(all="ignore"):
            both = Evaluator(Defined(INSTANCES), probe, inputs, scalars).paired(expression, graph)
        if isinstance(both, Unevaluated):
            return both
        for name, (expected, got) in both.items():
            if (index := _difference(expected, got)) is not None:
                return Counterexample(name, index[1:], float(expected[index]), float(got[index]), probe.lengths, seed)
    return None


def _of_graphs(graph: Graph, expression: Graph, seed: int) -> np.random.Generator:
    """A generator that nobody who makes a graph has chosen."""
    return np.random.default_rng((seed, zlib.crc32(repr((graph.steps, expression.steps)).encode())))


def _inputs(expression: Graph, probe: Witness, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and scalars by instance: normal numbers, the same without their signs, and small integers."""
    inputs, scalars = draw_inputs(Reals(INSTANCES), expression, probe, rng)
    kinds = np.arange(INSTANCES) % 4
    for k, x in inputs.items():
        kind = kinds.reshape(-1, *(1,) * (x.ndim - 1))
        inputs[k] = np.select([kind == 1, kind == 3], [np.abs(x), np.round(x)], x)
    return inputs, scalars


def _difference(want: Array, got: Array) -> tuple[int, ...] | None:
    """The element that is farthest off, with its instance in front."""
    with np.errstate(all="ignore"):
        scale = np.where(np.isfinite(want), np.abs(want), 0.0).reshape(len(want), -1).max(1, initial=0.0)
        off = np.abs(want - got) / np.maximum(scale, np.finfo(np.float64).tiny).reshape(-1, *(1,) * (want.ndim - 1))
    off = np.where(np.isfinite(want), np.where(np.isnan(off), np.inf, off), 0.0)
    if not off.size or off.max() <= CLOSE:
        return None
    return tuple(int(k) for k in np.unravel_index(int(off.argmax()), off.shape))


def _proof(graph: Graph, expression: Graph) -> Tier:
    proof = prove_equal(graph, expression)
    return Tier("proof", ACCEPTED if proof.proved else UNDECIDED, str(proof))


def _domain(graph: Graph, expression: Graph) -> Tier:
    needs = lacks(graph, expression)
    if isinstance(needs, Unsupported):
        return Tier("domain", UNDECIDED, f"where it has a value is not decided: {needs}")
    if needs:
        return Tier("domain", REJECTED, f"it has no value where {needs[0]}, and the expression may have one there")
    return Tier("domain", ACCEPTED, "it has a value wherever the expression has one")


def _of_definitions(graph: Graph, program: Program, seed: int, safe: bool) -> Tier:
    """The exact check of what a graph is lowered to; where -inf among the inputs tells it apart, without that.

    Rewritten products and sums are not what they were at infinities: x·(w + v) is no number where x·w + x·v is -inf.
    The gate asks for a finite result where the true one is.
    """
    low = lowered_or_why(graph, program, safe)
    if isinstance(low, NeptuneError):
        return _of_report(low)
    check = partial(exact_report, program, low.definitions, draws=EXACT_DRAWS, seed=seed)
    report = check()
    if isinstance(report, ExactReport) and report.verdict == REJECTED:
        report = check(finite=frozenset(b.name for b in program.inputs))
        if isinstance(report, ExactReport) and report.verdict != REJECTED:
            return replace(_of_report(report), text=f"of finite inputs, {report}")
    return _of_report(report)


def _of_report(report: ExactReport | EvaluationError | NeptuneError) -> Tier:
    if isinstance(report, ExactReport):
        return Tier("exact", report.verdict, str(report), report.draws, report.seeds)
    return Tier("exact", UNDECIDED, f"its definitions: {str(report).splitlines()[0]}")


def _timed(name: str, run: Callable[[], Tier]) -> Tier:
    start = time.perf_counter()
    return replace(run(), name=name, seconds=time.perf_counter() - start)
