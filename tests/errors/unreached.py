"""Places that no must-fail program reaches, each with its reason."""

UNREACHED: dict[str, str] = {}
