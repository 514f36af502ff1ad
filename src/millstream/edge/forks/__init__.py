"""Spark's Python processes as forks of one server; see ``millstream.edge.forks.fork_server``."""
