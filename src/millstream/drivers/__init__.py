"""Drivers: each implements ports of the core with one third-party library. Drivers do not import each other."""
