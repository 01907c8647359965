"""Launches: targets, the launches that a function makes, and the plans that later calls replay."""
