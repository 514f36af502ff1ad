"""Division: the state of a task is divided among tasks with smaller key ranges."""
