"""Commands from other processes, and the paused and throttled topics."""
