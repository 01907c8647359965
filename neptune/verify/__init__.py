"""Exact checks: a program that was made computes what the user's does, decided over fields and rationals."""
