"""Questions about the committed content of stores, and their answers."""
