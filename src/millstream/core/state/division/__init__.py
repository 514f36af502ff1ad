"""Division: splits the state of a task among tasks with smaller key ranges."""
