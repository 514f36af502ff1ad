"""Code that runs in executors: it turns chunk rows into a task's step, and the results into chunk rows. It has no Spark session."""
