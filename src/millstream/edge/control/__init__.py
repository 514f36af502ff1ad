"""Commands from other processes, and which topics are paused or throttled."""
