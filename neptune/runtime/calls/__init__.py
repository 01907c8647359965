"""The arguments of a call: whether they are this kernel's, what they hold, and what memory they take."""
