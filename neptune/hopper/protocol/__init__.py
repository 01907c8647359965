"""Proves that the roles of a Gluon kernel keep in step, from its text (docs/hopper_protocol.md).

    made = trace(text, "kernel", (programs,), args)    what each role does, and what is wrong with one by itself
    traces(text, lambda m: m["launch"](q, k, v, o))    the same of all programs of a launch
    causal(made)                                       what is wrong in any interleaving, from one run: milliseconds
    explore(made)                                      all interleavings, state by state, as a second opinion

`neptune.hopper.protocol.check.check` does this for several launches at once.
"""

from neptune.hopper.protocol.actions import Action, Finding, Trace
from neptune.hopper.protocol.causal import causal
from neptune.hopper.protocol.explore import Explored, explore
from neptune.hopper.protocol.trace import trace, traces

__all__ = ["Action", "Explored", "Finding", "Trace", "causal", "explore", "trace", "traces"]
