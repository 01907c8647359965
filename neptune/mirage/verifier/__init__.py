"""Whether a µGraph is the program: its values in finite fields, bounds, proofs for all sizes, and the verdict."""
