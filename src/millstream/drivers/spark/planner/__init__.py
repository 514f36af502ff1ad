"""The planner: what runs in the Python process that Spark starts in its driver to plan micro-batches."""
