"""Python processes of Spark that are forks: see ``millstream.edge.forks.fork_server``."""
