"""Fan-out on a broker: the control topic, the coordinator of changes, and the producer."""
