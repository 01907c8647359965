"""Text of programs: lines as tokens, one row of syntax for each node, the printer and the parser."""
