"""What every room may use and that knows no room: codes of errors, logs, locks, files, and choices."""
