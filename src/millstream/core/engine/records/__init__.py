"""The records of a task: the queues, the order in which records are taken, and the wait for inputs."""
