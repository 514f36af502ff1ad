"""Runs that end by themselves."""
