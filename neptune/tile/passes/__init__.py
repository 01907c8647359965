"""Passes over tile programs, each one a function from a kernel to a kernel."""
