"""State: the stores that processors use, and the log of their changes."""
