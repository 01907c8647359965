"""The search for µGraphs: kernels of so many operators, and what prunes them."""
