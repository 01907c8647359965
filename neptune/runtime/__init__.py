"""Calling a compiled kernel: arguments, sizes, variants and launches. It imports nothing that compiles."""
