"""The validation of a compiled kernel: its machine code, its results and its times, and the verdict that is kept."""
