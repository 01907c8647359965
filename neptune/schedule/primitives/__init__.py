"""Primitives of structure: functions from a state and arguments to the next state, each atomic and recorded."""
