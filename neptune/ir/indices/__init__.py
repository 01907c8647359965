"""Algebra of indices and sizes: integers with symbolic coefficients, their extremes, and whether they fit a width."""
