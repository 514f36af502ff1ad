"""The engine: runs tasks. Drivers pass records to a task, request a step, and carry out its outcome."""
