"""Reads and writes records of topics for the lab and the command line."""
