"""What a person reads of a compilation: explain, header, dumps, diagnostics of performance."""
