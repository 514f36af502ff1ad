"""Asynchronous: what may run, wait or end next among many records that are under way at once. Values; time is an argument."""
