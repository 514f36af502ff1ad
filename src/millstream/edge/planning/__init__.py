"""What an application runs: its plan, the key ranges of its partitions, its workers and store engines."""
