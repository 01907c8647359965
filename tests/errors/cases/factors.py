"""hoist_factor: factors that are not taken out of a sum."""

from __future__ import annotations

import pytest

from neptune.errors import FusionError, ScheduleError
from neptune.frontend.builder import build, compute, max, placeholder, reduce_axis
from neptune.fusion import hoist_factor
from neptune.fusion.prove import Unproved
from neptune.fusion.repairs.roles import ObligationRecord, Query, Repair
from neptune.fusion.repairs.symbols import Symbols
from neptune.fusion.schedule import Schedule
from neptune.ir.text.parser import parse_program
from tests.errors.table import case
from tests.examples.hidden_products import K, M, rms_linear, wide
from tests.unit.fusion.test_hoist_factor import shorter, steep, sums


@case(ScheduleError)
def hoist_out_of_a_maximum():
    x, q = placeholder((M, K), name="x"), reduce_axis((0, K), "q")
    Schedule(build(compute((M,), lambda i: max(x[i, q] * 2.0, axis=q), "y"))).hoist_factor("y")


@case(ScheduleError)
def hoist_out_of_a_tiled_sum():
    sch = Schedule(rms_linear())
    sch.split(sch.loops("y")[2], 16)
    sch.hoist_factor("y")


@case(ScheduleError)
def hoist_out_of_a_fused_sum():
    sch = Schedule(rms_linear(stored="float16"))
    sch.fuse_at("out", sch.loops("y")[1])
    sch.hoist_factor("y")


@case(FusionError)
def hoist_out_of_a_sum_of_float16():
    Schedule(sums(lambda x, r: x * r, dtype="float16")).hoist_factor("y")


@case(FusionError)
def hoist_out_of_a_sum_that_starts_from_1():
    Schedule(sums(lambda x, r: x * r, init=1.0)).hoist_factor("y")


@case(FusionError)
def hoist_out_of_a_guarded_sum():
    text = str(sums(lambda x, r: x * r)).replace("init 0.0", "init 0.0 when q < 3")
    Schedule(parse_program(text)).hoist_factor("y")


@case(FusionError)
def hoist_out_of_a_sum_of_perhaps_nothing():
    Schedule(shorter()).hoist_factor("y")


@case(FusionError)
def hoist_what_moves():
    Schedule(sums(lambda x, r: x + r)).hoist_factor("y")


@case(FusionError)
def hoist_what_is_rounded():
    Schedule(rms_linear(lambda x, r, w: wide((x * r).astype("float16")) * w)).hoist_factor("y")


@case(FusionError)
def hoist_what_keeps_a_sum_in_range():
    Schedule(steep()).hoist_factor("y")


@case(FusionError)
def hoist_without_a_proof(monkeypatch: pytest.MonkeyPatch):
    def unproved(query: Query, symbols: Symbols, repair: Repair) -> Unproved:
        return Unproved(ObligationRecord("split", "g = (c)*(r)", "SymPy: the difference does not simplify to 0"))

    monkeypatch.setattr(hoist_factor, "prove", unproved)
    Schedule(sums(lambda x, r: x * r)).hoist_factor("y")
