"""Worker processes, and Triton's interpreter in one of them."""
