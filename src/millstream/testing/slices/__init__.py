"""Slices of topics in files, to be replayed in tests."""
