"""What runs in the Spark driver: the query that carries a topology."""
