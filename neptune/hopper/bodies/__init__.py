"""Role bodies on tiles, before any synchronisation: what a producer loads and what each of its consumers computes."""
