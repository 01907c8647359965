"""Verdicts on compiled forms: what they need, when they are believed, and that nothing else is."""

from __future__ import annotations

import itertools
import json
import math
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

from bench import stub_driver
from neptune.errors import TargetError
from neptune.hopper.ir import Levers
from neptune.hopper.validate import verdicts
from neptune.hopper.validate.compile import compile_gluon
from neptune.hopper.validate.worker import DRAWS, REPEATS, compared, limit
from neptune.ir.text.parser import parse_program
from neptune.runtime.calls.addressing import KernelParameters
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.accepted import CLEAN, SETTINGS, Compared, Figures, Timed, Verdict, key_of, read, written
from neptune.runtime.hopper.data import Asynchronous, Roles
from neptune.runtime.launching.recording import recording
from neptune.runtime.processes.source import load_source
from tests.unit.hopper import compiling
from tests.unit.hopper.test_gluon import of_attention

SPLIT = (240, 24)
GOOD = Compared(3, 1e-4, 8e-3)
OF = Asynchronous("text", ("q",), KernelParameters("k", {"q": "fp16"}, {"q": (64, 64)}, ()), {"D": 64}, "cuda:90")
FIGURES = Figures(196944, 0, 0, 0, (), SPLIT, (240,), (24,), (), 64, 2, 132, 66)
VERDICT = Verdict(**asdict(FIGURES), key=key_of(OF), protocol=CLEAN, compared=GOOD)


FAST = Timed((37.8, 38.0, 38.1), (40.9, 41.2, 41.6), {"n": 512}, "H200")
SLOW = Timed((40.9, 41.2, 41.6), (37.8, 38.0, 38.1), {"n": 512}, "H200")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Asynchronous]]:
    """What would have been compiled; the verdict is that of a clean form without checks."""
    asked: list[Asynchronous] = []

    def examine(of: Asynchronous, split: tuple[int, int]) -> Verdict:
        asked.append(of)
        return replace(VERDICT, key=key_of(of), split=split, protocol=None, compared=None)

    monkeypatch.setattr(verdicts, "examined", examine)
    yield asked


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"shared_bytes": 232449}, "232449 bytes of shared memory"),
    ({"spill_bytes": 104, "local": 4}, "104 bytes a thread are spilled"),
    (
        {"spill_bytes": 8, "local": 4, "local_inner": 3},
        "8 bytes a thread are spilled, 3 accesses to them in inner loops",
    ),
    ({"local": 2}, "2 accesses to local memory"),
    ({"warnings": ("C7510) serialized",)}, "C7510"),
    ({"consumers": (0, 240)}, "registers of the roles"),
    ({"consumers": ()}, "registers of the roles"),
    ({"producers": ()}, "registers of the roles"),
    ({"producers": (40,)}, "registers of the roles"),
    ({"findings": ("0x10 MOV R8, RZ: writes R8",)}, "0x10 MOV"),
    ({"protocol": None}, "its protocol is not checked"),
    ({"protocol": "deadlock"}, "its protocol: deadlock"),
    ({"compared": None}, "not compared"),
    ({"compared": None, "ended": "hung: no answer in 60 s"}, "its comparison with the Triton form hung"),
    ({"timed": SLOW}, "slower than the Triton form: 41.2 µs, 38.0 µs"),
    ({"compared": Compared(3, 1e-2, 8e-3)}, "differ by 0.01"),
    ({"compared": Compared(3, math.nan, 8e-3)}, "differ by nan"),
    ({"compared": Compared(3, math.inf, 8e-3)}, "differ by inf"),
]


@pytest.mark.parametrize(("change", "why"), FAULTS)
def test_each_figure_alone_keeps_a_form_from_running(change: dict[str, Any], why: str) -> None:
    v = replace(VERDICT, **change)
    assert not v.accepted and len(v.faults) == 1 and why in v.faults[0]
    assert not accepted.runs(replace(OF, record=written(v)))


