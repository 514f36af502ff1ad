"""What runs in the executors: chunk rows in, a task's step, chunk rows out. Never a Spark session."""
