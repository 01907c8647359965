"""Compiling through µGraphs: search, verdicts, measured winners."""
