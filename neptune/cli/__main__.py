"""`python -m neptune.cli`: the same as the `neptune` command."""

from neptune.cli import main

main()
