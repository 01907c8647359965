"""Measurements that are kept: lines of text, the store that they are in, and how much of them to believe."""