def test_a_clean_form_runs() -> None:
    assert VERDICT.accepted and accepted.runs(replace(OF, record=written(VERDICT)))
    # A consumer may have more registers than asked for: the last allocation takes what is left.
    assert replace(VERDICT, consumers=(240, 248)).accepted
    # Some registers may be read again outside of inner loops.
    assert replace(VERDICT, spill_bytes=accepted.SPARED, local=4).accepted
    assert not accepted.runs(OF)


@pytest.mark.parametrize(
    "other",
    [
        replace(OF, text="text "),
        replace(OF, levers={"D": 128}),
        replace(OF, architecture="cuda:100"),
        replace(OF, kernel=KernelParameters("k", {"q": "bf16"}, {"q": (64, 64)}, ())),
        replace(OF, kernel=KernelParameters("k", {"q": "fp16"}, {"q": (128, 64)}, ())),
        replace(OF, kernel=KernelParameters("k", {"q": "fp16"}, {"q": (64, 64)}, ("q",))),
    ],
)
def test_a_record_is_of_one_text_with_its_constants(other: Asynchronous) -> None:
    assert key_of(other) != key_of(OF)
    assert not accepted.runs(replace(other, record=written(VERDICT)))


def test_a_record_is_of_one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "1")
        assert not accepted.runs(replace(OF, record=written(VERDICT))), name
        monkeypatch.delenv(name)
    monkeypatch.setattr(accepted, "versions", lambda: {"triton": "3.9.0"})
    assert not accepted.runs(replace(OF, record=written(VERDICT)))


def test_a_record_survives_json() -> None:
    for v in (VERDICT, replace(VERDICT, timed=FAST), *(replace(VERDICT, **change) for change, _ in FAULTS[:-3])):
        assert read(json.loads(json.dumps(written(v)))) == v


def test_a_form_of_several_kernels_is_as_good_as_each() -> None:
    two = replace(VERDICT, others=(FIGURES,))
    assert two.accepted and read(json.loads(json.dumps(written(two)))) == two
    worse = replace(VERDICT, others=(FIGURES, replace(FIGURES, spill_bytes=104)))
    assert worse.faults == ("104 bytes a thread are spilled",)
    further = Roles(OF.kernel, OF.levers, SPLIT)
    several = replace(OF, others=(further,))
    keys = {key_of(OF), key_of(several), key_of(replace(OF, others=(replace(further, levers={"D": 32}),)))}
    assert len(keys) == 3
    assert not accepted.runs(replace(several, record=written(VERDICT)))


def broken() -> Iterator[Any]:
    """What is no record: torn, of other types, with more or less in it."""
    whole = written(VERDICT)
    yield from (None, [], "text", 1, {}, {**whole, "format": 1}, {**whole, "accepted": True})
    for name in whole:
        yield {n: v for n, v in whole.items() if n != name}
        for wrong in (None, "x", -1, 1.5, [], [None], {"a": 1}, True):
            if wrong != whole[name] and not (name in ("protocol", "key") and isinstance(wrong, str)):
                allowed = {"protocol": (None,), "compared": (None,), "timed": (None,), "ended": ("x",)}.get(name, ())
                lists = name in ("warnings", "findings", "consumers", "producers", "others") and wrong == []
                if wrong not in allowed and not lists:
                    yield {**whole, name: wrong}
    for name, wrong in itertools.product(("draws", "error", "limit"), (None, "x", -1, [], True)):
        yield {**whole, "compared": {**whole["compared"], name: wrong}}
    for name, wrong in (("error", -1.0), ("limit", math.inf), ("limit", math.nan), ("limit", 1e9), ("limit", -1.0)):
        yield {**whole, "compared": {**whole["compared"], name: wrong}}
    good = asdict(FAST)
    for name, wrong in itertools.product(
        ("asynchronous", "triton"), (None, [1.0], [3.0, 2.0, 4.0], [1, 2, 3], [0.0] * 3)
    ):
        yield {**whole, "timed": {**good, name: wrong}}
    for name, wrong in (("sizes", {"n": 1.5}), ("sizes", None), ("device", 3), ("more", 1)):
        yield {**whole, "timed": {**good, name: wrong}}
    other = asdict(FIGURES)
    for torn in (None, {}, {**other, "more": 1}, {**other, "spill_bytes": None}, {**other, "warnings": "x"}):
        yield {**whole, "others": [other, torn]}


