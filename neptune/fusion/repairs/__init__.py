"""Repairs, found and proved: the question, its solvers in their order, and the obligations that each answer owes."""
