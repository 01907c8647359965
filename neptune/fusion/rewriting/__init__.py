"""Rewriting of loops by a proved repair: its plan, the maps that are brought in, and what is written where."""
