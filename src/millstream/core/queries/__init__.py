"""Queries of the committed content of stores, and their answers."""
