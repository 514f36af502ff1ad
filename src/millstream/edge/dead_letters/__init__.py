"""Dead-letter topics: reads dead letters, and sends their records back to their original topics."""
