"""Operators that ship, as expressions of the builder: attention, norms, softmax, products, and more."""
