"""Proofs of asynchronous processing on Spark and a real broker, checked against a journal that the called functions write."""
