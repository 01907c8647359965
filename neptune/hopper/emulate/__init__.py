"""Runs the text of a Gluon kernel without a GPU, with an adversary as scheduler.

    run(text, "attention_kernel", (programs,), args, seed=3, order="late")      one launch on numpy arrays
    load(text, seed=3)["launch"](…)                                             the module's own functions, torch on CPU

Global memory among `args` is a numpy array, `Tensor(array, "bfloat16")`, or a CPU tensor of torch; a descriptor is
`Descriptor(Tensor(array), block)`; scalars and constexprs are numbers. Each role of `gl.warp_specialize` is a thread
that has its turn when the scheduler says so; copies land and products read their operands as late as waits allow,
buffers hold NaN where nobody may read them, so that a protocol that is wrong shows as NaN, as a wrong number, or as a
ProtocolError with role, line and barrier. That it is right for all interleavings is `neptune.hopper.protocol`'s to
say.
"""

from neptune.hopper.emulate.launch import load, run
from neptune.hopper.emulate.memory import Descriptor, Tensor
from neptune.hopper.emulate.roles import ProtocolError

__all__ = ["Descriptor", "ProtocolError", "Tensor", "load", "run"]
