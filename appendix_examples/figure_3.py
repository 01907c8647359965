"""Figure 3: Figure 1 under split-k: parts of a row are folded side by side, and repaired when they are combined.

python -m appendix_examples.figure_3
"""

from __future__ import annotations

import neptune
from appendix_examples.figure_1 import expression, result
from neptune.driver.pipeline import as_program


def split() -> neptune.Schedule:
    """Each row in two parts."""
    sch = neptune.Schedule(as_program(expression(), name="figure_3"))
    sch.split_k(sch.loops("xmax")[1], 2)
    return sch


def main() -> None:
    sch = split()
    print("Split-k splits the definitions: a local maximum and a local sum for each part, and global ones of these.")
    print("The local sum reads the maximum of its own part; the global one repairs it on the right of +.\n")
    print(sch.program)
    print("The repair is the one of the rolling update, from the part's maximum to the whole one's:\n")
    decision = next(d for d in sch.decisions if d.subject == "xsum")
    print("\n".join(f"  {line}" for line in decision.details))

    sch.inline("xexp")
    _, i, _ = sch.loops("xmax_split")
    sch.fuse_at("xsum_split", i)
    print("\nThe local stages in one nest, as in the figure. No loop carries one part to the next.\n")
    print(f"{sch.program}\nxsum = {result(sch.program)}")


if __name__ == "__main__":
    main()
