"""The command line: `neptune compile`, `neptune explain`, `neptune check-env`."""

from __future__ import annotations

import sys

from neptune.versions import install


def main() -> None:
    """Entry point of the `neptune` command; its packages are an extra, and their absence is said in one line."""
    try:
        from neptune.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"the neptune command needs {error.name}: {install('cli')}", file=sys.stderr)
        raise SystemExit(2) from None
    app(prog_name="neptune")
