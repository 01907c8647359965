"""Role bodies with their synchronisation: rings, waits and releases derived from dependences, and verified."""
