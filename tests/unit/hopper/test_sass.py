"""The linter over machine code, on listings whose answer is known. `test_compiled.py` has it on real kernels."""

from __future__ import annotations

import pytest

from neptune.hopper.validate.sass import Lint, lint
from neptune.runtime.machine_code.listing import functions, loops
from tests.examples.listings import listing

PRODUCT = "HGMMA.64x16x16.F32 R24, R8, gdesc[UR4], R24, gsb0"
"""Owns R24–R31 and, until the wait, R8–R11."""
SHARED = "HGMMA.64x16x16.F32 R40, gdesc[UR8], R40, gsb0"
"""Owns R40–R47: its left operand lies in shared memory."""
UNIFORM = [f"R2UR UR{k}, R2" for k in range(4, 48)]
FENCE = "WARPGROUP.ARRIVE"
WAIT, WAIT_1 = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"


def found(*lines: str, fenced: bool = True) -> Lint:
    """The verdict; with a fence in front of each product, where it is not about fences."""
    before = [FENCE] if fenced else []
    code = [x for line in lines for x in ([*before, line] if "HGMMA" in line else [line])]
    (one,) = lint(listing(*UNIFORM, *code, "EXIT"))
    return one


def wrong(*lines: str, fenced: bool = True) -> list[str]:
    """The instructions that break the rule."""
    return [f.instruction for f in found(*lines, fenced=fenced).findings]


@pytest.mark.parametrize(
    "op",
    [
        "FFMA R9, R0, R1, R2",
        "MOV R11, RZ",
        "@P0 MOV R8, RZ",  # a guarded write counts
        "MUFU.EX2 R10, R10",
        "F2FP.F16.F32.PACK_AB R8, R3, R2",
        "LDS.128 R8, [R2+0x10]",
        "LDSM.16.M88.4 R8, [R2]",
        "LDG.E.64 R10, desc[UR6][R2.64]",
        "IMAD.WIDE R10, R2, 0x4, R4",
        "SHFL.BFLY PT, R8, R5, 0x2, 0x1f",
        "LOP3.LUT P0, R11, R0, 0x1f, RZ, 0xc0, !PT",
        "CS2R R8, SRZ",
        "ATOMG.E.ADD.STRONG.GPU PT, R8, desc[UR6][R2.64], R5",
        "HMMA.16816.F32 R4, R12, R16, R4",  # writes R4–R7 only: see below
    ],
)
def test_the_left_operand_of_a_product_in_flight_may_not_be_written(op: str) -> None:
    clean = op.startswith("HMMA")
    assert wrong(PRODUCT, op, WAIT) == ([] if clean else [op.removeprefix("@P0 ")])
    assert not wrong(PRODUCT, WAIT, op), "after the wait it may"
    assert not wrong(op, PRODUCT, WAIT), "before it may"


@pytest.mark.parametrize(
    "op", ["FADD R0, R25, R1", "STG.E.128 desc[UR6][R2.64], R28", "MOV R31, RZ", "STSM.16.M88.4 [R2], R22"]
)
def test_an_accumulator_in_flight_may_neither_be_read_nor_written(op: str) -> None:
    assert wrong(PRODUCT, op, WAIT) == [op]
    assert not wrong(PRODUCT, WAIT, op)


@pytest.mark.parametrize(
    "op", ["FADD R0, R8, R9", "UMOV UR5, URZ", "MOV R12, R11", "ISETP.GE.AND P0, PT, R8, R9, PT", "STS [R8], R9"]
)
def test_reading_the_left_operand_and_touching_others_is_right(op: str) -> None:
    assert not wrong(PRODUCT, op, WAIT)


def test_a_wait_for_all_but_one_covers_the_older() -> None:
    first, second = "MOV R8, RZ", "MOV R40, RZ"
    assert wrong(PRODUCT, SHARED, WAIT_1, first, second, WAIT) == [second]
    assert wrong(SHARED, PRODUCT, WAIT_1, first, second, WAIT) == [first]


def test_a_product_without_the_mark_belongs_to_the_group_of_the_next() -> None:
    open_, late = PRODUCT.removesuffix(", gsb0"), "MOV R8, RZ"
    assert wrong(open_, late, PRODUCT, WAIT) == [late]
    # One group of two products: the wait leaves it in flight.
    assert wrong(open_, SHARED, WAIT_1, late, WAIT) == [late]
    assert found(open_, SHARED, WAIT).in_flight == 1 and found(PRODUCT, SHARED, WAIT).in_flight == 2


def test_a_product_around_a_loop_is_followed() -> None:
    late = "MOV R9, RZ"
    loop = (".L_x_0", late, WAIT, PRODUCT, "@P0 BRA `(.L_x_0)", WAIT)
    assert wrong(*loop) == [late], "the write of the next iteration comes before its wait"
    assert not wrong(".L_x_0", WAIT, late, PRODUCT, "@P0 BRA `(.L_x_0)", WAIT)
    assert not wrong(".L_x_0", late, PRODUCT, WAIT, "@P0 BRA `(.L_x_0)")


