"""Schedules: a state, and primitives that map it to the next one or say why they cannot."""
