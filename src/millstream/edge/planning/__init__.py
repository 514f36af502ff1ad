"""What an application runs: its plan, and the key ranges of its partitions."""