def test_what_is_no_record_is_not_believed() -> None:
    for data in broken():
        assert read(data) is None, data
        assert not accepted.runs(replace(OF, record=data if isinstance(data, dict) else None))


def test_a_verdict_is_kept_and_filled_in(cache: Path, examined: list[Asynchronous]) -> None:
    without = verdicts.judged(OF, SPLIT)
    assert without is not None and without.faults == ("its protocol is not checked", "not compared")
    assert not accepted.runs(replace(OF, record=written(without)))
    # Later, where there is a GPU: only what is missing is done.
    calls: list[str] = []

    def protocol() -> str:
        calls.append("protocol")
        return CLEAN

    def compare() -> Compared:
        calls.append("compare")
        return GOOD

    for _ in range(2):
        whole = verdicts.judged(OF, SPLIT, protocol=protocol, compare=compare)
        assert whole is not None and whole.accepted
    assert calls == ["protocol", "compare"] and len(examined) == 1
    assert verdicts.known(OF) == whole
    # A saved kernel brings its own, without a cache.
    for path in (cache / verdicts.FOLDER).iterdir():
        path.unlink()
    assert verdicts.known(OF) is None and verdicts.known(replace(OF, record=written(whole))) == whole
    assert verdicts.known(replace(OF, text="another", record=written(whole))) is None


@pytest.mark.parametrize(
    ("timed", "slower"),
    [
        (FAST, False),
        (SLOW, True),
        (Timed((38.0, 41.2, 41.6), (37.8, 38.0, 38.1), {}, ""), False),
        (Timed((38.2, 41.2, 41.6), (37.8, 38.0, 38.1), {}, ""), True),
    ],
)
def test_a_slow_form_runs_where_it_is_forced(timed: Timed, slower: bool) -> None:
    v = replace(VERDICT, timed=timed)
    assert timed.slower == slower and v.accepted != slower and not v.wrong
    assert accepted.runs(replace(OF, record=written(v))) != slower
    assert accepted.runs(replace(OF, record=written(v), forced=True))
    wrong = replace(v, spill_bytes=104)
    assert not accepted.runs(replace(OF, record=written(wrong), forced=True)), "what is wrong is never forced"


def test_times_are_kept_for_a_form_and_what_it_is_timed_beside(cache: Path) -> None:
    asked: list[str] = []

    def measure(made: Any) -> Any:
        asked.append("measured")
        return made

    for _ in range(2):
        assert verdicts.timed(OF, VERDICT, "one", lambda: measure(SLOW)).timed == SLOW
    assert verdicts.timed(OF, VERDICT, "other", lambda: measure(FAST)).timed == FAST
    assert len(asked) == 2
    # What could not be measured is tried again; what hung is not.
    assert verdicts.timed(OF, VERDICT, "third", lambda: measure(None)) == VERDICT
    hung = verdicts.timed(OF, VERDICT, "third", lambda: measure("hung: no answer in 60 s"))
    assert not hung.accepted and verdicts.known(OF) == hung and len(asked) == 4
    assert verdicts.timed(OF, hung, "fourth", lambda: measure(FAST)) == hung and len(asked) == 4
    assert verdicts.timed(replace(OF, text="other"), VERDICT, "one", lambda: measure(FAST)).timed == FAST
    for path in (cache / verdicts.FOLDER).iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert verdicts.timed(OF, VERDICT, "one", lambda: measure(FAST)).timed == FAST, "a torn file is not there"


def test_nothing_is_timed_while_a_graph_is_captured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "capturing", lambda: True)

    def never() -> Timed:
        raise AssertionError("it was run")

    assert verdicts.timed(OF, VERDICT, "one", never) == VERDICT


