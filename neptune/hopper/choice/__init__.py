"""Which form parameters a kernel takes: what fits a processor, what is predicted of it, what a caller asks for."""