def test_every_path_to_a_join_counts() -> None:
    late = "MOV R9, RZ"
    waits_on_one = ("@P0 BRA `(.L_x_0)", WAIT, ".L_x_0", late, WAIT)
    assert wrong(PRODUCT, *waits_on_one) == [late]
    # A product on one path only, and a wait that is guarded.
    assert wrong("@P0 BRA `(.L_x_0)", PRODUCT, ".L_x_0", late, WAIT) == [late]
    assert wrong(PRODUCT, f"@P0 {WAIT}", late, WAIT) == [late]
    # Of two products the newer is guarded: what is left in flight may be the older.
    assert wrong(PRODUCT, f"@P0 {SHARED}", WAIT_1, late, WAIT) == [late]
    # Reconvergence: threads go on where BSSY says.
    assert wrong("BSSY B0, `(.L_x_1)", PRODUCT, "BSYNC B0", WAIT, ".L_x_1", late, WAIT) == [late]


def test_products_go_on_with_an_accumulator_and_with_nothing_else() -> None:
    assert not wrong(PRODUCT, PRODUCT, WAIT)
    over = "HGMMA.64x16x16.F32 R8, gdesc[UR8], RZ, !UPT, gsb0"
    reads = "HGMMA.64x16x16.F32 R48, R28, gdesc[UR8], R48, gsb0"
    assert wrong(PRODUCT, over, WAIT) == [over]
    assert wrong(PRODUCT, reads, WAIT) == [reads]


@pytest.mark.parametrize(
    "op",
    [
        "QUUX R60, R61",
        "CALL.REL.NOINC `(.L_x_9)",
        "BRX R2 -0x190",
        "RET.REL.NODEC R20 0x0",
        "BRA 0x1230",
        "USETMAXREG.DEALLOC.CTAPOOL 0x18",
    ],
)
def test_what_cannot_be_followed_is_no_acceptance(op: str) -> None:
    assert wrong(PRODUCT, op, WAIT) == [op]
    assert not wrong(PRODUCT, WAIT, op)


def test_a_product_that_nothing_waits_for() -> None:
    (finding,) = found(PRODUCT).findings
    assert (
        finding.instruction == "EXIT"
        and "before the wait" in str(finding)
        and f"{finding.product:#06x}" in str(finding)
    )


def test_a_form_that_is_not_known_is_refused() -> None:
    sparse = "HGMMA.SP.64x16x16.F32 R24, R8, gdesc[UR4], R24, gsb0"
    assert wrong(sparse, WAIT) == [sparse]


def test_a_branch_to_a_label_that_is_not_there_cannot_be_followed() -> None:
    assert wrong(PRODUCT, "@P0 BRA `(.L_x_99)", WAIT) == ["BRA `(.L_x_99)"]


def test_a_wait_for_other_groups_covers_nothing() -> None:
    assert wrong(PRODUCT, "WARPGROUP.DEPBAR.LE gsb1, 0x0", "MOV R8, RZ", WAIT) == ["MOV R8, RZ"]


@pytest.mark.parametrize("late", ["MOV R8, RZ", "@P0 MOV R9, RZ", "MOV R24, RZ", "LDS.128 R28, [R2]"])
def test_what_a_product_takes_is_written_before_its_fence(late: str) -> None:
    def taken(*lines: str) -> list[str]:
        return wrong(*lines, fenced=False)

    assert taken(FENCE, late, PRODUCT, WAIT) == [PRODUCT]
    assert not taken(late, FENCE, PRODUCT, WAIT)
    assert not taken(FENCE, "MOV R12, RZ", PRODUCT, WAIT)
    # Another product may go on with the accumulator, without a fence of its own.
    assert not taken(late, FENCE, PRODUCT, PRODUCT, WAIT)
    # Around a loop, and on one path to a join.
    assert taken(FENCE, ".L_x_0", PRODUCT, WAIT, late, "@P0 BRA `(.L_x_0)") == [PRODUCT]
    assert not taken(".L_x_0", FENCE, PRODUCT, WAIT, late, "@P0 BRA `(.L_x_0)")
    assert taken(FENCE, "@P0 BRA `(.L_x_0)", late, ".L_x_0", PRODUCT, WAIT) == [PRODUCT]
    assert taken(late, f"@P1 {FENCE}", PRODUCT, WAIT) == [PRODUCT]


def test_figures() -> None:
    one = found(
        "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0",
        ".L_x_0",
        SHARED,
        "MUFU.EX2 R0, R0",
        WAIT,
        "MUFU.EX2 R1, R1",
        "LDL R1, [R1]",
        "@P0 BRA `(.L_x_0)",
        "STL [R1+0x4], R5",
        "LDL R5, [R1+0x4]",
        "EXIT",
        ".L_x_1",
        "USETMAXREG.DEALLOC.CTAPOOL 0x18",
        "UTMALDG.2D [UR8], [UR4]",
        "@P0 BRA `(.L_x_1)",
    )
    assert (one.findings, one.products, one.in_flight) == ((), 1, 1)
    assert (one.exps, one.overlapped, one.local, one.local_inner) == (2, 1, 3, 1)
    assert (one.consumers, one.producers) == ((240,), (24,))


def test_a_role_that_an_indirect_branch_leads_to_has_loops_too() -> None:
    (f,) = functions(listing("BRX R2 -0x10", ".L_x_0", "NOP", "@P0 BRA `(.L_x_0)", "EXIT"))
    assert [[f.starts[b] for b in loop.blocks] for loop in loops(f)] == [[1]]


def test_more_groups_than_a_wait_can_name_end() -> None:
    late = "MOV R9, RZ"
    assert wrong(".L_x_0", PRODUCT, "@P0 BRA `(.L_x_0)", "WARPGROUP.DEPBAR.LE gsb0, 0x7", late, WAIT) == [late]
