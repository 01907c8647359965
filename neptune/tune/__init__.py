"""The cost model: what a kernel takes at given sizes, and which template, tiles and form a call should have."""
