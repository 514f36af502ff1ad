"""Dead-letter topics: what is in them, and sending records back to where they came from."""
