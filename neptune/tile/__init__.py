"""The tile IR: what one program of a kernel does on whole tiles, how loops become that, and passes over it."""
