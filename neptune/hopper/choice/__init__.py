"""The choice of form parameters: what fits a processor, what is predicted of it, what a caller asks for."""
