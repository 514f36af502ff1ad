"""Metrics: their declarations, and the map that carries numbers from where they are counted to where they are shown."""
