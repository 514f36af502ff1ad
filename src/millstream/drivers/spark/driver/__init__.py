"""Code of the Spark driver: the query that runs a topology."""
