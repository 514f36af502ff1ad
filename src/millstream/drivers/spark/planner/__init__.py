"""The planner: code of the Python process that Spark starts in its driver to plan micro-batches."""
