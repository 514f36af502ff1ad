"""State: stores as processors see them, and the log of changes they are rebuilt from."""
