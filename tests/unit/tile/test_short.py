"""One instruction for tanh: where results cannot tell, in the stages that were asked, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import neptune
from neptune.driver.explanation import short_functions
from neptune.forms import Wanted
from neptune.hopper.choice.wanted import times
from neptune.hopper.ir import Levers
from neptune.ir.analysis.forms import Taken, cheaper
from neptune.ops.shipped import OPERATORS
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import Assign, Local, TileKernel, TStmt
from neptune.tile.passes.short import shortened, taken_in
from neptune.tile.passes.util import Block, map_blocks
from neptune.tile.pipeline import lower
from tests.examples.lowering import scheduled
from tests.examples.walks import walked


def softcap(**options: Any) -> Any:
    return OPERATORS["prefill_softcap"](**{"depth": 64, **options})


def kernel() -> TileKernel:
    (made,) = lower(scheduled(cheaper(softcap())[0], flash_attention)).kernels
    return made


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, ["score"]),
        # What a sink adds to the maximum is not known to cancel.
        ({"sinks": True}, []),
        ({"dtype": "bfloat16"}, ["score"]),
        ({"softcap": 61.0}, ["score"]),
        # The bound of its error is that of two roundings to float16.
        ({"softcap": 62.0}, []),
        ({"softcap": 62.0, "dtype": "bfloat16"}, ["score"]),
        ({"dtype": "float32"}, []),
        ({"lse": True}, []),
    ],
)
def test_where_results_cannot_tell(options: dict[str, Any], stages: list[str]) -> None:
    assert [t.stage for t in short_functions(softcap(**options))] == stages


def test_the_instruction_takes_the_place_of_the_form() -> None:
    made = shortened(kernel(), ["score"])
    text = str(made)
    assert "rsqrt" in str(kernel()) and "rsqrt" not in text
    assert text.count("'tanh_approx'") == str(kernel()).count("'rsqrt'") > 0 and taken_in(made) == ["score"]


def test_other_stages_keep_the_form() -> None:
    assert shortened(kernel(), ["p"]) == kernel() == shortened(kernel(), [])


def test_an_argument_that_changes_in_between_keeps_the_form() -> None:
    """`s` is set again between the root and the score: the root is of another value."""

    def with_another(block: Block) -> Block:
        out: list[TStmt] = []
        for x in block:
            out.append(x)
            if isinstance(x, Assign) and "rsqrt" in x.name:
                out.append(Assign("s", Local("s", ("i1", "j1"), "float32"), "s"))
        return tuple(out)

    of = replace(kernel(), body=map_blocks(kernel().body, with_another))
    assert of != kernel() and shortened(of, ["score"]) == of


def test_the_kernel_and_its_explanation() -> None:
    made = neptune.compile(softcap(), "flash_attention", target="cuda:90", form="asynchronous")
    assert "_tanh_approx(" in made.source and "rsqrt" not in made.source.split("_consumer")[1].split("@gluon.jit")[0]
    assert "score: tanh by one instruction, off by 8e-06 at most" in made.explain()
    # On tiles the form stays, which every machine has.
    assert "tanh_approx" not in neptune.compile(softcap(), "flash_attention", target="cuda:90").source


def test_the_instruction_counts_where_times_are_predicted() -> None:
    """Of the form alone: on tiles tanh stays as long as it is."""
    tiles = lower(scheduled(cheaper(softcap())[0], flash_attention))
    sizes = {"batch": 1, "s_q": 4096, "s_kv": 4096}
    on_tiles = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    of = Wanted(sizes=sizes, on_tiles=on_tiles, short=(Taken("score", ("tanh",), {}),))
    levers = Levers(2, 2, "table", tiles={"BLOCK_N": 128})
    short, long = (times(w, tiles, walked(tiles), levers) for w in (of, replace(of, short=())))
    assert short is not None and long is not None
    assert short["us"] < 0.8 * long["us"] and short["triton"] == long["triton"]
