"""Analyses of a topology: which parts threads may run, which parts call functions in order, and which parts can be divided."""
