"""Machine code for tests, as text."""

from __future__ import annotations


def listing(*lines: str) -> str:
    """SASS as nvdisasm prints it: `.L_x_0` alone is a label, anything else an instruction."""
    text, address = [".text.kernel:"], 0
    for line in lines:
        if line.startswith(".L"):
            text.append(f"{line}:")
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(text)
