"""Fusing chains of reductions: which repairs make a fused loop right, found, proved and written into the program."""
