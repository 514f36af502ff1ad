"""The engine: runs a task. Drivers feed records, ask for a step, and carry out what its outcome says."""