@pytest.mark.usefixtures("cache")
def test_how_a_comparison_ended_is_kept(examined: list[Asynchronous]) -> None:
    def ask(came: Compared | str | None) -> Verdict | None:
        return verdicts.judged(OF, SPLIT, protocol=lambda: CLEAN, compare=lambda: came)

    nothing, hung = ask(None), ask("hung: no answer in 60 s")
    assert nothing is not None and nothing.faults == ("not compared",)
    assert hung is not None and not hung.accepted and hung.compared is None
    assert ask(GOOD) == hung, "it is not run again"


@pytest.mark.usefixtures("cache")
def test_a_form_is_compiled_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asynchronous] = []
    go = threading.Event()

    def examine(of: Asynchronous, split: tuple[int, int]) -> Verdict | TargetError:
        asked.append(of)
        assert go.wait(60)
        if of.text == "refused":
            return TargetError("compile", "it is refused")
        return replace(VERDICT, key=key_of(of), split=split, protocol=None, compared=None)

    monkeypatch.setattr(verdicts, "examined", examine)
    verdicts.begun(OF, SPLIT)
    go.set()
    found = verdicts.judged(OF, SPLIT)
    assert found is not None and found.split == SPLIT and len(asked) == 1
    verdicts.begun(OF, SPLIT)
    assert verdicts.judged(OF, SPLIT) == found and len(asked) == 1, "it is known by then"
    wrong = replace(OF, text="refused")
    verdicts.begun(wrong, SPLIT)
    refused = verdicts.judged(wrong, SPLIT)
    assert isinstance(refused, TargetError) and "refused" in str(refused)
    # Another split of registers is another question.
    other = replace(OF, text="other")
    verdicts.begun(other, (232, 40))
    again = verdicts.judged(other, SPLIT)
    assert again is not None and again.split == SPLIT


@pytest.mark.usefixtures("cache")
def test_a_form_with_a_fault_is_never_run(examined: list[Asynchronous]) -> None:
    def never() -> Compared:
        raise AssertionError("it was run")

    found = verdicts.judged(OF, SPLIT, protocol=lambda: "deadlock in iteration 2", compare=never)
    assert found is not None and not found.accepted
    assert verdicts.judged(OF, SPLIT, compare=never) == found


def test_nothing_is_compiled_while_a_graph_is_captured(
    cache: Path, examined: list[Asynchronous], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "capturing", lambda: True)
    assert verdicts.judged(OF, SPLIT) is None and not examined
    verdicts.shelf(cache).write(VERDICT.key, json.dumps(written(VERDICT)).encode())
    assert verdicts.judged(OF, SPLIT) == VERDICT


