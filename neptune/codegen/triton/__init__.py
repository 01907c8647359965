"""TilePrograms as Triton source: a module a program, its kernels, and the function that launches them."""
