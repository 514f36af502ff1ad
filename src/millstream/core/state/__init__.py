"""State: the stores that processors use, and the log of changes from which they are rebuilt."""
