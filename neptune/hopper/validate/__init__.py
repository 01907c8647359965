"""What a compiled kernel is found to be: its machine code, its results and its times, and the verdict that is kept."""
