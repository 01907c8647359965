"""The reference meaning of programs: values of a domain in, values out. Needs numpy, and nothing that compiles."""
