"""The loop IR: Programs, their expressions, what is known of these, and how they are evaluated."""
