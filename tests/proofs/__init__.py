"""The proofs of asynchronous processing on real Spark and a real broker, judged by a journal that the calls write themselves."""