def _torn(data: bytes) -> Iterator[bytes]:
    yield from (data[:n] for n in (0, 1, len(data) // 2, len(data) - 1))
    yield data.replace(b'"spill_bytes": 0', b'"spill_bytes": 1')
    yield b"{}"


def test_torn_and_foreign_records_are_not_there(cache: Path) -> None:
    records = verdicts.shelf(cache)
    records.write(VERDICT.key, json.dumps(written(VERDICT)).encode())
    path = records.path(VERDICT.key)
    whole = path.read_bytes()
    for data in _torn(whole):
        path.write_bytes(data)
        assert verdicts.known(OF) is None
    # Of another form, under this key.
    records.write(VERDICT.key, json.dumps(written(replace(VERDICT, key="0" * 64))).encode())
    assert verdicts.known(OF) is None
    # Whole, but no record.
    for data in itertools.islice(broken(), 0, None, 7):
        records.write(VERDICT.key, json.dumps(data).encode())
        assert verdicts.known(OF) is None
    path.write_bytes(whole)
    assert verdicts.known(OF) == VERDICT
    path.chmod(0o666)
    assert verdicts.known(OF) is None, "somebody else could have written it"


def test_a_compiled_kernel_has_its_figures() -> None:
    made = compiling.built(128, True)
    v = verdicts.verdict("0" * 64, made, SPLIT)
    assert v.faults == ("its protocol is not checked", "not compared")
    assert (v.products, v.in_flight, v.exps) == (64, 2, 132)
    wrong = verdicts.verdict("0" * 64, compiling.built(128, wrong=True), SPLIT)
    assert "left operand" in wrong.faults[0] and len(wrong.findings) == 10
    assert read(json.loads(json.dumps(written(wrong)))) == wrong


def _code(cubin: bytes) -> dict[str, bytes]:
    """The sections of an ELF file that hold machine code."""
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]

    def name(offset: int) -> str:
        start = heads[names][4] + offset
        return cubin[start : cubin.index(b"\0", start)].decode()

    return {name(h[0]): cubin[h[4] : h[4] + h[5]] for h in heads if name(h[0]).startswith(".text.")}


def test_what_is_launched_is_what_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch with tensors makes the code that compiling by `KernelParameters` makes, whatever the sizes."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=3))
    made = of_attention(64, Levers(2, 2, "table", True, False, {"BLOCK_M": 64, "BLOCK_N": 64}))
    looked_at = _code(compile_gluon(made.text, made.kernel).cubin)
    assert [len(c) > 10000 for c in looked_at.values()] == [True]
    with stub_driver.installed():
        run, log = recording(load_source(made.text).prefill_causal, JITFunction, {})
        for heads, length in ((1, 1), (2, 64), (3, 200)):
            # Of every second head, rows with a gap behind them.
            run(*(torch.zeros(1, 2 * heads, length + 3, 64).half()[:, ::2, :length] for _ in range(4)))
    assert len(log) == 3
    for r in log:
        assert _code(r.compiled.asm["cubin"]) == looked_at


# --- numbers -------------------------------------------------------------------------------------

PROGRAM = parse_program(
    "program double\n  in x: f16[n]\n  out y: f16[n]\n  scalar n: i32 lo 1\nbody:\n"
    "  for i in [0, n):\n    y: y[i] = x[i] + x[i]\n"
)
SIZES = [{"n": 64}, {"n": 7}]


def doubled(args: Any, outputs: Any, at: Any = None) -> None:
    outputs[0].copy_(args[0] + args[0])


def _changed(change: Callable[[torch.Tensor], None], every: int = 1) -> Any:
    count = itertools.count()

    def run(args: Any, outputs: Any, at: Any) -> None:
        doubled(args, outputs)
        if next(count) % every == every - 1:
            change(outputs[0])

    return run


def test_equal_results_are_accepted() -> None:
    found = compared(PROGRAM, doubled, doubled, SIZES, "cpu")
    assert found == Compared(2 * DRAWS, 0.0, limit(PROGRAM)) and 0 < found.limit < 0.01
    near = compared(PROGRAM, _changed(lambda y: y.mul_(1 + 2**-10)), doubled, SIZES, "cpu")
    assert 0 < near.error <= near.limit


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y[3].add_(0.25),
        lambda y: y[6:].fill_(math.nan),
        lambda y: y[:1].fill_(math.inf),
        lambda y: y.neg_(),
    ],
)
def test_wrong_results_are_not(change: Callable[[torch.Tensor], None]) -> None:
    for every in (1, REPEATS):
        found = compared(PROGRAM, _changed(change, every), doubled, SIZES, "cpu")
        assert not found.error <= found.limit
        assert every == 1 or found.error == math.inf, "results that change between launches"


@pytest.mark.parametrize("pair", [(math.inf, math.nan), (math.nan, math.inf), (math.inf, -math.inf), (1.0, math.nan)])
def test_what_is_no_number_has_its_place(pair: tuple[float, float]) -> None:
    a, b = (_changed(lambda y, v=v: y[:1].fill_(v)) for v in pair)  # type: ignore[misc]
    assert compared(PROGRAM, a, b, SIZES, "cpu").error == math.inf
    assert compared(PROGRAM, a, a, SIZES, "cpu").error == 0.0


def test_an_element_that_no_form_writes_is_an_error() -> None:
    def nothing(args: Any, outputs: Any, at: Any) -> None:
        """Leaves outputs as they are."""

    assert compared(PROGRAM, nothing, nothing, SIZES, "cpu").error == math.inf
