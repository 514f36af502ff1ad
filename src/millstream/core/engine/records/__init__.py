"""The records of a task: reading them, its queues, their order, and waiting for inputs."""
