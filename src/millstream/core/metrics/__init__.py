"""Metrics: how one is declared, and the map in which numbers travel from where they are counted to where they are shown."""
