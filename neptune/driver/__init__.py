"""Compiling: a request through its passes to a kernel, with the cache of what was compiled."""
