"""What makes a kernel slower than it need be: rules over its programs, each with its words."""
