"""Figures 10 and 11: rolling update of Figure 1 step by step, and privatisation on top of it.

python -m appendix_examples.figures_10_11
"""

from __future__ import annotations

from typing import Any

import neptune
from appendix_examples.figure_1 import expression, result
from neptune.driver.pipeline import as_program


def original() -> neptune.Program:
    return as_program(expression(), name="figure_10")


def privatised(m: Any = 2, n: Any = 4) -> neptune.Schedule:
    """Figure 11: tiles of two columns, the rolling update over tiles, and a local accumulator for each tile."""
    sch = neptune.Schedule(as_program(expression(m, n), name="figure_11"))
    sch.inline("xexp")
    j1, _ = sch.split(sch.loops("xmax")[1], 2)
    sch.rolling_update("xsum", j1)
    sch.privatize("xmax", j1)
    sch.privatize("xsum", j1)
    return sch


def main() -> None:
    sch = neptune.Schedule(original())
    sch.inline("xexp")
    print("Figure 10, step 1, dataflow: xexp is written out in xsum, whose reduce predecessor is then xmax.\n")
    print(sch.program)

    sch.fuse_at("xsum", sch.loops("xmax")[1])
    print("Step 2, loops: naive fusion puts xsum under loop j of xmax. It is wrong, and owes a repair.\n")
    print(f"{sch.program}\nxsum = {result(sch.program)}\n")

    sch = neptune.Schedule(original())
    sch.rolling_update("xsum", sch.loops("xmax")[1])
    decision = sch.decisions[-1]
    print("Steps 3 and 4, pattern and repair: g is matched, h is solved, and every obligation is proved.\n")
    print("\n".join(f"  {line}" for line in decision.details))

    print("\nStep 5: the previous value of xmax is kept, and h is applied to xsum before each addition. (Here xexp")
    print(f"stays a statement of its own: it is written out for the proof only.)\n\n{sch.program}")
    print(f"xsum = {result(sch.program)}\n")

    made = privatised()
    print("Figure 11: in tiles of two columns, with a local maximum and a local sum for each tile.\n")
    print(f"{made.program}\nxsum = {result(made.program)}")


if __name__ == "__main__":
    main()
