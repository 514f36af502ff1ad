"""Python processes of Spark that are forks: see ``penstock.edge.forks.server``."""
